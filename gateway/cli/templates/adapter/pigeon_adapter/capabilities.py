"""The capabilities of the protocol; no I/O."""

from gateway.adapter.port import Capabilities

CAPABILITIES = Capabilities(
    accepts=frozenset({"message.posted", "tool.finished"}),
    emits=frozenset({"message.posted", "tool.requested", "session.moved"}),
    # The runtime sends `idle` at the end of a turn.
    turns="signalled",
    # The status of each POST shows whether the runtime has accepted the message.
    delivery="response",
    # During a turn the runtime rejects messages with 409.
    one_message_per_turn=True,
    # The stream begins with the events after `Last-Event-ID`.
    resumes=True,
    # The stream contains our own messages, too.
    echoes=True,
)

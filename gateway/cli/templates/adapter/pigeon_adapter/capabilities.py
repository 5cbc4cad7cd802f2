"""The capabilities of the protocol; no I/O."""

from gateway.adapter.port import Capabilities

CAPABILITIES = Capabilities(
    accepts=frozenset({"message.posted", "tool.finished"}),
    emits=frozenset({"message.posted", "tool.requested", "session.moved"}),
    # The runtime says `idle` at the end of a turn.
    turns="signalled",
    # The response to each POST tells whether the runtime has accepted the message.
    delivery="response",
    # During a turn the runtime answers a message with 409.
    one_message_per_turn=True,
    # The stream begins with the events after `Last-Event-ID`.
    resumes=True,
    # The stream contains our own messages, too.
    echoes=True,
)

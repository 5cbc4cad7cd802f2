"""The abilities of Herm, as data. Pure."""

from adapters.herm import wire
from gateway.adapter.port import Capabilities
from gateway.strict_json import MAX_DEPTH

CAPABILITIES = Capabilities(
    accepts=frozenset(
        {
            "message.posted",
            "tool.finished",
            "approval.given",
            "question.answered",
            "secret.supplied",
            "turn.steered",
            "turn.interrupted",
            "opaque",
        }
    ),
    emits=frozenset(
        {
            "message.posted",
            "message.streamed",
            "thought.shared",
            "tool.requested",
            "tool.finished",
            "approval.asked",
            "question.asked",
            "secret.asked",
            "session.moved",
            "session.titled",
            "thread.sent",
            "thread.received",
        }
    ),
    turns="signalled",
    delivery="response",
    one_message_per_turn=True,
    resumes=True,
    echoes=True,
    approvals="by_id",
    creates_sessions=True,
    takes_tools="agent",
    limits={"blocks": wire.BLOCKS, "text_utf16": wire.TEXT_LENGTH, "arguments_depth": MAX_DEPTH},
)

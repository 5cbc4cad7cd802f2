"""The abilities of OpenHands, as data. Pure."""

from datetime import timedelta

from adapters.openhands import wire
from gateway.adapter.port import Capabilities
from gateway.strict_json import MAX_DEPTH

CAPABILITIES = Capabilities(
    accepts=frozenset({"message.posted", "approval.given", "turn.interrupted", "action.ordered", "opaque"}),
    emits=frozenset(
        {
            "message.posted",
            "thought.shared",
            "tool.requested",
            "tool.finished",
            "thread.sent",
            "thread.received",
            "session.moved",
            "session.titled",
            "action.ordered",
            "approval.given",
            "turn.interrupted",
        }
    ),
    turns="signalled",
    delivery="ack",
    resumes=True,
    echoes=True,
    approvals="by_state",
    creates_sessions=True,
    takes_tools="mcp",
    reports_mcp_calls=True,
    # Its client gives up after 30 s and ignores a longer `timeout`.
    mcp_hold=timedelta(seconds=25),
    limits={"message_bytes": wire.MESSAGE_BYTES, "arguments_depth": MAX_DEPTH},
)

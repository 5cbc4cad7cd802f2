"""The abilities of an OpenHands V1 agent-server, as data. Pure."""

from datetime import timedelta

from adapters.openhands.v1 import wire
from gateway.adapter.port import Capabilities
from gateway.strict_json import MAX_DEPTH

CAPABILITIES = Capabilities(
    accepts=frozenset({"message.posted", "approval.given", "turn.steered", "turn.interrupted", "opaque"}),
    emits=frozenset(
        {
            "message.posted",
            "message.streamed",
            "thought.shared",
            "tool.requested",
            "tool.finished",
            "session.moved",
        }
    ),
    turns="signalled",
    delivery="response",
    resumes=True,
    echoes=True,
    approvals="by_group",
    creates_sessions=True,
    takes_tools="mcp",
    reports_mcp_calls=True,
    # OV49: its client gives up after 300 s, and reports nothing.
    mcp_hold=timedelta(seconds=280),
    limits={"message_bytes": wire.FRAME_BYTES, "event_bytes": wire.EVENT_BYTES, "arguments_depth": MAX_DEPTH},
)

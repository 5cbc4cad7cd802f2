"""OpenHands, in the protocol that 0.62 speaks: agents that run their own tools, driven over Socket.IO."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from adapters.openhands import wire
from adapters.openhands.codec import OpenHandsCodec
from adapters.openhands.options import OpenHandsOptions
from gateway.ports.adapter import PORTS_VERSION, Capabilities, Codec, Connector, Tool
from gateway.ports.values import MAX_DEPTH

_CAPABILITIES = Capabilities(
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
    delegates=True,
    # OH44: these wait for a confirmation without a `confirmation_state` of their own.
    silent_gates=frozenset({"edit", "read", "browse_interactive"}),
    # OH40: what is said while the agent loads is acknowledged and never worked on.
    starts_deaf=True,
    creates_sessions=True,
    limits={"message_bytes": wire.MESSAGE_BYTES, "arguments_depth": MAX_DEPTH},
)


@dataclass(frozen=True, slots=True)
class OpenHandsAdapter:
    """The adapter for OpenHands."""

    name: str = "openhands"
    protocol: str = wire.PROTOCOL
    ports: int = PORTS_VERSION
    options: type[OpenHandsOptions] = OpenHandsOptions
    capabilities: Capabilities = _CAPABILITIES

    def codec(self, options: Any = None) -> Codec:
        """Make the codec; the options name the event that carries what we say, and whether a system prompt is kept."""
        if not isinstance(options, OpenHandsOptions):
            return OpenHandsCodec()
        return OpenHandsCodec(options.action_event, keep_prompt=options.keep_system_prompt)

    def connector(self, options: OpenHandsOptions, tools: tuple[Tool, ...]) -> AbstractAsyncContextManager[Connector]:
        """Make the connector of one runtime."""
        from adapters.openhands.connector import open_connector

        return open_connector(options, tools)


ADAPTER = OpenHandsAdapter()

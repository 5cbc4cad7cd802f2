"""Herm: managed Hermes agents that speak over REST and server-sent events."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from adapters.herm import wire
from adapters.herm.codec import HermCodec
from adapters.herm.options import HermOptions
from gateway.ports.adapter import PORTS_VERSION, Capabilities, Codec, Connector, Tool
from gateway.ports.values import MAX_DEPTH

_CAPABILITIES = Capabilities(
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
    names_awaited=True,
    approvals="by_id",
    creates_sessions=True,
    limits={"blocks": wire.BLOCKS, "text_utf16": wire.TEXT_LENGTH, "arguments_depth": MAX_DEPTH},
)


@dataclass(frozen=True, slots=True)
class HermAdapter:
    """The adapter for the second generation of Herm's API: agents, sessions, events."""

    name: str = "herm"
    protocol: str = "herm/2"
    ports: int = PORTS_VERSION
    options: type[HermOptions] = HermOptions
    capabilities: Capabilities = _CAPABILITIES

    def codec(self, options: Any = None) -> Codec:
        """Make the codec; no option changes what the words mean."""
        del options
        return HermCodec()

    def connector(self, options: HermOptions, tools: tuple[Tool, ...]) -> AbstractAsyncContextManager[Connector]:
        """Make the connector of one runtime."""
        from adapters.herm.connector import open_connector

        return open_connector(options, tools)


ADAPTER = HermAdapter()

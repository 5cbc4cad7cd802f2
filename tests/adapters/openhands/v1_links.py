"""What the tests of the V1 link share: options for a raw server, short limits, and a way to connect."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from adapters.openhands.v1.connector import open_connector
from adapters.openhands.v1.options import OpenHandsV1Options
from adapters.openhands.v1.tuning import V1Tuning
from gateway.testing.conformance.collector import Collector
from tests.adapters.openhands.raw_agent_server import CONVERSATION, KEY, RawAgentServer

SHORT = V1Tuning(first_frame=0.1, quiet=0.2, again=0.02, again_most=0.05, poll=0.02, page=3)
VERSIONS = ("1.58.2", "1.44.0")
"""A server with the session socket, and one with the events socket only."""


def options_for(url: str, **more: Any) -> OpenHandsV1Options:
    given = {"adapter": "openhands-v1", "url": url, "session_api_key": KEY, "conversation_id": CONVERSATION, **more}
    return OpenHandsV1Options.model_validate({name: value for name, value in given.items() if value is not None})


@asynccontextmanager
async def linked(
    server: RawAgentServer,
    record: Collector,
    *,
    resume_after: str | None = None,
    tuning: V1Tuning = SHORT,
    **more: Any,
) -> AsyncGenerator[Any]:
    async with (
        open_connector(options_for(server.url, **more), tuning) as connector,
        connector.connect(CONVERSATION, record, resume_after=resume_after) as link,
    ):
        yield link


def ids(record: Collector) -> list[str]:
    """Return the ids of the events that a link has passed on, in their order."""
    payloads: list[Any] = [frame.payload for frame in record.frames]
    return [payload["event"]["id"] if "event" in payload else payload["id"] for payload in payloads]


def cursor(record: Collector) -> str | None:
    """Return the newest cursor."""
    return next((one for one in reversed(record.cursors) if one is not None), None)

"""What the tests of the Herm link share: a receiver that knows when history ended, and short ways to connect."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from adapters.herm.connector import open_connector
from adapters.herm.options import HermOptions
from adapters.herm.tuning import PRODUCTION, HermTuning
from gateway.testing.conformance.collector import Collector
from tests.adapters.herm.raw_herm import KEY, SESSION, RawHerm


class RecordingBackend(Collector):
    """A collector that remembers how much had come when the history was over."""

    def __init__(self) -> None:
        super().__init__()
        self.before: int | None = None

    def caught_up(self, *, starting: bool | None = False) -> None:
        assert self.before is None, "a link catches up once"
        self.before = len(self.frames)
        super().caught_up(starting=starting)

    @property
    def history(self) -> list[str]:
        return [name_of(frame) for frame in self.frames[: self.before or 0]]

    @property
    def news(self) -> list[str]:
        return [name_of(frame) for frame in self.frames[self.before or 0 :]]

    @property
    def cursor(self) -> str | None:
        return next((cursor for cursor in reversed(self.cursors) if cursor is not None), None)


def name_of(frame: Any) -> str:
    return frame.payload["id"]


def options_for(server: RawHerm, **more: Any) -> HermOptions:
    given = {"adapter": "herm", "url": server.url, "api_key": KEY, "session_id": SESSION, **more}
    return HermOptions.model_validate({key: value for key, value in given.items() if value is not None})


@asynccontextmanager
async def linked(
    server: RawHerm,
    record: Collector,
    *,
    resume_after: str | None = None,
    tuning: HermTuning = PRODUCTION,
    **more: Any,
) -> AsyncGenerator[Any]:
    options = options_for(server, **more)
    async with (
        open_connector(options, tuning) as connector,
        connector.connect(SESSION, record, resume_after=resume_after) as link,
    ):
        yield link


def text(said: str, *, delta: bool = False) -> dict[str, Any]:
    return {"type": "agent.message", "content": [{"type": "text", "text": said}], "delta": delta}


def user(said: str) -> dict[str, Any]:
    return {"type": "user.message", "content": [{"type": "text", "text": said}]}


def call(number: int) -> dict[str, Any]:
    return {"type": "agent.custom_tool_use", "id": f"custom_{number}", "tool": "ask", "input": {"n": number}}


def result(number: int) -> dict[str, Any]:
    return {
        "type": "user.custom_tool_result",
        "tool_use_id": f"custom_{number}",
        "content": [{"type": "text", "text": "ok"}],
        "is_error": False,
    }


def idle(**stop_reason: Any) -> dict[str, Any]:
    return {"type": "session.status_idle", "stop_reason": stop_reason}


RUNNING = {"type": "session.status_running"}
TITLE = {"type": "session.title_updated", "title": "Cards"}

CONVERSATION: list[dict[str, Any]] = [
    user("Play."),
    RUNNING,
    {"type": "agent.thinking", "content": [{"type": "text", "text": "Hm"}], "delta": True},
    {"type": "agent.thinking", "content": [{"type": "text", "text": "Hm."}], "delta": False},
    text("I a", delta=True),
    text("sk.", delta=True),
    text("I ask."),
    call(1),
    call(2),
    idle(type="requires_action", event_ids=["custom_1", "custom_2"]),
    result(2),
    idle(type="requires_action", event_ids=["custom_1"]),
    result(1),
    RUNNING,
    {"type": "agent.tool_use", "id": "t1", "tool": "terminal", "input": {}, "requires_action": True},
    {"type": "agent.tool_result", "tool_use_id": "t1", "tool": "terminal", "status": "completed", "content": []},
    {"type": "agent.clarify_request", "request_id": "q1", "question": "?", "choices": None},
    text("Do", delta=True),
    text("Done."),
    idle(type="end_turn"),
    TITLE,
]

"""Helpers of the engine suite: a settable clock, and builders of events, calls and sessions."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from gateway.events import (
    CallId,
    Envelope,
    EventId,
    MessagePosted,
    SessionId,
    SessionOpened,
    Text,
    ToolFinished,
    ToolRequested,
    text_of,
)
from gateway.store.call import Call, Open, Settle
from gateway.store.port import Engine, NewSession
from gateway.store.rows import Page, SessionRow
from gateway.store.step import Committed, Step

START = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
DAY = timedelta(days=1)
ALICE = SessionId("alice")
BOB = SessionId("bob")

_numbers = count(1)


class FakeClock:
    """A clock that advances only when a test sets it."""

    def __init__(self) -> None:
        self._now = START

    def now(self) -> datetime:
        return self._now

    def timestamp(self) -> float:
        return self._now.timestamp()

    def monotonic(self) -> float:
        return (self._now - START).total_seconds()

    def turn(self, by: timedelta) -> None:
        self._now += by


def new(event: Any, **more: Any) -> Envelope:
    """Make an event to commit, by default from the runtime."""
    members: dict[str, Any] = {"sequence": 0, "direction": "from_runtime", "recorded_at": START, **more}
    return Envelope(EventId(f"event-{next(_numbers)}"), members.pop("session_id", ALICE), event=event, **members)


def said(text: str = "hello", **more: Any) -> Envelope:
    return new(MessagePosted(content=(Text(text=text),)), **more)


def asked(native_call_id: str = "native-1", **more: Any) -> Envelope:
    return new(ToolRequested(native_call_id=native_call_id, tool="ask_for_cards", arguments={"rank": "7"}), **more)


def answered(native_call_id: str = "native-1", **more: Any) -> Envelope:
    return new(
        ToolFinished(native_call_id=native_call_id, tool="ask_for_cards", outcome="success", result={"cards": []}),
        direction="to_runtime",
        **more,
    )


def call(call_id: str = "call-1", *, request_index: int | None = 0, **more: Any) -> Open:
    """Make an Open of a call that the first event of its step requests."""
    members: dict[str, Any] = {
        "session_id": ALICE,
        "runtime": "finn",
        "native_call_id": "native-1",
        "n": 0,
        "tool": "ask_for_cards",
        "args_sha": "a" * 64,
        "state": "dispatched",
        "attempt": 1,
        "created_at": START,
        "deadline_at": START + timedelta(seconds=120),
        "request_sequence": 0,
        **more,
    }
    return Open(Call(CallId(call_id), **members), request_index)


def settled(call_id: str = "call-1", **more: Any) -> Settle:
    members: dict[str, Any] = {"state": "succeeded", "outcome_sha": "b" * 64, "outcome_index": 0, **more}
    return Settle(CallId(call_id), **members)


async def open_session(
    engine: Engine,
    session_id: SessionId = ALICE,
    *,
    runtime: str = "finn",
    native_id: str | None = None,
    labels: Mapping[str, str] | None = None,
    state: str = "starting",
) -> SessionRow:
    """Open a session with the first event `session.opened`."""
    native = native_id or f"native-of-{session_id}"
    row, _ = await engine.open_session(
        NewSession(
            session_id=session_id,
            runtime=runtime,
            protocol="test/1",
            native_id=native,
            labels=labels or {},
            first=new(SessionOpened(runtime=runtime, protocol="test/1", native_id=native)),
            state=state,
        )
    )
    return row


async def open_call(engine: Engine, session_id: SessionId = ALICE, call_id: str = "call-1", **more: Any) -> Committed:
    """Commit a call with its request event."""
    native = more.get("native_call_id", "native-1")
    return await engine.commit(Step(session_id, (asked(native),), calls=(call(call_id, **more),)))


async def close_session(engine: Engine, session_id: SessionId = ALICE) -> None:
    await engine.commit(Step(session_id, state="closed"))


async def row_of(engine: Engine, session_id: SessionId = ALICE) -> SessionRow:
    row = await engine.session(session_id)
    assert row is not None
    return row


async def journal(engine: Engine, session_id: SessionId = ALICE, *, after: int = 0) -> list[Envelope]:
    """Read all events behind a sequence, page by page."""
    found, more = list[Envelope](), True
    while more:
        page = await engine.read(session_id, after=after)
        found += page
        after, more = page[-1].sequence if page else after, page.more
    return found


async def texts(engine: Engine, session_id: SessionId = ALICE) -> list[str]:
    """Read the texts of a session's messages, in order."""
    envelopes = await journal(engine, session_id)
    return [text_of(e.event.content) for e in envelopes if isinstance(e.event, MessagePosted)]


ALL = Page(limit=1_000)

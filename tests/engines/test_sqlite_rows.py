"""A store whose tables follow later holds the same rows, and answers the same, as one that writes them at once."""

import asyncio
import shutil
import sqlite3
import tempfile
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings, strategies as st

from gateway.errors import DragomanError, InvalidRequest
from gateway.events import CallId, Envelope, InteractionId, SessionId
from gateway.store.call import (
    Accept,
    CallChange,
    CameLate,
    Claim,
    Dismissed,
    MarkCanceling,
    Progressed,
    Redriven,
    Requeue,
)
from gateway.store.memory import MemoryEngine
from gateway.store.memory_tables import SharedMemory
from gateway.store.port import Engine
from gateway.store.records import call_row, micros, micros_or_none
from gateway.store.rows import Page, Send, SessionFilter
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.tuning import SqliteTuning
from gateway.store.step import (
    RUNTIME,
    Enqueue,
    InteractionChange,
    InteractionState,
    Keep,
    SendChange,
    SendState,
    Step,
)
from gateway.testing.conformance.engine_words import (
    ALICE,
    BOB,
    START,
    FakeClock,
    answered,
    asked,
    call,
    said,
    settled,
)
from tests.engines.sqlite_looker import all_of

SESSIONS, COPIES = (ALICE, BOB), "destination:log"
LATER = SqliteTuning(spread_after=3_600.0, behind=7_200.0)
ENDS: list[InteractionState] = ["answered", "expired", "moot"]
CALLS = [CallId(f"call-{n}") for n in range(3)]

times = st.integers(-2, 5).map(lambda hours: START + timedelta(hours=hours))
calls = st.sampled_from(CALLS)
targets = st.sampled_from([RUNTIME, COPIES])
states: st.SearchStrategy[SendState] = st.sampled_from(
    ["pending", "pending", "delivered", "refused", "moot", "unknown", "dead"]
)
reasons = st.sampled_from([None, "why"])


def _home(call_id: CallId) -> SessionId:
    return SESSIONS[CALLS.index(call_id) % 2]


def _open(call_id: CallId, state: str, due_at: datetime | None) -> CallChange:
    return call(call_id, state=state, native_call_id=call_id, due_at=due_at)


def _settle(call_id: CallId, state: str, dead: bool, error: str | None) -> CallChange:
    return settled(call_id, state=state, dead=dead, error=error, unknown=dead)


def _word(text: str, key: str | None) -> Envelope:
    return said(text.encode("utf-8", "replace").decode(), dedupe_key=key)


def _say(session_id: SessionId, said: list[Envelope], sends: list[Enqueue]) -> Step:
    return Step(session_id, tuple(said), sends=tuple(sends))


def _move(change: CallChange, sends: list[Enqueue]) -> Step:
    return Step(_home(change.call_id), (asked(),), calls=(change,), sends=tuple(sends))


def _send(session_id: SessionId, changes: list[SendChange]) -> Step:
    return Step(session_id, send_changes=tuple(changes))


def _question(number: int, sequence: int, expires_at: datetime | None) -> InteractionChange:
    return InteractionChange(InteractionId(f"i-{number}"), "waiting", "approval", sequence, expires_at)


def _answer(number: int, state: InteractionState, by: str | None) -> InteractionChange:
    return InteractionChange(InteractionId(f"i-{number}"), state, answered_by=by)


def _ask(session_id: SessionId, changes: list[InteractionChange]) -> Step:
    return Step(session_id, interactions=tuple(changes))


def _keep(session_id: SessionId, keep: Keep) -> Step:
    return Step(session_id, (said(),), keeps=(keep,))


def _note(session_id: SessionId, cursor: str | None, snapshot: bytes | None, state: str | None) -> Step:
    return Step(session_id, cursor=cursor, snapshot=snapshot, state=state)


def _expect(session_id: SessionId, fence: int | None, last_sequence: int | None) -> Step:
    return Step(session_id, (said(),), fence=fence, last_sequence=last_sequence)


sessions = st.sampled_from(SESSIONS)
opens = st.builds(_open, calls, st.sampled_from(["queued", "dispatched"]), st.none() | times)
settles = st.builds(
    _settle,
    calls,
    st.sampled_from(["succeeded", "failed", "canceled", "expired"]),
    st.booleans(),
    st.none() | st.just("why"),
)
moves: st.SearchStrategy[CallChange] = st.one_of(
    st.builds(Claim, calls, st.integers(1, 5)),
    st.builds(Accept, calls, times),
    st.builds(Requeue, calls, times, st.just("again"), st.booleans()),
    st.builds(MarkCanceling, calls, times),
    st.builds(Progressed, calls, st.integers(1, 99)),
    st.builds(Redriven, calls),
    st.builds(Dismissed, calls),
    st.builds(CameLate, calls),
)
events = st.one_of(
    st.builds(_word, st.text(max_size=5), st.sampled_from([None, "k1", "k2", "k3"])),
    st.builds(asked, st.just("native-1")),
    st.builds(answered, st.just("native-1"), caused_by=st.just(1)),
)
asks = st.one_of(
    st.builds(_question, st.integers(0, 2), st.integers(1, 3), st.none() | times),
    st.builds(_answer, st.integers(0, 2), st.sampled_from(ENDS), st.none() | st.just("me")),
)
words = st.builds(
    _say,
    sessions,
    st.lists(events, min_size=1, max_size=3),
    st.lists(st.builds(Enqueue, st.sampled_from([0, 0, 0, 1]), targets), max_size=2),
)
changed = [
    st.builds(_move, change, st.lists(st.builds(Enqueue, st.just(0), targets), max_size=2))
    for change in (opens, moves, settles)
]
others = st.one_of(
    st.builds(
        _send,
        sessions,
        st.lists(
            st.builds(SendChange, st.integers(1, 8), targets, states, st.integers(0, 3), st.none() | times, reasons),
            min_size=1,
            max_size=4,
        ),
    ),
    st.builds(_ask, sessions, st.lists(asks)),
    st.builds(
        _keep,
        sessions,
        st.builds(Keep, st.sampled_from(["x", "y"]), st.just("scope"), st.text("ab", max_size=1), times, st.just((0,))),
    ),
    st.builds(
        _note,
        sessions,
        st.none() | st.text("123", min_size=1, max_size=2),
        st.none() | st.binary(max_size=3),
        st.none() | st.sampled_from(["running", "idle", "closed"]),
    ),
    st.builds(
        _expect,
        sessions,
        st.none() | st.integers(0, 1),
        st.none() | st.integers(1, 9),
    ),
)
orders: st.SearchStrategy[Step | str] = st.one_of(
    words,
    *changed,
    others,
    words,
    *changed,
    st.sampled_from(["spread", "kill", "together", "turn", "compare", "poison"]),
)


class Pair:
    """The two stores, told the same."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self._folder = folder
        self._copies = 0
        self._shared = SharedMemory(self.clock)
        self._stack = AsyncExitStack()

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._copies}.db"

    async def start(self) -> None:
        self._memory = await self._stack.enter_async_context(MemoryEngine(self.clock, self._shared))
        self._lazy = await self._stack.enter_async_context(SqliteEngine(self._path, self.clock, tuning=LATER))
        for session_id in SESSIONS:
            first = said("opened", session_id=session_id)
            for engine in (self._memory, self._lazy):
                await engine.open_session(
                    session_id=session_id, runtime="finn", protocol="p", native_id=session_id, labels={}, first=first
                )
                await engine.beat("me", url="http://me", ttl=timedelta(days=9))
                await engine.take("me", session_id)

    async def stop(self) -> None:
        await self._stack.aclose()

    async def spread(self) -> None:
        await self._lazy.health()

    async def kill(self) -> None:
        """Go on with what a killed process leaves; the one before ends in its own folder."""
        before = self._path
        self._copies += 1
        for side in ("", "-wal"):
            shutil.copy(before.with_name(before.name + side), self._path.with_name(self._path.name + side))
        self._lazy = await self._stack.enter_async_context(SqliteEngine(self._path, self.clock, tuning=LATER))
        await self._lazy.beat("me", url="http://me", ttl=timedelta(days=9))

    async def commit(self, steps: list[Step]) -> None:
        """Commit steps of one batch, and compare what is said to each."""
        expected = [await _outcome(self._memory, step) for step in steps]
        assert await asyncio.gather(*(_outcome(self._lazy, step) for step in steps)) == expected

    async def poison(self) -> None:
        """Let a batch be undone, after which nothing is known but what is on disk."""
        with pytest.raises(InvalidRequest):
            await self._lazy.commit(Step(ALICE, cursor="\ud800"))

    async def compare_answers(self) -> None:
        assert await _answers(self._lazy, self.clock.now()) == await _answers(self._memory, self.clock.now())

    async def compare_rest(self) -> None:
        assert await _rest(self._lazy) == await _rest(self._memory)

    def compare_rows(self) -> None:
        tables = self._shared.tables
        with all_of(self._path) as file:
            assert _rows(file, "events", "session_id, seq") == [
                tuple(record) for name in sorted(SESSIONS) for record in tables.sessions[name].events
            ]
            assert [row[1:] for row in _rows(file, "calls", "id")] == [call_row(one) for one in tables.calls.values()]
            assert _rows(file, "outbound", "session_id, seq, target") == sorted(map(_send_row, tables.sends.values()))
            assert [row[1:] for row in _rows(file, "interactions", "id")] == [*map(tuple, tables.interactions.values())]
            assert _rows(file, "idempotency", "scope, key") == sorted(
                (*place, answer.request_sha, answer.response, micros(answer.expires_at))
                for place, answer in tables.answers.items()
            )
            kept = {name: one for name, one in tables.sessions.items() if one.snapshot is not None}
            assert _rows(file, "snapshots", "session_id") == [
                (name, one.snapshot) for name, one in sorted(kept.items())
            ]
            columns = "session_id, state, last_seq, min_seq, fence, size, cursor, updated_at, owner"
            assert _rows(file, "sessions", "session_id", columns) == [
                (name, one.head.state, *one.head[3:], one.cursor, one.updated_at, one.owner)
                for name, one in sorted(tables.sessions.items())
            ]


def _rows(file: sqlite3.Connection, table: str, order: str, columns: str = "*") -> list[tuple[Any, ...]]:
    return file.execute(f"SELECT {columns} FROM {table} ORDER BY {order}").fetchall()  # noqa: S608 - names of the schema


def _send_row(send: Send) -> tuple[Any, ...]:
    due_at, created_at = micros_or_none(send.due_at), micros(send.created_at)
    place = (send.session_id, send.sequence, send.target)
    return (*place, send.lane, send.state, send.attempt, due_at, send.reason, created_at)


async def _outcome(engine: Engine, step: Step) -> Any:
    try:
        return await engine.commit(step)
    except DragomanError as exc:
        return type(exc)


async def _answers(engine: Engine, now: datetime) -> list[Any]:
    """Ask what is asked often, of which nothing brings tables up to date."""
    found: list[Any] = []
    for session_id in SESSIONS:
        found.append(await engine.session(session_id))
        found += [await engine.read(session_id, after=after, limit=limit) for after, limit in ((0, 500), (2, 2))]
        found += [await engine.pending_sends(target=target, session_id=session_id) for target in (RUNTIME, COPIES)]
    found.append({one.instance_id: one.sessions for one in await engine.instances()})
    for open_only in (False, True):
        rows, _ = await engine.sessions(Page(limit=3), SessionFilter(open_only=open_only), newest_first=open_only)
        found.append(rows)
    for target in (RUNTIME, COPIES):
        found.append(await engine.next_send_due(target))
        found += [await engine.pending_sends(target=target, due_before=now, limit=limit) for limit in (1, 500)]
        found.append(await engine.pending_sends(target=target))
    return [*found, *[await engine.call(call_id) for call_id in CALLS]]


async def _rest(engine: Engine) -> list[Any]:
    """Ask for what takes tables that are up to date, where anything is held that concerns it."""
    found: list[Any] = [await engine.recall(key=key, scope="scope") for key in ("x", "y")]
    found += [await engine.interaction(InteractionId(f"i-{number}")) for number in range(3)]
    for session_id in SESSIONS:
        found += [await engine.open_calls(session_id), await engine.latest_call(session_id, "call-1")]
        found += [await engine.sends_of(session_id, sequence) for sequence in range(1, 4)]
    return found


async def drive(orders: list[Step | str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(Path(folder))
        await pair.start()
        try:
            waiting: list[Step] = []
            together = False
            for order in orders:
                if isinstance(order, Step):
                    waiting.append(order)
                    if together:
                        continue
                await pair.commit(waiting)
                waiting, together = [], False
                match order:
                    case "spread":
                        await pair.spread()
                    case "kill":
                        await pair.kill()
                    case "together":
                        together = True
                    case "turn":
                        pair.clock.turn(timedelta(hours=1))
                    case "poison":
                        await pair.poison()
                    case "compare":
                        await pair.compare_answers()
                    case _:
                        pass
            await pair.commit(waiting)
            await pair.compare_answers()
            pair.compare_rows()
            await pair.compare_rest()
            pair.compare_rows()
        finally:
            await pair.stop()


# Shrinking would open thousands of stores; the steps are printed as they are.
@settings(max_examples=20, deadline=None, database=None, phases=(Phase.generate,))
@given(st.lists(orders, min_size=30, max_size=60))
def test_rows_are_the_same_after_any_order_of_steps(orders: list[Step | str]) -> None:
    asyncio.run(drive(orders))

"""Recorded calls that wait for the end of a catch-up: each is run or ends with an outcome, however many and large."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from gateway.adapter.port import Capabilities, Codec, Frame, Link, Receiver
from gateway.core.calls import OVERLOADED
from gateway.core.state import MOST_WANTED
from gateway.errors import LinkLost
from gateway.events import Draft, Event, SessionId, SessionMoved, ToolCanceled, ToolFinished, ToolRequested
from gateway.runtime.session.load import load_view, read_wanted
from gateway.runtime.signals import WantedDue
from gateway.runtime.system_clock import SystemClock
from gateway.runtime.tuning import Tuning
from gateway.store.call import SETTLED
from gateway.store.sqlite import SqliteEngine
from tests.engines import postgres_server
from tests.scenarios.environment import Running, until
from tests.scenarios.plain_runtime import PlainCodec, PlainRuntime, plain_gateway

LARGE = 4 * 1024 * 1024 - 200 * 1024
MIDDLE = 200 * 1024
QUICK = Tuning(link_first=0.01, link_longest=0.05, snapshot_every=20)


class HistoryCodec(PlainCodec):
    """Outcomes of host calls in the history were given by another client."""

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        return tuple(replace(one, echo=isinstance(one.event, ToolFinished)) for one in super().decode(frame))


def _able() -> Capabilities:
    return replace(PlainRuntime().capabilities, resumes=True, echoes=True)


@dataclass
class History(PlainRuntime):
    """A runtime that replays its history and says when it is over."""

    capabilities: Capabilities = field(default_factory=_able)
    said: int = 0
    connections: int = 0
    _lost: asyncio.Event = field(default_factory=asyncio.Event)

    def codec(self, options: Any = None) -> Codec:
        del options
        return HistoryCodec()

    @asynccontextmanager
    async def _connect(self, receiver: Receiver) -> AsyncGenerator[Link]:
        self._lost, self._receiver = asyncio.Event(), receiver
        self.connections += 1
        yield self

    async def wait_closed(self) -> str:
        await self._lost.wait()
        raise LinkLost("gone")

    def catch_up(self) -> None:
        assert self._receiver is not None
        self._receiver.caught_up()

    async def lose(self, running: Running) -> None:
        """Lose the link, and come back with the history not yet over."""
        before = self.connections
        self._lost.set()

        async def returned() -> bool:
            return self.connections > before

        await until(returned)
        await running.wait_link("up")

    async def tell(self, running: Running, event: Event) -> None:
        """Say something, and wait until it is on record."""
        session_id, self.said = await running.session(), self.said + 1
        before = await _last(running, session_id)
        self.say(event, f"n-{self.said}")

        async def recorded() -> bool:
            return await _last(running, session_id) > before

        await until(recorded)


async def _last(running: Running, session_id: str) -> int:
    return (await running.get(f"/v1/sessions/{session_id}"))["last_sequence"]


def ask(native: str, size: int = 0) -> ToolRequested:
    return ToolRequested(native_call_id=native, tool="work", arguments={"text": "x" * size}, runs_in="host")


async def calls(running: Running) -> dict[str, dict[str, Any]]:
    """Read all calls by native id."""
    found: dict[str, dict[str, Any]] = {}
    after: str | None = None
    while True:
        page = await running.get("/v1/calls", limit=500, **({} if after is None else {"after": after}))
        found |= {one["native_call_id"]: one for one in page["data"]}
        if (after := page["next"]) is None:
            return found


async def all_ended(running: Running, count: int) -> dict[str, dict[str, Any]]:
    async def look() -> dict[str, dict[str, Any]] | None:
        found = await calls(running)
        return found if sum(one["state"] in SETTLED.values() for one in found.values()) >= count else None

    return await until(look)


@asynccontextmanager
async def at_work(folder: Path, engine: dict[str, Any], **limits: Any) -> AsyncGenerator[tuple[Running, History]]:
    written = {
        "engine": engine,
        "executors": {"work": {"type": "static", "result": "done"}},
        "routes": [{"match": {"tool": "work"}, "to": "work"}],
        "limits": {"drain": "1s", **limits},
    }
    async with plain_gateway(folder, settings=written, tuning=QUICK, runtime=History()) as (running, runtime):
        assert isinstance(runtime, History)
        yield running, runtime


@asynccontextmanager
async def _engine(kind: str, folder: Path) -> AsyncGenerator[dict[str, Any]]:
    if kind == "sqlite":
        yield {"type": "sqlite", "path": str(folder / "waiting.db")}
        return
    schema = postgres_server.new_schema()
    try:
        yield {"type": "postgres", "dsn": postgres_server.dsn(), "schema": schema}
    finally:
        await postgres_server.drop_schema(schema)


ENGINES = ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)]


@pytest.fixture(params=ENGINES)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    async with _engine(request.param, tmp_path) as made:
        yield made


@pytest.mark.parametrize("size", [MIDDLE, pytest.param(LARGE, marks=pytest.mark.slow)])
async def test_thirty_large_calls_that_wait_at_a_catch_up_all_run_after_a_restart(
    tmp_path: Path, engine: dict[str, Any], size: int
) -> None:
    async with at_work(tmp_path, engine) as (running, runtime):
        for number in range(30):
            await runtime.tell(running, ask(f"c-{number}", size))
        assert await calls(running) == {}
    async with at_work(tmp_path, engine) as (running, runtime):
        runtime.catch_up()
        ended = await all_ended(running, 30)
        assert {one["state"] for one in ended.values()} == {"succeeded"}
        assert len(ended) == 30


async def test_a_call_of_the_history_that_no_memory_can_hold_ends_as_overloaded(
    tmp_path: Path, engine: dict[str, Any]
) -> None:
    async with at_work(tmp_path, engine, open_calls=5_000) as (running, runtime):
        for number in range(MOST_WANTED + 20):
            runtime.say(ask(f"c-{number}"), f"c-{number}")
            if number % 200 == 199:
                await runtime.tell(running, SessionMoved(state="running"))
        runtime.catch_up()
        ended = await all_ended(running, MOST_WANTED + 20)
        refused = {native for native, one in ended.items() if one.get("error") == OVERLOADED}
        assert refused == {f"c-{number}" for number in range(MOST_WANTED, MOST_WANTED + 20)}
        assert {one["state"] for native, one in ended.items() if native not in refused} == {"succeeded"}
        heard = [one["native_call_id"] for one in runtime.heard if one["kind"] == "tool.finished"]
        assert sorted(heard) == sorted(ended)


async def test_the_requests_of_a_step_follow_those_of_the_step_before(tmp_path: Path) -> None:
    path = tmp_path / "waiting.db"
    async with at_work(tmp_path, {"type": "sqlite", "path": str(path)}) as (running, runtime):
        session_id = SessionId(await running.session())
        for number in range(3):
            await runtime.tell(running, ask(f"c-{number}", LARGE // 2))
    async with SqliteEngine(path, SystemClock()) as engine:
        view = await load_view(engine, session_id)
        found, after = list[list[str]](), 0
        while requests := (await read_wanted(engine, view, WantedDue(after))).requests:
            found.append([request.native_call_id for _, request in requests])
            after = requests[-1][0]
    assert found == [["c-0"], ["c-1"], ["c-2"]]


Move = tuple[str, int]
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from([10, MIDDLE, MIDDLE * 5, LARGE])),
        st.tuples(st.just("flood"), st.sampled_from([3, 40])),
        st.tuples(st.sampled_from(["answer", "cancel"]), st.integers(0, 50)),
        st.tuples(st.sampled_from(["catch up", "lose", "restart", "end"]), st.just(0)),
    ),
    max_size=12,
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_each_recorded_host_call_has_a_call_after_every_restart_unless_its_runtime_needs_none(kind: str) -> None:
    @settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(MOVES)
    @example([("flood", MOST_WANTED + 10), ("restart", 0), ("ask", LARGE), ("ask", LARGE), ("lose", 0)])
    @example([("ask", LARGE)] * 4 + [("catch up", 0), ("ask", LARGE), ("lose", 0), ("ask", LARGE), ("restart", 0)])
    def check(moves: list[Move]) -> None:
        with TemporaryDirectory() as folder:
            asyncio.run(_play(Path(folder), kind, moves))

    check()


async def _play(folder: Path, kind: str, moves: list[Move]) -> None:
    """Make the moves in as many processes as they have restarts; then each request is accounted for."""
    asked: list[str] = []
    excused: set[str] = set()
    left = list(moves)
    number = 0
    async with _engine(kind, folder) as engine:
        while left or number == 0:
            async with at_work(folder, engine) as (running, runtime):
                number += 1
                runtime.said = number * 100_000
                while left and (move := left.pop(0))[0] != "restart":
                    await _make(running, runtime, move, asked, excused)
                if not left:
                    runtime.catch_up()
                    await _all_accounted_for(running, asked, excused)


async def _make(running: Running, runtime: History, move: Move, asked: list[str], excused: set[str]) -> None:
    match move:
        case ("ask", size):
            asked.append(f"c-{len(asked)}")
            await runtime.tell(running, ask(asked[-1], size))
        case ("flood", count):
            for _ in range(count):
                asked.append(f"c-{len(asked)}")
                runtime.say(ask(asked[-1]), asked[-1])
                if len(asked) % 200 == 0:
                    await runtime.tell(running, SessionMoved(state="running"))
            await runtime.tell(running, SessionMoved(state="running"))
        case ("answer", which) if asked:
            native = asked[which % len(asked)]
            excused.add(native)
            runtime.say(ToolFinished(native_call_id=native, tool="work", outcome="success", result=1), f"a-{native}")
        case ("cancel", which) if asked:
            native = asked[which % len(asked)]
            excused.add(native)
            await runtime.tell(running, ToolCanceled(native_call_id=native))
        case ("end", _):
            excused.update(asked)
            await runtime.tell(running, SessionMoved(state="idle"))
        case ("catch up", _):
            runtime.catch_up()
        case ("lose", _):
            await runtime.lose(running)
        case _:
            pass


async def _all_accounted_for(running: Running, asked: list[str], excused: set[str]) -> None:
    async def look() -> bool:
        found = await calls(running)
        return set(asked) - excused <= set(found) and {one["state"] for one in found.values()} <= {*SETTLED.values()}

    await until(look)

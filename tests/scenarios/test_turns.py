"""Many sessions in one turn of the loop: the fault of one concerns no other, and a full store loses no step."""

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from math import inf
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from gateway.adapter.port import Frame, Receipt
from gateway.errors import Elsewhere
from gateway.events import MessagePosted, SessionId, ToolFinished, ToolRequested, dump_event
from gateway.runtime.views import News
from gateway.serve import SWITCH_INTERVAL
from gateway.store.step import Committed
from tests.pace import PATIENCE, within
from tests.scenarios.crowd import AgentLink, CrowdRuntime, HeldEngine, Results, opened, text
from tests.scenarios.environment import Running, until
from tests.scenarios.plain_runtime import plain_gateway

STATIC: Mapping[str, Any] = {
    "executors": {"cards": {"type": "static", "result": 7}},
    "routes": [{"match": {"tool": "*"}, "to": "cards"}],
}


@asynccontextmanager
async def crowd(
    folder: Path, size: int, *, runtime: CrowdRuntime | None = None, **more: Any
) -> AsyncGenerator[tuple[Running, CrowdRuntime, HeldEngine, dict[str, SessionId]]]:
    runtime, engine = runtime or CrowdRuntime(), HeldEngine(folder)
    parts = {"engine": engine, **more.pop("parts", {})}
    async with plain_gateway(folder, runtime=runtime, parts=parts, **more) as (running, _):
        ids = await opened(running, engine, [f"s{number:05d}" for number in range(size)])
        yield running, runtime, engine, ids


async def follow(running: Running, session_id: SessionId, wanted: Sequence[str]) -> list[str]:
    """Follow a session until its texts and results are as many as wanted; return them."""
    found: list[str] = []
    async with asyncio.timeout(PATIENCE), aclosing(running.gateway.follow(session_id, after=0)) as items:
        async for item in items:
            for one in item.items if isinstance(item, News) else ():
                match one.event:
                    case MessagePosted(content=(first, *_)) if first.type == "text":
                        found.append(first.text)
                    case ToolFinished(native_call_id=str(call)):
                        found.append(call)
                    case _:
                        pass
            if len(found) >= len(wanted):
                return found
    return found


async def test_a_decision_that_fails_for_one_of_256_sessions_concerns_no_other(tmp_path: Path) -> None:
    async with crowd(tmp_path, 256, settings=STATIC) as (running, runtime, engine, ids):
        bad = "s00100"
        followers = {
            name: asyncio.create_task(follow(running, session_id, ["before", "after", "call"]))
            for name, session_id in ids.items()
        }
        engine.offered = 0
        for name in ids:
            runtime.says(name, text("before"))
            if name == bad:
                # This number has no hash.
                runtime.asks(name, "huge", n=2**70)
            else:
                runtime.says(name, text("after"))
            runtime.asks(name, "call")
        await runtime.wait(lambda: all(runtime.results_of(name) == ["call"] for name in ids), "results")
        assert engine.offered > 1, "several sessions decide in one turn"
        runtime.says(bad, text("again"))
        seen = {name: await follower for name, follower in followers.items()}
        assert seen.pop(bad) == ["before", "call", "again"]
        assert set(map(tuple, seen.values())) == {("before", "after", "call")}
        assert [one["event"]["reason"] for one in await running.events(ids[bad], "frame.rejected")] == [
            "the gateway failed on it (TypeError)"
        ]


async def test_an_effect_that_fails_for_one_of_256_sessions_concerns_no_other(tmp_path: Path) -> None:
    async with crowd(tmp_path, 256, settings=STATIC) as (running, runtime, engine, ids):
        bad, *others = ids
        followers = {
            name: asyncio.create_task(follow(running, session_id, ["news" if name == bad else "call", "next"]))
            for name, session_id in ids.items()
        }

        def spoil(results: Results) -> Results:
            """Report one more event of the session, which its effects cannot read."""
            return [(step, _with_empty(result) if step.session_id == ids[bad] else result) for step, result in results]

        engine.reports, engine.held, link = spoil, True, runtime.links[bad]
        news = {"kind": "message.posted", "content": "news"}
        posting = asyncio.create_task(running.post(f"/v1/sessions/{ids[bad]}/events", news, status=202))
        for name in others:
            runtime.asks(name, "call")
        await until(lambda: _kept(engine, 256))
        engine.let_go()
        engine.reports = lambda results: results
        await runtime.wait(lambda: all(runtime.results_of(name) for name in others), "results")
        # The first effect fails, and the client is answered by a later one.
        await posting
        # The session starts again from the store, with a new link.
        await runtime.wait(lambda: runtime.links[bad] is not link, "a new link")
        assert (await running.metrics())['dragoman_faults_total{part="session"}'] == 1
        for name in ids:
            runtime.asks(name, "next")
        await runtime.wait(lambda: all(runtime.results_of(name)[-1:] == ["next"] for name in ids), "next results")
        seen = {name: await follower for name, follower in followers.items()}
        assert seen.pop(bad) == ["news", "next"]
        assert set(map(tuple, seen.values())) == {("call", "next")}
        assert all(runtime.results_of(name) == ["call", "next"] for name in others)


async def test_a_client_of_a_session_that_fails_and_restarts_here_reads_that(tmp_path: Path) -> None:
    async with crowd(tmp_path, 1) as (running, _, engine, ids):
        ((_, session_id),) = ids.items()
        engine.reports = lambda results: [(step, ValueError("no report")) for step, _ in results]
        engine.held = True
        path, said = f"/v1/sessions/{session_id}/events", {"kind": "message.posted", "content": "news"}
        posting = asyncio.create_task(running.http.post(path, json=said))
        await until(lambda: _kept(engine, 1))
        engine.cut_off = True
        engine.let_go()
        engine.reports = lambda results: results
        refused = await posting
        text = "the session restarts on this instance; the request may have been recorded"
        assert (refused.status_code, refused.json()["detail"]) == (503, text)
        # Until it has restarted, no other instance owns it.
        with pytest.raises(Elsewhere, match=r"^the session is starting, or another instance owns it$"):
            await running.gateway.post(session_id, [MessagePosted.model_validate(said)], by="backend")
        engine.cut_off = False
        await running.post(path, said, status=202)


def _with_empty(result: Committed | Exception) -> Committed | Exception:
    assert isinstance(result, Committed)
    empty = replace(result.envelopes[0], sequence=0, event=cast("Any", None))
    return replace(result, envelopes=(empty, *result.envelopes))


async def test_a_store_with_room_for_10_of_300_steps_gets_them_all_in_turn(tmp_path: Path) -> None:
    async with crowd(tmp_path, 300, settings=STATIC) as (running, runtime, engine, ids):
        engine.most, engine.held, engine.highest = 10, True, 0
        for name in ids:
            runtime.asks(name, "call")
        await until(lambda: _kept(engine, 10))
        # A session without room in the store has no slot either.
        assert [one.running for one in running.gateway.status.activity().executors] == [10]
        assert (await running.http.get("/healthz")).status_code == 200
        assert not any(runtime.results_of(name) for name in ids)
        engine.let_go()
        await runtime.wait(lambda: all(runtime.results_of(name) for name in ids), "results")
        assert engine.highest == 10
        assert all(runtime.results_of(name) == ["call"] for name in ids)
        await until(lambda: _idle(running))


async def _kept(engine: HeldEngine, count: int) -> bool:
    return engine.kept == count


async def _idle(running: Running) -> bool:
    return [one.running for one in running.gateway.status.activity().executors] == [0]


@pytest.fixture
def _as_served() -> Iterator[None]:
    """The process switches between threads as `serve` does."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.usefixtures("_as_served")
async def test_a_call_does_not_wait_for_64_sessions_with_256_signals_each(tmp_path: Path) -> None:
    async with crowd(tmp_path, 65, settings=STATIC) as (running, runtime, _, ids):
        *others, lone = ids
        took: list[float] = []
        for number in range(5):
            runtime.floods(others, 256)
            began = monotonic()
            runtime.asks(lone, f"call {number}")
            await runtime.wait(lambda count=number + 1: len(runtime.results_of(lone)) == count, "the result")
            took.append(monotonic() - began)
            total = 256 * (number + 1)
            await until(lambda total=total: _count_messages(running, [ids[name] for name in others], total))
        assert sorted(took)[2] < within(0.05), took


async def _count_messages(running: Running, ids: Sequence[SessionId], count: int) -> bool:
    rows = [await running.gateway.session(session_id) for session_id in ids]
    return all(row.last_sequence >= count for row in rows)


class EagerRuntime(CrowdRuntime):
    """A runtime with agents that ask again at each result."""

    eager = True

    def take(self, link: AgentLink, frames: Sequence[Frame]) -> Receipt | Awaitable[Receipt]:
        receipt = super().take(link, frames)
        if self.eager and any(frame.payload["kind"] == "tool.finished" for frame in frames):
            again = ToolRequested(native_call_id=str(self.taken), tool="ask", arguments={})
            asyncio.get_running_loop().call_soon(link.receiver.frame, Frame("event", dump_event(again)))
        return receipt


async def test_a_session_with_2000_signals_continues_beside_sessions_that_never_pause(tmp_path: Path) -> None:
    async with crowd(tmp_path, 65, runtime=EagerRuntime(), settings=STATIC) as (running, runtime, _, ids):
        *eager, flooded = ids
        for name in eager:
            runtime.asks(name, "first")
        runtime.floods([flooded], 2_000)
        await until(lambda: _count_messages(running, [ids[flooded]], 2_000))
        assert isinstance(runtime, EagerRuntime)
        runtime.eager = False


@pytest.mark.slow
@pytest.mark.timing
async def test_10_000_sessions_that_are_ready_at_once_do_not_hold_up_the_health_check(tmp_path: Path) -> None:
    settings = {**STATIC, "limits": {"drain": "1s", "sessions": 20_000}}
    async with crowd(tmp_path, 10_000, settings=settings) as (running, runtime, _, ids):
        # As `serve` does once it has started its sessions.
        gc.collect()
        gc.freeze()
        try:
            rounds: list[float] = []
            # One of three rounds, because other work of the machine may delay any of them.
            while len(rounds) < 3 and min(rounds, default=inf) >= within(0.25):
                async with polling(running.url) as waits:
                    for name in ids:
                        runtime.asks(name, f"call {len(rounds)}")
                    # Here all frames arrive in one turn of the loop, as with no real runtime.
                    waits.clear()
                    await until(partial(_count_results, runtime, (len(rounds) + 1) * len(ids)))
                assert len(waits) > 10
                rounds.append(max(waits))
            assert min(rounds) < within(0.25), rounds
            calls = [f"call {number}" for number in range(len(rounds))]
            assert all(runtime.results_of(name) == calls for name in ids)
        finally:
            gc.unfreeze()


async def _count_results(runtime: CrowdRuntime, count: int) -> bool:
    return runtime.taken >= count


@asynccontextmanager
async def polling(url: str) -> AsyncGenerator[list[float]]:
    """Ask for the health all the time in a thread; yields the seconds of each answer."""
    waits: list[float] = []
    parts, over = urlsplit(url), Event()

    def poll() -> None:
        client = HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
        while not over.wait(0.01):
            began = monotonic()
            client.request("GET", "/healthz")
            assert client.getresponse().read()
            waits.append(monotonic() - began)
        client.close()

    polls = asyncio.create_task(asyncio.to_thread(poll))
    try:
        yield waits
    finally:
        over.set()
        await polls

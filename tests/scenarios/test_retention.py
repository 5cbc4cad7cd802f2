"""Retention at work: who asks for what is gone is told where history begins, and calls do not wait behind it."""

import statistics
import time
from datetime import UTC, datetime, timedelta

import pytest
from fastapi.responses import Response

from gateway.runtime.tuning import Tuning
from gateway.store.sqlite import SqliteEngine
from gateway.store.step import Enqueue, Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, open_session, said
from tests.pace import within
from tests.scenarios.environment import GOOD, Running, Scene, ended, until
from tests.scenarios.hooks import success

_OLD = 60_000


async def _post(gateway: Running, path: str, count: int, size: int = 10) -> None:
    for number in range(count):
        event = {"kind": "context.updated", "name": "news", "context": {"number": number, "text": "x" * size}}
        await gateway.post(path, event, status=202)


async def test_readers_below_the_beginning_are_told_where_history_begins(newer: Scene) -> None:
    newer.tuning = Tuning(sweep=0.1)
    newer.configure({"retention": {"open_events": 100}})
    async with newer.running() as gateway:
        path = f"/v1/sessions/{await gateway.session()}/events"
        await _post(gateway, path, 150)

        async def first_kept() -> int:
            """Answer with the first sequence once a sweep has brought the session to its limit."""
            refused = await gateway.http.get(path, params={"after": 0})
            if refused.status_code == 200:
                return 0
            problem = refused.json()
            assert (refused.status_code, problem["type"].rsplit("/", 1)[1]) == (410, "gone")
            first: int = problem["first_sequence"]
            page = await gateway.http.get(path, params={"after": first - 1, "limit": 1000})
            # Another sweep may have come between the two.
            return first if page.status_code == 200 and len(page.json()["data"]) == 100 else 0

        first = await until(first_kept)
        page = (await gateway.get(path, after=first - 1, limit=1000))["data"]
        assert [one["sequence"] for one in page] == list(range(first, first + 100))
        for after in (0, first - 2):
            async with gateway.stream(await gateway.session(), after=after) as stream:
                gap = await stream.next()
                assert (gap["event"], gap["data"]["first_sequence"]) == ("gap", first)
                assert (await stream.next())["data"]["sequence"] == first
        async with gateway.stream(await gateway.session(), after=first - 1) as stream:
            assert (await stream.next())["data"]["sequence"] == first


@pytest.mark.slow
@pytest.mark.timing
async def test_calls_do_not_wait_behind_a_long_sweep(newer: Scene) -> None:
    newer.tuning = Tuning(sweep=1.0)
    newer.hooks.scripts["ask"] = success("7")
    newer.configure({"retention": {"open_events": 100}})
    async with SqliteEngine(newer.folder / "dragoman.db", FakeClock()) as engine:
        await open_session(engine, runtime="another")
        for _ in range(_OLD // 500):
            await engine.commit(Step(ALICE, tuple(said("x" * 1_000) for _ in range(500))))
    async with newer.running() as gateway:
        beside: list[float] = []
        firsts: list[int] = []
        while not firsts or firsts[-1] <= _OLD - 100:
            beside.append(await _time_call(newer))
            firsts.append((await gateway.get(f"/v1/sessions/{ALICE}"))["first_sequence"])
        alone = [await _time_call(newer) for _ in range(40)]
    # One transaction that removes all of it lets no call in between two beginnings of history.
    assert len(set(firsts)) > 10, sorted(set(firsts))
    assert statistics.median(beside) <= within(5 * max(alone) + 0.3), (sorted(beside), max(alone))


async def test_copies_that_go_undelivered_are_counted_and_logged(
    newer: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    newer.tuning = Tuning(sweep=0.1)
    secret = newer.settings["executors"]["cards"]["secret"]
    newer.hooks.scripts["/copies/log"] = Response(status_code=500)
    newer.configure({"destinations": {"log": {"url": f"{newer.hooks.url}/copies/log", "secret": secret}}})
    clock = FakeClock()
    clock.turn(datetime.now(UTC) - clock.now() - timedelta(days=31))
    async with SqliteEngine(newer.folder / "dragoman.db", clock) as engine:
        await open_session(engine, runtime="another")
        events = tuple(said(text, recorded_at=clock.now()) for text in ("a", "b"))
        sends = (Enqueue(0, "destination:log"), Enqueue(1, "destination:log"), Enqueue(1, "destination:gone"))
        await engine.commit(Step(ALICE, events, sends=sends))
    async with newer.running() as gateway:

        async def counted() -> bool:
            return (await gateway.metrics()).get('dragoman_copies_lost_total{destination="log"}') == 2

        await until(counted)
        assert (await gateway.metrics())['dragoman_copies_lost_total{destination="_other"}'] == 1
    said_so = [line for line in capsys.readouterr().err.splitlines() if "never delivered" in line]
    assert len(said_so) == 1
    assert '{"log":2,"gone":1}' in said_so[0].replace(" ", "") or '{"gone":1,"log":2}' in said_so[0].replace(" ", "")


async def _time_call(scene: Scene) -> float:
    began = time.perf_counter()
    assert (await ended(await scene.agent.call("ask", GOOD))).outcome == "success"
    return time.perf_counter() - began

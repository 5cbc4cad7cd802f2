"""More than there is room for: limits hold, each call gets exactly one answer, and no cancel or result is lost."""

import asyncio
import time

import pytest

from gateway.core.frames import OVERLOADED
from gateway.engines.sqlite import SqliteEngine
from gateway.ports.engine import Committed, Step
from tests.scenarios.hooks import Asked, Gate, Said, success
from tests.scenarios.house import GOOD, Scene, ended

BURST = 200


async def test_a_burst_beyond_the_inbox_is_answered_call_by_call(both: Scene) -> None:
    both.configure({"limits": {"inbound_frames": 50}, "executors": {"cards": {"concurrency": 300}}})
    async with both.running() as gateway:
        calls = [await both.agent.call("free", {"n": number}) for number in range(BURST)]
        readings = [await ended(call, within=15) for call in calls]
        assert {reading.outcome for reading in readings} <= {"success", "failure"}
        refused = [reading for reading in readings if reading.outcome == "failure"]
        assert {reading.error for reading in refused} <= {OVERLOADED}
        assert len(both.hooks.asked) == BURST - len(refused)
        assert (await ended(await both.agent.call("ask", GOOD))).outcome == "success"
        assert len(await gateway.events(kind="tool.finished")) == BURST + 1
    assert all(len(call.results) == 1 for call in calls)


async def test_a_session_that_is_held_up_refuses_new_calls_and_loses_no_cancel(
    both: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    both.configure({"limits": {"inbound_frames": 10}})
    gate, held = Gate(), Gate()
    both.hooks.scripts["ask"] = gate.answering(success("never"))
    async with both.running():
        waiting = [await both.agent.call("ask", GOOD) for _ in range(5)]
        await both.hooks.wait_for(5)
        commit = SqliteEngine.commit

        async def slow(engine: SqliteEngine, step: Step) -> Committed:
            await held.wait()
            return await commit(engine, step)

        # A disk that is slow for a moment.
        monkeypatch.setattr(SqliteEngine, "commit", slow)
        first = await both.agent.call("free", {"first": True})
        for call in waiting[:4]:
            await both.agent.cancel(call, "enough")
        more = [await both.agent.call("free", {"n": number}) for number in range(BURST)]
        await both.agent.cancel(waiting[4], "enough")
        held.open()
        readings = [await ended(call) for call in (first, *more)]
        outcomes = [reading.outcome for reading in readings]
        assert {reading.error for reading in readings if reading.outcome == "failure"} == {OVERLOADED}
        assert outcomes[0] == "success"
        assert "failure" in outcomes
        assert [(await ended(call)).outcome for call in waiting] == ["canceled"] * 5
        gate.open()
        assert (await ended(await both.agent.call("free", {}))).outcome == "success"
    assert all(len(call.results) == 1 for call in (*waiting, first, *more))


@pytest.mark.parametrize("limit", ["executor", "session"])
async def test_no_more_calls_are_in_flight_than_the_configuration_allows(both: Scene, limit: str) -> None:
    gate = Gate()

    async def work(_asked: Asked) -> Said:
        if both.hooks.running >= 3:
            gate.open()
        await gate.wait()
        return success()

    both.hooks.scripts["free"] = work
    both.configure(
        {"executors": {"cards": {"concurrency": 3}}} if limit == "executor" else {"limits": {"session_concurrency": 3}}
    )
    async with both.running():
        calls = [await both.agent.call("free", {"n": number}) for number in range(30)]
        for call in calls:
            assert (await ended(call)).outcome == "success"
    assert both.hooks.most_running == 3
    came = [asked.data["arguments"]["n"] for asked in both.hooks.asked]
    assert sorted(came) == list(range(30))
    # First come, first served; the three on their way at once may pass each other on the network.
    assert all(abs(number - place) < 3 for place, number in enumerate(came))


async def test_one_busy_session_does_not_keep_others_from_a_shared_executor(newer: Scene) -> None:
    gate = Gate()
    newer.hooks.scripts["free"] = gate.answering(success())
    newer.configure({"executors": {"cards": {"concurrency": 4}}, "limits": {"session_concurrency": 2}})
    other = newer.huma.agent("other")
    async with newer.running() as gateway:
        await gateway.post("/v1/sessions", {"runtime": "finn", "native_id": "other"}, status=201)
        await other.wait_connected()
        busy = [await newer.agent.call("free", {}) for _ in range(10)]
        await newer.hooks.wait_for(2)
        assert (await ended(await other.call("ask", GOOD))).outcome == "success"
        gate.open()
        for call in busy:
            await ended(call)


async def test_a_rate_is_kept(newer: Scene) -> None:
    newer.configure({"executors": {"cards": {"rate": 20}}})
    async with newer.running():
        started = time.monotonic()
        calls = [await newer.agent.call("free", {}) for _ in range(30)]
        await asyncio.gather(*(call.result() for call in calls))
        # The first 20 are the second's worth that may come at once; the other ten take half a second.
        assert time.monotonic() - started >= 0.45

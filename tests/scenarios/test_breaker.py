"""An executor that is not there: agents are told at once, one call tries it, and it is asked again when it answers."""

import asyncio
import random
import time
from typing import Any

import pytest
from fastapi.responses import Response

from gateway.testing.runtimes.huma.calls import SimCall
from tests.executors.peers import hang, serve
from tests.pace import PATIENCE
from tests.scenarios.environment import GOOD, Running, Scene, ended, until
from tests.scenarios.hooks import SECRET, Asked, Gate, Said, success

STATE = 'dragoman_breaker_state{executor="cards"}'
OPEN = 2.0
AT_ONCE = 8.0
"""Far below all that could be waited for instead: a breaker, a confirmation, ten seconds of timeouts in a row."""


async def fail(scene: Scene, count: int) -> None:
    """Let so many calls fail, one after the other."""
    for _ in range(count):
        assert (await ended(await scene.agent.call("free", {}))).outcome == "failure"


async def standing(gateway: Running, state: float) -> None:
    async def look() -> bool:
        return (await gateway.metrics())[STATE] == state

    await until(look)


async def let_through(scene: Scene, number: int) -> SimCall:
    """Call until a call is the executor's request of this number: nobody says when it is time for a trial."""
    async with asyncio.timeout(PATIENCE):
        while True:
            call = await scene.agent.call("free", {})
            asked = asyncio.ensure_future(scene.hooks.wait_for(number))
            refused = asyncio.ensure_future(call.result(PATIENCE))
            await asyncio.wait((asked, refused), return_when=asyncio.FIRST_COMPLETED)
            through = len(scene.hooks.asked) >= number
            for one in (asked, refused):
                one.cancel()
            await asyncio.wait((asked, refused))
            if through:
                return call


def breaking(scene: Scene, *, open_for: str = "60s", failures: int = 3, **executor: Any) -> None:
    breaker = {"failures": failures, "open_for": open_for}
    scene.configure({"executors": {"cards": {"attempts": 1, "breaker": breaker, **executor}}})


async def test_an_open_breaker_answers_at_once_in_words_and_asks_nobody(both: Scene) -> None:
    breaking(both)
    both.hooks.scripts["free"] = Response(status_code=500)
    async with both.running() as gateway:
        assert (await gateway.metrics())[STATE] == 0
        await fail(both, 3)
        await standing(gateway, OPEN)
        started = time.monotonic()
        call = await both.agent.call("ask", GOOD)
        reading = await ended(call)
        assert time.monotonic() - started < AT_ONCE
        assert reading.outcome == "failure"
        error = reading.error or ""
        assert error.startswith("'cards' has been failing since "), error
        assert "500" in error
        assert "was not called" in error
        assert len(both.hooks.asked) == 3
        row = await gateway.call_of(call.call_id)
        assert (row["dead"], row["unknown"], row["attempt"]) == (True, False, 0)


async def test_one_call_is_let_through_and_its_success_closes_the_breaker(newer: Scene) -> None:
    breaking(newer, open_for="300ms", timeout="15s")
    newer.hooks.scripts["free"] = Response(status_code=503)
    gate = Gate()
    async with newer.running() as gateway:
        await fail(newer, 3)
        await standing(gateway, OPEN)
        newer.hooks.scripts["free"] = gate.answering(success("back"))
        trial = await let_through(newer, 4)
        await standing(gateway, 1)
        refused = [await ended(await newer.agent.call("free", {"n": n})) for n in range(4)]
        assert {one.outcome for one in refused} == {"failure"}
        assert len(newer.hooks.asked) == 4
        gate.open()
        assert (await ended(trial)).outcome == "success"
        await standing(gateway, 0)
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"


async def test_a_trial_that_fails_opens_it_again_and_a_trial_that_is_canceled_frees_its_place(newer: Scene) -> None:
    breaking(newer, open_for="200ms")
    gate = Gate()
    newer.hooks.scripts["free"] = Response(status_code=503)
    async with newer.running() as gateway:
        await fail(newer, 3)
        assert (await ended(await let_through(newer, 4))).outcome == "failure"
        await standing(gateway, OPEN)
        newer.hooks.scripts["free"] = gate.answering(success())
        trial = await let_through(newer, 5)
        await newer.agent.cancel(trial)
        assert (await ended(trial)).outcome == "canceled"
        newer.hooks.scripts["free"] = success("back")

        async def next_trial() -> bool:
            return (await ended(await newer.agent.call("free", {}))).outcome == "success"

        await until(next_trial)
        await standing(gateway, 0)


async def test_calls_that_wait_when_it_opens_are_told_at_once(both: Scene) -> None:
    async with serve(hang) as peer:
        bad = {"type": "webhook", "url": peer.url, "secret": SECRET, "timeout": "500ms", "attempts": 1,
               "concurrency": 2, "breaker": {"failures": 2, "open_for": "60s"}}  # fmt: skip
        both.configure({"executors": {"bad": bad}, "routes": [{"match": {"tool": "*"}, "to": "bad"}]})
        async with both.running():
            started = time.monotonic()
            calls = [await both.agent.call("free", {"n": n}) for n in range(40)]
            readings = [await ended(call) for call in calls]
            # The two at work take half a second; one after the other, the rest would take ten.
            assert time.monotonic() - started < AT_ONCE
            assert {one.outcome for one in readings} == {"failure"}
            # Up to two more get the slot of the first that fails before the second one opens the breaker.
            assert sum("has been failing" in (one.error or "") for one in readings) >= 36
            assert len(peer.seen) <= 4
        assert all(len(call.results) == 1 for call in calls)


@pytest.mark.slow
async def test_a_call_between_two_attempts_ends_when_the_breaker_is_open_and_stays_unsure(
    newer: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A shorter pause could end before the third failure.
    monkeypatch.setattr(random, "random", lambda: 1.0)
    breaking(newer, failures=3, attempts=5, backoff={"initial": "4s", "maximum": "4s"})
    newer.hooks.scripts["free"] = Response(status_code=500)
    async with newer.running() as gateway:
        calls = [await newer.agent.call("free", {"n": n}) for n in range(3)]
        readings = [await ended(call) for call in calls]
        assert all("giving up on this call" in (one.error or "") for one in readings), readings
        assert len(newer.hooks.asked) == 3
        rows = [await gateway.call_of(call.call_id) for call in calls]
        assert {(row["unknown"], row["dead"], row["attempt"]) for row in rows} == {(True, True, 1)}


async def test_an_executor_whose_breaker_is_off_is_asked_however_often_it_fails(newer: Scene) -> None:
    newer.configure({"executors": {"cards": {"attempts": 1, "breaker": "off"}}})
    newer.hooks.scripts["free"] = Response(status_code=500)
    async with newer.running() as gateway:
        await fail(newer, 10)
        assert len(newer.hooks.asked) == 10
        assert (await gateway.metrics())[STATE] == 0


async def test_a_reload_keeps_a_breaker_unless_its_executor_changes(newer: Scene) -> None:
    breaking(newer)
    newer.hooks.scripts["free"] = Response(status_code=500)
    async with newer.running() as gateway:
        await fail(newer, 3)
        newer.configure({"limits": {"session_concurrency": 5}})
        await gateway.post("/v1/reload", status=200)
        await standing(gateway, OPEN)
        newer.configure({"executors": {"cards": {"timeout": "2s"}}})
        await gateway.post("/v1/reload", status=200)
        await standing(gateway, 0)
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"


async def test_messages_to_be_confirmed_are_not_held_up_by_an_executor_that_is_not_there(newer: Scene) -> None:
    breaking(newer, attempts=3)
    routes = [{"match": {"event": "message.posted"}, "to": "cards"}, {"match": {"tool": "*"}, "to": "cards"}]
    newer.configure({"routes": routes})
    newer.hooks.scripts["free"] = Response(status_code=503)
    async with newer.running():
        await fail(newer, 1)
        started = time.monotonic()
        [confirmation] = await newer.agent.say(["Hello", "again"])
        assert time.monotonic() - started < AT_ONCE
        assert not confirmation.success
        assert not confirmation.assumed
        assert "has been failing" in str(confirmation.payload)


@pytest.mark.slow
async def test_a_slow_answer_that_had_little_time_left_does_not_count(newer: Scene) -> None:
    gate = Gate()

    async def slow(asked: Asked) -> Said:
        # The first leaves the second a quarter of the time, and has as much to spare.
        await (asyncio.sleep(3) if asked.data["arguments"]["n"] == 0 else gate.wait())
        return success()

    newer.hooks.scripts["free"] = slow
    breaking(newer, failures=1, timeout="4s", deadline="4s", concurrency=1)
    async with newer.running() as gateway:
        calls: list[SimCall] = [await newer.agent.call("free", {"n": n}) for n in range(2)]
        assert [(await ended(call)).outcome for call in calls] == ["success", "failure"]
        gate.open()
        assert (await gateway.metrics())[STATE] == 0

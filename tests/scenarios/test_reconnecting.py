"""An executor that cannot be reached: its calls wait for it, use up no attempt, and end in words when it stays away."""

import asyncio
from typing import Any

import pytest
from fastapi.responses import Response

from gateway.testing.runtimes.huma.calls import SimCall
from tests.executors.peers import hang, serve
from tests.pace import PATIENCE
from tests.scenarios.environment import GOOD, Running, Scene, ended, until
from tests.scenarios.hooks import SECRET

UNSENT = 'dragoman_executor_attempts_total{executor="cards",result="never_sent"}'


def reconnecting(scene: Scene, within: str, **executor: Any) -> None:
    scene.configure({"executors": {"cards": {"reconnect_within": within, "idempotent": False, **executor}}})


async def unsent(gateway: Running, count: int) -> None:
    """Wait until so many attempts could not be sent."""

    async def look() -> bool:
        return (await gateway.metrics()).get(UNSENT, 0) >= count

    await until(look)


async def asked(scene: Scene, count: int) -> list[SimCall]:
    return [await scene.agent.call("free", {"n": n}) for n in range(count)]


async def test_calls_survive_a_restart_of_their_backend_and_use_up_no_attempt(both: Scene) -> None:
    reconnecting(both, "60s", attempts=1)
    async with both.running() as gateway:
        await both.hooks.__aexit__()
        calls = await asked(both, 4)
        await unsent(gateway, 8)
        rows = [await gateway.call_of(call.call_id) for call in calls]
        assert {row["state"] for row in rows} <= {"queued", "dispatched"}, rows
        await both.hooks.__aenter__()
        assert [(await ended(call)).outcome for call in calls] == ["success"] * 4
        assert [one.attempt for one in both.hooks.asked] == [1] * 4


async def test_calls_of_an_executor_that_stays_away_end_together_and_later_ones_at_once(both: Scene) -> None:
    reconnecting(both, "1s", breaker={"open_for": "60s"})
    async with both.running() as gateway:
        await both.hooks.__aexit__()
        waiting = await asked(both, 3)
        for call in waiting:
            error = (await ended(call)).error or ""
            assert error.startswith("'cards' has been unreachable since "), error
            assert error.endswith("the tool was not called, retry later"), error
        later = await both.agent.call("ask", GOOD)
        assert ((await ended(later)).error or "").startswith("'cards' has been unreachable since ")
        rows = [await gateway.call_of(call.call_id) for call in (*waiting, later)]
        assert {(row["dead"], row["unknown"], row["attempt"]) for row in rows} == {(True, False, 0)}
        await both.hooks.__aenter__()


async def test_a_probe_that_succeeds_while_the_next_call_fails_hangs_nobody(newer: Scene) -> None:
    reconnecting(newer, "1s", breaker={"open_for": "200ms", "failures": 1})
    async with newer.running():
        await newer.hooks.__aexit__()
        assert (await ended(await newer.agent.call("free", {}))).outcome == "failure"
        await newer.hooks.__aenter__()

        async def back() -> bool:
            return (await ended(await newer.agent.call("free", {}))).outcome == "success"

        await until(back)
        newer.hooks.scripts["free"] = Response(status_code=500)
        assert "unknown" in ((await ended(await newer.agent.call("free", {}))).error or "")
        # It may be asked again by a later probe; whatever becomes of that, the call ends.
        newer.hooks.scripts.clear()
        await until(back)
        await newer.hooks.__aexit__()
        error = (await ended(await newer.agent.call("free", {}))).error or ""
        assert "has been unreachable since" in error, error
        await newer.hooks.__aenter__()
        await until(back)


async def test_waiting_calls_hold_no_slot_and_the_deadline_ends_them(newer: Scene) -> None:
    reconnecting(newer, "60s", deadline="1s")
    free = {**newer.settings["executors"]["cards"], "deadline": "60s"}
    newer.configure(
        {
            "executors": {"free": free},
            "routes": [{"match": {"tool": "free"}, "to": "free"}, {"match": {"tool": "*"}, "to": "cards"}],
            "limits": {"session_concurrency": 2},
        }
    )
    newer.configure({"executors": {"cards": {"url": "http://127.0.0.1:9/tools"}}})
    async with newer.running() as gateway:
        waiting = [await newer.agent.call("ask", GOOD) for _ in range(5)]
        await unsent(gateway, 1)
        # Their session has two slots, and both are free for another executor.
        for n in range(3):
            assert (await ended(await newer.agent.call("free", {"n": n}))).outcome == "success"
        for call in waiting:
            error = (await ended(call)).error or ""
            assert "within 1 s" in error or "no time left" in error, error


async def test_waiting_calls_do_not_delay_a_drain_and_start_with_the_next_process(newer: Scene) -> None:
    reconnecting(newer, "60s")
    newer.configure({"limits": {"drain": "40s"}})
    async with newer.running() as gateway:
        await newer.hooks.__aexit__()
        calls = await asked(newer, 3)
        await unsent(gateway, 2)
        async with asyncio.timeout(PATIENCE):
            await gateway.gateway.drain()
        assert all(not call.results for call in calls)
    await newer.hooks.__aenter__()
    async with newer.running():
        assert [(await ended(call)).outcome for call in calls] == ["success"] * 3


async def test_a_message_waits_for_its_executor_while_there_is_time(newer: Scene) -> None:
    reconnecting(newer, "60s", attempts=1)
    routes = [{"match": {"event": "message.posted"}, "to": "cards"}, {"match": {"tool": "*"}, "to": "cards"}]
    newer.configure({"routes": routes})
    async with newer.running() as gateway:
        await newer.hooks.__aexit__()
        saying = asyncio.create_task(newer.agent.say(["Hello"]))
        await unsent(gateway, 3)
        await newer.hooks.__aenter__()
        [confirmation] = await saying
        assert confirmation.success, confirmation.payload


@pytest.mark.parametrize("breaker", ["off", {"failures": 1}])
async def test_an_answer_that_came_late_still_counts_as_an_attempt(newer: Scene, breaker: Any) -> None:
    async with serve(hang) as peer:
        bad = {"type": "webhook", "url": peer.url, "secret": SECRET, "timeout": "300ms", "breaker": breaker}
        newer.configure({"executors": {"bad": bad}, "routes": [{"match": {"tool": "*"}, "to": "bad"}]})
        async with newer.running():
            assert "unknown" in ((await ended(await newer.agent.call("free", {}))).error or "")
        assert len(peer.seen) == 1

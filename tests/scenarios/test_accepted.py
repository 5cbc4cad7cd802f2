"""Calls behind a 202: sent again to an idempotent executor that gives no sign of life, and to no other."""

from typing import Any

import httpx
import pytest
from fastapi.responses import Response
from structlog.testing import capture_logs

from gateway.testing.runtimes.huma.calls import SimCall
from tests.pace import PATIENCE
from tests.scenarios.environment import Running, Scene, ended, plain_http, until
from tests.scenarios.hooks import Asked, Said, Script, success
from tests.scenarios.served import START, serving

SILENCE = 0.4
LATER = Response(status_code=202)


def accepting(scene: Scene, *answers: Said, **executor: Any) -> None:
    """Have `free` answered by these, one after the other, the last again and again."""
    left = list(answers)

    def answer(_asked: Asked) -> Said:
        return left.pop(0) if len(left) > 1 else left[0]

    script: Script = answer
    scene.hooks.scripts["free"] = script
    scene.configure({"executors": {"cards": {"accepted_silence": f"{SILENCE}s", **executor}}})


async def accepted(scene: Scene, gateway: Running) -> tuple[SimCall, Asked]:
    """Let the agent call, and wait until the promise is on record."""
    call = await scene.agent.call("free", {"n": 1})
    asked = (await scene.hooks.wait_for(name="free"))[-1]
    await gateway.wait_call(call.call_id, "accepted", "succeeded", "failed", "expired")
    return call, asked


async def call_back(asked: Asked, body: dict[str, Any], *, to: str = "callback_url") -> httpx.Response:
    async with plain_http() as http:
        return await http.post(asked.data[to], json=body)


async def test_a_silent_call_is_sent_again_under_its_key_and_a_200_settles_it(both: Scene) -> None:
    accepting(both, LATER, success("from the store"))
    async with both.running() as gateway:
        call, first = await accepted(both, gateway)
        reading = await ended(call)
        assert (reading.outcome, reading.result) == ("success", "from the store")
        again = both.hooks.of("free")[1]
        assert (first.key, first.attempt, again.key, again.attempt) == (first.key, 1, first.key, 2)
        assert again.data["callback_url"] == first.data["callback_url"]
        assert len(both.hooks.of("free")) == 2


async def test_a_202_is_a_sign_and_attempts_bound_the_repeats(newer: Scene) -> None:
    accepting(newer, LATER, attempts=3, accepted_deadline="4s")
    async with newer.running() as gateway:
        call, _ = await accepted(newer, gateway)
        reading = await ended(call)
        assert "unknown" in (reading.error or "")
        assert [one.attempt for one in newer.hooks.of("free")] == [1, 2, 3]
        assert (await gateway.call_of(call.call_id))["state"] == "expired"


@pytest.mark.parametrize(
    "answer",
    [
        Response(status_code=500),
        Response(status_code=401),
        Response(status_code=404, content='{"detail": "no such call"}', media_type="application/json"),
        Response(status_code=429),
        Response("<html>", media_type="text/html"),
    ],
    ids=["500", "401", "404", "429", "html"],
)
async def test_any_other_response_to_a_repeat_leaves_the_call_accepted(newer: Scene, answer: Response) -> None:
    accepting(newer, LATER, answer, attempts=2)
    async with newer.running() as gateway:
        call, asked = await accepted(newer, gateway)
        await newer.hooks.wait_for(2, name="free")
        assert (await call_back(asked, success("later"))).status_code == 200
        assert (await ended(call)).result == "later"
        assert (await gateway.call_of(call.call_id))["attempt"] == 2


async def test_a_failure_that_a_repeat_is_answered_with_is_the_outcome(newer: Scene) -> None:
    accepting(newer, LATER, {"outcome": "failure", "error": "the deck is gone"})
    async with newer.running() as gateway:
        call, _ = await accepted(newer, gateway)
        assert (await ended(call)).error == "the deck is gone"


async def test_progress_is_a_sign(newer: Scene) -> None:
    accepting(newer, LATER, accepted_silence="1500ms")
    async with newer.running() as gateway:
        call, asked = await accepted(newer, gateway)
        due = (await gateway.call_of(call.call_id))["due_at"]
        assert (await call_back(asked, {"percent": 40}, to="progress_url")).status_code == 202
        assert (await gateway.call_of(call.call_id))["due_at"] > due
        await newer.hooks.wait_for(2, name="free")
        assert (await call_back(asked, success())).status_code == 200
        assert (await ended(call)).outcome == "success"


async def test_an_executor_that_is_not_idempotent_never_gets_a_second_request(newer: Scene) -> None:
    accepting(newer, LATER, idempotent=False, accepted_deadline="3s")
    async with newer.running() as gateway:
        call, _ = await accepted(newer, gateway)
        row = await gateway.call_of(call.call_id)
        assert row["due_at"] is None
        problem = await gateway.post(f"/v1/calls/{row['call_id']}/redrive", {}, status=409)
        assert "not idempotent" in problem["detail"]
        assert "unknown" in ((await ended(call)).error or "")
        assert len(newer.hooks.of("free")) == 1


async def test_a_silent_call_is_sent_again_by_the_next_process(both: Scene) -> None:
    accepting(both, LATER, success("from the store"), accepted_silence="3s")
    async with both.running() as gateway:
        call, first = await accepted(both, gateway)
    assert len(both.hooks.of("free")) == 1
    async with both.running():
        assert (await ended(call)).result == "from the store"
        assert [(one.key, one.attempt) for one in both.hooks.of("free")] == [(first.key, 1), (first.key, 2)]


async def test_an_operator_redrives_an_accepted_call_of_an_idempotent_executor(newer: Scene) -> None:
    accepting(newer, LATER, success("from the store"), accepted_silence="10m")
    async with newer.running() as gateway:
        call, first = await accepted(newer, gateway)
        row = await gateway.call_of(call.call_id)
        path = f"/v1/calls/{row['call_id']}/redrive"
        assert "new_key" in (await gateway.post(path, {"new_key": True}, status=409))["detail"]
        assert (await gateway.post(path, {}, status=202))["call_id"] == row["call_id"]
        assert (await ended(call)).result == "from the store"
        assert [(one.key, one.attempt) for one in newer.hooks.of("free")] == [(first.key, 1), (first.key, 2)]


async def test_a_repeat_that_cannot_be_sent_waits_for_the_executor_and_uses_up_no_attempt(newer: Scene) -> None:
    accepting(newer, LATER, success("from the store"), attempts=2, reconnect_within="60s")
    async with newer.running() as gateway:
        call, _ = await accepted(newer, gateway)
        await newer.hooks.__aexit__()

        async def tried() -> bool:
            unsent = 'dragoman_executor_attempts_total{executor="cards",result="never_sent"}'
            return (await gateway.metrics()).get(unsent, 0) >= 2

        await until(tried, within=PATIENCE)
        assert (await gateway.call_of(call.call_id))["state"] == "accepted"
        await newer.hooks.__aenter__()
        assert (await ended(call, 40)).result == "from the store"


async def test_a_callback_may_say_that_the_outcome_is_unknown(both: Scene) -> None:
    accepting(both, LATER, idempotent=False)
    body = {"outcome": "failure", "error": "the backend stopped while the tool ran", "unknown": True}
    async with both.running() as gateway:
        call, asked = await accepted(both, gateway)
        assert (await call_back(asked, body)).status_code == 200
        reading = await ended(call)
        assert reading.outcome == "failure"
        assert "outcome unknown: the backend stopped while the tool ran" in (reading.error or "")
        # The same again is no conflict.
        assert (await call_back(asked, body)).status_code == 200
        assert (await call_back(asked, success())).status_code == 409
        row = await gateway.call_of(call.call_id)
        assert (row["state"], row["unknown"], row["dead"]) == ("failed", True, True)
        letters = await gateway.get("/v1/dead-letters", unknown="true")
        assert [one["id"] for one in letters["data"]] == [row["call_id"]]


@pytest.mark.parametrize("body", [{"outcome": "success", "unknown": True}, {"outcome": "failure", "unknown": "yes"}])
async def test_only_a_failure_may_be_unknown(newer: Scene, body: dict[str, Any]) -> None:
    accepting(newer, LATER)
    async with newer.running() as gateway:
        call, asked = await accepted(newer, gateway)
        refused = await call_back(asked, body)
        assert (refused.status_code, "unknown" in refused.text) == (400, True)
        assert (await call_back(asked, {"outcome": "failure"})).status_code == 200
        # A failure without a word, and the same again.
        assert (await call_back(asked, {"outcome": "failure"})).status_code == 200
        assert (await ended(call)).outcome == "failure"


async def test_on_loopback_a_backend_of_this_machine_can_call_back_without_a_public_url(newer: Scene) -> None:
    accepting(newer, LATER)
    async with serving(newer, public=False) as served:
        await until(served.ready, within=START)
        await newer.agent.wait_connected()
        call = await newer.agent.call("free", {"n": 1})
        asked = (await newer.hooks.wait_for(name="free"))[-1]
        assert asked.data["callback_url"].startswith(f"{served.url}/v1/calls/")
        answer = await call_back(asked, {"outcome": "success", "result": "later"})
        assert answer.status_code == 200
        assert (await ended(call)).result == "later"


async def test_a_202_that_nobody_can_follow_up_is_logged_once_for_each_executor(newer: Scene) -> None:
    accepting(newer, LATER)
    async with newer.running(public=False) as gateway:
        with capture_logs() as logs:
            for _ in range(2):
                call = await newer.agent.call("free", {"n": 1})
                await gateway.wait_call(call.call_id, "accepted")
            assert [one.data["callback_url"] for one in newer.hooks.of("free")] == [None, None]
    (line,) = [one for one in logs if "without a callback address" in one["event"]]
    assert (line["log_level"], line["executor"], line["fix"]) == ("warning", "cards", "set `public_url`")

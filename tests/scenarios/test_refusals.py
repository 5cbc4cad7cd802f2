"""An executor that refuses requests is named with the fix in the API, the metrics, the commands and the log."""

import asyncio
import gzip
from typing import Any

import pytest
from fastapi.responses import JSONResponse, Response

from gateway.cli.doctor_gateway import check_links
from tests.scenarios.environment import API_KEY, GOOD, Running, Scene, ended
from tests.scenarios.hooks import SECRET, success
from tests.scenarios.terminal import dragoman

REFUSED = 'dragoman_executor_attempts_total{executor="cards",result="refused"}'
UNREADABLE: dict[str, Response] = {
    "a web page": Response("<html>Welcome</html>", media_type="text/html"),
    "utf-16": Response('{"outcome": "success"}'.encode("utf-16"), media_type="application/json"),
    "cut off": Response(b'{"outcome": "succ', media_type="application/json"),
    "gzip and garbage": Response(gzip.compress(b'{"outcome": "success"}') + b"!", headers={"content-encoding": "gzip"}),
}


async def state(gateway: Running) -> dict[str, Any]:
    (executor,) = [one for one in (await gateway.get("/v1/activity"))["executors"] if one["name"] == "cards"]
    return executor


async def warnings(gateway: Running) -> list[str]:
    env = {"DRAGOMAN_URL": gateway.url, "DRAGOMAN_KEY": API_KEY}
    return [one.text for one in await asyncio.to_thread(lambda: list(check_links(env))) if one.state == "warning"]


@pytest.mark.parametrize(("status", "fix"), [(401, "secret"), (403, "secret"), (405, "url"), (302, "url")])
async def test_a_wrong_setup_is_named_with_its_fix_until_an_answer_comes(newer: Scene, status: int, fix: str) -> None:
    newer.hooks.scripts["ask"] = JSONResponse({"detail": "bad signature"}, status_code=status)
    async with newer.running() as gateway:
        assert (await gateway.metrics())[REFUSED] == 0
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "failure"
        shown = await state(gateway)
        assert (shown["refuses"], shown["breaker"]) == (True, "closed")
        assert "bad signature" in shown["reason"]
        assert shown["reason"].endswith(f"; compare the {fix} of the executor with the backend's")
        assert (await gateway.metrics())[REFUSED] == 1
        assert await warnings(gateway) == [f"executor cards: refuses requests: {shown['reason']}"]
        newer.hooks.scripts["ask"] = success("7")
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"
        assert (await state(gateway))["refuses"] is False
        assert await warnings(gateway) == []


@pytest.mark.parametrize("status", [404, 422])
async def test_a_tools_own_404_or_422_is_no_wrong_setup(newer: Scene, status: int) -> None:
    newer.hooks.scripts["ask"] = JSONResponse({"detail": "no such player"}, status_code=status)
    async with newer.running() as gateway:
        assert "no such player" in ((await ended(await newer.agent.call("ask", GOOD))).error or "")
        assert (await state(gateway))["refuses"] is False
        assert (await gateway.metrics())[REFUSED] == 0


@pytest.mark.parametrize("name", UNREADABLE)
async def test_a_200_that_cannot_be_read_is_unknown_and_shows_a_wrong_setup(newer: Scene, name: str) -> None:
    newer.configure({"executors": {"cards": {"idempotent": False}}})
    newer.hooks.scripts["ask"] = UNREADABLE[name]
    async with newer.running() as gateway:
        call = await newer.agent.call("ask", GOOD)
        assert ((await ended(call)).error or "").startswith("outcome unknown: executor answered 200 OK with ")
        row = await gateway.call_of(call.call_id)
        assert (row["unknown"], row["dead"], row["attempt"]) == (True, True, 1)
        assert (await state(gateway))["refuses"] is True


async def test_an_idempotent_executor_gets_a_call_again_whose_200_could_not_be_read(newer: Scene) -> None:
    newer.configure({"executors": {"cards": {"idempotent": True, "backoff": {"initial": "10ms", "maximum": "10ms"}}}})
    answers = [UNREADABLE["a web page"], success("7")]
    newer.hooks.scripts["ask"] = lambda _: answers.pop(0)
    async with newer.running():
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"
    first, second = newer.hooks.asked
    assert first.key == second.key


async def test_an_outcome_after_a_byte_order_mark_is_read(newer: Scene) -> None:
    newer.hooks.scripts["ask"] = Response(b'\xef\xbb\xbf{"outcome": "success", "result": "7"}', media_type="text/json")
    async with newer.running():
        assert (await ended(await newer.agent.call("ask", GOOD))).result == "7"


async def test_an_empty_200_is_a_success_whatever_its_content_type(newer: Scene) -> None:
    newer.hooks.scripts["ask"] = Response(b"", media_type="application/json")
    async with newer.running():
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"


async def test_what_a_backend_said_in_a_5xx_is_in_the_attempt_the_command_and_the_error(newer: Scene) -> None:
    newer.configure({"executors": {"cards": {"idempotent": True, "attempts": 2, "backoff": {"initial": "10ms"}}}})
    text = f"cards-2: no space left; signed with {SECRET}"
    problem = JSONResponse({"detail": text}, status_code=500, media_type="application/problem+json")
    newer.hooks.scripts["ask"] = problem
    async with newer.running() as gateway:
        call = await newer.agent.call("ask", GOOD)
        error = (await ended(call)).error or ""
        assert "executor answered 500 Internal Server Error: cards-2: no space left; signed with ***" in error
        row = await gateway.call_of(call.call_id)
        shown = await gateway.get(f"/v1/calls/{row['call_id']}")
        assert [(one["status"], one["content_type"], one["body"]) for one in shown["attempts"]] == [
            (500, "application/problem+json", '{"detail":"cards-2: no space left; signed with ***"}')
        ] * 2
        listed = await dragoman(gateway, "calls", "show", row["call_id"])
        assert listed.out.count('application/problem+json: {"detail":"cards-2: no space left; signed with ***"}') == 2

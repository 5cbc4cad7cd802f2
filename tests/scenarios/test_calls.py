"""A tool call on its whole way: agent, gateway, signed webhook, and the one outcome back in the agent's dialect."""

from datetime import datetime
from typing import Any

import httpx
import pytest
from fastapi import Response
from fastapi.responses import JSONResponse

from tests.scenarios.environment import GOOD, Scene, ended, plain_http
from tests.scenarios.hooks import Asked, Gate, Said, success, update

STATIC = {
    "executors": {"words": {"type": "static", "result": {"fixed": True}}, "no": {"type": "static", "error": "Closed."}},
    "routes": [
        {"match": {"tool": "free"}, "to": "words"},
        {"match": {"tool": "ask"}, "to": "no"},
    ],
}


@pytest.mark.requirement("L1", "L43", "N58")
async def test_a_call_is_asked_once_of_the_webhook_and_answered_in_the_agents_words(both: Scene) -> None:
    async with both.running() as gateway:
        session_id = await gateway.session()
        call = await both.agent.call("ask", GOOD)
        reading = await ended(call)
        frame = call.results[0]
        assert (reading.outcome, reading.result) == ("success", GOOD)
        assert both.waking(frame)
        [asked] = both.hooks.asked
        assert asked.kind == "tool.requested"
        assert datetime.fromisoformat(asked.timestamp)
        data = asked.data
        assert data["call_id"] == asked.key == asked.headers["idempotency-key"]
        assert (data["native_call_id"], data["session_id"]) == (call.call_id, session_id)
        assert (data["native_session_id"], data["runtime"]) == ("finn", "finn")
        assert data["protocol"] == {"0.1": "huma/0.1", "0.2": "huma/0.2.0"}[both.dialect]
        assert (data["tool"], data["arguments"], data["attempt"]) == ("ask", GOOD, 1)
        assert data["callback_url"].startswith(gateway.url)
        assert asked.attempt == 1
        assert "traceparent" in asked.headers
        row = await gateway.wait_call(call.call_id, "succeeded")
        assert row["call_id"] == asked.key
    assert len(call.results) == 1


async def test_arguments_of_every_json_type_arrive_as_they_were_sent(both: Scene) -> None:
    arguments: dict[str, Any] = {
        "text": 'ünï "\\ \u0000 😀', "number": -1.5, "whole": 2**53, "big": 2**63 - 1, "yes": True, "none": None,
        "list": [[], {}, [1, [2]]], "": "an empty key", "a/b~c": 1,
    }  # fmt: skip
    async with both.running():
        call = await both.agent.call("free", arguments)
        assert (await ended(call)).result == arguments
    assert both.hooks.asked[0].data["arguments"] == arguments


async def test_updates_reach_the_agent_before_the_result_and_do_not_wake_it(both: Scene) -> None:
    both.hooks.scripts["ask"] = success("done", updates=[update("one", turn="Bob"), update("two", turn="Eve")])
    async with both.running():
        call = await both.agent.call("ask", GOOD)
        await call.result()
    assert [name for name, _ in both.updates()] == ["one", "two"]
    assert both.updates()[1][1]["turn"] == "Eve"
    places = [place for place, (_, frame) in enumerate(both.agent.received) if "tool-result" in str(frame)]
    assert places == [2]
    if both.dialect == "0.2":
        assert [frame["triggering"] for _, frame in both.agent.received] == [False, False, True]


async def test_an_outcome_may_ask_not_to_wake_the_agent(both: Scene) -> None:
    both.hooks.scripts["ask"] = success("quiet", wakes_agent=False)
    async with both.running():
        frame = await (await both.agent.call("ask", GOOD)).result()
    assert both.waking(frame) is False


@pytest.mark.parametrize("outcome", ["failure", "canceled"])
async def test_what_the_backend_could_not_do_is_told_in_its_words(both: Scene, outcome: str) -> None:
    both.hooks.scripts["ask"] = {"outcome": outcome, "error": "It is not your turn."}
    async with both.running():
        call = await both.agent.call("ask", GOOD)
        reading = await ended(call)
        frame = call.results[0]
        assert (reading.outcome, reading.error) == (outcome, "It is not your turn.")
        assert both.waking(frame) is (outcome == "failure")
        await gateway_idle(both)
    assert len(both.hooks.asked) == 1


async def gateway_idle(scene: Scene) -> None:
    """Have another call answered, so that whatever the one before still had to say has been said."""
    await (await scene.agent.call("free", {"idle": True})).result()
    scene.hooks.asked[:] = [one for one in scene.hooks.asked if one.data.get("arguments") != {"idle": True}]


@pytest.mark.requirement("N66")
async def test_a_withdrawn_call_is_answered_as_canceled_and_its_executor_is_told(both: Scene) -> None:
    gate = Gate()
    both.hooks.scripts["ask"] = gate.answering(success("too late"))
    async with both.running() as gateway:
        call = await both.agent.call("ask", GOOD)
        [asked] = await both.hooks.wait_for(name="ask")
        await both.agent.cancel(call, "interrupted", with_name=both.dialect == "0.2")
        reading = await ended(call)
        frame = call.results[0]
        assert (reading.outcome, reading.error) == ("canceled", "interrupted")
        assert not both.waking(frame)
        [told] = await both.hooks.wait_for(name="tool.canceled")
        assert told.key == f"{asked.key}.cancel"
        assert told.data["call_id"] == asked.key
        assert (told.data["tool"], told.data["reason"]) == ("ask", "interrupted")
        gate.open()
        await gateway_idle(both)
        assert (await gateway.call_of(call.call_id))["state"] == "canceled"
    assert len(call.results) == 1


async def test_a_glob_leads_no_undeclared_tool_to_the_backend(both: Scene) -> None:
    async with both.running() as gateway:
        reading = await ended(await both.agent.call("fly", {}))
        assert (reading.outcome, reading.error) == ("failure", "Unknown tool: fly")
        assert both.hooks.asked == []
        for route in (
            {"match": {"tool": "fly"}, "to": "cards"},
            {"match": {"tool": "f*"}, "to": "cards", "undeclared": True},
        ):
            both.configure({"routes": [{"match": {"tool": "*"}, "to": "cards"}, route]})
            await gateway.post("/v1/reload", status=200)
            assert (await ended(await both.agent.call("fly", {}))).outcome == "success"
            assert (await ended(await both.agent.call("walk", {}))).error == "Unknown tool: walk"
        both.settings["tools"] = {}
        both.configure({"routes": [{"match": {"tool": "*"}, "to": "cards"}]})
        await gateway.post("/v1/reload", status=200)
        assert (await ended(await both.agent.call("walk", {}))).outcome == "success"


async def test_a_tool_nobody_serves_is_refused_by_name(both: Scene) -> None:
    both.configure({"routes": [{"match": {"tool": "ask"}, "to": "cards"}]})
    async with both.running():
        call = await both.agent.call("fly", {})
        reading = await ended(call)
        frame = call.results[0]
        assert reading.outcome == "failure"
        assert "fly" in (reading.error or "")
        assert both.waking(frame)
        declared = await both.agent.call("free", {})
        reading = await ended(declared)
        assert "not available" in (reading.error or "")
    assert both.hooks.asked == []


async def test_arguments_that_do_not_fit_are_refused_with_the_place_and_what_is_allowed(both: Scene) -> None:
    async with both.running():
        call = await both.agent.call("ask", {"player": "Bob", "rank": "1"})
        reading = await ended(call)
        error = reading.error or ""
        assert all(words in error for words in ("ask", "/rank", "'1'", '"7"', '"9"')), error
    assert both.hooks.asked == []


async def test_a_busy_backend_is_asked_again_with_the_same_key(both: Scene) -> None:
    def busy(asked: Asked) -> Said:
        return success("at last") if asked.attempt > 1 else Response(status_code=503, headers={"retry-after": "0"})

    both.configure({"executors": {"cards": {"idempotent": False}}})
    both.hooks.scripts["ask"] = busy
    async with both.running():
        call = await both.agent.call("ask", GOOD)
        reading = await ended(call)
        assert reading.result == "at last"
    assert [asked.attempt for asked in both.hooks.asked] == [1, 2]
    assert len({asked.key for asked in both.hooks.asked}) == 1


@pytest.mark.requirement("L50")
@pytest.mark.parametrize(("idempotent", "requests"), [(True, 3), (False, 1)])
async def test_a_backend_that_breaks_down_is_a_failure_and_repeated_only_where_that_is_safe(
    both: Scene, idempotent: bool, requests: int
) -> None:
    both.configure({"executors": {"cards": {"idempotent": idempotent}}})
    both.hooks.scripts["ask"] = Response(status_code=500)
    async with both.running() as gateway:
        call = await both.agent.call("ask", GOOD)
        reading = await ended(call)
        assert reading.outcome == "failure"
        assert "500" in (reading.error or "")
        assert (reading.error or "").startswith("outcome unknown: ")
        assert (await gateway.call_of(call.call_id))["unknown"] is True
        [letter] = (await gateway.get("/v1/dead-letters"))["data"]
        assert (letter["type"], letter["native_call_id"]) == ("call", call.call_id)
    assert len(both.hooks.asked) == requests


async def callback(asked: Asked, body: Any, *, page: str = "callback_url") -> httpx.Response:
    async with plain_http() as http:
        return await http.post(asked.data[page], json=body)


async def test_an_accepted_call_gets_its_progress_and_outcome_by_callback(both: Scene) -> None:
    both.hooks.scripts["ask"] = Response(status_code=202)
    async with both.running() as gateway:
        call = await both.agent.call("ask", GOOD)
        [asked] = await both.hooks.wait_for()
        row = await gateway.wait_call(call.call_id, "accepted")
        assert (await callback(asked, {"percent": 50}, page="progress_url")).status_code == 202
        assert call.results == []
        outcome = success({"cards": 2}, updates=[update("dealt", deck=4)])
        assert (await callback(asked, outcome)).status_code == 200
        reading = await ended(call)
        assert reading.result == {"cards": 2}
        assert both.updates()[0][0] == "dealt"
        assert (await callback(asked, outcome)).status_code == 200
        other = await callback(asked, success("something else"))
        assert other.status_code == 409
        assert other.headers["content-type"] == "application/problem+json"
        assert other.json()["type"] == "/problems/conflict"
        assert (await callback(asked, {"percent": 99}, page="progress_url")).status_code == 409
        history = await gateway.get(f"/v1/calls/{row['call_id']}")
        kinds = [one["event"]["kind"] for one in history["events"]]
        assert kinds == ["tool.requested", "call.progressed", "context.updated", "tool.finished", "outcome.ignored"]
        assert history["events"][1]["event"]["data"] == {"percent": 50}
        assert history["events"][4]["event"]["result"] == "something else"
        await gateway_idle(both)
    assert len(call.results) == 1
    assert len(both.hooks.asked) == 1


async def test_members_of_an_outcome_that_nobody_knows_are_ignored_and_logged_once_per_executor(
    newer: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {**success("two"), "trace_id": "t"}
    newer.hooks.scripts["ask"] = more
    async with newer.running() as gateway:
        for _ in range(2):
            assert (await ended(await newer.agent.call("ask", GOOD))).result == "two"
        newer.hooks.scripts["ask"] = Response(status_code=202)
        call = await newer.agent.call("ask", GOOD)
        asked = (await newer.hooks.wait_for(3))[-1]
        await gateway.wait_call(call.call_id, "accepted")
        assert (await callback(asked, {"outcome": "success", "result": 1, "took": 3})).status_code == 200
        assert (await ended(call)).result == 1
        # A client's typing errors still show.
        row = await gateway.call_of(call.call_id)
        answer = await gateway.http.post(f"/v1/calls/{row['call_id']}/outcome", json=more)
        assert answer.status_code == 400
    told = [line for line in capsys.readouterr().err.splitlines() if "unknown members" in line]
    assert len(told) == 1
    assert "trace_id" in told[0]


async def test_a_callback_with_another_calls_token_is_turned_away(newer: Scene) -> None:
    newer.hooks.scripts["ask"] = Response(status_code=202)
    async with newer.running():
        one, two = [await newer.agent.call("ask", GOOD) for _ in range(2)]
        first, second = await newer.hooks.wait_for(2)
        url = first.data["callback_url"].partition("?")[0] + "?" + second.data["callback_url"].partition("?")[2]
        async with plain_http() as http:
            assert (await http.post(url, json=success())).status_code == 401
            assert (await http.post(url.partition("?")[0], json=success())).status_code == 401
        for asked in (first, second):
            assert (await callback(asked, success(asked.data["native_call_id"]))).status_code == 200
        assert (await ended(one)).result == one.call_id
        assert (await ended(two)).result == two.call_id


async def test_an_accepted_call_that_is_never_answered_ends_at_its_deadline(both: Scene) -> None:
    both.configure({"executors": {"cards": {"accepted_deadline": "300ms"}}})
    both.hooks.scripts["ask"] = Response(status_code=202)
    async with both.running() as gateway:
        call = await both.agent.call("ask", GOOD)
        reading = await ended(call)
        assert reading.outcome == "failure"
        assert "no answer" in (reading.error or "")
        assert (await gateway.call_of(call.call_id))["state"] == "expired"
        [asked] = both.hooks.of("ask")
        assert (await callback(asked, success("after the deadline"))).status_code == 409
        await gateway.wait_events("outcome.ignored", result="after the deadline")
    assert len(call.results) == 1


async def test_a_static_executor_answers_from_the_configuration(both: Scene) -> None:
    both.configure(STATIC)
    async with both.running():
        free, ask = await both.agent.call("free", {}), await both.agent.call("ask", GOOD)
        assert (await ended(free)).result == {"fixed": True}
        reading = await ended(ask)
    assert (reading.outcome, reading.error) == ("failure", "Closed.")


async def test_a_raw_executor_takes_the_whole_body_as_the_result(both: Scene) -> None:
    both.configure({"executors": {"cards": {"response": "raw"}}})
    both.hooks.scripts["ask"] = JSONResponse([1, {"outcome": "failure"}])
    async with both.running():
        call = await both.agent.call("ask", GOOD)
        reading = await ended(call)
    assert reading.result == [1, {"outcome": "failure"}]

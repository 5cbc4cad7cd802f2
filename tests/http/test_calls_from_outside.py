"""Calls from outside over a real gateway: keys, waiting, refusals, and what the runtime must never see of them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from gateway.events import CallId, Outcome, SessionId, SessionMoved, ToolCanceled, ToolRequested, TurnInterrupted
from gateway.executors.port import Answered
from gateway.runtime.clients.callers import MOST_HELD_OF_ONE
from gateway.settings.model import ApiKey
from gateway.store.call import Call
from tests.http.conftest import bearer, in_process
from tests.http.environment import Environment, environment_of
from tests.pace import PATIENCE

TOOLS = {
    "tools": {
        "ask_for_cards": {
            "description": "Ask a player for all cards of one rank.",
            "parameters": {
                "type": "object",
                "properties": {"rank": {"type": "string", "enum": ["7", "8"]}},
                "required": ["rank"],
                "additionalProperties": False,
            },
        },
        "nobody_answers": {"description": "Routed nowhere.", "parameters": {"type": "object"}},
    },
    "routes": [{"match": {"tool": "ask_*"}, "to": "cards"}],
}
SEVENS = {"tool": "ask_for_cards", "arguments": {"rank": "7"}}
SEVEN = Answered(Outcome(outcome="success", result={"cards": ["7H"]}))


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    async with environment_of(TOOLS) as made:
        yield made


@pytest.fixture
def path(session_id: str) -> str:
    return f"/v1/sessions/{session_id}/calls"


async def test_a_call_is_answered_with_its_outcome_and_the_runtime_sees_nothing(
    api: httpx.AsyncClient, environment: Environment, session_id: str, path: str
) -> None:
    environment.backend.answers["ask_for_cards"] = SEVEN
    answer = await api.post(path, params={"wait": "5s"}, json=SEVENS)
    assert answer.status_code == 200
    call = answer.json()
    assert call["outcome"] == {"outcome": "success", "result": {"cards": ["7H"]}, "error": None, "unknown": False}
    assert (call["answer_to"], call["deliver"], call["state"]) == ("caller", False, "succeeded")
    assert call["native_call_id"].startswith("caller:backend:")
    (asked,) = environment.backend.asked
    assert (asked.data["tool"], asked.data["arguments"]) == ("ask_for_cards", {"rank": "7"})
    requested, finished = (await environment.journal(session_id))[2:]
    assert (requested.event.kind, finished.event.kind) == ("tool.requested", "tool.finished")
    assert requested.origin is not None
    assert requested.origin == finished.origin
    assert (requested.origin.adapter, requested.origin.protocol) == ("caller", "dragoman/1")
    assert not environment.runtime.heard


async def test_calls_are_found_by_the_trace_that_their_webhooks_carry(
    api: httpx.AsyncClient, environment: Environment, path: str
) -> None:
    given = {"traceparent": f"00-{'a' * 32}-{'1' * 16}-01"}
    called = [(await api.post(path, json=SEVENS, headers=headers)).json() for headers in (given, {})]
    assert called[0]["trace_id"] == "a" * 32 != called[1]["trace_id"]
    for call in called:
        [listed] = (await api.get("/v1/calls", params={"trace_id": call["trace_id"]})).json()["data"]
        assert listed["call_id"] == call["call_id"]
    assert [str(one.traceparent).split("-")[1] for one in environment.backend.asked] == [
        call["trace_id"] for call in called
    ]
    assert (await api.get("/v1/calls", params={"trace_id": "A" * 32})).status_code == 400


async def test_one_that_does_not_wait_is_told_where_to_look(
    api: httpx.AsyncClient, environment: Environment, path: str
) -> None:
    answer = await api.post(path, json=SEVENS)
    assert (answer.status_code, answer.json()["outcome"]) == (202, None)
    where = answer.headers["location"]
    assert where == f"/v1/calls/{answer.json()['call_id']}"
    waiting = asyncio.create_task(api.get(where, params={"wait": PATIENCE}))
    await environment.call(answer.json()["native_call_id"], "accepted")
    settled = await api.post(f"{where}/outcome", json={"outcome": "failure", "error": "no such player"})
    assert settled.status_code == 200
    history = (await waiting).json()
    assert history["outcome"] == {"outcome": "failure", "result": None, "error": "no such player", "unknown": False}
    assert history["deliveries"] == []


async def test_who_waits_is_answered_as_still_open_when_the_time_is_over(api: httpx.AsyncClient, path: str) -> None:
    answer = await api.post(path, params={"wait": 0.05}, json=SEVENS)
    assert (answer.status_code, answer.json()["outcome"]) == (202, None)


async def test_the_same_key_is_the_same_call_open_and_ended(
    api: httpx.AsyncClient, environment: Environment, path: str
) -> None:
    keyed = {**SEVENS, "key": "order 1"}
    first = (await api.post(path, json=keyed)).json()
    again = (await api.post(path, json=SEVENS, headers={"idempotency-key": "order 1"})).json()
    assert again["call_id"] == first["call_id"]
    await environment.call(first["native_call_id"], "accepted")
    await api.post(f"/v1/calls/{first['call_id']}/outcome", json={"outcome": "success", "result": 1})
    ended = await api.post(path, json=keyed)
    assert (ended.status_code, ended.json()["call_id"]) == (200, first["call_id"])
    assert ended.json()["outcome"]["result"] == 1
    assert len(environment.backend.asked) == 1


async def test_keys_are_each_callers_own_and_without_one_each_request_is_a_call(
    api: httpx.AsyncClient, environment: Environment, path: str
) -> None:
    async with in_process(environment.gateway, bearer("drive-only")) as other:
        keyed = {**SEVENS, "key": "k"}
        calls = {(await client.post(path, json=keyed)).json()["call_id"] for client in (api, other)}
    plain = {(await api.post(path, json=SEVENS)).json()["call_id"] for _ in range(2)}
    assert len(calls | plain) == 4


@pytest.mark.parametrize("key", ["a:b", ":", "caller:driver:k", "unkeyed-1"])
async def test_a_key_that_guesses_another_callers_finds_only_its_own_call(
    api: httpx.AsyncClient, environment: Environment, path: str, key: str
) -> None:
    async with in_process(environment.gateway, bearer("drive-only")) as other:
        theirs = (await other.post(path, json={**SEVENS, "key": key})).json()
        assert theirs["native_call_id"] == f"caller:driver:{key}"
        for guess in (key, f"driver:{key}", theirs["native_call_id"], theirs["call_id"]):
            own = (await api.post(path, json={**SEVENS, "key": guess})).json()
            assert own["native_call_id"] == f"caller:backend:{guess}"
            assert own["call_id"] != theirs["call_id"]
        again = (await other.post(path, json={**SEVENS, "key": key})).json()
    assert again["call_id"] == theirs["call_id"]


@pytest.mark.parametrize("name", ["a:b", ":", "tool token", "driver:k"])
def test_no_api_key_has_a_name_that_reads_as_name_and_key(name: str) -> None:
    with pytest.raises(ValidationError):
        ApiKey.model_validate({"name": name, "key": "k"})


async def test_a_call_that_opened_and_ended_since_it_was_looked_for_is_found_all_the_same(
    api: httpx.AsyncClient, environment: Environment, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.backend.answers["ask_for_cards"] = SEVEN
    keyed = {**SEVENS, "key": "k"}
    look = environment.engine.call

    async def look_too_early(call_id: CallId) -> Call | None:
        monkeypatch.setattr(environment.engine, "call", look)
        found = await look(call_id)
        await api.post(path, params={"wait": PATIENCE}, json=keyed)
        return found

    monkeypatch.setattr(environment.engine, "call", look_too_early)
    answer = await api.post(path, json=keyed)
    assert (answer.status_code, answer.json()["outcome"]["result"]) == (200, {"cards": ["7H"]})
    assert len(environment.backend.asked) == 1


@pytest.mark.parametrize("ended", [False, True])
async def test_a_key_of_another_request_is_refused(
    api: httpx.AsyncClient, environment: Environment, path: str, *, ended: bool
) -> None:
    if ended:
        environment.backend.answers["ask_for_cards"] = SEVEN
    await api.post(path, params={"wait": 5 if ended else 0}, json={**SEVENS, "key": "k"})
    other = {"tool": "ask_for_cards", "arguments": {"rank": "8"}, "key": "k"}
    refused = await api.post(path, json=other)
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/call-differs")
    assert len(environment.backend.asked) == 1


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ({"tool": "sing"}, 404, "unknown-tool"),
        ({"tool": "nobody_answers"}, 404, "unknown-tool"),
        ({"tool": "ask_for_cards", "arguments": {"rank": "9"}}, 422, "invalid-arguments"),
        ({"tool": "ask_for_cards", "arguments": {}}, 422, "invalid-arguments"),
        ({"tool": "ask_for_cards", "arguments": [1]}, 400, "invalid-request"),
        ({"tool": ""}, 400, "invalid-request"),
        ({**SEVENS, "key": ""}, 400, "invalid-request"),
        ({**SEVENS, "key": "é"}, 400, "invalid-request"),
        ({**SEVENS, "key": "k" * 201}, 400, "invalid-request"),
        ({**SEVENS, "keys": "k"}, 400, "invalid-request"),
    ],
)
async def test_what_cannot_be_called_is_refused_and_nothing_is_on_record(
    api: httpx.AsyncClient,
    environment: Environment,
    session_id: str,
    path: str,
    body: dict[str, Any],
    status: int,
    problem: str,
) -> None:
    refused = await api.post(path, json=body)
    assert (refused.status_code, refused.json()["type"]) == (status, f"/problems/{problem}")
    assert len(await environment.journal(session_id)) == 2
    assert not environment.backend.asked


@pytest.mark.parametrize(
    ("arguments", "pointer"),
    [
        ({"rank": "9"}, "/arguments/rank"),
        ({}, "/arguments/rank"),
        ({"rank": "7", "a/b": 1}, "/arguments/a~1b"),
        # The text has to write these otherwise.
        ({"rank": "7", "a b": 1}, None),
        ({"rank": "7", "x" * 200: 1}, None),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_with_their_place(
    api: httpx.AsyncClient, path: str, arguments: dict[str, Any], pointer: str | None
) -> None:
    refused = (await api.post(path, json={"tool": "ask_for_cards", "arguments": arguments})).json()
    assert refused["type"] == "/problems/invalid-arguments"
    assert refused.get("pointer") == pointer


@pytest.mark.parametrize("wait", ["61", "-1", "soon", "nan"])
async def test_a_wait_has_bounds(api: httpx.AsyncClient, path: str, wait: str) -> None:
    assert (await api.post(path, params={"wait": wait}, json=SEVENS)).status_code == 400


async def test_two_keys_that_differ_are_refused(api: httpx.AsyncClient, path: str) -> None:
    refused = await api.post(path, json={**SEVENS, "key": "a"}, headers={"idempotency-key": "b"})
    assert (refused.status_code, refused.json()["pointer"]) == (400, "/key")


async def test_who_may_only_look_calls_nothing(environment: Environment, path: str) -> None:
    async with in_process(environment.gateway, bearer("look-only")) as viewer:
        refused = await viewer.post(path, json=SEVENS)
    assert (refused.status_code, refused.json()["scope"]) == (403, "drive")


async def test_a_closed_session_takes_no_call_but_answers_for_its_old_ones(
    api: httpx.AsyncClient, environment: Environment, session_id: str, path: str
) -> None:
    environment.backend.answers["ask_for_cards"] = SEVEN
    keyed = {**SEVENS, "key": "k"}
    await api.post(path, params={"wait": PATIENCE}, json=keyed)
    await api.delete(f"/v1/sessions/{session_id}")
    assert (await api.post(path, json=keyed)).json()["outcome"]["outcome"] == "success"
    refused = await api.post(path, json=SEVENS)
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/conflict")


async def test_an_unknown_session_is_said_to_be_so(api: httpx.AsyncClient) -> None:
    assert (await api.post("/v1/sessions/nowhere/calls", json=SEVENS)).status_code == 404


async def test_the_runtime_cannot_reach_a_callers_call(
    api: httpx.AsyncClient, environment: Environment, session_id: str, path: str
) -> None:
    call = (await api.post(path, json={**SEVENS, "key": "k"})).json()
    await environment.call(call["native_call_id"], "accepted")
    environment.runtime.say(ToolCanceled(native_call_id=call["native_call_id"]))
    environment.runtime.say(ToolRequested(native_call_id=call["native_call_id"], tool="ask_for_cards"))
    rejected = await environment.recorded(session_id, "frame.rejected")
    assert "'caller:'" in str(rejected.event)
    environment.runtime.say(SessionMoved(state="finished"))
    await environment.recorded(session_id, "session.moved")
    assert (await api.get(f"/v1/calls/{call['call_id']}")).json()["state"] == "accepted"


async def test_an_interrupt_ends_a_callers_call_as_well(
    api: httpx.AsyncClient, environment: Environment, session_id: str, path: str
) -> None:
    waiting = asyncio.create_task(api.post(path, params={"wait": PATIENCE}, json={**SEVENS, "key": "k"}))
    await environment.call("caller:backend:k", "accepted")
    await environment.gateway.post(SessionId(session_id), [TurnInterrupted(reason="enough")], by="-")
    ended = (await waiting).json()
    assert (ended["state"], ended["outcome"]["error"]) == ("canceled", "enough")


async def test_only_so_many_wait_for_the_calls_of_one_session(
    api: httpx.AsyncClient, environment: Environment, path: str
) -> None:
    call = (await api.post(path, json=SEVENS)).json()
    where = f"/v1/calls/{call['call_id']}"
    await environment.call(call["native_call_id"], "accepted")
    held = [asyncio.create_task(api.get(where, params={"wait": PATIENCE})) for _ in range(MOST_HELD_OF_ONE)]
    callers = environment.gateway.callers
    async with asyncio.timeout(PATIENCE):
        # A request that is held tells nobody.
        while sum(callers.held_by_session.values()) < MOST_HELD_OF_ONE:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    refused = await api.get(where, params={"wait": 0.01})
    assert (refused.status_code, refused.json()["type"]) == (503, "/problems/overloaded")
    await api.post(f"{where}/outcome", json={"outcome": "success"})
    assert {(await one).json()["state"] for one in held} == {"succeeded"}

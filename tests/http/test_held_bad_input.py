"""Bad answers to the question about a held call, edits of any size, and routes written for other approvals."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.events import ApprovalAsked, SessionId, ToolRequested
from tests.http.environment import Environment, environment_of, until
from tests.http.test_approvals import DONE, GATED, LEAD, answer, hold, problem, shown

MEGABYTE = 1024 * 1024
OWN_KEYS = {"name": "lead", "key": "approve-only", "scopes": ["read", "drive", "answer", "approve"]}


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    async with environment_of(GATED) as made:
        made.backend.answers.update(refund=DONE)
        yield made


@pytest.mark.parametrize(
    ("over", "pointer"),
    [
        ({"decision": "maybe"}, "/decision"),
        ({"decision": None}, ""),
        ({"decision": ["allow"]}, "/decision"),
        ({"binding": 5}, "/binding"),
        ({"binding": "é" * 65}, "/binding"),
        ({"scope": "always"}, "/scope"),
        ({"scope": "once "}, "/scope"),
        ({"arguments": []}, "/arguments"),
        ({"arguments": "{}"}, "/arguments"),
        ({"answer": "yes"}, ""),
        ({"value": "secret"}, ""),
        ({"by": "lead"}, "/by"),
        ({"edited": True}, "/edited"),
    ],
)
async def test_an_answer_of_another_form_is_refused_and_the_call_waits(
    api: httpx.AsyncClient, environment: Environment, session_id: str, over: dict[str, Any], pointer: str
) -> None:
    await hold(environment)
    row = await shown(api)
    body: dict[str, Any] = {"decision": "allow", "binding": row["binding"], **over}
    refused = await api.post(f"/v1/interactions/{row['interaction_id']}/answer", json=body, headers=LEAD)
    assert problem(refused) == (400, "invalid-request"), refused.text
    assert refused.json().get("pointer", "") == pointer
    assert "secret" not in refused.text
    assert (await shown(api))["state"] == "waiting"
    assert environment.backend.asked == []


async def test_an_edit_of_two_megabytes_runs_whole_and_is_on_record(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    call_id = await hold(environment)
    row = await shown(api)
    arguments = {"amount": 7, "note": "é\u202e" * (2 * MEGABYTE // 5)}
    allowed = await answer(api, row, decision="allow", binding=row["binding"], arguments=arguments)
    assert allowed.status_code == 200, allowed.text[:500]
    await environment.call("c-1", "succeeded")
    (asked,) = environment.backend.asked
    assert asked.data["arguments"] == arguments
    (record,) = (await api.get("/v1/approvals")).json()["data"]
    assert record["changed_to"] == arguments
    story = (await api.get(f"/v1/calls/{call_id}")).json()
    assert story["state"] == "succeeded"


async def test_an_edit_beyond_the_limits_is_refused_and_the_call_waits(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await hold(environment)
    row = await shown(api)
    await environment.reload({"api": {"max_body": "1MiB"}})

    async def edit(size: int) -> tuple[int, str]:
        arguments = {"amount": 7, "note": "x" * size}
        return problem(await answer(api, row, decision="allow", binding=row["binding"], arguments=arguments))

    assert await edit(2 * MEGABYTE) == (413, "too-large")
    await environment.reload({"api": {"max_body": "8MiB"}, "limits": {"open_bytes": "1MiB"}})
    environment.runtime.say(ToolRequested(native_call_id="c-2", tool="refund", arguments={"amount": 1}))
    await environment.call("c-2", "held")
    assert await edit(2 * MEGABYTE) == (413, "too-large")
    members = {"amount": 7, "note": [0] * 20_001}
    refused = await answer(api, row, decision="allow", binding=row["binding"], arguments=members)
    assert problem(refused) == (400, "invalid-json")
    assert {one["state"] for one in (await api.get("/v1/interactions")).json()["data"]} == {"waiting"}
    assert environment.backend.asked == []


async def test_a_route_for_other_approvals_is_not_asked_about_a_held_call() -> None:
    routes = [
        *GATED["routes"],
        {"match": {"event": "*"}, "to": "cards"},
        {"match": {"event": "approval.*"}, "to": "cards"},
    ]
    keys = {"api": {"keys": [OWN_KEYS]}}
    async with environment_of({**GATED, **keys, "routes": routes}) as environment:
        session_id = await environment.attach()
        await hold(environment)
        asked = [one for one in await environment.journal(session_id) if one.event.kind == "approval.asked"]
        assert [one.origin.adapter for one in asked if one.origin is not None] == ["gateway"]
        # The executor is asked what the runtime asks, after the held call.
        environment.runtime.say(ApprovalAsked(id="a-1", tool="rm"))
        await environment.recorded(session_id, "approval.asked")

        async def heard() -> list[str] | None:
            return [
                one.data["event"]["id"] for one in environment.backend.asked if one.kind == "approval.asked"
            ] or None

        assert await until(heard) == ["a-1"]
        (held,) = [one for one in await environment.engine.open_calls(SessionId(session_id)) if one.state == "held"]
        assert held.native_call_id == "c-1"

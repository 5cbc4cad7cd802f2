"""Held calls over the API: who may answer, what an answer names, what is refused, and what is on record after."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.core.binding import asked_binding_of, binding_of
from gateway.events import ApprovalAsked, Outcome, ToolRequested
from gateway.executors.port import Answered
from tests.http.conftest import bearer, in_process
from tests.http.environment import Environment, environment_of, until

MONEY = {
    "type": "object",
    "properties": {"amount": {"type": "number"}, "note": {"type": "string"}},
    "required": ["amount"],
}
GATED: dict[str, Any] = {
    "api": {
        "keys": [
            {"name": "backend", "key": "all-of-it"},
            {"name": "answerer", "key": "answer-only", "scopes": ["answer"]},
            {"name": "lead", "key": "approve-only", "scopes": ["read", "approve"]},
            {"name": "deputy", "key": "deputy", "scopes": ["approve"]},
            {"name": "maker", "key": "maker", "scopes": ["drive", "read", "approve"]},
        ],
    },
    "tools": {"refund": {"description": "Refund.", "parameters": MONEY}, "wire": {"parameters": MONEY}},
    "routes": [
        {
            "match": {
                "tool": "refund",
                "arguments": {"properties": {"amount": {"minimum": 1000}}, "required": ["amount"]},
            },
            "deny": "Nobody refunds so much.",
        },
        {"match": {"tool": "refund"}, "to": "cards", "approve": True},
        {"match": {"tool": "wire"}, "to": "cards", "approve": {"by": ["lead"]}},
    ],
}
LEAD, DEPUTY, MAKER = bearer("approve-only"), bearer("deputy"), bearer("maker")
DONE = Answered(Outcome(outcome="success", result="done"))


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    async with environment_of(GATED) as made:
        made.backend.answers.update(refund=DONE, wire=DONE)
        yield made


async def hold(environment: Environment, tool: str = "refund", **arguments: Any) -> str:
    """Let the agent make a call that is held; returns its id."""
    event = ToolRequested(native_call_id="c-1", tool=tool, arguments=arguments or {"amount": 120})
    environment.runtime.say(event)
    return (await environment.call("c-1", "held")).call_id


async def shown(api: httpx.AsyncClient) -> dict[str, Any]:
    """The only interaction."""
    (row,) = (await api.get("/v1/interactions")).json()["data"]
    return row


async def answer(
    api: httpx.AsyncClient, row: dict[str, Any], key: dict[str, str] = LEAD, **body: Any
) -> httpx.Response:
    return await api.post(f"/v1/interactions/{row['interaction_id']}/answer", json=body, headers=key)


def problem(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["type"].removeprefix("/problems/")


async def test_a_held_call_is_shown_whole_and_runs_with_its_binding(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    call_id = await hold(environment, amount=1.0, id=2**60, note="\u202eevil\x1b[31m")
    row = await shown(api)
    arguments = {"amount": 1.0, "id": 2**60, "note": "\u202eevil\x1b[31m"}
    assert (row["kind"], row["state"], row["call_id"], row["rule"]) == (
        "approval.asked",
        "waiting",
        call_id,
        "routes[1]",
    )
    assert (row["event"]["tool"], row["event"]["arguments"]) == ("refund", arguments)
    assert row["asked_at"] < row["expires_at"]
    assert row["binding"] == binding_of(
        session=session_id, call=call_id, tool="refund", arguments=arguments, rule=row["rule_sha"]
    )
    assert (await api.get(f"/v1/interactions/{row['interaction_id']}")).json() == row
    assert (await api.get(f"/v1/calls/{call_id}")).json()["state"] == "held"
    assert environment.backend.asked == []
    allowed = await answer(api, row, decision="allow", binding=row["binding"])
    assert allowed.status_code == 200, allowed.text
    assert (allowed.json()["state"], allowed.json()["answered_by"]) == ("answered", "lead")
    await environment.call("c-1", "succeeded")
    (asked,) = environment.backend.asked
    assert asked.data["arguments"] == arguments
    (record,) = (await api.get("/v1/approvals")).json()["data"]
    assert (record["decision"], record["answered_by"], record["changed_to"]) == ("allow", "lead", None)
    assert record["binding"] == record["allowed"] == row["binding"]
    assert record["asked_at"] <= record["answered_at"]


async def test_without_the_binding_nothing_is_allowed(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await hold(environment)
    row = await shown(api)
    assert problem(await answer(api, row, decision="allow")) == (400, "binding-required")
    for binding in ("0" * 64, "", row["binding"].upper(), row["rule_sha"]):
        assert problem(await answer(api, row, decision="allow", binding=binding)) == (409, "approval-stale")
    assert problem(await answer(api, row, decision="allow", binding="0" * 65)) == (400, "invalid-request")
    assert (await shown(api))["state"] == "waiting"
    assert environment.backend.asked == []


async def test_the_binding_of_another_call_allows_nothing(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await hold(environment)
    environment.runtime.say(ToolRequested(native_call_id="c-2", tool="refund", arguments={"amount": 120}))
    await environment.call("c-2", "held")
    one, two = (await api.get("/v1/interactions")).json()["data"]
    assert one["binding"] != two["binding"]
    assert problem(await answer(api, one, decision="allow", binding=two["binding"])) == (409, "approval-stale")


async def test_allowing_needs_the_scope_and_the_other_kinds_do_not(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await hold(environment)
    row = await shown(api)
    for key in (bearer("all-of-it"), bearer("answer-only")):
        for decision in ("allow", "deny"):
            refused = await answer(api, row, key, decision=decision, binding=row["binding"])
            assert problem(refused) == (403, "forbidden")
            assert refused.json()["scope"] == "approve"
    environment.runtime.say(ApprovalAsked(id="a-1", tool="rm"))
    await environment.recorded(session_id, "approval.asked")

    async def both() -> list[dict[str, Any]] | None:
        rows = (await api.get("/v1/interactions")).json()["data"]
        return rows if len(rows) == 2 else None

    own = next(row for row in await until(both) if row["call_id"] is None)
    refused = await answer(api, own, LEAD, decision="allow")
    assert (problem(refused), refused.json()["scope"]) == ((403, "forbidden"), "answer")
    assert (await answer(api, own, bearer("answer-only"), decision="allow")).status_code == 200


async def test_who_made_a_call_does_not_allow_it(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    body = {"tool": "refund", "arguments": {"amount": 1}}
    made = await api.post(f"/v1/sessions/{session_id}/calls", json=body, params={"wait": "0.05s"}, headers=MAKER)
    assert (made.status_code, made.json()["state"]) == (202, "held")
    row = await shown(api)
    for decision in ("allow", "deny"):
        refused = await answer(api, row, MAKER, decision=decision, binding=row["binding"])
        assert problem(refused) == (403, "own-call")
    assert (await answer(api, row, LEAD, decision="allow", binding=row["binding"])).status_code == 200
    done = await api.get(f"/v1/calls/{made.json()['call_id']}", params={"wait": "5s"}, headers=MAKER)
    assert done.json()["outcome"]["result"] == "done"


async def test_an_outcome_is_not_heard_until_its_caller_reads_it(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    body = {"tool": "refund", "arguments": {"amount": 1}}
    made = await api.post(f"/v1/sessions/{session_id}/calls", json=body, headers=MAKER)
    assert made.status_code == 202
    path, row = f"/v1/calls/{made.json()['call_id']}", await shown(api)
    assert row["unheard_since"] == made.json()["unheard_since"] is not None
    await api.get(path, params={"wait": "0.05s"}, headers=MAKER)
    waited = (await shown(api))["unheard_since"]
    assert waited > row["unheard_since"]
    assert (await answer(api, row, LEAD, decision="deny")).status_code == 200
    for _ in range(2):
        # Somebody else's look is not that of its caller.
        assert (await api.get(path, headers=LEAD)).json()["unheard_since"] == waited
    assert (await api.get(path, headers=MAKER)).json()["outcome"]["outcome"] == "failure"
    (record,) = (await api.get("/v1/approvals")).json()["data"]
    assert (record["decision"], record["unheard_since"]) == ("deny", None)


async def test_a_rule_may_name_who_answers(api: httpx.AsyncClient, environment: Environment, session_id: str) -> None:
    await hold(environment, "wire")
    row = await shown(api)
    refused = await answer(api, row, DEPUTY, decision="allow", binding=row["binding"])
    assert problem(refused) == (403, "not-approver")
    assert "lead" in refused.json()["detail"]
    assert (await answer(api, row, LEAD, decision="allow", binding=row["binding"])).status_code == 200


async def test_a_denial_tells_the_agent_the_reason_and_not_the_name(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    call_id = await hold(environment)
    row = await shown(api)
    assert problem(await answer(api, row, decision="deny", reason="x" * 2_001)) == (400, "invalid-request")
    denied = await answer(api, row, decision="deny", reason="x" * 1_999 + "!")
    assert (denied.status_code, denied.json()["state"]) == (200, "answered")
    call = (await api.get(f"/v1/calls/{call_id}")).json()
    assert call["outcome"]["error"] == f"The call was not made: a person denied it: {'x' * 1_999}!"
    assert (call["state"], call["unknown"], call["dead"]) == ("failed", False, False)
    (record,) = (await api.get("/v1/approvals")).json()["data"]
    assert (record["decision"], record["reason"][-2:]) == ("deny", "x!")
    assert environment.backend.asked == []


async def test_edits_are_checked_bound_anew_and_on_record(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    call_id = await hold(environment)
    row = await shown(api)
    for arguments in ({"amount": "much"}, {}, {"amount": 5_000}):
        refused = await answer(api, row, decision="allow", binding=row["binding"], arguments=arguments)
        assert problem(refused) == (422, "denied")
    assert problem(await answer(api, row, decision="deny", arguments={})) == (400, "invalid-request")
    edited = await answer(api, row, decision="allow", binding=row["binding"], arguments={"amount": 50})
    assert edited.status_code == 200
    await environment.call("c-1", "succeeded")
    (asked,) = environment.backend.asked
    assert (asked.data["arguments"], asked.data["edited"]) == ({"amount": 50}, True)
    (record,) = (await api.get("/v1/approvals")).json()["data"]
    assert (record["arguments"], record["changed_to"]) == ({"amount": 120}, {"amount": 50})
    assert record["allowed"] == binding_of(
        session=session_id, call=call_id, tool="refund", arguments={"amount": 50}, rule=row["rule_sha"]
    )


async def test_of_two_answers_one_counts_and_the_other_learns_of_it(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await hold(environment)
    row = await shown(api)
    answers = await asyncio.gather(
        answer(api, row, LEAD, decision="allow", binding=row["binding"]), answer(api, row, DEPUTY, decision="deny")
    )
    lost, won = sorted(answers, key=lambda one: one.status_code == 200)
    assert (won.status_code, problem(lost)) == (200, (409, "conflict"))
    by = won.json()["answered_by"]
    for late in (lost, await answer(api, row, LEAD, decision="allow", binding=row["binding"])):
        assert f"already answered: by {by!r} at 20" in late.json()["detail"]
    await environment.call("c-1", "succeeded" if by == "lead" else "failed")
    assert len(environment.backend.asked) == (by == "lead")


@pytest.mark.parametrize("native", [True, False])
async def test_an_event_does_not_answer_for_a_held_call(
    api: httpx.AsyncClient, environment: Environment, session_id: str, native: bool
) -> None:
    call_id = await hold(environment)
    event = {"kind": "approval.given", "id": "c-1" if native else call_id, "decision": "allow"}
    refused = await api.post(f"/v1/sessions/{session_id}/events", json=event)
    assert problem(refused) == (409, "use-interaction")
    assert (await shown(api))["state"] == "waiting"


async def test_a_held_call_takes_neither_outcome_nor_progress(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    call_id = await hold(environment)
    path = f"/v1/calls/{call_id}"
    outcome = {"outcome": "success", "result": 1}
    assert problem(await api.post(f"{path}/outcome", json=outcome)) == (409, "held")
    assert problem(await api.post(f"{path}/progress", json={"percent": 1})) == (409, "held")


async def test_the_approvals_of_a_runtime_have_a_binding_too(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    interaction = await environment.ask_person(ApprovalAsked(id="a-1", tool="rm", arguments={"path": "/"}))
    row = await shown(api)
    assert row["binding"] == asked_binding_of(session=session_id, interaction=interaction, asked=row["event"])
    key = bearer("all-of-it")
    assert problem(await answer(api, row, key, decision="allow", binding="0" * 64)) == (409, "approval-stale")
    refused = await answer(api, row, key, decision="allow", arguments={"path": "/tmp"})  # noqa: S108 - no file
    assert (problem(refused), refused.json()["pointer"]) == ((400, "invalid-request"), "/arguments")
    assert (await answer(api, row, key, decision="allow", binding=row["binding"])).status_code == 200
    assert (await api.get("/v1/approvals")).json()["data"] == []


async def test_the_list_of_approvals_has_pages_and_begins_at_a_time(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    for number in range(3):
        event = ToolRequested(native_call_id=f"n-{number}", tool="refund", arguments={"amount": number})
        environment.runtime.say(event)
        await environment.call(f"n-{number}", "held")
    first = (await api.get("/v1/approvals", params={"limit": 2})).json()
    rest = (await api.get("/v1/approvals", params={"limit": 2, "after": first["next"]})).json()
    rows = [*first["data"], *rest["data"]]
    assert [row["arguments"]["amount"] for row in rows] == [0, 1, 2]
    assert [row["answered_at"] for row in rows] == [None] * 3
    later = (await api.get("/v1/approvals", params={"since": rows[1]["asked_at"]})).json()["data"]
    assert later == rows[1:]
    assert (await api.get("/v1/approvals", params={"session_id": "other"})).json()["data"] == []


async def test_a_changed_rule_asks_again_and_the_old_answer_is_stale(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await hold(environment)
    row = await shown(api)
    narrower = {"match": {"tool": "refund", "runtime": "finn"}, "to": "cards", "approve": True}
    await environment.reload({"routes": [narrower]})
    refused = await answer(api, row, decision="allow", binding=row["binding"])
    assert problem(refused) == (409, "approval-stale")
    before, again = (await api.get("/v1/interactions")).json()["data"]
    assert (before["state"], again["state"]) == ("moot", "waiting")
    assert again["binding"] != row["binding"]
    assert (await answer(api, again, decision="allow", binding=again["binding"])).status_code == 200
    await environment.call("c-1", "succeeded")


async def test_a_denial_that_came_meanwhile_ends_the_call_in_spite_of_the_allow(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await hold(environment)
    row = await shown(api)
    await environment.reload({"routes": [*GATED["routes"], {"match": {"tool": "refund"}, "deny": "No more refunds."}]})
    refused = await answer(api, row, decision="allow", binding=row["binding"])
    assert problem(refused) == (409, "conflict")
    assert "No more refunds." in refused.json()["detail"]
    assert (await environment.call("c-1", "failed")).error == "No more refunds."
    assert environment.backend.asked == []


async def test_without_keys_the_machine_answers_its_own_calls() -> None:
    async with environment_of(GATED | {"api": {"keys": []}}) as environment:
        environment.backend.answers["refund"] = DONE
        session_id = await environment.attach()
        async with in_process(environment.gateway, {}) as api:
            made = await api.post(
                f"/v1/sessions/{session_id}/calls", json={"tool": "refund", "arguments": {"amount": 1}}
            )
            assert made.json()["state"] == "held"
            row = await shown(api)
            allowed = await answer(api, row, {}, decision="allow", binding=row["binding"])
            assert (allowed.status_code, allowed.json()["answered_by"]) == (200, "loopback")

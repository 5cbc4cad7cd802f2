"""The forms and codes of sessions, events, calls, interactions and operating."""

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from typer.testing import CliRunner

from dragoman.models import responses
from gateway.adapter.port import Link, Receiver, RuntimeOptions
from gateway.cli.commands import app
from gateway.cli.doctor_gateway import check_links
from gateway.errors import LinkLost, LinkRefused
from gateway.events import (
    CLIENT_KINDS,
    ApprovalAsked,
    ContextUpdated,
    Event,
    Loss,
    MessagePosted,
    QuestionAsked,
    SecretAsked,
    SessionId,
)
from gateway.executors.port import Cancellation, Copied
from gateway.runtime.delivery.subscriptions import note_of
from gateway.settings.load import load
from gateway.store.rows import EngineHealth
from tests.http.conftest import bearer, in_process
from tests.http.environment import Environment, Rooms, environment_of, until
from tests.scenarios.environment import merge

STEER = {"kind": "turn.steered", "text": "left"}


async def test_a_new_session_is_created_and_an_open_one_is_found(api: httpx.AsyncClient) -> None:
    body = {"runtime": "finn", "native_id": "agent-7", "labels": {"table": "12"}}
    first = await api.post("/v1/sessions", json=body)
    assert first.status_code == 201
    session = responses.OpenedSession.model_validate(first.json())
    assert (session.native_id, session.labels) == ("agent-7", {"table": "12"})
    assert first.headers["location"] == f"/v1/sessions/{session.session_id}"
    again = await api.post("/v1/sessions", json=body)
    assert again.status_code == 200
    apart = {"updated_at", "last_sequence", "position"}
    assert {name: again.json()[name] for name in again.json().keys() - apart} == {
        name: first.json()[name] for name in first.json().keys() - apart
    }


async def test_a_session_shows_nothing_of_the_gateway_s_own_state(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    answer = await api.get(f"/v1/sessions/{session_id}")
    assert answer.status_code == 200
    row = await environment.gateway.session(SessionId(session_id))
    own = {"fence", "cursor", "previous_owner", "shared_sequence"}
    assert answer.json().keys() - {"position"} | own == {member.name for member in fields(row)}


async def test_sessions_are_listed_page_by_page(api: httpx.AsyncClient, environment: Environment) -> None:
    for number in range(5):
        await environment.attach(f"agent-{number}")
    seen: list[str] = []
    query: dict[str, str] = {"limit": "2"}
    while True:
        page = responses.Listing[responses.Session].model_validate((await api.get("/v1/sessions", params=query)).json())
        seen += [session.native_id for session in page.data]
        if page.next is None:
            break
        query["after"] = page.next
    assert seen == [f"agent-{number}" for number in range(5)]
    assert (await api.get("/v1/sessions?runtime=other")).json() == {"data": [], "next": None}


async def test_a_session_is_looked_up_by_what_its_runtime_calls_it(
    api: httpx.AsyncClient, environment: Environment
) -> None:
    for name in ("room", "room/7 ä&", "7"):
        await environment.attach(name)
    runtime = (await api.get("/v1/sessions")).json()["data"][0]["runtime"]
    found = await api.get("/v1/sessions", params={"runtime": runtime, "native_id": "room/7 ä&"})
    assert [session["native_id"] for session in found.json()["data"]] == ["room/7 ä&"]
    for wrong in ({"runtime": runtime, "native_id": "room/7"}, {"runtime": "other", "native_id": "room"}):
        assert (await api.get("/v1/sessions", params=wrong)).json() == {"data": [], "next": None}


async def test_the_newest_sessions_come_first_where_that_is_asked(
    api: httpx.AsyncClient, environment: Environment
) -> None:
    opened = [await environment.attach(f"agent-{number}") for number in range(3)]
    await api.delete(f"/v1/sessions/{opened[2]}")
    newest = (await api.get("/v1/sessions?order=newest&limit=2")).json()
    assert [session["native_id"] for session in newest["data"]] == ["agent-2", "agent-1"]
    rest = (await api.get("/v1/sessions", params={"order": "newest", "after": newest["next"]})).json()
    assert [session["native_id"] for session in rest["data"]] == ["agent-0"]
    still = (await api.get("/v1/sessions?order=newest&open=true")).json()["data"]
    assert [session["native_id"] for session in still] == ["agent-1", "agent-0"]


async def test_sessions_are_filtered(api: httpx.AsyncClient) -> None:
    for number, team in enumerate(("blue", "red", "blue")):
        labels = {"team": team, "table.no": str(number)}
        await api.post("/v1/sessions", json={"runtime": "finn", "native_id": f"agent-{number}", "labels": labels})

    async def found(query: str) -> list[str]:
        answer = await api.get(f"/v1/sessions?{query}")
        return [row.native_id for row in responses.Listing[responses.Session].model_validate(answer.json()).data]

    assert await found("label.team=blue") == ["agent-0", "agent-2"]
    assert await found("label.team=blue&order=newest") == ["agent-2", "agent-0"]
    assert await found("label.team=blue&label.table.no=2") == ["agent-2"]
    assert await found("label.team=green") == []
    assert await found("native_id=agent-1") == ["agent-1"]
    assert await found("state=closed,running") == []
    assert await found("since=2026-01-01T00:00:00Z&until=2200-01-01T00:00:00Z&runtime=finn") == [
        f"agent-{number}" for number in range(3)
    ]
    assert await found("until=2026-01-01T00:00:00Z") == []


async def test_events_are_filtered_by_kind(api: httpx.AsyncClient, session_id: str) -> None:
    path = f"/v1/sessions/{session_id}/events"
    message = {"kind": "message.posted", "content": "Your turn."}
    await api.post(path, json={"events": [STEER, message, STEER]})

    async def found(query: str) -> tuple[list[str], str | None]:
        page = responses.EventListing.model_validate((await api.get(f"{path}?{query}")).json())
        return [envelope.event.kind for envelope in page.data], page.next

    assert await found("kind=turn.*") == (["turn.steered"] * 2, None)
    assert await found("kind=turn.*,message.posted&kind=session.*") == (
        ["session.opened", "turn.steered", "message.posted", "turn.steered"],
        None,
    )
    kinds, following = await found("kind=turn.steered&limit=1")
    assert kinds == ["turn.steered"]
    assert await found(f"kind=turn.steered&after={following}") == (["turn.steered"], None)
    assert await found("kind=approval.*") == ([], None)
    assert (await api.get(f"{path}?kind=turn.*&after=900")).json()["type"] == "/problems/gone"


async def test_the_last_context_is_shown_as_it_was_recorded(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    async def shown() -> responses.LastContext:
        return responses.LastContext.model_validate((await api.get(f"/v1/sessions/{session_id}/context")).json())

    assert await shown() == responses.LastContext(session_id=session_id, envelope=None, searched_from=1)
    for cards in (7, 6):
        update = {"kind": "context.updated", "name": "game", "context": {"cards": cards, "invented": None}}
        assert (await api.post(f"/v1/sessions/{session_id}/events", json=update)).status_code == 202
    await api.post(f"/v1/sessions/{session_id}/events", json=STEER)
    found = (await shown()).envelope
    assert found is not None
    assert isinstance(found.event, ContextUpdated)
    assert found.event.context == {"cards": 6, "invented": None}
    await api.delete(f"/v1/sessions/{session_id}?erase=true")
    assert (await shown()).envelope is None


async def test_closing_a_session_answers_without_a_body(api: httpx.AsyncClient, session_id: str) -> None:
    answer = await api.delete(f"/v1/sessions/{session_id}")
    assert (answer.status_code, answer.content) == (204, b"")


ASKED = {
    "approval.given": ApprovalAsked(id="a", tool="rm"),
    "question.answered": QuestionAsked(id="q", text="Which one?"),
    "message.confirmed": MessagePosted.model_validate(
        {"content": "Done.", "author": {"role": "agent"}, "burst": {"call": "x", "index": 0}}
    ),
}
"""What has to be asked before it can be answered."""


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "message.posted", "content": "hello"},
        {"kind": "message.posted", "content": [{"type": "image", "url": "https://example.com/7h.png"}]},
        {"kind": "context.updated", "name": "table", "context": {"turn": 1}, "wakes_agent": True},
        {"kind": "message.confirmed", "native_call_id": "x", "index": 0},
        {"kind": "addon.answered", "native_call_id": "x", "data": {}},
        {"kind": "approval.given", "id": "a", "decision": "deny"},
        {"kind": "question.answered", "id": "q", "answer": ""},
        {"kind": "action.ordered", "action": "run", "arguments": {"command": "ls"}},
        {"kind": "turn.steered", "text": "left"},
        {"kind": "turn.interrupted"},
        {"kind": "opaque", "channel": "c", "payload": [1]},
    ],
)
async def test_every_client_event_is_taken(
    api: httpx.AsyncClient, environment: Environment, session_id: str, event: dict[str, str]
) -> None:
    asked = ASKED.get(event["kind"])
    if asked is not None:
        environment.runtime.say(asked)
        await environment.recorded(session_id, asked.kind)
    answer = await api.post(f"/v1/sessions/{session_id}/events", json=event)
    assert answer.status_code == 202
    (envelope,) = responses.Written.model_validate(answer.json()).data
    assert (envelope.direction, envelope.event.kind) == ("to_runtime", event["kind"])
    assert (await environment.runtime.hears(event["kind"]))["kind"] == event["kind"]


async def test_a_secret_is_taken_and_never_shown(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    event = {"kind": "secret.supplied", "id": "s", "value": "hunter2"}
    path = f"/v1/sessions/{session_id}/events"
    answer = await api.post(path, json=event, headers={"idempotency-key": "k"})
    assert answer.status_code == 202
    assert "hunter2" not in answer.text
    assert "hunter2" not in (await api.get(path)).text
    assert [one.event.kind for one in await environment.journal(session_id)][2] == "secret.supplied"
    kept = await environment.gateway.recall(key="k", scope=f"backend POST {path}")
    assert kept is not None
    assert b"hunter2" not in kept.response


async def test_several_events_are_recorded_in_order(api: httpx.AsyncClient, session_id: str) -> None:
    events = [{"kind": "turn.steered", "text": str(number)} for number in range(100)]
    answer = await api.post(f"/v1/sessions/{session_id}/events", json={"events": events})
    assert answer.status_code == 202
    assert [envelope["event"]["text"] for envelope in answer.json()["data"]] == [str(n) for n in range(100)]


async def test_what_the_runtime_cannot_be_told_is_inexpressible(environment: Environment) -> None:
    able = replace(environment.runtime.capabilities, accepts=frozenset({"message.posted"}))
    async with environment_of(runtime=Rooms(capabilities=able)) as other:
        session_id = await other.attach()
        async with in_process(other.gateway, bearer("all-of-it")) as api:
            events = [{"kind": "message.posted", "content": "x"}, {"kind": "action.ordered", "action": "run"}]
            answer = await api.post(f"/v1/sessions/{session_id}/events", json={"events": events})
        assert answer.status_code == 422
        assert answer.json()["type"] == "/problems/inexpressible"
        assert "action.ordered" in answer.json()["detail"]
        assert len(await other.journal(session_id)) == 2


async def test_the_history_is_read_behind_a_sequence(api: httpx.AsyncClient, session_id: str) -> None:
    path = f"/v1/sessions/{session_id}/events"
    await api.post(path, json=STEER)
    page = responses.EventListing.model_validate((await api.get(path, params={"limit": 2})).json())
    assert [envelope.sequence for envelope in page.data] == [1, 2]
    assert page.next == page.data[-1].position
    last = responses.EventListing.model_validate((await api.get(path, params={"after": page.next, "limit": 2})).json())
    assert [envelope.sequence for envelope in last.data] == [3]
    assert last.next is None


async def test_removed_history_is_gone_and_says_what_is_left(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    path = f"/v1/sessions/{session_id}/events"
    await api.post(path, json={"events": [STEER] * 5})
    first = await environment.forget(session_id, keep=2)
    answer = await api.get(f"{path}?after=1")
    assert answer.status_code == 410
    assert answer.json()["type"] == "/problems/gone"
    assert answer.json()["first_sequence"] == first == 6


async def test_calls_are_filtered(api: httpx.AsyncClient, environment: Environment, session_id: str) -> None:
    await environment.ask("c-1", "ask")
    await api.post(f"/v1/calls/{await environment.ask('c-2', 'draw')}/outcome", json={"outcome": "failure"})

    async def found(query: str) -> list[str]:
        answer = await api.get(f"/v1/calls?{query}")
        return [call.native_call_id for call in responses.Listing[responses.Call].model_validate(answer.json()).data]

    assert await found("") == ["c-2", "c-1"]
    assert await found("tool=draw") == ["c-2"]
    assert await found("state=accepted") == ["c-1"]
    assert await found("state=accepted,failed") == ["c-2", "c-1"]
    assert await found("state=accepted&state=failed&runtime=finn") == ["c-2", "c-1"]
    assert await found(f"session_id={session_id}&unknown=false") == ["c-2", "c-1"]
    assert await found("unknown=true") == []
    assert await found("outcome=failure,expired") == ["c-2"]
    assert await found("executor=cards") == ["c-2", "c-1"]
    assert await found("executor=other") == []
    assert await found("since=2026-01-01T00:00:00Z") == ["c-2", "c-1"]
    assert await found("until=2026-01-01T00:00:00Z") == []
    assert await found("label.team=blue") == []


async def test_the_history_of_a_call_has_its_events_and_deliveries(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    path = f"/v1/calls/{await environment.ask()}"
    await api.post(f"{path}/progress", json={"percent": 40})
    await api.post(f"{path}/outcome", json={"outcome": "success", "result": {"cards": 2}})
    await environment.runtime.hears("tool.finished")

    async def delivered() -> responses.CallWithStory | None:
        history = responses.CallWithStory.model_validate((await api.get(path)).json())
        return history if [delivery.state for delivery in history.deliveries] == ["delivered"] else None

    history = await until(delivered)
    assert history.state == "succeeded"
    assert [one.event.kind for one in history.events] == [
        "tool.requested",
        "call.progressed",
        "tool.finished",
    ]


async def test_the_same_outcome_again_is_fine_and_another_is_a_conflict(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    path = f"/v1/calls/{await environment.ask()}/outcome"
    statuses = [
        (await api.post(path, json={"outcome": outcome})).status_code for outcome in ("success", "success", "canceled")
    ]
    assert statuses == [200, 200, 409]


@pytest.mark.parametrize("body", [None, {"reason": "over"}])
async def test_a_cancel_takes_a_reason_or_nothing(
    api: httpx.AsyncClient, environment: Environment, session_id: str, body: dict[str, str] | None
) -> None:
    answer = await api.post(f"/v1/calls/{await environment.ask()}/cancel", json=body)
    assert answer.status_code == 202
    assert answer.json()["canceling_until"] is not None

    async def told() -> Cancellation | None:
        return next(iter(environment.backend.canceled), None)

    assert (await until(told)).data["reason"] == ("over" if body else "Canceled by an operator.")


async def test_a_redrive_keeps_the_key_unless_told_otherwise(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    lost = await environment.lose_call()
    same = responses.Call.model_validate((await api.post(f"/v1/calls/{lost}/redrive")).json())
    assert (same.redrive_of, same.idempotency_key, same.deliver) == (lost, lost, False)
    fresh = await api.post(f"/v1/calls/{lost}/redrive", json={"new_key": True, "deliver": True})
    assert fresh.status_code == 202
    assert fresh.json()["idempotency_key"] == fresh.json()["call_id"] not in {lost, same.call_id}
    assert fresh.json()["deliver"] is True


async def test_interactions_are_listed_and_answered_once(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await environment.ask_person()
    waiting = (await api.get(f"/v1/interactions?session_id={session_id}&state=waiting")).json()
    (asked,) = responses.Listing[responses.Interaction].model_validate(waiting).data
    assert asked.event is not None
    assert asked.event.kind == "approval.asked"
    one = f"/v1/interactions/{asked.interaction_id}"
    assert (await api.get(one)).json() == waiting["data"][0]
    path = f"{one}/answer"
    first = await api.post(path, json={"decision": "allow", "scope": "once"})
    assert first.status_code == 200
    assert (await api.get(one)).json() == waiting["data"][0] | {"state": "answered", "answered_by": "backend"}
    shown = responses.AnsweredInteraction.model_validate(first.json())
    assert (shown.answered_by, shown.losses) == ("backend", [])
    told = await environment.runtime.hears("approval.given")
    assert (told["decision"], told["scope"]) == ("allow", "once")
    assert (await api.post(path, json={"decision": "deny"})).status_code == 409
    assert (await api.get("/v1/interactions/nope")).json()["type"] == "/problems/not-found"


async def test_an_interaction_is_gone_once_retention_has_removed_its_request(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    path = f"/v1/interactions/{await environment.ask_person()}"
    assert (await api.post(f"{path}/answer", json={"decision": "allow"})).status_code == 200
    await environment.runtime.hears("approval.given")
    await environment.post(session_id, 5)
    await environment.forget(session_id, keep=2)
    assert (await api.get(path)).json()["type"] == "/problems/not-found"


@pytest.mark.parametrize(
    ("asked", "given", "kind"),
    [
        (ApprovalAsked(id="a-1", tool="rm", scopes=("once", "session")), {"decision": "deny"}, "approval.given"),
        (QuestionAsked(id="q-1", text="Which one?"), {"answer": "this"}, "question.answered"),
        (SecretAsked(id="s-1", purpose="secret", name="KEY"), {"value": "canary"}, "secret.supplied"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
async def test_the_response_to_an_answer_has_its_losses(
    api: httpx.AsyncClient,
    environment: Environment,
    session_id: str,
    asked: Event,
    given: dict[str, Any],
    kind: str,
) -> None:
    environment.runtime.encoding_losses[kind] = (Loss(how="dropped", path="/scope", note="no place for it"),)
    interaction = await environment.ask_person(asked)
    answer = await api.post(f"/v1/interactions/{interaction}/answer", json=given)
    assert answer.status_code == 200
    assert answer.json()["session_id"] == session_id
    shown = responses.AnsweredInteraction.model_validate(answer.json())
    assert shown.state == "answered"
    assert shown.losses == [Loss(how="dropped", path="/scope", note="no place for it")]
    assert "canary" not in answer.text


async def test_an_empty_answer_skips_a_question(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    interaction = await environment.ask_person(QuestionAsked(id="q-1", text="Which one?"))
    assert (await api.post(f"/v1/interactions/{interaction}/answer", json={"answer": ""})).status_code == 200
    assert (await environment.runtime.hears("question.answered"))["answer"] == ""


async def test_a_filter_that_means_nothing_is_refused(api: httpx.AsyncClient) -> None:
    for query in (
        "kind=event", "target=chat", "executor=a&target=runtime", "since=yesterday", "since=2026-11-20T12:00:00",
    ):  # fmt: skip
        assert (await api.get(f"/v1/dead-letters?{query}")).status_code == 400, query


async def test_an_order_about_many_that_means_nothing_is_refused(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    copy = await environment.lose_copy(session_id)
    for body in ({"limit": 0}, {"limit": 501}, {"kind": "both"}, {"keys": 1}, {"executor": "a", "target": "runtime"}):
        for verb in ("redrive", "dismiss"):
            assert (await api.post(f"/v1/dead-letters/{verb}", json=body)).status_code == 400, (verb, body)
    assert (await api.post("/v1/dead-letters/dismiss", json={"new_key": True})).status_code == 400
    assert (await api.get(f"/v1/dead-letters/{copy}")).status_code == 200


async def test_an_unknown_dead_letter_is_not_found(api: httpx.AsyncClient, session_id: str) -> None:
    for letter in ("nope", f"{session_id}:1:destination:log", "s:1:destination:log", "s:x:y", "s:1", "a:b:c:d", "%00"):
        assert (await api.get(f"/v1/dead-letters/{letter}")).status_code == 404, letter
        for verb in ("redrive", "dismiss"):
            assert (await api.post(f"/v1/dead-letters/{letter}/{verb}")).status_code == 404, (verb, letter)


async def test_one_event_is_sent_again(api: httpx.AsyncClient, environment: Environment, session_id: str) -> None:
    copy = await environment.lose_copy(session_id)
    environment.backend.copied = Copied("delivered")
    path = f"/v1/sessions/{session_id}/events/{copy.split(':')[1]}/redeliver"
    answer = await api.post(path, json={"target": "destination:log"})
    assert answer.status_code == 202
    responses.Redelivered.model_validate(answer.json())
    await environment.copied(copy)


async def test_a_destination_is_switched_on(api: httpx.AsyncClient, environment: Environment, session_id: str) -> None:
    environment.backend.copied = Copied("gone")
    copy = await environment.lose_copy(session_id, state="pending")

    async def is_off() -> str | None:
        return await environment.engine.note(note_of("log"))

    await until(is_off)
    environment.backend.copied = Copied("delivered")
    responses.Enabled.model_validate((await api.post("/v1/destinations/log/enable")).json())
    await environment.copied(copy)


async def test_a_reload_tells_what_changed(api: httpx.AsyncClient, environment: Environment) -> None:
    environment.configuration = merge(environment.configuration, {"routes": []})
    assert (await api.post("/v1/reload")).json() == {"changed": ["routes"], "restarted": []}


async def test_a_bad_configuration_is_told_line_by_line(
    api: httpx.AsyncClient, environment: Environment, tmp_path: Path
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("executors: {}\nroutes:\n  - {match: {tool: x}, to: nobody}\n")
    environment.reread = lambda: load(file, adapters={"plain": environment.runtime}, env={}).settings
    answer = await api.post("/v1/reload")
    assert answer.status_code == 422
    assert answer.json()["type"] == "/problems/invalid-configuration"
    (wrong,) = [one for one in answer.json()["errors"] if one["severity"] == "error"]
    assert (wrong["path"], wrong["line"]) == ("routes[0].to", 3)
    assert "nobody" in wrong["detail"]


async def test_runtimes_and_capabilities_are_shown(api: httpx.AsyncClient, session_id: str) -> None:
    for query in ("", f"?session_id=none,{session_id}"):
        runtimes = responses.Listing[responses.Runtime].model_validate((await api.get(f"/v1/runtimes{query}")).json())
        assert [(link.session_id, link.state) for link in runtimes.data[0].links] == [(session_id, "up")]
    (of_another,) = (await api.get("/v1/runtimes?session_id=none")).json()["data"]
    assert of_another["links"] == []
    able = responses.Listing[responses.RuntimeCapabilities].model_validate((await api.get("/v1/capabilities")).json())
    assert able.data[0].capabilities["accepts"] == sorted(CLIENT_KINDS | {"tool.finished"})
    assert able.data[0].capabilities["mcp_hold"] == "30s"
    assert able.data[0].capabilities["limits"] == {"result_utf16_units": 65_536}


async def test_a_runtime_whose_adapter_fails_is_shown_with_the_reason_until_it_is_connected(
    url: str,
    wire: httpx.AsyncClient,
    environment: Environment,
    session_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_options: RuntimeOptions) -> NoReturn:
        raise RuntimeError("sesame")

    with monkeypatch.context() as patched:
        patched.setattr(environment.runtime, "connector", fails)
        now = environment.reread()
        shy = environment.runtime.options(adapter="plain", url="http://plain.invalid", autostart=False)
        environment.reread = lambda: now.model_copy(update={"runtimes": {"shy": shy, **now.runtimes}})
        assert (await wire.post("/v1/reload")).json() == {"changed": ["runtimes.shy"], "restarted": []}
        raw = (await wire.get("/v1/runtimes")).json()
        finn, failing = responses.Listing[responses.Runtime].model_validate(raw).data
        assert (finn.name, len(finn.links), finn.reason) == ("finn", 1, None)
        assert (failing.name, failing.adapter, failing.protocol) == ("shy", "plain", "plain/1")
        assert (failing.links, "retried" in str(failing.reason)) == ([], True)
        able = responses.Listing[responses.RuntimeCapabilities].model_validate(
            (await wire.get("/v1/capabilities")).json()
        )
        assert [one.runtime for one in able.data] == ["finn"]
        env = {"DRAGOMAN_URL": url, "DRAGOMAN_KEY": "all-of-it"}
        checks = await asyncio.to_thread(lambda: [(one.state, one.text) for one in check_links(env)])
        assert checks[1:] == [("warning", f"runtime shy: {failing.reason}")]
        listed = await asyncio.to_thread(CliRunner(env=env).invoke, app, ["runtimes"])
        assert listed.stdout.splitlines()[-1] == f"shy\tdown\tplain\tplain/1\t{failing.reason}"

    async def connected() -> bool | None:
        rows = (await wire.get("/v1/runtimes")).json()["data"]
        return [row["reason"] for row in rows] == [None, None] or None

    await until(connected)


class Refusing(Rooms):
    """A plain runtime that refuses some sessions for good, and has lost the links of others."""

    def connect(
        self, native_id: str, receiver: Receiver, *, resume_after: str | None = None
    ) -> AbstractAsyncContextManager[Link]:
        if native_id.startswith("lost"):
            raise LinkLost("the cable is cut")
        if native_id.startswith("refused"):
            raise LinkRefused("unknown_agent", terminal=True)
        return super().connect(native_id, receiver, resume_after=resume_after)


async def test_the_conditions_list_lost_and_refused_links_up_to_a_limit() -> None:
    async with (
        environment_of(runtime=Refusing()) as environment,
        in_process(environment.gateway, bearer("all-of-it")) as client,
    ):

        async def conditions(count: int) -> list[tuple[str, str]]:
            async def look() -> list[dict[str, Any]] | None:
                found = (await client.get("/v1/activity")).json()["conditions"]
                assert {one["kind"] for one in found} <= {"link"}
                return found if len(found) == count else None

            return [(one["name"], one["reason"]) for one in await until(look)]

        await environment.attach()
        opening = environment.gateway.opening
        for native_id in ("lost", *(f"refused-{number}" for number in range(19))):
            await opening.open("finn", native_id=native_id, labels={})
        found = await conditions(20)
        assert ("finn/lost", "is down: the cable is cut") in found
        assert ("finn/refused-18", "is refused: unknown_agent") in found
        for number in (19, 20):
            await opening.open("finn", native_id=f"refused-{number}", labels={})
        assert (await conditions(21))[-1] == ("finn/…", "2 more are down or refused")


async def test_dead_letters_of_both_kinds_are_counted_up_to_a_limit(environment: Environment, session_id: str) -> None:
    await environment.lose_call()
    await environment.lose_copy(session_id)
    counts = [await environment.gateway.status.count_waiting(most) for most in (1, 2, 3)]
    assert counts == [(0, 1), (0, 2), (0, 2)]


async def test_readiness_follows_its_checks(
    stranger: httpx.AsyncClient, environment: Environment, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert responses.Ready.model_validate((await stranger.get("/readyz")).json()).ready

    async def full() -> EngineHealth:
        return EngineHealth(writable=False, detail="disk full")

    monkeypatch.setattr(environment.engine, "health", full)
    answer = await stranger.get("/readyz")
    assert answer.status_code == 503
    told = responses.Ready.model_validate(answer.json())
    assert (told.ready, told.checks["engine"], told.instance_id, told.sessions) == (False, "disk full", None, 1)
    assert (await stranger.get("/healthz")).status_code == 200


async def test_version_and_metrics_are_shown(api: httpx.AsyncClient) -> None:
    assert (await api.get("/version")).json() == {"name": "dragoman", "version": "9.9.9"}
    metrics = await api.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "# TYPE dragoman_calls_total counter" in metrics.text

"""The forms and codes of sessions, events, calls, interactions and operating."""

import httpx
import pytest
from pydantic import TypeAdapter

from gateway.errors import Inexpressible, InvalidConfiguration, Problem
from gateway.http import answers
from tests.http.fake_gateway import MemoryGateway


async def test_a_new_session_is_created_and_an_open_one_is_found(api: httpx.AsyncClient) -> None:
    body = {"runtime": "finn", "native_id": "agent-7", "labels": {"table": "12"}}
    first = await api.post("/v1/sessions", json=body)
    assert first.status_code == 201
    session = answers.Session.model_validate(first.json())
    assert (session.native_id, session.labels) == ("agent-7", {"table": "12"})
    assert first.headers["location"] == f"/v1/sessions/{session.session_id}"
    again = await api.post("/v1/sessions", json=body)
    assert again.status_code == 200
    assert again.json() == first.json()


async def test_a_session_shows_nothing_of_the_gateway_s_own_state(api: httpx.AsyncClient, session_id: str) -> None:
    answer = await api.get(f"/v1/sessions/{session_id}")
    assert answer.status_code == 200
    assert "never shown" not in answer.text


async def test_sessions_are_listed_page_by_page(api: httpx.AsyncClient, gateway: MemoryGateway) -> None:
    for number in range(5):
        gateway.attach(f"agent-{number}")
    seen: list[str] = []
    query: dict[str, str] = {"limit": "2"}
    while True:
        page = answers.Listing[answers.Session].model_validate((await api.get("/v1/sessions", params=query)).json())
        seen += [session.native_id for session in page.data]
        if page.next is None:
            break
        query["after"] = page.next
    assert seen == [f"agent-{number}" for number in range(5)]
    assert (await api.get("/v1/sessions?runtime=other")).json() == {"data": [], "next": None}


async def test_closing_a_session_answers_without_a_body(api: httpx.AsyncClient, session_id: str) -> None:
    answer = await api.delete(f"/v1/sessions/{session_id}")
    assert (answer.status_code, answer.content) == (204, b"")


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
async def test_every_client_event_is_taken(api: httpx.AsyncClient, session_id: str, event: dict[str, object]) -> None:
    answer = await api.post(f"/v1/sessions/{session_id}/events", json=event)
    assert answer.status_code == 202
    (envelope,) = answers.Written.model_validate(answer.json()).data
    assert (envelope.sequence, envelope.direction, envelope.event.kind) == (2, "to_runtime", event["kind"])


async def test_a_secret_is_taken_and_never_shown(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    event = {"kind": "secret.supplied", "id": "s", "value": "hunter2"}
    path = f"/v1/sessions/{session_id}/events"
    answer = await api.post(path, json=event, headers={"idempotency-key": "k"})
    assert answer.status_code == 202
    assert "hunter2" not in answer.text
    assert "hunter2" not in (await api.get(path)).text
    assert gateway.journal[session_id][-1].event.kind == "secret.supplied"
    (kept,) = gateway.remembered.values()
    assert b"hunter2" not in kept.response


async def test_several_events_are_recorded_in_order(api: httpx.AsyncClient, session_id: str) -> None:
    events = [{"kind": "turn.steered", "text": str(number)} for number in range(100)]
    answer = await api.post(f"/v1/sessions/{session_id}/events", json={"events": events})
    assert answer.status_code == 202
    assert [envelope["event"]["text"] for envelope in answer.json()["data"]] == [str(n) for n in range(100)]


async def test_what_the_runtime_cannot_be_told_is_inexpressible(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    gateway.faults["post"] = Inexpressible("huma/0.2.0 has no word for turn.steered")
    answer = await api.post(f"/v1/sessions/{session_id}/events", json={"kind": "turn.steered", "text": "x"})
    assert answer.status_code == 422
    assert answer.json()["type"] == "/problems/inexpressible"
    assert "no word" in answer.json()["detail"]


async def test_the_history_is_read_behind_a_sequence(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    gateway.ask(session_id, "c-1")
    gateway.ask(session_id, "c-2")
    path = f"/v1/sessions/{session_id}/events"
    page = answers.EventListing.model_validate((await api.get(path, params={"limit": 2})).json())
    assert [envelope.sequence for envelope in page.data] == [1, 2]
    assert page.next == 2
    last = answers.EventListing.model_validate((await api.get(path, params={"after": 2, "limit": 2})).json())
    assert [envelope.sequence for envelope in last.data] == [3]
    assert last.next is None


async def test_removed_history_is_gone_and_says_what_is_left(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    gateway.first_sequence = 5
    answer = await api.get(f"/v1/sessions/{session_id}/events?after=1")
    assert answer.status_code == 410
    assert answer.json()["type"] == "/problems/gone"
    assert answer.json()["first_sequence"] == 5


async def test_calls_are_filtered(api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str) -> None:
    gateway.ask(session_id, "c-1", "ask")
    gateway.ask(session_id, "c-2", "draw")
    await api.post("/v1/calls/c-2/outcome", json={"outcome": "failure", "error": "no"})

    async def found(query: str) -> list[str]:
        answer = await api.get(f"/v1/calls?{query}")
        return [call.call_id for call in answers.Listing[answers.Call].model_validate(answer.json()).data]

    assert await found("") == ["c-1", "c-2"]
    assert await found("tool=draw") == ["c-2"]
    assert await found("state=accepted") == ["c-1"]
    assert await found("state=accepted,failed") == ["c-1", "c-2"]
    assert await found("state=accepted&state=failed&runtime=finn") == ["c-1", "c-2"]
    assert await found(f"session_id={session_id}&unknown=false") == ["c-1", "c-2"]
    assert await found("unknown=true") == []


async def test_the_story_of_a_call_has_its_events_and_deliveries(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    gateway.ask(session_id)
    await api.post("/v1/calls/c-1/progress", json={"percent": 40})
    await api.post("/v1/calls/c-1/outcome", json={"outcome": "success", "result": {"cards": 2}})
    story = answers.CallWithStory.model_validate((await api.get("/v1/calls/c-1")).json())
    assert story.state == "succeeded"
    assert [envelope.event.kind for envelope in story.events] == ["tool.requested", "call.progressed", "tool.finished"]
    assert [delivery.state for delivery in story.deliveries] == ["delivered"]


async def test_the_same_outcome_again_is_fine_and_another_is_a_conflict(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    gateway.ask(session_id)
    path = "/v1/calls/c-1/outcome"
    statuses = [
        (await api.post(path, json={"outcome": outcome})).status_code for outcome in ("success", "success", "canceled")
    ]
    assert statuses == [200, 200, 409]


async def test_a_cancel_takes_a_reason_or_nothing(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    gateway.ask(session_id)
    assert (await api.post("/v1/calls/c-1/cancel")).status_code == 202
    assert (await api.post("/v1/calls/c-1/cancel", json={"reason": "over"})).status_code == 202
    assert gateway.canceled == [None, "over"]


async def test_a_redrive_keeps_the_key_unless_told_otherwise(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    gateway.ask(session_id)
    same = answers.Call.model_validate((await api.post("/v1/calls/c-1/redrive")).json())
    assert (same.redrive_of, same.idempotency_key, same.deliver) == ("c-1", "c-1", False)
    fresh = await api.post("/v1/calls/c-1/redrive", json={"new_key": True, "deliver": True})
    assert fresh.status_code == 202
    assert (fresh.json()["idempotency_key"], fresh.json()["deliver"]) == ("c-again", True)


async def test_interactions_are_listed_and_answered_once(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    gateway.ask_person(session_id)
    waiting = (await api.get(f"/v1/interactions?session_id={session_id}&state=waiting")).json()
    (asked,) = answers.Listing[answers.Interaction].model_validate(waiting).data
    assert asked.event is not None
    assert asked.event.kind == "approval.asked"
    path = f"/v1/interactions/{asked.interaction_id}/answer"
    first = await api.post(path, json={"decision": "allow", "scope": "once"})
    assert first.status_code == 200
    assert answers.Interaction.model_validate(first.json()).answered_by == "backend,decision=allow,scope=once"
    assert (await api.post(path, json={"decision": "deny"})).status_code == 409


async def test_an_empty_answer_skips_a_question(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    gateway.ask_person(session_id)
    assert (await api.post("/v1/interactions/i-1/answer", json={"answer": ""})).status_code == 200
    assert gateway.asked["i-1"][0].answered_by == "backend,answer="


async def test_dead_letters_are_calls_and_deliveries(api: httpx.AsyncClient, session_id: str) -> None:
    answer = answers.DeadLetters.model_validate((await api.get("/v1/dead-letters")).json())
    assert [(letter.type, letter.session_id) for letter in answer.data] == [("delivery", session_id)]


async def test_dead_letters_are_filtered_by_kind_and_target(api: httpx.AsyncClient, session_id: str) -> None:
    for query, count in (("kind=call", 0), ("target=destination:log", 1), ("target=runtime", 0), ("executor=cards", 0)):
        answer = answers.DeadLetters.model_validate((await api.get(f"/v1/dead-letters?{query}")).json())
        assert len(answer.data) == count, query


@pytest.mark.parametrize(
    "query", ["kind=event", "target=chat", "executor=a&target=runtime", "since=yesterday", "since=2026-11-20T12:00:00"]
)
async def test_a_filter_that_means_nothing_is_refused(api: httpx.AsyncClient, query: str) -> None:
    assert (await api.get(f"/v1/dead-letters?{query}")).status_code == 400


async def test_a_dead_letter_is_shown_and_redriven_by_its_id(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    [letter] = (await api.get("/v1/dead-letters")).json()["data"]
    assert letter["id"] == f"{session_id}:1:destination:log"
    shown = await api.get(f"/v1/dead-letters/{letter['id']}")
    assert shown.json() == letter
    answer = await api.post(f"/v1/dead-letters/{letter['id']}/redrive")
    assert (answer.status_code, answer.json()["state"]) == (202, "pending")
    TypeAdapter(answers.Redriven).validate_python(answer.json())
    assert gateway.redelivered == [(session_id, 1, "destination:log")]


@pytest.mark.parametrize("letter", ["nope", "s:1:destination:log", "s:x:y", "s:1", "a:b:c:d", "%00"])
async def test_an_unknown_dead_letter_is_not_found(api: httpx.AsyncClient, session_id: str, letter: str) -> None:
    del session_id
    assert (await api.get(f"/v1/dead-letters/{letter}")).status_code == 404
    assert (await api.post(f"/v1/dead-letters/{letter}/redrive")).status_code == 404


async def test_many_are_redriven_or_only_looked_at(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    looked = await api.post("/v1/dead-letters/redrive", json={"target": "destination:log", "dry_run": True})
    answers.RedrivenMany.model_validate(looked.json())
    assert (looked.json()["found"], looked.json()["redriven"], gateway.redelivered) == (1, 0, [])
    none = await api.post("/v1/dead-letters/redrive", json={"kind": "call"})
    assert (none.json()["found"], gateway.redelivered) == (0, [])
    done = await api.post("/v1/dead-letters/redrive")
    assert (done.json()["found"], done.json()["redriven"], done.json()["failed"]) == (1, 1, [])
    assert gateway.redelivered == [(session_id, 1, "destination:log")]
    for body in ({"limit": 0}, {"limit": 501}, {"kind": "both"}, {"keys": 1}, {"executor": "a", "target": "runtime"}):
        assert (await api.post("/v1/dead-letters/redrive", json=body)).status_code == 400


async def test_dead_letters_are_dismissed_by_their_ids_or_by_filters(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    letter = f"{session_id}:1:destination:log"
    answer = await api.post(f"/v1/dead-letters/{letter}/dismiss")
    assert answer.status_code == 200
    TypeAdapter(answers.Redriven).validate_python(answer.json())
    [(dismissed, by)] = gateway.dismissed
    assert (dismissed, bool(by)) == (letter, True)
    assert (await api.post("/v1/dead-letters/nope/dismiss")).status_code == 404
    looked = await api.post("/v1/dead-letters/dismiss", json={"target": "destination:log", "dry_run": True})
    answers.DismissedMany.model_validate(looked.json())
    assert (looked.json()["found"], looked.json()["dismissed"]) == (1, 0)
    done = await api.post("/v1/dead-letters/dismiss", json={"kind": "delivery"})
    assert (done.json()["found"], done.json()["dismissed"], done.json()["ids"]) == (1, 1, [letter])
    assert gateway.dismissed == [(letter, by)] * 2
    assert (await api.post("/v1/dead-letters/dismiss", json={"new_key": True})).status_code == 400


async def test_one_event_is_sent_again(api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str) -> None:
    answer = await api.post(f"/v1/sessions/{session_id}/events/1/redeliver", json={"target": "destination:log"})
    assert answer.status_code == 202
    answers.Redelivered.model_validate(answer.json())
    assert gateway.redelivered == [(session_id, 1, "destination:log")]


async def test_a_destination_is_switched_on(api: httpx.AsyncClient, gateway: MemoryGateway) -> None:
    answers.Enabled.model_validate((await api.post("/v1/destinations/log/enable")).json())
    assert gateway.enabled == ["log"]


async def test_a_reload_tells_what_changed(api: httpx.AsyncClient) -> None:
    assert (await api.post("/v1/reload")).json() == {"changed": ["routes"]}


async def test_a_bad_configuration_is_told_line_by_line(api: httpx.AsyncClient, gateway: MemoryGateway) -> None:
    gateway.faults["reload"] = InvalidConfiguration("gateway.yaml", (Problem("routes[0].to", "no executor 'x'", 7),))
    answer = await api.post("/v1/reload")
    assert answer.status_code == 422
    assert answer.json()["type"] == "/problems/invalid-configuration"
    assert answer.json()["errors"] == [
        {"path": "routes[0].to", "line": 7, "detail": "no executor 'x'", "severity": "error"}
    ]


async def test_runtimes_and_capabilities_are_shown(api: httpx.AsyncClient, session_id: str) -> None:
    runtimes = answers.Listing[answers.Runtime].model_validate((await api.get("/v1/runtimes")).json())
    assert [(link.session_id, link.state) for link in runtimes.data[0].links] == [(session_id, "up")]
    able = answers.Listing[answers.RuntimeCapabilities].model_validate((await api.get("/v1/capabilities")).json())
    assert able.data[0].capabilities["accepts"] == ["context.updated", "message.posted"]
    assert able.data[0].capabilities["confirms_messages"] == "30s"
    assert able.data[0].capabilities["limits"] == {"result_utf16_units": 65_536}


async def test_readiness_follows_its_checks(stranger: httpx.AsyncClient, gateway: MemoryGateway) -> None:
    assert answers.Ready.model_validate((await stranger.get("/readyz")).json()).ready
    gateway.ready_checks = {"engine": "disk full"}
    answer = await stranger.get("/readyz")
    assert answer.status_code == 503
    told = answer.json()
    assert told.pop("failing") == []
    assert told == {"ready": False, "checks": {"engine": "disk full"}, "instance_id": None, "sessions": 3}
    assert (await stranger.get("/healthz")).status_code == 200


async def test_version_and_metrics_are_shown(api: httpx.AsyncClient) -> None:
    assert (await api.get("/version")).json() == {"name": "dragoman", "version": "9.9.9"}
    metrics = await api.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert metrics.text.startswith("# TYPE")

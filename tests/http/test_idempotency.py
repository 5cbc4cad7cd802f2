"""The same request sent twice is carried out once."""

import asyncio
import hashlib
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest

from gateway.errors import EngineUnavailable, LinkLost, Overloaded
from gateway.http import idempotency
from tests.http.conftest import bearer
from tests.http.fake_gateway import MemoryGateway

HELLO = {"kind": "message.posted", "content": "hello"}


async def test_a_repeat_is_answered_like_the_first_and_done_once(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    path = f"/v1/sessions/{session_id}/events"
    first = await api.post(path, json=HELLO, headers={"idempotency-key": "k"})
    again = await api.post(path, json=HELLO, headers={"idempotency-key": "k"})
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert (again.status_code, again.content) == (202, first.content)
    assert again.headers["content-type"] == "application/json"
    assert len(gateway.journal[session_id]) == 2


async def test_a_session_is_created_once(api: httpx.AsyncClient) -> None:
    answers = [await api.post("/v1/sessions", json={"runtime": "finn"}, headers={"idempotency-key": "k"}) for _ in "ab"]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].headers["location"] == answers[1].headers["location"]


async def test_a_key_that_another_instance_works_on_is_waited_for(
    api: httpx.AsyncClient, gateway: MemoryGateway
) -> None:
    body = {"runtime": "finn"}
    first = await api.post("/v1/sessions", json=body, headers={"idempotency-key": "k"})
    assert gateway.held == set()
    ((place, kept),) = gateway.remembered.items()
    gateway.remembered.clear()
    gateway.held.add(_name(place))
    waiting = asyncio.create_task(api.post("/v1/sessions", json=body, headers={"idempotency-key": "k"}))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not waiting.done()
    gateway.remembered[place] = kept
    async with asyncio.timeout(5):
        again = await waiting
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["idempotency-replayed"] == "true"
    # It was never held here, so it is not given up here.
    assert gateway.held == {_name(place)}


async def test_an_answer_that_was_kept_just_before_its_key_became_free_is_given_again(
    api: httpx.AsyncClient, gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await api.post("/v1/sessions", json={"runtime": "finn"}, headers={"idempotency-key": "k"})
    ((place, kept),) = gateway.remembered.items()
    gateway.remembered.clear()

    async def hold(_name: str) -> bool:
        gateway.remembered[place] = kept
        return True

    monkeypatch.setattr(gateway, "hold", hold)
    again = await api.post("/v1/sessions", json={"runtime": "finn"}, headers={"idempotency-key": "k"})
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["idempotency-replayed"] == "true"


async def test_a_key_that_is_worked_on_for_too_long_is_told_so(
    api: httpx.AsyncClient, gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "_PATIENCE", timedelta(seconds=0.3))
    await api.post("/v1/sessions", json={"runtime": "finn"}, headers={"idempotency-key": "k"})
    (place,) = gateway.remembered
    gateway.remembered.clear()
    gateway.held.add(_name(place))
    answer = await api.post("/v1/sessions", json={"runtime": "finn"}, headers={"idempotency-key": "k"})
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/idempotency-busy")
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) > 0
    gateway.held.clear()
    answer = await api.post("/v1/sessions", json={"runtime": "finn"}, headers={"idempotency-key": "k"})
    assert answer.status_code == 200


@pytest.mark.parametrize("fault", [LinkLost("gone"), EngineUnavailable("disk full")])
async def test_a_key_is_free_again_after_a_request_that_failed(
    api: httpx.AsyncClient, gateway: MemoryGateway, fault: Exception
) -> None:
    gateway.faults["open_session"] = fault
    answer = await api.post("/v1/sessions", json={"runtime": "finn"}, headers={"idempotency-key": "k"})
    assert answer.status_code >= 500
    assert gateway.held == set()


async def test_what_is_done_is_not_called_failed_because_the_key_cannot_be_given_up(
    api: httpx.AsyncClient, gateway: MemoryGateway
) -> None:
    gateway.faults["let_go"] = EngineUnavailable("disk full")
    answer = await api.post("/v1/sessions", json={"runtime": "finn"}, headers={"idempotency-key": "k"})
    assert answer.status_code == 201


def _name(place: tuple[str, str]) -> str:
    scope, key = place
    return "once:" + hashlib.sha256(f"{scope}\n{key}".encode()).hexdigest()


async def test_the_same_key_with_another_body_is_a_conflict(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    path = f"/v1/sessions/{session_id}/events"
    await api.post(path, json=HELLO, headers={"idempotency-key": "k"})
    other = await api.post(path, json={**HELLO, "content": "bye"}, headers={"idempotency-key": "k"})
    assert other.status_code == 422
    assert other.json()["type"] == "/problems/idempotency-conflict"
    assert len(gateway.journal[session_id]) == 2


async def test_keys_of_other_callers_and_other_paths_are_apart(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    other = gateway.attach("agent-8")
    await api.post(f"/v1/sessions/{session_id}/events", json=HELLO, headers={"idempotency-key": "k"})
    for target, headers in ((other, bearer("all-of-it")), (session_id, bearer("drive-only"))):
        answer = await api.post(
            f"/v1/sessions/{target}/events", json=HELLO, headers={**headers, "idempotency-key": "k"}
        )
        assert answer.status_code == 202
        assert "idempotency-replayed" not in answer.headers


async def test_two_at_once_are_done_once(api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str) -> None:
    gateway.posting.clear()
    path = f"/v1/sessions/{session_id}/events"
    posts = [asyncio.create_task(api.post(path, json=HELLO, headers={"idempotency-key": "k"})) for _ in range(3)]
    for _ in range(100):
        await asyncio.sleep(0)
    gateway.posting.set()
    async with asyncio.timeout(5):
        answers = [await post for post in posts]
    assert {answer.content for answer in answers} == {answers[0].content}
    assert [answer.headers.get("idempotency-replayed") for answer in answers].count("true") == 2
    assert len(gateway.journal[session_id]) == 2


async def test_a_failed_request_is_tried_again(api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str) -> None:
    path = f"/v1/sessions/{session_id}/events"
    gateway.faults["post"] = Overloaded("the outbox is full")
    assert (await api.post(path, json=HELLO, headers={"idempotency-key": "k"})).status_code == 503
    gateway.faults.clear()
    answer = await api.post(path, json=HELLO, headers={"idempotency-key": "k"})
    assert answer.status_code == 202
    assert "idempotency-replayed" not in answer.headers


async def test_what_is_recorded_is_not_called_failed_for_want_of_a_memory(
    api: httpx.AsyncClient, gateway: MemoryGateway
) -> None:
    gateway.faults["remember"] = EngineUnavailable("disk full")
    answer = await api.post("/v1/sessions", json={"runtime": "finn"}, headers={"idempotency-key": "k"})
    assert answer.status_code == 201


async def test_a_repeat_after_the_events_were_removed_is_told_so_and_not_done_again(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    path = f"/v1/sessions/{session_id}/events"
    await api.post(path, json=HELLO, headers={"idempotency-key": "k"})
    gateway.first_sequence = 7
    again = await api.post(path, json=HELLO, headers={"idempotency-key": "k"})
    assert again.status_code == 410
    assert len(gateway.journal[session_id]) == 2


async def test_an_answer_that_an_earlier_release_has_kept_is_given_again(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    path = f"/v1/sessions/{session_id}/events"
    await api.post(path, json=HELLO, headers={"idempotency-key": "k"})
    ((place, kept),) = gateway.remembered.items()
    old = b'{"status":202,"headers":{"content-type":"application/json"}}\n{"data":[]}'
    gateway.remembered[place] = replace(kept, response=old)
    again = await api.post(path, json=HELLO, headers={"idempotency-key": "k"})
    assert (again.status_code, again.content) == (202, b'{"data":[]}')


@pytest.mark.parametrize("key", ["", "x" * 256, "naïve", "tab\there"])
async def test_an_unusable_key_is_refused(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str, key: str
) -> None:
    headers = [(b"idempotency-key", key.encode("latin-1"))]
    answer = await api.post(f"/v1/sessions/{session_id}/events", json=HELLO, headers=headers)
    assert answer.status_code == 400
    assert len(gateway.journal[session_id]) == 1


async def test_different_secrets_under_one_key_leave_no_trace_to_tell_them_apart(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str
) -> None:
    shas: list[str] = []
    for value in ("hunter2", "hunter3"):
        gateway.remembered.clear()
        event = {"kind": "secret.supplied", "id": "s", "value": value}
        await api.post(f"/v1/sessions/{session_id}/events", json=event, headers={"idempotency-key": "k"})
        shas += [kept.request_sha for kept in gateway.remembered.values()]
    assert len(shas) == 2
    assert len(set(shas)) == 1

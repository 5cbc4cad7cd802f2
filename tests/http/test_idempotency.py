"""The same request sent twice is carried out once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import NamedTuple

import httpx
import pytest

from gateway.errors import EngineUnavailable, LinkLost
from gateway.events import SessionId
from gateway.runtime.tuning import Tuning
from tests.engines.postgres_server import temporary_schema
from tests.http.conftest import bearer, in_process
from tests.http.environment import Environment, environment_of, until
from tests.pace import PATIENCE

HELLO = {"kind": "message.posted", "content": "hello"}


async def test_a_repeat_is_answered_like_the_first_and_done_once(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    path = f"/v1/sessions/{session_id}/events"
    first = await api.post(path, json=HELLO, headers={"idempotency-key": "k"})
    again = await api.post(path, json=HELLO, headers={"idempotency-key": "k"})
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert (again.status_code, again.content) == (202, first.content)
    assert again.headers["content-type"] == "application/json"
    assert len(await environment.journal(session_id)) == 3


async def test_a_session_is_created_once(api: httpx.AsyncClient) -> None:
    answers = [await api.post("/v1/sessions", json={"runtime": "finn"}, headers={"idempotency-key": "k"}) for _ in "ab"]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].headers["location"] == answers[1].headers["location"]


class Instance(NamedTuple):
    environment: Environment
    api: httpx.AsyncClient

    async def create(self) -> httpx.Response:
        return await self.api.post("/v1/sessions", json={"runtime": "finn"}, headers={"idempotency-key": "k"})

    async def begin(self) -> asyncio.Task[httpx.Response]:
        """Begin to create a session, which its runtime does not do before it is `open`."""
        self.environment.runtime.open.clear()
        creating = asyncio.create_task(self.create())

        async def begun() -> bool | None:
            return self.environment.runtime.orders > 0 or None

        await until(begun)
        return creating


@asynccontextmanager
async def two_instances(tuning: Tuning | None = None) -> AsyncGenerator[tuple[Instance, Instance]]:
    """Two gateways on one store; the `tuning` is the first one's."""
    schema = temporary_schema()
    async with (
        environment_of(schema=schema, tuning=tuning) as first,
        environment_of(schema=schema) as second,
        in_process(first.gateway, bearer("all-of-it")) as one,
        in_process(second.gateway, bearer("all-of-it")) as other,
    ):
        yield Instance(first, one), Instance(second, other)


async def test_a_key_that_another_instance_works_on_is_waited_for() -> None:
    async with two_instances() as (here, there):
        first = await there.begin()
        waiting = asyncio.create_task(here.create())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        there.environment.runtime.open.set()
        async with asyncio.timeout(PATIENCE):
            answer, again = await first, await waiting
        assert (again.status_code, again.content) == (201, answer.content)
        assert again.headers["idempotency-replayed"] == "true"
        assert (there.environment.runtime.orders, here.environment.runtime.orders) == (1, 0)


async def test_an_answer_that_was_kept_just_before_its_key_became_free_is_given_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_instances() as (here, there):
        hold, answered = here.environment.engine.hold, list[httpx.Response]()

        async def hold_late(instance: str, name: str) -> bool:
            # Maintenance holds other names.
            if name.startswith("once:"):
                answered.append(await there.create())
            return await hold(instance, name)

        monkeypatch.setattr(here.environment.engine, "hold", hold_late)
        again = await here.create()
        assert (again.status_code, [again.content]) == (201, [one.content for one in answered])
        assert again.headers["idempotency-replayed"] == "true"
        assert here.environment.runtime.orders == 0


async def test_a_key_that_is_worked_on_for_too_long_is_told_so() -> None:
    async with two_instances(Tuning(repeat=0.3)) as (here, there):
        first = await there.begin()
        answer = await here.create()
        assert (answer.status_code, answer.json()["type"]) == (409, "/problems/idempotency-busy")
        assert answer.headers["content-type"] == "application/problem+json"
        assert int(answer.headers["retry-after"]) > 0
        there.environment.runtime.open.set()
        done = await first
        assert (await here.create()).content == done.content


async def test_a_key_is_free_again_after_a_request_that_failed() -> None:
    async with two_instances() as (here, there):
        here.environment.runtime.refuses = LinkLost("gone")
        assert (await here.create()).status_code == 502
        answer = await there.create()
        assert (answer.status_code, answer.headers.get("idempotency-replayed")) == (201, None)


async def test_what_is_done_is_not_called_failed_because_the_key_cannot_be_given_up() -> None:
    async with two_instances() as (here, _):
        here.environment.fail("release_name", EngineUnavailable("disk full"))
        assert (await here.create()).status_code == 201


async def test_the_same_key_with_another_body_is_a_conflict(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    path = f"/v1/sessions/{session_id}/events"
    await api.post(path, json=HELLO, headers={"idempotency-key": "k"})
    other = await api.post(path, json={**HELLO, "content": "bye"}, headers={"idempotency-key": "k"})
    assert other.status_code == 422
    assert other.json()["type"] == "/problems/idempotency-conflict"
    assert len(await environment.journal(session_id)) == 3


async def test_keys_of_other_callers_and_other_paths_are_apart(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    other = await environment.attach("agent-8")
    await api.post(f"/v1/sessions/{session_id}/events", json=HELLO, headers={"idempotency-key": "k"})
    for target, headers in ((other, bearer("all-of-it")), (session_id, bearer("drive-only"))):
        answer = await api.post(
            f"/v1/sessions/{target}/events", json=HELLO, headers={**headers, "idempotency-key": "k"}
        )
        assert answer.status_code == 202
        assert "idempotency-replayed" not in answer.headers


async def test_two_at_once_are_done_once(api: httpx.AsyncClient, environment: Environment, session_id: str) -> None:
    path = f"/v1/sessions/{session_id}/events"
    async with asyncio.timeout(PATIENCE):
        answers = await asyncio.gather(
            *(api.post(path, json=HELLO, headers={"idempotency-key": "k"}) for _ in range(3))
        )
    assert {answer.content for answer in answers} == {answers[0].content}
    assert [answer.headers.get("idempotency-replayed") for answer in answers].count("true") == 2
    assert len(await environment.journal(session_id)) == 3


async def test_a_failed_request_is_tried_again(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    path = f"/v1/sessions/{session_id}/events"
    environment.fail("commit", EngineUnavailable("disk full"))
    assert (await api.post(path, json=HELLO, headers={"idempotency-key": "k"})).status_code == 503
    environment.fail("commit", None)
    answer = await api.post(path, json=HELLO, headers={"idempotency-key": "k"})
    assert answer.status_code == 202
    assert "idempotency-replayed" not in answer.headers


async def test_what_is_recorded_is_not_called_failed_for_want_of_a_memory(
    api: httpx.AsyncClient, environment: Environment
) -> None:
    environment.fail("remember", EngineUnavailable("disk full"))
    answer = await api.post("/v1/sessions", json={"runtime": "finn"}, headers={"idempotency-key": "k"})
    assert answer.status_code == 201


async def test_a_repeat_after_the_events_were_removed_is_told_so_and_not_done_again(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    path = f"/v1/sessions/{session_id}/events"
    await api.post(path, json=HELLO, headers={"idempotency-key": "k"})
    await api.post(path, json={"events": [HELLO, HELLO]})
    await environment.forget(session_id, keep=2)
    again = await api.post(path, json=HELLO, headers={"idempotency-key": "k"})
    assert again.status_code == 410
    assert (await environment.gateway.session(SessionId(session_id))).last_sequence == 5


async def test_an_answer_that_an_earlier_release_has_kept_is_given_again(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    path = f"/v1/sessions/{session_id}/events"
    scope = f"backend POST {path}"
    await api.post(path, json=HELLO, headers={"idempotency-key": "k"})
    kept = await environment.engine.recall(key="k", scope=scope)
    assert kept is not None
    old = b'{"status":202,"headers":{"content-type":"application/json"}}\n{"data":[]}'
    await environment.engine.remember(key="old", scope=scope, answer=replace(kept, response=old))
    again = await api.post(path, json=HELLO, headers={"idempotency-key": "old"})
    assert (again.status_code, again.content) == (202, b'{"data":[]}')


@pytest.mark.parametrize("key", ["", "x" * 256, "naïve", "tab\there"])
async def test_an_unusable_key_is_refused(
    api: httpx.AsyncClient, environment: Environment, session_id: str, key: str
) -> None:
    headers = [(b"idempotency-key", key.encode("latin-1"))]
    answer = await api.post(f"/v1/sessions/{session_id}/events", json=HELLO, headers=headers)
    assert answer.status_code == 400
    assert len(await environment.journal(session_id)) == 2


async def test_different_secrets_under_one_key_leave_no_trace_to_tell_them_apart(
    api: httpx.AsyncClient, session_id: str
) -> None:
    events = [{"kind": "secret.supplied", "id": "s", "value": value} for value in ("hunter2", "hunter3")]
    path = f"/v1/sessions/{session_id}/events"
    answers = [await api.post(path, json=event, headers={"idempotency-key": "k"}) for event in events]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[1].headers["idempotency-replayed"] == "true"

"""The stream over all sessions, on real sockets and both stores: filters, positions, gaps, live events, slow ones."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
from structlog.testing import capture_logs

from gateway.errors import EngineUnavailable
from gateway.events import MessageStreamed, TypingChanged
from gateway.store.rows import ANY_EVENT, FROM_THE_START
from tests.engines import postgres_server
from tests.http.conftest import bearer, plain_client, serving
from tests.http.environment import Environment, environment_of, until
from tests.http.test_stream import Reader
from tests.pace import PATIENCE, within

BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)]


@pytest.fixture(params=BOTH)
async def here(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Environment, httpx.AsyncClient]]:
    """A gateway on one of the stores, and a client with every scope."""
    schema = postgres_server.new_schema() if request.param == "postgres" else None
    over = {"limits": {"drain": "1s"}, "api": {"heartbeat": "100ms"}}
    async with (
        environment_of(over, schema=schema) as environment,
        serving(environment.gateway) as (_, url),
        plain_client(url) as client,
    ):
        yield environment, client
    if schema is not None:
        await postgres_server.drop_schema(schema)


@asynccontextmanager
async def following(client: httpx.AsyncClient, query: str = "", *, after: str | None = None) -> AsyncGenerator[Reader]:
    headers = {} if after is None else {"last-event-id": after}
    async with client.stream("GET", f"/v1/events/stream{query}", headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        reader = Reader(response)
        assert await reader.line() == ": heartbeat"
        yield reader


async def recorded(environment: Environment, count: int) -> None:
    """Wait until so many events can be read, which another program on the same PostgreSQL server may delay."""

    async def look() -> bool | None:
        page = await environment.engine.read_all(FROM_THE_START, ANY_EVENT, limit=500, searched=500)
        return len(page.events) == count or None

    await until(look)


async def next_of(reader: Reader) -> dict[str, Any]:
    """Read the next event that is not a `position`, with its data parsed."""
    while True:
        event = await reader.event()
        if event["event"] != "position":
            return {**event, "data": orjson.loads(event["data"])}


async def next_id(reader: Reader) -> str:
    return (await reader.event())["id"]


def place(event: dict[str, Any]) -> tuple[str, int]:
    return event["data"]["session_id"], event["data"]["sequence"]


async def all_places(client: httpx.AsyncClient, count: int, query: str = "", after: str = "0") -> list[dict[str, Any]]:
    async with following(client, query, after=after) as reader:
        return [await next_of(reader) for _ in range(count)]


async def test_new_events_of_every_session_arrive_with_their_session(
    here: tuple[Environment, httpx.AsyncClient],
) -> None:
    environment, client = here
    first = await environment.attach("agent-7")
    await recorded(environment, 2)
    async with following(client) as reader:
        await next_id(reader)
        opened = (
            await client.post("/v1/sessions", json={"runtime": "finn", "native_id": "new", "labels": {"table": "12"}})
        ).json()
        event = await next_of(reader)
        assert (event["event"], place(event)) == ("session.opened", (opened["session_id"], 1))
        assert event["data"]["session"] == {
            "session_id": opened["session_id"], "runtime": "finn", "native_id": "new", "labels": {"table": "12"},
        }  # fmt: skip
        await environment.post(first)
        while (event := await next_of(reader))["event"] != "turn.steered":
            pass
        page = (await client.get(f"/v1/sessions/{first}/events?after=2")).json()
        assert {name: value for name, value in event["data"].items() if name != "session"} == page["data"][0]


async def test_a_stream_resumes_at_every_position(here: tuple[Environment, httpx.AsyncClient]) -> None:
    environment, client = here
    sessions = [await environment.attach(f"agent-{number}") for number in range(3)]
    for count in (1, 2, 3):
        await asyncio.gather(*(environment.post(session, count) for session in sessions))
    whole = await all_places(client, 24)
    assert sorted(map(place, whole)) == sorted((session, n) for session in sessions for n in range(1, 9))
    for session in sessions:
        assert [n for of, n in map(place, whole) if of == session] == list(range(1, 9))
    for number, event in enumerate(whole[:-1]):
        rest = await all_places(client, len(whole) - number - 1, after=event["id"])
        assert [(one["id"], place(one)) for one in rest] == [(one["id"], place(one)) for one in whole[number + 1 :]]
    async with following(client, after=whole[-1]["id"]) as reader:
        await environment.post(sessions[0])
        assert place(await next_of(reader)) == (sessions[0], 9)


async def test_filters_select_by_session_runtime_label_and_kind(here: tuple[Environment, httpx.AsyncClient]) -> None:
    environment, client = here
    opened = [
        (
            await client.post("/v1/sessions", json={"runtime": "finn", "native_id": name, "labels": {"team": team}})
        ).json()
        for name, team in (("a", "blue"), ("b", "red"))
    ]
    first, second = [one["session_id"] for one in opened]
    queries = ["?label.team=red&kind=turn.*", f"?session_id={second}&kind=turn.steered", "?kind=turn.*&runtime=finn"]
    async with following(client, queries[0]) as labels, following(client, queries[1]) as session:
        await next_id(labels)
        await next_id(session)
        for name in (first, second, first):
            await environment.post(name)
        for reader in (labels, session):
            event = await next_of(reader)
            assert (event["event"], event["data"]["session_id"]) == ("turn.steered", second)
        # The events that did not match are passed by, and what follows is a new position.
        assert (await labels.event())["event"] == "position"
    for query, wanted in (*((one, [second]) for one in queries[:2]), (queries[2], [first, second, first])):
        found = await all_places(client, len(wanted), query)
        assert [event["data"]["session_id"] for event in found] == wanted
    async with following(client, "?runtime=other", after="0") as reader:
        assert (await reader.event())["event"] == "position"


async def test_an_id_of_a_stream_with_other_filters_is_refused(here: tuple[Environment, httpx.AsyncClient]) -> None:
    environment, client = here
    await environment.attach()
    [event] = await all_places(client, 1, "?kind=session.*")
    assert (await all_places(client, 1, "?kind=session.opened", after="0"))[0]["id"] != event["id"]
    for query, header in (
        ("", event["id"]),
        ("?kind=tool.*", event["id"]),
        ("?kind=session.*&label.team=blue", event["id"]),
        ("", "7"),
        ("", "x" * 300),
        ("", "ffffffffffffffff.0.0.00000000"),
    ):
        answer = await client.get(f"/v1/events/stream{query}", headers={"last-event-id": header})
        assert (answer.status_code, answer.json()["type"]) == (400, "/problems/invalid-request")
    answer = await client.get("/v1/events/stream", params={"after": event["id"]})
    assert "other filters" in answer.json()["detail"]
    assert (await client.get("/v1/events/stream?kind=tol.*")).status_code == 400


async def test_a_key_needs_the_scope_read_and_a_reload_that_removes_it_ends_the_stream(
    here: tuple[Environment, httpx.AsyncClient],
) -> None:
    environment, client = here
    for key, status in (("drive-only", 403), ("operate-only", 403), ("wrong", 401)):
        assert (await client.get("/v1/events/stream", headers=bearer(key))).status_code == status
    async with client.stream("GET", "/v1/events/stream", headers=bearer("look-only")) as response:
        assert response.status_code == 200
        keys = [key for key in environment.configuration["api"]["keys"] if key["name"] != "viewer"]
        await environment.reload({"api": {"keys": keys}})
        async with asyncio.timeout(PATIENCE):
            async for _ in response.aiter_raw():
                pass


async def test_live_events_stand_between_the_recorded_ones(here: tuple[Environment, httpx.AsyncClient]) -> None:
    environment, client = here
    session = await environment.attach()
    async with following(client, "?kind=typing.changed,message.streamed,turn.*") as reader:
        await next_id(reader)
        environment.runtime.say(TypingChanged(typing=True))
        shown = await next_of(reader)
        assert "id" not in shown
        assert shown["data"]["live"] is True
        assert shown["data"]["after_sequence"] == 2
        assert shown["data"]["session"]["session_id"] == session
        await environment.post(session)
        assert place(await next_of(reader)) == (session, 3)
        environment.runtime.say(MessageStreamed(message_id="m-1", text="Go "))
        assert (await next_of(reader))["data"]["event"]["text"] == "Go "


async def test_removed_events_are_a_gap(here: tuple[Environment, httpx.AsyncClient]) -> None:
    environment, client = here
    session, other = await environment.attach("agent-7"), await environment.attach("agent-8")
    await environment.post(session, 10)
    whole = await all_places(client, 14)
    await environment.forget(session, keep=3)
    kept = [event for event in whole if place(event) in {(other, 1), (other, 2)} or place(event)[1] > 9]
    async with following(client, after="0") as reader:
        assert (await next_of(reader))["event"] == "gap"
        assert [place(await next_of(reader)) for _ in kept] == [place(event) for event in kept]
    last = whole[-2]["id"]
    assert [place(event) for event in await all_places(client, 1, after=last)] == [place(whole[-1])]


async def test_an_id_behind_the_end_is_a_gap_and_goes_on_at_the_end(
    here: tuple[Environment, httpx.AsyncClient],
) -> None:
    environment, client = here
    session = await environment.attach()
    [event, _] = await all_places(client, 2)
    rest = event["id"].split(".", 3)[3]
    async with following(client, after=f"ffffffffffff.0.0.{rest}") as reader:
        assert (await reader.event())["event"] == "gap"
        position = await reader.event()
        assert position["event"] == "position"
        await environment.post(session)
        following_event = await next_of(reader)
        assert place(following_event) == (session, 3)
    assert place((await all_places(client, 1, after=position["id"]))[0]) == (session, 3)


async def test_a_client_that_falls_behind_gets_every_recorded_event_from_the_store(
    here: tuple[Environment, httpx.AsyncClient],
) -> None:
    environment, client = here
    session = await environment.attach()
    async with following(client, "?kind=turn.*") as slow, following(client, "?kind=turn.*") as quick:
        await next_id(slow)
        await next_id(quick)
        for _ in range(25):
            await environment.post(session, 100, text="x" * 1_000)
        for reader in (quick, slow):
            sequences = [place(await next_of(reader))[1] for _ in range(2_500)]
            assert sequences == list(range(3, 2_503))


async def test_a_store_that_fails_for_a_while_stops_no_follower(here: tuple[Environment, httpx.AsyncClient]) -> None:
    environment, client = here
    session = await environment.attach()
    await recorded(environment, 2)
    async with following(client) as reader:
        await next_id(reader)
        environment.fail("read_all", EngineUnavailable("the disk is full"))
        await environment.post(session)
        environment.fail("read_all", None)
        assert place(await next_of(reader)) == (session, 3)


@asynccontextmanager
async def two_instances() -> AsyncGenerator[tuple[Environment, Environment, httpx.AsyncClient]]:
    """Two gateways on one PostgreSQL schema; the client asks the second one."""
    schema = postgres_server.new_schema()
    async with (
        environment_of(schema=schema) as first,
        environment_of(schema=schema) as second,
        serving(second.gateway) as (_, url),
        plain_client(url) as client,
    ):
        yield first, second, client
    await postgres_server.drop_schema(schema)


@pytest.mark.slow
async def test_events_of_another_instance_arrive_also_live_ones() -> None:
    async with two_instances() as (first, _, client):
        session = await first.attach()
        async with following(client, "?kind=typing.changed,turn.*") as reader:
            await next_id(reader)
            seeing = asyncio.create_task(next_of(reader))
            # Nothing live is shown elsewhere until the owner knows of the follower.
            async with asyncio.timeout(PATIENCE):
                while not seeing.done():
                    first.runtime.say(TypingChanged(typing=True))
                    await asyncio.wait({seeing}, timeout=0.05)
            shown = await seeing
            assert (shown["event"], shown["data"]["session"]["session_id"]) == ("typing.changed", session)
            await first.post(session, 5)
            sequences = list[int]()
            while len(sequences) < 5:
                event = await next_of(reader)
                if event["event"] == "turn.steered":
                    sequences.append(place(event)[1])
            assert sequences == [3, 4, 5, 6, 7]


def deaf(topic: str) -> None:
    """Lose a notification."""
    del topic


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize("are_lost", [False, True])
async def test_events_of_another_instance_arrive_within_a_second(
    monkeypatch: pytest.MonkeyPatch, are_lost: bool
) -> None:
    async with two_instances() as (first, _, client):
        session = await first.attach()
        if are_lost:
            monkeypatch.setattr(first.engine, "notify", deaf)
        async with following(client, "?kind=turn.*") as reader:
            await next_id(reader)
            for number in range(5):
                began = asyncio.get_running_loop().time()
                await first.post(session)
                assert place(await next_of(reader)) == (session, 3 + number)
                assert asyncio.get_running_loop().time() - began < within(1.0)


@pytest.mark.slow
async def test_the_log_a_metric_and_the_stream_name_who_holds_events_back() -> None:
    schema = postgres_server.new_schema()
    operator = await postgres_server.reach(postgres_server.dsn())
    async with (
        environment_of({"api": {"heartbeat": "100ms"}, "logging": {"level": "info"}}, schema=schema) as environment,
        serving(environment.gateway) as (_, url),
        plain_client(url) as client,
    ):
        session = await environment.attach()
        await recorded(environment, 2)

        async def held() -> str | None:
            lines = (await client.get("/metrics")).text.splitlines()
            return next((line for line in lines if line.startswith("dragoman_events_held_back_seconds{")), None)

        async def free() -> bool | None:
            return await held() is None or None

        with capture_logs() as said:
            async with following(client) as reader:
                await next_id(reader)
                async with operator.transaction():
                    await operator.execute(f"LOCK TABLE {schema}.written IN ROW EXCLUSIVE MODE")
                    await operator.execute("SELECT pg_current_xact_id()")
                    await environment.post(session)
                    pid = operator.get_server_pid()
                    while f"process {pid} of database 'postgres'" not in (line := await reader.line()):
                        assert "turn.steered" not in line
                    assert f'{{database="postgres",pid="{pid}"}}' in (await held() or "")
                assert place(await next_of(reader)) == (session, 3)
                await until(free)
        told = [(one["event"], one.get("pid"), one.get("database")) for one in said]
        assert ("events are held back", pid, "postgres") in told
        assert ("events are no longer held back", None, None) in told
    await operator.close()
    await postgres_server.drop_schema(schema)

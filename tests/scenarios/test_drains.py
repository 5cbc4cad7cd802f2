"""Real processes that stop: work in flight ends over an open port, and all other work is left to the next process."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Response

from gateway.adapter.port import Link, Receiver
from tests.engines.postgres_server import OwnServer, start_own_server
from tests.scenarios.environment import API_KEY, GOOD, Running, Scene, plain_http, until
from tests.scenarios.fleet import HermEnvironment, herm_environment, message
from tests.scenarios.hooks import Gate, success
from tests.scenarios.plain_runtime import PlainRuntime, plain_gateway
from tests.scenarios.replica_processes import fleet
from tests.scenarios.served import START, Served, serving

LONG = 60.0
"""Seconds of `limits.drain` where nothing should wait for its end."""
TOO_LONG = 4.0
"""Seconds of a drain of one second; a store and a link that do not respond take five each."""
ACCEPTED = Response(status_code=202)


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[HermEnvironment]:
    async with herm_environment(tmp_path) as made:
        made.options(turn_timeout="10m")
        made.configure({"limits": {"drain": f"{LONG:g}s"}})
        yield made


async def session_of(http: httpx.AsyncClient) -> str:
    async def look() -> str | None:
        rows = (await http.get("/v1/sessions")).json()["data"]
        return rows[0]["session_id"] if rows else None

    return await until(look)


async def accepted(http: httpx.AsyncClient, call_id: str) -> None:
    async def look() -> bool:
        return (await http.get(f"/v1/calls/{call_id}")).json()["state"] == "accepted"

    await until(look)


def client(url: str) -> httpx.AsyncClient:
    http = plain_http()
    http.base_url, http.headers = url, {"authorization": f"Bearer {API_KEY}"}
    return http


async def linked(environment: HermEnvironment, served: Served) -> None:
    await until(served.ready, within=START)

    async def look() -> bool:
        return environment.agent.streams > 0

    await until(look)


async def test_accepted_calls_and_waiting_messages_do_not_delay_the_end(environment: HermEnvironment) -> None:
    environment.hooks.scripts["ask"] = ACCEPTED
    async with serving(environment) as served, client(served.url) as http:
        await linked(environment, served)
        environment.agent.call("ask", GOOD)
        [asked] = await environment.hooks.wait_for(name="ask")
        await accepted(http, asked.key)
        posted = await http.post(f"/v1/sessions/{await session_of(http)}/events", json=message("And then?"))
        assert posted.status_code == 202
        began = time.monotonic()
        assert await served.stop() == 0
        # An idle machine takes about half a second.
        assert time.monotonic() - began < LONG / 4
        assert "drain timed out" not in served.log.read_text()


async def test_a_callback_during_the_drain_reaches_the_agent(environment: HermEnvironment) -> None:
    gate = Gate()
    environment.hooks.scripts |= {"ask": ACCEPTED, "free": gate.answering(success("slow"))}
    async with serving(environment) as served, client(served.url) as http, plain_http() as backend:
        await linked(environment, served)
        session_id = await session_of(http)
        late, slow = environment.agent.call_all([("ask", GOOD), ("free", {})])
        [asked] = await environment.hooks.wait_for(name="ask")
        await environment.hooks.wait_for(name="free")
        await accepted(http, asked.key)
        served.process.send_signal(signal.SIGTERM)
        await served.wait_log("draining")
        assert (await backend.get(f"{served.url}/readyz")).status_code == 503
        served.process.send_signal(signal.SIGTERM)
        await served.wait_log("already stopping")
        refused = await http.post(f"/v1/sessions/{session_id}/events", json=message("And then?"))
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/draining")
        assert refused.headers["retry-after"]
        callback = asked.data["callback_url"]
        wrong = callback.partition("?")[0] + "?token=wrong"
        assert (await backend.post(wrong, json=success("late"))).status_code == 401
        assert (await backend.post(callback, json=success("late"))).status_code == 200
        assert "late" in str(await late.answered())
        assert served.process.returncode is None
        gate.open()
        assert "slow" in str(await slow.answered())
        assert await served.ended() == 0
        assert "drain timed out" not in served.log.read_text()
        with pytest.raises(httpx.ConnectError):
            await backend.get(f"{served.url}/healthz")


async def test_held_requests_are_answered_when_the_drain_times_out(environment: HermEnvironment) -> None:
    environment.configure({"limits": {"drain": "1s"}})
    environment.hooks.scripts["ask"] = Gate().answering(success("never"))
    async with serving(environment) as served, client(served.url) as http:
        await linked(environment, served)
        environment.agent.call("ask", GOOD)
        [asked] = await environment.hooks.wait_for(name="ask")
        waiting = asyncio.create_task(http.get(f"/v1/calls/{asked.key}", params={"wait": 60}, timeout=60))

        async def is_held() -> bool:
            # Requests of one connection pool are sent in order.
            return (await http.get("/healthz")).status_code == 200

        await until(is_held)
        assert await served.stop() == 0
        answer = await waiting
        assert (answer.status_code, answer.json()["state"]) == (200, "dispatched")
        said = served.log.read_text()
        assert "drain timed out: 1 attempt at executor 'cards' for session ada/session_ada" in said
        assert "Traceback" not in said


async def test_a_call_whose_request_waits_for_a_connection_at_the_end_runs_in_the_next_process(newer: Scene) -> None:
    routes = [{"match": {"event": "message.posted"}, "to": "cards"}, {"match": {"tool": "*"}, "to": "cards"}]
    newer.configure(
        {
            "limits": {"drain": "2s"},
            "routes": routes,
            "executors": {"cards": {"concurrency": 1, "idempotent": False, "timeout": f"{LONG:g}s"}},
        }
    )
    # A message has no slot of the executor, but its request has the only connection.
    newer.hooks.scripts["message.posted"] = Gate().answering(Response())
    async with serving(newer) as served:
        await until(served.ready, within=START)
        await newer.agent.wait_connections(1, START)
        saying = asyncio.create_task(newer.agent.say(["Hello"]))
        await newer.hooks.wait_for(name="message.posted")
        call = await newer.agent.call("free", GOOD)
        async with client(served.url) as http:

            async def dispatched() -> bool:
                return bool((await http.get("/v1/calls", params={"state": "dispatched"})).json()["data"])

            await until(dispatched)
        assert await served.stop() == 0
    assert newer.hooks.of("free") == []
    newer.hooks.scripts["message.posted"] = Response()
    async with serving(newer) as served:
        await call.result()
        assert call.reading is not None
        assert call.reading.outcome == "success"
        await saying


@pytest.mark.slow
async def test_a_replica_releases_a_session_as_soon_as_its_last_attempt_has_ended(newer: Scene) -> None:
    newer.configure({"limits": {"drain": f"{LONG:g}s"}})
    gate = Gate()
    newer.hooks.scripts |= {"ask": ACCEPTED, "free": gate.answering(success("slow"))}
    async with fleet(newer, lease="10s") as gateways:
        one = await gateways.serve("one")
        await newer.agent.wait_connected()
        session_id = await one.session()
        await one.wait_carries(session_id)
        two = await gateways.serve("two")
        late = await newer.agent.call("ask", GOOD)
        slow = await newer.agent.call("free", {})
        [asked] = await newer.hooks.wait_for(name="ask")
        await newer.hooks.wait_for(name="free")
        await accepted(one.http, asked.key)
        one.signal(signal.SIGTERM)
        await one.wait_log("draining")
        assert await _refused(one, session_id) == "/problems/draining"
        assert not await two.carries(session_id)
        gate.open()
        await slow.result()
        # The accepted call goes along.
        await two.wait_carries(session_id)
        assert await one.ended() == 0
        assert "drain timed out" not in one.log.read_text()
        await two.post(f"/v1/calls/{asked.key}/outcome", success("late"), status=200)
        await late.result()
        # The outcome may be repeated on the new link, where silence had not yet confirmed it.
        assert all(result == slow.results[0] for result in slow.results)
        assert len(late.results) == 1


async def _refused(gateway: Running, session_id: str) -> Any:
    answer = await gateway.http.post(f"/v1/sessions/{session_id}/events", json=message("And then?"))
    assert answer.status_code == 503
    return answer.json()["type"]


@dataclass
class SlowlyClosing(PlainRuntime):
    """A runtime whose links close late."""

    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def _connect(self, receiver: Receiver) -> AsyncGenerator[Link]:
        async with super()._connect(receiver) as link:
            try:
                yield link
            finally:
                await self.closed.wait()


def shared(server: OwnServer) -> dict[str, Any]:
    """Return the settings of a gateway on a server, which drains for a second."""
    engine = {"type": "postgres", "dsn": server.dsn, "schema": "drains"}
    return {"engine": engine, "instance": {"lease": "30s"}, "limits": {"drain": "1s"}}


async def test_a_database_that_does_not_answer_does_not_prolong_the_drain(tmp_path: Path) -> None:
    with start_own_server() as server:
        async with plain_gateway(tmp_path, settings=shared(server)) as (running, _):
            server.freeze()
            try:
                began = time.monotonic()
                await running.gateway.drain()
                assert time.monotonic() - began < TOO_LONG
            finally:
                server.thaw()


async def test_a_link_that_closes_late_does_not_prolong_the_drain(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with start_own_server() as server:
        async with (
            plain_gateway(tmp_path, settings=shared(server), runtime=(runtime := SlowlyClosing())) as (running, _),
            plain_gateway(tmp_path / "other", settings=shared(server), linked=False),
        ):
            began = time.monotonic()
            await running.gateway.drain()
            assert time.monotonic() - began < TOO_LONG
            runtime.closed.set()

"""Repeats of an agent with a ticket: it takes the outcome of a call whose connection was lost, once, and then runs."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
import structlog
from structlog.testing import capture_logs

from gateway.adapter.port import McpEndpoint
from gateway.events import CallId, Outcome
from gateway.executors.port import Answered
from gateway.http.mcp.results import LARGEST
from tests.http.conftest import bearer, plain_client, serving
from tests.http.environment import Environment, Rooms, environment_of, until
from tests.http.mcp_clients import NEWEST, Plain, call
from tests.http.test_calls_from_outside import TOOLS
from tests.http.test_tickets import NAMED, ToldOptions
from tests.pace import PATIENCE
from tests.scenarios.environment import merge

SEVENS = {"rank": "7"}
DESK_TOKEN = "of-a-desk-0123456789"
DESKS = {"desk": {"adapter": "mcp", "clients": [{"name": "ada", "token": DESK_TOKEN}]}}


class SharingOptions(ToldOptions):
    """All sessions of the runtime find the tools in its settings."""

    @property
    def shares_tools(self) -> bool:
        return True


@dataclass
class Agent:
    """An agent, the gateway's API, and the means to lose a connection."""

    environment: Environment
    wire: httpx.AsyncClient
    url: str
    path: str
    token: str
    headers: dict[str, str]

    async def call(self, *, over: httpx.AsyncClient | None = None, version: str | None = None) -> dict[str, Any]:
        plain = Plain(over or self.wire, self.path, self.token, version)
        return (await plain.send(call("ask_for_cards", SEVENS), **self.headers)).json()["result"]

    async def started(self, count: int) -> str:
        """Wait until the backend has promised the outcome of a call."""

        async def look() -> str | None:
            asked = self.environment.backend.asked
            if len(asked) < count:
                return None
            call_id = str(asked[-1].data["call_id"])
            return call_id if (await self.environment.gateway.calls.one(CallId(call_id))).state == "accepted" else None

        return await until(look)

    async def settle(self, call_id: str, **outcome: Any) -> None:
        body = {"outcome": "success", "result": 7, **outcome}
        assert (await self.wire.post(f"/v1/calls/{call_id}/outcome", json=body)).status_code == 200

    async def lose(self) -> str:
        """Call, and lose the connection before the outcome; returns the call's id."""
        count = len(self.environment.backend.asked) + 1

        async def left() -> bool | None:
            return not self.environment.gateway.callers.held or None

        async with httpx.AsyncClient(base_url=self.url, verify=False) as leaving:  # noqa: S501
            held = asyncio.create_task(self.call(over=leaving))
            call_id = await self.started(count)
            held.cancel()
            await asyncio.wait({held})
        await until(left)
        return call_id

    async def runs(self) -> None:
        """Call, and find that the tool runs."""
        count = len(self.environment.backend.asked) + 1
        asking = asyncio.create_task(self.call())
        await self.settle(await self.started(count), result="again")
        result = await asking
        assert (texts(result), "_meta" in result) == (["again"], False)


def texts(result: dict[str, Any]) -> list[str]:
    return [block["text"] for block in result["content"]]


@asynccontextmanager
async def agent_of(kind: str, over: dict[str, Any] | None = None) -> AsyncGenerator[Agent]:
    options = SharingOptions if kind == "shared" else ToldOptions
    able = replace(Rooms.capabilities, takes_tools="mcp")
    configuration = merge({**TOOLS, "desks": DESKS}, over or {})
    async with (
        environment_of(configuration, runtime=Rooms(options=options, capabilities=able)) as environment,
        serving(environment.gateway) as (_, url),
        plain_client(url) as wire,
    ):
        headers: dict[str, str] = {}
        row = (await wire.post("/v1/sessions", json={"runtime": "finn"})).json()
        match kind:
            case "ticket" | "shared":
                endpoint: McpEndpoint | None = environment.runtime.order and environment.runtime.order.mcp
                if kind == "shared":
                    tickets, base = environment.gateway.tickets, "http://gateway.example"
                    endpoint = await tickets.shared("finn", base=base, longest=timedelta(seconds=9))
                    headers = {NAMED: row["native_id"]}
                assert endpoint is not None
                path, token = endpoint.url.removeprefix("http://gateway.example"), endpoint.ticket.get_secret_value()
            case "desk":
                path, token = "/mcp/r/desk", DESK_TOKEN
            case _:
                path = f"/mcp/{row['session_id']}"
                token = (await wire.get(f"/v1/sessions/{row['session_id']}/mcp")).json()["token"]
        yield Agent(environment, wire, url, path, token, headers)


@pytest.mark.parametrize("kind", ["ticket", "shared"])
async def test_the_first_equal_call_after_a_lost_connection_gets_the_outcome_and_the_next_one_runs(kind: str) -> None:
    async with agent_of(kind) as agent:
        call_id = await agent.lose()
        await agent.settle(call_id)
        replayed = await agent.call()
        note, text = texts(replayed)
        assert (text, replayed["_meta"]) == ("7", {"dragoman/replayed": True})
        assert "did not run again" in note
        assert len(agent.environment.backend.asked) == 1
        await agent.runs()


@pytest.mark.parametrize("kind", ["desk", "tool token"])
async def test_an_equal_call_of_another_client_runs(kind: str) -> None:
    async with agent_of(kind) as agent:
        await agent.settle(await agent.lose())
        await agent.runs()


async def test_a_failure_that_may_have_run_is_told_as_unknown() -> None:
    async with agent_of("ticket") as agent:
        failed = {"outcome": "failure", "result": None, "error": "the backend died", "unknown": True}
        await agent.settle(await agent.lose(), **failed)
        replayed = await agent.call()
        assert (replayed["isError"], texts(replayed)[1]) == (True, "outcome unknown: the backend died")
        await agent.runs()


async def test_an_equal_call_runs_if_the_outcome_was_received_even_from_get_result() -> None:
    async with agent_of("ticket", {"mcp": {"hold": "300ms"}}) as agent:
        await agent.call()
        call_id = await agent.started(1)
        await agent.settle(call_id)
        got = Plain(agent.wire, agent.path, agent.token)
        assert "7" in str(await got.call("get_result", {"call_id": call_id}))
        # Long enough for the next call to end within a request.
        await agent.environment.reload({"mcp": {"hold": "50s"}})
        await agent.runs()
        await agent.runs()


async def test_an_outcome_after_a_response_without_it_waits_for_the_agent() -> None:
    async with agent_of("ticket", {"mcp": {"hold": "300ms"}}) as agent:
        assert "Not finished" in texts(await agent.call())[0]
        await agent.settle(await agent.started(1))
        await agent.environment.reload({"mcp": {"hold": "50s"}})
        assert texts(await agent.call())[1] == "7"
        await agent.runs()


async def test_an_equal_call_runs_after_a_cancel() -> None:
    async with agent_of("ticket") as agent:
        call_id = await agent.lose()
        assert (await agent.wire.post(f"/v1/calls/{call_id}/cancel")).status_code == 202
        await agent.settle(call_id, outcome="canceled", result=None, error="stopped")
        await agent.runs()


async def test_an_equal_call_of_a_tool_that_changes_nothing_runs() -> None:
    async with agent_of("ticket", {"tools": {"ask_for_cards": {"read_only": True}}}) as agent:
        await agent.settle(await agent.lose())
        await agent.runs()


@pytest.mark.parametrize(("age", "replays"), [(119, True), (121, False)])
async def test_an_outcome_waits_two_minutes_for_its_agent(
    monkeypatch: pytest.MonkeyPatch, age: int, *, replays: bool
) -> None:
    async with agent_of("ticket") as agent:
        await agent.settle(await agent.lose())

        async def ended_for(_: CallId) -> timedelta:
            return timedelta(seconds=age)

        monkeypatch.setattr(agent.environment.engine, "ended_for", ended_for)
        if replays:
            assert texts(await agent.call())[1] == "7"
        await agent.runs()


@pytest.mark.parametrize("kind", ["ticket", "shared", "desk", "tool token"])
async def test_the_token_opens_the_address_that_a_cut_result_names(kind: str) -> None:
    async with agent_of(kind) as agent:
        whole = {"text": "é" * LARGEST}
        agent.environment.backend.answers["ask_for_cards"] = Answered(Outcome(outcome="success", result=whole))
        note, _ = texts(await agent.call())
        named = re.search(r"GET (\S+) with this token", note)
        assert named is not None
        async with httpx.AsyncClient(base_url=agent.url, timeout=PATIENCE, verify=False) as stranger:  # noqa: S501
            read = await stranger.get(named[1], headers=bearer(agent.token))
            assert read.status_code == 200
            finished = [one["event"] for one in read.json()["events"] if one["event"]["kind"] == "tool.finished"]
            assert [one["result"] for one in finished] == [whole]
            assert (await stranger.get(named[1], headers=bearer(agent.token + "x"))).status_code in {401, 404}


@pytest.mark.parametrize("way", ["closes the connection", "sends a notification"])
async def test_the_end_of_get_result_ends_the_wait_and_not_the_call(way: str) -> None:
    async with agent_of("tool token", {"mcp": {"hold": "300ms"}}) as agent:
        await agent.call(version=NEWEST)
        call_id = await agent.started(1)
        await agent.environment.reload({"mcp": {"hold": "50s"}})

        async def held() -> bool | None:
            return agent.environment.gateway.callers.held == 1 or None

        async def left() -> bool | None:
            return not agent.environment.gateway.callers.held or None

        async with httpx.AsyncClient(base_url=agent.url, timeout=PATIENCE, verify=False) as leaving:  # noqa: S501
            plain = Plain(leaving, agent.path, agent.token, NEWEST)
            waiting = asyncio.create_task(plain.call("get_result", {"call_id": call_id}, number=5))
            await until(held)
            if way == "sends a notification":
                body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
                assert (await Plain(agent.wire, agent.path, agent.token).send(body)).status_code == 202
                await agent.settle(call_id)
                assert texts((await waiting)["result"]) == ["7"]
            else:
                waiting.cancel()
                await asyncio.wait({waiting})
                await until(left)
                await agent.settle(call_id)
        assert not agent.environment.backend.canceled


@pytest.mark.slow
async def test_an_executor_that_never_ends_a_cancel_is_no_fault_of_the_gateway() -> None:
    async with agent_of("desk") as agent:
        structlog.reset_defaults()
        agent.environment.backend.cancels_forever = True
        asking = asyncio.create_task(agent.call())
        call_id = await agent.started(1)
        with capture_logs() as log:

            async def gave_up() -> str | None:
                return next((line["reason"] for line in log if line["event"] == "cancel failed"), None)

            response = await agent.wire.post(f"/v1/calls/{call_id}/cancel", headers=bearer(agent.token))
            assert response.status_code == 202
            await asking
            assert await until(gave_up) == "the executor did not finish in time"
            assert "part failed" not in {line["event"] for line in log}


@pytest.mark.parametrize("kind", ["desk", "tool token", "ticket", "operator", "operator without keys"])
async def test_a_cancel_names_who_canceled(kind: str) -> None:
    over: dict[str, Any] = {"limits": {"cancel_grace": "100ms"}}
    if kind == "operator without keys":
        over["api"] = {"keys": []}
    async with agent_of("desk" if kind.startswith("operator") else kind, over) as agent:
        asking = asyncio.create_task(agent.call())
        call_id = await agent.started(1)
        headers = {} if kind.startswith("operator") else bearer(agent.token)
        assert (await agent.wire.post(f"/v1/calls/{call_id}/cancel", headers=headers)).status_code == 202
        said = "Canceled by an operator." if kind.startswith("operator") else "Canceled by its caller."
        assert texts(await asking) == [said]
        assert [one.data["reason"] for one in agent.environment.backend.canceled] == [said]

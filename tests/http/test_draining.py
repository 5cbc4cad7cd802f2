"""What a stopping gateway still serves, what it refuses, and how it answers the requests that it holds."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import structlog
from structlog.testing import capture_logs

from gateway.guard import Tasks, spawn
from tests.http.conftest import plain_client, serving
from tests.http.environment import Environment, environment_of, until
from tests.http.mcp_clients import NEWEST, Plain, call
from tests.http.test_calls_from_outside import SEVENS, TOOLS
from tests.http.test_operations import OPERATIONS, WAYS, Attempt, Way
from tests.pace import PATIENCE

REFUSED = {
    "openSession",
    "postEvents",
    "redeliverEvent",
    "callTool",
    "redriveCall",
    "redriveDeadLetter",
    "redriveDeadLetters",
}
"""Operations that begin new work."""
OTHERWISE = {"reloadConfiguration": {409}, "getReadiness": {503}}
"""Operations that a stopping gateway answers in a way of their own."""
ANSWERS: list[dict[str, Any]] = [
    {"kind": "approval.given", "id": "a-1", "decision": "allow"},
    {"kind": "turn.interrupted", "reason": "stop"},
]


LONG = {"drain": f"{PATIENCE:g}s"}
"""Limits of a drain that ends with the work in flight, however slow the machine is."""


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    async with environment_of({"limits": LONG}) as made:
        yield made


@asynccontextmanager
async def draining(
    environment: Environment, http: httpx.AsyncClient, call_id: str | None = None
) -> AsyncGenerator[asyncio.Task[None]]:
    """Let a gateway drain that holds a request; at the end the call of that request ends, and with it the drain."""
    call_id = call_id or await environment.ask("held")
    async with asyncio.TaskGroup() as group:
        holding = group.create_task(http.get(f"/v1/calls/{call_id}", params={"wait": 60}, timeout=60))

        async def is_held() -> bool | None:
            return environment.gateway.callers.held > 0 or None

        await until(is_held)
        drain = group.create_task(environment.gateway.drain())
        await until(lambda: _begun(environment))
        yield drain
        await http.post(f"/v1/calls/{call_id}/outcome", json={"outcome": "success"})
        async with asyncio.timeout(PATIENCE):
            await drain
            assert (await holding).status_code == 200


async def _begun(environment: Environment) -> bool | None:
    return environment.gateway.draining.begun.happened or None


class Late(Attempt):
    """An operation that is asked for once the gateway drains."""

    def __init__(self, operation: str, environment: Environment, http: httpx.AsyncClient, session_id: str) -> None:
        super().__init__(operation, environment, http, session_id)
        self.answers: list[httpx.Response] = []
        self._client = http

    async def ask(self, body: Any = None, *, wait: int = 0, **names: Any) -> None:
        """Send the request while a drain is in progress."""
        path = self._path.format(**{"session_id": self.session_id, **names})
        async with (
            draining(self.environment, self._client) as drain,
            self._client.stream(self._method, path, params={"wait": wait} if wait else None, json=body) as answer,
        ):
            if not self._streamed:
                await answer.aread()
            self.answers.append(answer)
            # Closing the session ends the held call, and with it the drain.
            assert self._method == "DELETE" or not drain.done()


async def _letter(one: Attempt) -> None:
    await one.ask(letter=await one.environment.lose_copy(one.session_id))


async def _call_tool(one: Attempt) -> None:
    await one.environment.reload({"tools": {"ask_for_cards": {"description": "", "parameters": {"type": "object"}}}})
    await one.ask({"tool": "ask_for_cards"})


async def _open_session(one: Attempt) -> None:
    await one.ask({"runtime": "finn"})


async def _ask(one: Attempt) -> None:
    await one.ask()


LATE_WAYS: dict[str, Way] = {
    **WAYS,
    "openSession": _open_session,
    "callTool": _call_tool,
    "getDeadLetter": _letter,
    "redriveDeadLetter": _letter,
    "dismissDeadLetter": _letter,
    "getReadiness": _ask,
}


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_each_operation_is_served_or_refused_while_the_gateway_drains(
    operation: str, environment: Environment, wire: httpx.AsyncClient, session_id: str
) -> None:
    late = Late(operation, environment, wire, session_id)
    await LATE_WAYS[operation](late)
    [answer] = late.answers
    if operation in REFUSED:
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "/problems/draining"
        assert int(answer.headers["retry-after"]) > 0
    else:
        assert answer.status_code in OTHERWISE.get(operation, {200, 202, 204})
    if operation == "getReadiness":
        assert answer.json()["checks"]["process"] == "draining"


@pytest.mark.parametrize("event", ANSWERS, ids=lambda event: event["kind"])
async def test_answers_and_interrupts_are_taken_while_the_gateway_drains(
    environment: Environment, wire: httpx.AsyncClient, session_id: str, event: dict[str, Any]
) -> None:
    await environment.ask_person()
    path = f"/v1/sessions/{session_id}/events"
    async with draining(environment, wire):
        assert (await wire.post(path, json=event)).status_code == 202
        both = {"events": [event, {"kind": "message.posted", "content": "And?"}]}
        before = len(await environment.journal(session_id))
        assert (await wire.post(path, json=both)).status_code == 503
        assert len(await environment.journal(session_id)) == before


async def test_a_repeat_gets_its_stored_answer_while_the_gateway_drains(
    environment: Environment, wire: httpx.AsyncClient, session_id: str
) -> None:
    path, key = f"/v1/sessions/{session_id}/events", {"idempotency-key": "once"}
    event = {"kind": "message.posted", "content": "Hello?"}
    first = await wire.post(path, json=event, headers=key)
    async with draining(environment, wire):
        again = await wire.post(path, json=event, headers=key)
        assert (again.status_code, again.json()) == (202, first.json())
        assert (await wire.post(path, json=event, headers={"idempotency-key": "other"})).status_code == 503


async def test_callback_tokens_are_checked_while_the_gateway_drains(
    environment: Environment, wire: httpx.AsyncClient, session_id: str, url: str
) -> None:
    del session_id
    call_id = await environment.ask()
    async with draining(environment, wire), httpx.AsyncClient(base_url=url, verify=False) as stranger:  # noqa: S501
        body = {"outcome": "success", "result": 7}
        path = f"/v1/calls/{call_id}/outcome"
        assert (await stranger.post(path, params={"token": "wrong"}, json=body)).status_code == 401
        unknown = "/v1/calls/00000000-0000-0000-0000-000000000000/outcome"
        assert (await wire.post(unknown, json=body)).status_code == 404
        assert (await stranger.post(path, params={"token": environment.token(call_id)}, json=body)).status_code == 200


# Calls from outside --------------------------------------------------------------------------------------


Outside = tuple[Environment, httpx.AsyncClient, str]


@asynccontextmanager
async def called_from_outside(**limits: str) -> AsyncGenerator[Outside]:
    """Run a gateway with a tool of the catalog, with a client and a session."""
    async with environment_of({**TOOLS, "limits": limits}) as environment:
        session_id = await environment.attach()
        async with serving(environment.gateway) as (_, url), plain_client(url) as wire:
            yield environment, wire, session_id


@pytest.fixture
async def outside() -> AsyncIterator[Outside]:
    async with called_from_outside(**LONG) as made:
        yield made


@pytest.fixture
async def outside_briefly() -> AsyncIterator[Outside]:
    """A gateway whose drain ends after two seconds, whatever is in flight."""
    async with called_from_outside(drain="2s") as made:
        yield made


async def mcp(wire: httpx.AsyncClient, session_id: str) -> Plain:
    token = (await wire.get(f"/v1/sessions/{session_id}/mcp")).json()["token"]
    return Plain(wire, f"/mcp/{session_id}", token, NEWEST)


async def test_held_requests_are_answered_as_still_open_at_the_end_of_the_drain(outside_briefly: Outside) -> None:
    environment, wire, session_id = outside_briefly
    plain = await mcp(wire, session_id)
    waiting = asyncio.create_task(
        wire.post(f"/v1/sessions/{session_id}/calls", params={"wait": 60}, json={**SEVENS, "key": "k"}, timeout=60)
    )
    held = asyncio.create_task(plain.call("ask_for_cards", {"rank": "7"}))
    streamed = asyncio.create_task(plain.send(call("ask_for_cards", {"rank": "8"}, number=2, progressToken=1)))

    async def are_held() -> bool | None:
        return (environment.gateway.callers.held, len(environment.backend.asked)) == (3, 3) or None

    await until(are_held)
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(PATIENCE):
        await environment.gateway.drain()
        assert asyncio.get_running_loop().time() - began >= 2
        answer = await waiting
        assert (answer.status_code, answer.json()["outcome"]) == (202, None)
        for text in ((await held)["result"]["content"][0]["text"], (await streamed).text):
            assert "get_result" in text


async def test_held_requests_get_their_outcome_if_it_comes_during_the_drain(outside: Outside) -> None:
    environment, wire, session_id = outside
    path = f"/v1/sessions/{session_id}/calls"
    waiting = asyncio.create_task(wire.post(path, params={"wait": 60}, json={**SEVENS, "key": "k"}, timeout=60))
    accepted = await environment.call("caller:backend:k", "accepted")

    async def is_held() -> bool | None:
        return environment.gateway.callers.held == 1 or None

    await until(is_held)
    drain = asyncio.create_task(environment.gateway.drain())
    await until(lambda: _begun(environment))
    # The call exists, so asking for it once more is no new work.
    assert (await wire.post(path, json={**SEVENS, "key": "k"})).status_code == 202
    assert (await wire.post(path, json={**SEVENS, "key": "other"})).status_code == 503
    await wire.post(f"/v1/calls/{accepted.call_id}/outcome", json={"outcome": "success", "result": 7})
    answer = await waiting
    assert (answer.status_code, answer.json()["outcome"]["result"]) == (200, 7)
    await drain


@pytest.mark.parametrize("meta", [{}, {"progressToken": 1}], ids=["json", "streamed"])
async def test_a_new_call_over_mcp_is_refused_and_get_result_is_served(outside: Outside, meta: dict[str, Any]) -> None:
    environment, wire, session_id = outside
    plain = await mcp(wire, session_id)
    path = f"/v1/sessions/{session_id}/calls"
    known, other = [(await wire.post(path, json={**SEVENS, "key": key})).json() for key in ("k", "other")]
    await environment.call("caller:backend:other", "accepted")
    async with draining(environment, wire, other["call_id"]):
        refused = await plain.send(call("ask_for_cards", {"rank": "8"}, **meta))
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/draining")
        assert refused.headers["retry-after"]
        listed = await plain.send({"jsonrpc": "2.0", "id": 3, "method": "tools/list", "params": {}})
        assert "ask_for_cards" in listed.text
        await wire.post(f"/v1/calls/{known['call_id']}/outcome", json={"outcome": "success", "result": "seven"})
        got = await plain.send(call("get_result", {"call_id": known["call_id"]}, number=4, **meta))
        assert (got.status_code, "seven" in got.text) == (200, True)


async def test_work_in_flight_at_the_end_of_the_drain_is_named(outside_briefly: Outside) -> None:
    environment, wire, session_id = outside_briefly
    environment.backend.gate = asyncio.Event()
    path = f"/v1/sessions/{session_id}/calls"
    waiting = asyncio.create_task(wire.post(path, params={"wait": 60}, json=SEVENS, timeout=60))

    async def is_asked() -> bool | None:
        return (len(environment.backend.asked), environment.gateway.callers.held) == (1, 1) or None

    await until(is_asked)
    structlog.reset_defaults()
    with capture_logs() as lines:
        await environment.gateway.drain()
    assert (await waiting).status_code == 202
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == [
        "drain timed out: "
        + ", ".join(f"1 {one} for session finn/agent-7" for one in ("attempt at executor 'cards'", "held request"))
    ]


def test_the_table_has_every_operation() -> None:
    assert REFUSED | OTHERWISE.keys() <= OPERATIONS.keys()


async def test_a_request_that_waits_for_a_task_which_the_gateway_ends_is_told_so(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, asked = Tasks(), asyncio.Event()

    async def hang() -> None:
        asked.set()
        await asyncio.Event().wait()

    async def query(*_: object) -> None:
        await spawn("query", hang(), queries)

    monkeypatch.setattr(environment.engine, "session", query)
    async with serving(environment.gateway) as (_, url), plain_client(url) as http:
        asking = asyncio.create_task(http.get("/v1/sessions/some"))
        await asked.wait()
        await queries.close()
        answer = await asking
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (503, "draining")
    assert "may still be done" in answer.json()["detail"]

"""Tickets over a real gateway on real sockets: sessions that we create come back for the tools with theirs."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from gateway.adapter.port import Order
from gateway.cli.commands import app
from gateway.cli.doctor_gateway import check_links
from gateway.errors import LinkLost, LinkRefused
from gateway.events import CallId, SessionId, SessionMoved
from tests.engines.postgres_server import temporary_schema
from tests.http.conftest import bearer, plain_client, serving
from tests.http.environment import Environment, Options, Rooms, environment_of, until
from tests.http.mcp_clients import MODES, Mode, Plain, call, connected, texts
from tests.http.test_calls_from_outside import SEVEN, TOOLS
from tests.pace import PATIENCE

SEVENS = {"rank": "7"}
NAMED = "x-room"
HOLD = timedelta(milliseconds=200)
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


class ToldOptions(Options):
    """Sessions that are made are told where the tools are."""

    at: str | None = None

    @property
    def takes_mcp(self) -> bool:
        return True

    @property
    def mcp_base(self) -> str | None:
        return self.at

    @property
    def mcp_session_header(self) -> str:
        return NAMED


def rooms() -> Rooms:
    able = replace(Rooms.capabilities, takes_tools="mcp", mcp_hold=HOLD)
    return Rooms(options=ToldOptions, capabilities=able)


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    async with environment_of(TOOLS, runtime=rooms()) as made:
        yield made


@pytest.fixture
async def url(environment: Environment) -> AsyncIterator[str]:
    async with serving(environment.gateway) as (_, base):
        yield base


@pytest.fixture
async def stranger_wire(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client over a real socket without a key."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, verify=False) as client:  # noqa: S501
        yield client


def told(environment: Environment) -> tuple[str, str]:
    """The path and the ticket of the session that was ordered last."""
    order = environment.runtime.order
    assert order is not None
    assert order.mcp is not None
    where = order.mcp.url.removeprefix("http://gateway.example")
    assert where.startswith("/mcp/t/")
    return where, order.mcp.ticket.get_secret_value()


async def created(wire: httpx.AsyncClient, **body: Any) -> str:
    answer = await wire.post("/v1/sessions", json={"runtime": "finn", **body})
    assert answer.status_code == 201, answer.text
    return answer.json()["session_id"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_session_that_we_create_lists_and_calls_with_its_ticket(
    environment: Environment, url: str, wire: httpx.AsyncClient, mode: Mode
) -> None:
    environment.backend.answers["ask_for_cards"] = SEVEN
    session_id = await created(wire, labels={"team": "shop"})
    path, ticket = told(environment)
    async with connected(url + path, ticket, mode) as client:
        assert "ask_for_cards" in [tool.name for tool in (await client.list_tools()).tools]
        assert texts(await client.call_tool("ask_for_cards", SEVENS)) == ['{"cards":["7H"]}']
    asked = environment.backend.asked[-1].data
    assert asked["session_id"] == session_id
    made = await environment.gateway.calls.one(CallId(asked["call_id"]))
    assert made.native_call_id.startswith("caller:tool ticket:")
    order = environment.runtime.order
    assert isinstance(order, Order)
    # Told are the tools that a route leads somewhere, and how long the slowest of them may take.
    assert [tool.name for tool in order.tools] == ["ask_for_cards"]
    assert order.mcp is not None
    assert order.mcp.timeout == timedelta(seconds=600)


async def test_a_ticket_opens_its_own_address_and_nothing_else(
    environment: Environment, wire: httpx.AsyncClient, stranger_wire: httpx.AsyncClient
) -> None:
    session_id = await created(wire)
    path, ticket = told(environment)
    await created(wire)
    other_path, other = told(environment)
    token = (await wire.get(f"/v1/sessions/{session_id}/mcp")).json()["token"]
    wrong = [
        (path, other), (other_path, ticket), (path, token), (path, "dtt_x"), (path, ticket + "A"), (path, "all-of-it"),
        ("/mcp/t/unknown", ticket), (f"/mcp/{session_id}", ticket),
    ]  # fmt: skip
    for where, given in wrong:
        answer = await Plain(stranger_wire, where, given).send(LIST)
        assert answer.status_code == 401, where
        assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
        assert ticket not in answer.text
    assert (await stranger_wire.post(path, json=LIST)).status_code == 401
    for where in (f"/v1/sessions/{session_id}", f"/v1/sessions/{session_id}/events"):
        assert (await stranger_wire.get(where, headers=bearer(ticket))).status_code == 401
    asking = {"tool": "ask_for_cards", "arguments": SEVENS}
    posted = await stranger_wire.post(f"/v1/sessions/{session_id}/calls", json=asking, headers=bearer(ticket))
    assert posted.status_code == 401
    got = await stranger_wire.get(path, headers=bearer(ticket))
    assert (got.status_code, got.headers["allow"]) == (405, "POST")
    assert (await Plain(stranger_wire, path, ticket).send(LIST)).status_code == 200


async def test_a_ticket_reads_and_cancels_its_own_calls_and_no_others(
    environment: Environment, wire: httpx.AsyncClient, stranger_wire: httpx.AsyncClient
) -> None:
    session_id = await created(wire)
    path, ticket = told(environment)
    await Plain(stranger_wire, path, ticket).call("ask_for_cards", SEVENS)
    own = environment.backend.asked[-1].data["call_id"]
    token = (await wire.get(f"/v1/sessions/{session_id}/mcp")).json()["token"]
    body = {"tool": "ask_for_cards", "arguments": SEVENS}
    made = await stranger_wire.post(f"/v1/sessions/{session_id}/calls", json=body, headers=bearer(token))
    await created(wire)
    _, other = told(environment)
    for given, call_id in ((ticket, made.json()["call_id"]), (token, own), (other, own), (ticket, "unknown")):
        for method, what in (("GET", ""), ("POST", "/cancel")):
            refused = await stranger_wire.request(method, f"/v1/calls/{call_id}{what}", headers=bearer(given))
            assert refused.status_code == 404
    read = await stranger_wire.get(f"/v1/calls/{own}", headers=bearer(ticket))
    assert (read.status_code, read.json()["native_call_id"].startswith("caller:tool ticket:")) == (200, True)
    assert not environment.backend.canceled
    assert (await stranger_wire.post(f"/v1/calls/{own}/cancel", headers=bearer(ticket))).status_code == 202
    assert [one.data["call_id"] for one in environment.backend.canceled] == [own]


async def test_a_ticket_gets_json_also_where_it_asks_for_progress(
    environment: Environment, wire: httpx.AsyncClient, stranger_wire: httpx.AsyncClient
) -> None:
    environment.backend.answers["ask_for_cards"] = SEVEN
    await created(wire)
    answer = await Plain(stranger_wire, *told(environment)).send(call("ask_for_cards", SEVENS, progressToken="p"))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")


async def test_a_request_is_held_no_longer_than_the_runtimes_client_waits(
    environment: Environment, wire: httpx.AsyncClient, stranger_wire: httpx.AsyncClient
) -> None:
    await created(wire)
    plain = Plain(stranger_wire, *told(environment))
    said = (await plain.call("ask_for_cards", SEVENS))["result"]["content"][0]["text"]
    assert said.startswith("Not finished. Call get_result with")
    listed = (await plain.send(LIST)).json()["result"]["tools"]
    assert "get_result" in [tool["name"] for tool in listed]


async def test_get_result_is_listed_where_a_call_may_outlast_what_the_runtimes_client_waits() -> None:
    # Within `hold`, which is 50 s, and longer than the client waits.
    short = {"executors": {"cards": {"deadline": "10s", "accepted_deadline": "10s"}}}
    async with (
        environment_of({**TOOLS, **short}, runtime=rooms()) as made,
        serving(made.gateway) as (_, base),
        plain_client(base) as wire,
    ):
        await created(wire)
        listed = (await Plain(wire, *told(made)).send(LIST)).json()["result"]["tools"]
    assert [tool["name"] for tool in listed] == ["ask_for_cards", "get_result"]


async def test_tools_are_listed_before_the_session_is_on_record(
    environment: Environment, wire: httpx.AsyncClient, stranger_wire: httpx.AsyncClient
) -> None:
    environment.runtime.open.clear()
    creating = asyncio.create_task(created(wire, labels={"team": "shop"}))

    async def ordered() -> bool | None:
        return environment.runtime.order is not None or None

    await until(ordered)
    plain = Plain(stranger_wire, *told(environment))
    listed = (await plain.send(LIST)).json()["result"]["tools"]
    assert "ask_for_cards" in [tool["name"] for tool in listed]
    early = (await plain.call("ask_for_cards", SEVENS))["result"]
    assert (early["isError"], "not recorded yet" in early["content"][0]["text"]) == (True, True)
    environment.runtime.open.set()
    session_id = await creating
    environment.backend.answers["ask_for_cards"] = SEVEN
    assert not (await plain.call("ask_for_cards", SEVENS))["result"]["isError"]
    assert environment.backend.asked[-1].data["session_id"] == session_id


async def test_a_session_that_nobody_put_on_record_is_found_when_it_names_itself(
    environment: Environment, wire: httpx.AsyncClient, stranger_wire: httpx.AsyncClient
) -> None:
    environment.backend.answers["ask_for_cards"] = SEVEN
    # The answer was lost, and with it the id; the session is there all the same.
    environment.runtime.refuses = LinkLost("no answer within 30 s")
    lost = await wire.post("/v1/sessions", json={"runtime": "finn", "labels": {"team": "shop"}})
    assert lost.status_code == 502
    plain = Plain(stranger_wire, *told(environment))
    answer = (await plain.send(call("ask_for_cards", SEVENS), **{NAMED: "made-1"})).json()
    assert not answer["result"]["isError"], answer
    (row,) = (await wire.get("/v1/sessions")).json()["data"]
    assert (row["native_id"], row["labels"]) == ("made-1", {"team": "shop"})
    assert environment.backend.asked[-1].data["session_id"] == row["session_id"]
    # From now on it is that session's, whatever else is named.
    answer = (await plain.send(call("ask_for_cards", SEVENS), **{NAMED: "made-9"})).json()
    assert not answer["result"]["isError"]
    assert len((await wire.get("/v1/sessions")).json()["data"]) == 1


async def test_a_ticket_of_what_was_refused_is_worth_nothing(
    environment: Environment, wire: httpx.AsyncClient, stranger_wire: httpx.AsyncClient
) -> None:
    environment.runtime.refuses = LinkRefused("NO", "not today", terminal=True)
    assert (await wire.post("/v1/sessions", json={"runtime": "finn"})).status_code == 502
    assert (await Plain(stranger_wire, *told(environment)).send(LIST)).status_code == 401


async def test_a_ticket_is_rotated_by_force_alone_and_apart_from_the_tool_token(
    environment: Environment, wire: httpx.AsyncClient, stranger_wire: httpx.AsyncClient
) -> None:
    session_id = await created(wire)
    path, ticket = told(environment)
    plain = Plain(stranger_wire, path, ticket)
    rotate = f"/v1/sessions/{session_id}/mcp/rotate"
    token = (await wire.post(rotate)).json()["token"]
    refused = await wire.post(rotate, params={"of": "ticket"})
    assert refused.status_code == 409
    assert "loses its tools" in refused.json()["detail"]
    assert (await plain.send(LIST)).status_code == 200
    rotated = await wire.post(rotate, params={"of": "ticket", "force": "true"})
    assert (rotated.status_code, rotated.json()["token"]) == (200, token)
    assert (await plain.send(LIST)).status_code == 401
    assert (await Plain(stranger_wire, f"/mcp/{session_id}", token).send(LIST)).status_code == 200
    attached = await environment.attach("agent-8")
    none = await wire.post(f"/v1/sessions/{attached}/mcp/rotate", params={"of": "ticket", "force": "true"})
    assert (none.status_code, "has no ticket" in none.json()["detail"]) == (409, True)


@pytest.mark.parametrize("over", [{"public_url": None}, {"tools": None}, {"routes": []}])
async def test_no_ticket_is_issued_without_an_address_or_a_tool(over: dict[str, Any]) -> None:
    async with environment_of({**TOOLS, **over}, runtime=rooms()) as made:
        await made.gateway.opening.open("finn", native_id=None, labels={})
        order = made.runtime.order
    assert order is not None
    assert order.mcp is None


async def test_the_address_of_the_options_comes_before_the_public_one() -> None:
    made_rooms = rooms()
    made_rooms.options = type("At", (ToldOptions,), {"__module__": __name__, "__annotations__": {"at": str | None},
                                                     "at": "http://inside:8080/"})  # fmt: skip
    async with environment_of(TOOLS, runtime=made_rooms) as made:
        await made.gateway.opening.open("finn", native_id=None, labels={})
        order = made.runtime.order
    assert order is not None
    assert order.mcp is not None
    assert order.mcp.url.startswith("http://inside:8080/mcp/t/")


async def test_who_has_not_asked_for_the_list_in_time_is_shown(
    environment: Environment, wire: httpx.AsyncClient, stranger_wire: httpx.AsyncClient, tmp_path: Path
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(f"engine: {{path: {tmp_path}/dragoman.db}}\n")
    session_id = await created(wire)
    attached = await environment.attach("agent-8")

    async def links() -> list[dict[str, Any]]:
        return [link for one in (await wire.get("/v1/runtimes")).json()["data"] for link in one["links"]]

    async def lacking() -> dict[str, bool | None]:
        return {link["session_id"]: link["lacks_tools"] for link in await links()}

    async def reasons() -> dict[str, str | None]:
        return {link["session_id"]: link["lacks_tools_reason"] for link in await links()}

    assert await lacking() == {session_id: None, attached: None}
    await age(environment, session_id)
    assert await lacking() == {session_id: None, attached: None}
    for room, session in (("made-1", session_id), ("agent-8", attached)):
        environment.runtime.say(SessionMoved(state="idle"), room=room)
        await environment.recorded(session, "session.moved")
    assert await lacking() == {session_id: True, attached: False}
    env = {"DRAGOMAN_URL": str(wire.base_url), "DRAGOMAN_KEY": "all-of-it"}
    warnings = [one.text for one in await asyncio.to_thread(lambda: list(check_links(env))) if one.state == "warning"]
    (warning,) = warnings
    told_by_doctor = await asyncio.to_thread(
        lambda: CliRunner().invoke(app, ["doctor", "--config", str(file)], env=env)
    )
    assert warning in told_by_doctor.stdout.replace("\n", " ")
    assert "No problems found" not in told_by_doctor.stdout
    assert warning.startswith("finn/made-1 has no tools: it was created at ")
    assert "mcp_url" in warning
    assert await reasons() == {session_id: warning.removeprefix("finn/made-1 has no tools: "), attached: None}
    assert (await Plain(stranger_wire, *told(environment)).send(LIST)).status_code == 200
    assert await lacking() == {session_id: False, attached: False}


async def age(environment: Environment, session_id: str) -> None:
    """Let a ticket be older than a minute."""
    ticket_id = await environment.engine.note(f"ticket-of:{session_id}")
    written = await environment.engine.note(f"ticket:{ticket_id}")
    assert written is not None
    given_at = (await environment.gateway.session(SessionId(session_id))).opened_at
    await environment.engine.set_note(
        f"ticket:{ticket_id}",
        written.replace(f'"given_at":"{given_at:%Y-%m-%d}', f'"given_at":"{given_at.year - 1}-01-01'),
    )


async def test_a_ticket_counts_on_every_instance() -> None:
    schema = temporary_schema()
    async with (
        environment_of(TOOLS, runtime=rooms(), schema=schema) as one,
        environment_of(TOOLS, runtime=rooms(), schema=schema) as two,
        serving(one.gateway) as (_, first),
        serving(two.gateway) as (_, second),
        plain_client(first) as wire,
        httpx.AsyncClient(base_url=second, timeout=PATIENCE, verify=False) as stranger,  # noqa: S501
    ):
        session_id = await created(wire)
        plain = Plain(stranger, *told(one))
        assert (await plain.send(LIST)).status_code == 200
        await wire.post(f"/v1/sessions/{session_id}/mcp/rotate", params={"of": "ticket", "force": "true"})
        assert (await plain.send(LIST)).status_code == 401


async def test_a_session_that_is_erased_takes_all_that_is_kept_of_its_ticket_along(
    environment: Environment, wire: httpx.AsyncClient, stranger_wire: httpx.AsyncClient
) -> None:
    session_id = await created(wire, labels={"team": "shop"})
    path, ticket = told(environment)
    assert (await Plain(stranger_wire, path, ticket).send(LIST)).status_code == 200
    ticket_id = path.removeprefix("/mcp/t/")
    names = [f"ticket:{ticket_id}", f"ticket-listed:{ticket_id}", f"ticket-of:{session_id}"]
    assert None not in [await environment.engine.note(name) for name in names]
    assert (await wire.delete(f"/v1/sessions/{session_id}")).status_code == 204
    assert None not in [await environment.engine.note(name) for name in names]
    assert (await wire.delete(f"/v1/sessions/{session_id}?erase=true")).status_code == 204
    assert [await environment.engine.note(name) for name in names] == [None] * 3
    assert (await Plain(stranger_wire, path, ticket).send(LIST)).status_code == 401

"""Creating HUMA agents: what is posted, how tools are told, and every way the answer can turn out."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from pydantic import ValidationError

from adapters.huma import HUMA_0_1, HUMA_0_2
from gateway.adapter.port import Adapter, Created, Order, Tool
from gateway.errors import LinkLost, LinkRefused
from gateway.links.flat_tools import flatten
from gateway.testing.conformance.link import within
from tests.adapters.raw_huma import KEY, RawHuma

ADAPTERS = (HUMA_0_1, HUMA_0_2)
ASK = Tool(
    name="ask_for_cards",
    description="Ask another player for all their cards of a rank.",
    parameters={
        "type": "object",
        "properties": {
            "targetPlayer": {"type": "string", "description": "The player to ask"},
            "rank": {"type": "string", "enum": ["7", "K"]},
            "count": {"type": "integer", "minimum": 1, "description": "How many"},
            "options": {"type": "object", "properties": {"loud": {"type": "boolean"}}},
            "notes": {"type": ["string", "null"]},
            "anything": {},
            "list": {"items": {"type": "number"}},
        },
        "required": ["targetPlayer", "rank"],
        "additionalProperties": False,
    },
)
AGENT = {"name": "Finn", "class_name": "Finn", "personality": "Calm.", "instructions": "Play cards."}

RestAnswer = Callable[[dict[str, Any], bytes], Awaitable[tuple[int, Any]]]


def options_for(adapter: Adapter, server: RawHuma, **more: Any) -> Any:
    given = {"adapter": adapter.name, "url": server.url, "api_key": KEY, "agent": AGENT}
    return adapter.options.model_validate({**given, **more})


async def create(
    answer: RestAnswer, *, adapter: Adapter = HUMA_0_2, order: Order | None = None, **options: Any
) -> Created:
    server = RawHuma()
    server.rest = answer
    async with server.serve(), adapter.connector(options_for(adapter, server, **options)) as connector:
        return cast("Created", await within(connector.create(order or Order())))


def always(status: int, answer: Any) -> RestAnswer:
    async def reply(_scope: dict[str, Any], _body: bytes) -> tuple[int, Any]:
        return status, answer

    return reply


@pytest.mark.requirement("L28", "L29", "L30", "L31", "L32", "L33", "L34", "L35", "L37")
@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
async def test_an_agent_is_created_with_everything_in_its_place(adapter: Adapter) -> None:
    seen: list[Any] = []

    async def reply(scope: dict[str, Any], body: bytes) -> tuple[int, Any]:
        seen.append((scope["method"], scope["path"], dict(scope["headers"]), json.loads(body)))
        return 201, {"id": "agent-9", "state": "CREATED"}

    agent = {**AGENT, "router_type": "turn-taking", "addons": {"enabled": ["messaging"]}, "metadata": {"table": 4}}
    order = Order({"table": "4"}, (ASK,))
    created = await create(reply, adapter=adapter, order=order, agent={**agent, "ttl_seconds": 60})
    assert created.native_id == "agent-9"
    assert created.tools == ("ask_for_cards",)
    method, path, headers, body = seen[0]
    assert (method, path, headers[b"x-api-key"]) == ("POST", "/api/agents", KEY.encode())
    tools = body["metadata"].pop("tools")
    assert body == {
        "name": "Finn",
        "agentType": "HUMA-0.1",
        "metadata": {
            "table": 4,
            "className": "Finn",
            "personality": "Calm.",
            "instructions": "Play cards.",
            "routerType": "turn-taking",
            "addons": {"enabled": ["messaging"]},
        },
        "ttlSeconds": 60,
    }
    assert [tool["name"] for tool in tools] == ["ask_for_cards"]
    assert {parameter["name"]: parameter["type"] for parameter in tools[0]["parameters"]} == {
        "targetPlayer": "string",
        "rank": "string",
        "count": "number",
        "options": "object",
        "notes": "string",
        "anything": "string",
        "list": "array",
    }
    assert [parameter["name"] for parameter in tools[0]["parameters"] if parameter.get("required")] == [
        "targetPlayer",
        "rank",
    ]
    assert all(isinstance(parameter["description"], str) for parameter in tools[0]["parameters"])


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
async def test_an_order_s_name_and_instructions_stand_in_place_of_the_options(adapter: Adapter) -> None:
    seen: list[Any] = []

    async def reply(_scope: dict[str, Any], body: bytes) -> tuple[int, Any]:
        seen.append(json.loads(body))
        return 201, {"id": "agent-9"}

    created = await create(reply, adapter=adapter, order=Order(name="Table 4", instructions="Deal."))
    assert created == Created("agent-9")
    assert (seen[0]["name"], seen[0]["metadata"]["instructions"]) == ("Table 4", "Deal.")


@pytest.mark.requirement("L36", "L33", "L31")
def test_what_the_flat_form_cannot_say_is_told_in_prose_and_listed() -> None:
    flat = flatten(ASK)
    told = {parameter["name"]: parameter["description"] for parameter in flat.form["parameters"]}
    assert told["targetPlayer"] == "The player to ask"
    assert told["rank"] == 'One of: "7", "K".'
    assert told["count"] == 'How many Must match this JSON Schema: {"type":"integer","minimum":1}.'
    assert '"loud"' in told["options"]
    assert '["string","null"]' in told["notes"]
    assert "additionalProperties" in flat.form["description"]
    where = "/tools/ask_for_cards/parameters"
    assert {(loss.how, loss.path) for loss in flat.losses} == {
        ("narrowed", f"{where}/properties/rank/enum"),
        ("narrowed", f"{where}/properties/count/type"),
        ("narrowed", f"{where}/properties/count/minimum"),
        ("narrowed", f"{where}/properties/options/properties"),
        ("narrowed", f"{where}/properties/notes/type"),
        ("defaulted", f"{where}/properties/anything/type"),
        ("narrowed", f"{where}/properties/list/items"),
        ("narrowed", f"{where}/additionalProperties"),
    }
    assert flatten(Tool("wave", "Wave.", {})).form == {"name": "wave", "description": "Wave.", "parameters": []}
    odd = flatten(Tool("odd", "", {"properties": {"a": True, "b": {"enum": [1]}, "c": {"type": "null"}}}))
    assert [parameter["type"] for parameter in odd.form["parameters"]] == ["object", "object", "string"]


async def test_a_wrong_key_is_refused_for_good_and_the_key_is_not_quoted() -> None:
    with pytest.raises(LinkRefused) as refusal:
        await create(always(401, {"error": "Unauthorized", "message": f"Unknown key {KEY}", "statusCode": 401}))
    assert (refusal.value.code, refusal.value.terminal) == ("UNAUTHORIZED", True)
    assert "Unknown key" in str(refusal.value)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("status", [400, 404, 409])
async def test_any_other_no_is_refused_with_its_status_and_but_for_a_conflict_for_good(status: int) -> None:
    with pytest.raises(LinkRefused) as refusal:
        await create(always(status, {"error": "bad tools"}))
    assert (refusal.value.code, refusal.value.terminal) == (f"HTTP_{status}", status != 409)
    assert "bad tools" in str(refusal.value)


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (500, {"message": "oops"}),
        (503, b"<html>"),
        (429, {}),
        (200, b"not json"),
        (200, []),
        (201, {"id": ""}),
        (201, {"id": 7}),
        (200, b'{"id":"' + b"x" * 1_100_000 + b'"}'),
    ],
)
async def test_no_usable_answer_is_a_lost_link(status: int, answer: Any) -> None:
    with pytest.raises(LinkLost):
        await create(always(status, answer))


async def test_no_answer_in_time_is_a_lost_link() -> None:
    released = asyncio.Event()

    async def hang(_scope: dict[str, Any], _body: bytes) -> tuple[int, Any]:
        await released.wait()
        return 200, {"id": "late"}

    server = RawHuma()
    server.rest = hang
    async with server.serve():
        options = options_for(HUMA_0_2, server, connect_timeout="100ms")
        async with HUMA_0_2.connector(options) as connector:
            with pytest.raises(LinkLost, match="no answer within"):
                await within(connector.create(Order()))
        released.set()


async def test_nobody_there_is_a_lost_link() -> None:
    options = options_for(HUMA_0_2, RawHuma(), url="http://127.0.0.1:1")
    async with HUMA_0_2.connector(options) as connector:
        with pytest.raises(LinkLost) as loss:
            await within(connector.create(Order()))
    assert loss.value.__cause__ is None
    assert loss.value.__context__ is None


async def test_the_rest_interface_may_live_elsewhere_and_a_socket_address_serves_for_both() -> None:
    server = RawHuma()
    server.rest = always(200, {"id": "agent-1"})
    async with server.serve():
        elsewhere = {"url": "wss://huma.invalid", "rest_url": server.url}
        for more in (elsewhere, {"url": server.url.replace("http", "ws", 1)}):
            async with HUMA_0_2.connector(options_for(HUMA_0_2, server, **more)) as connector:
                assert (await within(connector.create(Order()))).native_id == "agent-1"


async def test_options_that_name_an_agent_create_none() -> None:
    options = options_for(HUMA_0_2, RawHuma(), url="http://127.0.0.1:1", agent=None, agent_id="a")
    assert options.native_id == "a"
    assert not options.creates
    async with HUMA_0_2.connector(options) as connector:
        with pytest.raises(LinkRefused):
            await connector.create(Order())


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"agent_id": "a"}, "exactly one of agent_id"),
        ({"agent": None}, "exactly one of agent_id"),
        ({"api_key": ""}, "printable ASCII"),
        ({"api_key": "a b"}, "printable ASCII"),
        ({"api_key": "line\nbreak"}, "printable ASCII"),
        ({"url": "ftp://example.com"}, "base URL"),
        ({"url": "https://user:pw@example.com"}, "belongs in api_key"),
        ({"url": "https://example.com/?apiKey=x"}, "belongs in api_key"),
        ({"rest_url": "example.com"}, "base URL"),
        ({"transports": ["websocket"]}, "Extra inputs"),
        ({"path": "socket.io"}, "pattern"),
        ({"agnet_id": "a"}, "Extra inputs"),
        ({"agent": {**AGENT, "ttl_seconds": 0}}, "greater than 0"),
        ({"agent": {**AGENT, "classname": "x"}}, "Extra inputs"),
    ],
)
def test_wrong_options_are_told_with_what_would_be_right(adapter: Adapter, given: Any, problem: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        options_for(adapter, RawHuma(), **{"url": "https://huma.example.com", **given})
    assert problem in str(refusal.value)
    assert options_for(adapter, RawHuma(), url="https://huma.example.com/").creates

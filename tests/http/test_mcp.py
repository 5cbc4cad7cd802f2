"""MCP over a real gateway on real sockets: the official client of both eras, and plain requests."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import aiohttp
import httpx
import pytest
from mcp.shared.exceptions import MCPError

from gateway.errors import EngineUnavailable, Overloaded
from gateway.events import CallId, ContextUpdate, Outcome, SessionId, TurnInterrupted
from gateway.executors.port import Answered
from gateway.http.mcp.results import LARGEST
from gateway.runtime.clients.callers import MOST_HELD_OF_ONE
from gateway.runtime.tuning import Tuning
from gateway.store.call import Call
from tests.http.conftest import bearer, plain_client, serving
from tests.http.environment import Environment, environment_of, until
from tests.http.mcp_clients import MODES, NEWEST, VERSIONS, Mode, Plain, call, connected, texts
from tests.http.test_calls_from_outside import SEVEN, TOOLS
from tests.pace import PATIENCE

SEVENS = {"rank": "7"}
QUICK = Tuning(beat=0.2)
HELD = {"mcp": {"hold": "300ms"}}


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    async with environment_of({**TOOLS, "limits": {"drain": "1s"}}, tuning=QUICK) as made:
        yield made


@pytest.fixture
def path(session_id: str) -> str:
    """The address of the session's tools."""
    return f"/mcp/{session_id}"


@pytest.fixture
async def token(wire: httpx.AsyncClient, session_id: str) -> str:
    return (await wire.get(f"/v1/sessions/{session_id}/mcp")).json()["token"]


@pytest.fixture
async def plain(stranger_wire: httpx.AsyncClient, path: str, token: str) -> Plain:
    return Plain(stranger_wire, path, token)


@pytest.fixture
async def stranger_wire(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client over a real socket without a key."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, verify=False) as client:  # noqa: S501
        yield client


async def opened(environment: Environment, state: str = "accepted", *, but: str | None = None) -> str:
    """Wait until a caller's call stands so; returns its id."""

    async def look() -> str | None:
        asked = [one.data["call_id"] for one in environment.backend.asked if one.data["call_id"] != but]
        found = await environment.engine.call(CallId(asked[-1])) if asked else None
        return found.call_id if found is not None and found.state == state else None

    return await until(look)


async def happens(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""

    async def look() -> bool | None:
        return condition() or None

    await until(look)


async def settle(wire: httpx.AsyncClient, call_id: str, body: dict[str, Any]) -> None:
    assert (await wire.post(f"/v1/calls/{call_id}/outcome", json=body)).status_code == 200


def answer_texts(answer: dict[str, Any]) -> list[str]:
    return [block["text"] for block in answer["result"]["content"]]


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_lists_and_calls(
    environment: Environment, url: str, path: str, token: str, session_id: str, mode: Mode
) -> None:
    environment.backend.answers["ask_for_cards"] = SEVEN
    async with connected(url + path, token, mode) as client:
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == ["ask_for_cards", "get_result"]
        assert listed.tools[0].description == "Ask a player for all cards of one rank."
        declared = environment.gateway.settings.tools["ask_for_cards"]
        assert listed.tools[0].input_schema == declared.parameters
        assert listed.tools[0].annotations is None
        result = await client.call_tool("ask_for_cards", SEVENS)
        assert (result.is_error, texts(result)) == (False, ['{"cards":["7H"]}'])
        assert result.structured_content == {"cards": ["7H"]}
        unfit = await client.call_tool("ask_for_cards", {"rank": "9"})
        assert unfit.is_error
        assert "'9' is not allowed" in texts(unfit)[0]
        for unknown in ("sing", "nobody_answers"):
            with pytest.raises(MCPError) as refused:
                await client.call_tool(unknown, {})
            assert refused.value.code == -32602
        assert client.session.protocol_version == ("2026-07-28" if mode == "auto" else "2025-11-25")
    requested = await environment.recorded(session_id, "tool.requested")
    assert requested.origin is not None
    version = "2026-07-28" if mode == "auto" else "2025-11-25"
    assert (requested.origin.adapter, requested.origin.protocol) == ("caller", f"mcp/{version}")
    assert not environment.runtime.heard


async def test_a_list_may_be_believed_for_a_minute(environment: Environment, url: str, path: str, token: str) -> None:
    async with connected(url + path, token, "auto") as client:
        assert (await client.list_tools()).ttl_ms == 60_000


@pytest.mark.parametrize("gated", [False, True])
async def test_hints_are_given_where_they_are_sure(*, gated: bool) -> None:
    over = {
        "tools": {"look": {"read_only": True}, "move": {}, "tell": {}},
        "executors": {
            "cards": {"type": "webhook", "url": "http://backend.invalid", "deadline": "5s", "accepted_deadline": "5s"},
            "twice": {
                "type": "webhook",
                "url": "http://backend.invalid",
                "idempotent": True,
                "accepted_deadline": "5s",
            },
        },
        "routes": [
            {"match": {"tool": "tell"}, "to": "twice"},
            {"match": {"tool": "move", "label": {"table": "12"}}, "to": "cards"},
            {"match": {"tool": "look"}, "to": "cards", "approve": gated},
        ],
    }
    async with environment_of(over) as made:
        session = await made.gateway.opening.find(SessionId(await made.attach()))
        shown = {one.name: one for one in made.gateway.offered(session)}
        assert list(shown) == ["look", "tell"]
        async with serving(made.gateway) as (_, url), plain_client(url) as http:
            access = (await http.get(f"/v1/sessions/{await made.attach()}/mcp")).json()
            where = url + access["url"].removeprefix("http://gateway.example")
            async with connected(where, access["token"], "auto") as client:
                listed = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
    # Nothing takes longer than a request is held, so nobody needs to wait on, unless a human is asked.
    assert list(listed) == (["look", "tell", "get_result"] if gated else ["look", "tell"])
    assert [hint and (hint.read_only_hint, hint.idempotent_hint) for hint in [*listed.values()][:2]] == [
        (True, None), (None, True),
    ]  # fmt: skip


OUTCOMES: list[tuple[Outcome, bool, str]] = [
    (Outcome(outcome="success", result="Go fish!"), False, "Go fish!"),
    (Outcome(outcome="success", result=[1, None]), False, "[1,null]"),
    (Outcome(outcome="success", result={"a": None}), False, '{"a":null}'),
    (Outcome(outcome="success"), False, "null"),
    (Outcome(outcome="failure", error="no such player"), True, "no such player"),
    (Outcome(outcome="failure", error="it broke", unknown=True), True, "outcome unknown: it broke"),
]


async def test_each_outcome_is_told_as_a_result(environment: Environment, plain: Plain) -> None:
    for outcome, error, said in OUTCOMES:
        environment.backend.answers["ask_for_cards"] = Answered(outcome)
        answer = await plain.call("ask_for_cards", SEVENS)
        assert (answer["result"]["isError"], answer_texts(answer)) == (error, [said])
        structured: object = outcome.result
        assert answer["result"].get("structuredContent") == (structured if type(structured) is dict else None), said


VALUES: list[Any] = [{"a": None}, {}, [1, None, {"a": []}], [], "text", "", 7, 0, 1.5, True, False]


@pytest.mark.parametrize("version", VERSIONS)
async def test_structured_content_is_what_the_version_allows(
    environment: Environment, stranger_wire: httpx.AsyncClient, path: str, token: str, version: str | None
) -> None:
    client = Plain(stranger_wire, path, token, version)
    for value in VALUES:
        environment.backend.answers["ask_for_cards"] = Answered(Outcome(outcome="success", result=value))
        result = (await client.call("ask_for_cards", SEVENS))["result"]
        if version == NEWEST or type(value) is dict:
            # As text, in which 1 is not true.
            assert json.dumps(result["structuredContent"]) == json.dumps(value)
        else:
            assert "structuredContent" not in result, value
        assert len(result["content"]) == 1, value


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_takes_structured_content(
    environment: Environment, url: str, path: str, token: str, mode: Mode
) -> None:
    async with connected(url + path, token, mode) as client:
        await client.list_tools()
        for value in ([1, "two"], "three", 4, False):
            environment.backend.answers["ask_for_cards"] = Answered(Outcome(outcome="success", result=value))
            result = await client.call_tool("ask_for_cards", SEVENS)
            assert result.structured_content == (value if mode == "auto" else None)


async def test_updates_are_told_before_the_result(environment: Environment, plain: Plain) -> None:
    update = ContextUpdate(name="cards.moved", context={"left": 3}, description="Alice took a card.")
    environment.backend.answers["ask_for_cards"] = Answered(
        Outcome(outcome="success", result="Go fish!"), updates=(update,)
    )
    said = answer_texts(await plain.call("ask_for_cards", SEVENS))
    assert said == ['cards.moved: Alice took a card.\n{"left":3}', "Go fish!"]


async def test_a_result_over_the_cap_is_cut_and_its_token_reads_the_whole(
    environment: Environment, plain: Plain, stranger_wire: httpx.AsyncClient, token: str
) -> None:
    environment.backend.answers["ask_for_cards"] = Answered(Outcome(outcome="success", result={"text": "é" * LARGEST}))
    answer = await plain.call("ask_for_cards", SEVENS)
    note, begin = answer_texts(answer)
    assert "succeeded" in note
    call_id = await opened(environment, "succeeded")
    assert f"GET /v1/calls/{call_id} with this token returns all of it" in note
    whole = await stranger_wire.get(f"/v1/calls/{call_id}", headers=bearer(token))
    assert whole.status_code == 200
    (finished,) = [one for one in whole.json()["events"] if one["event"]["kind"] == "tool.finished"]
    assert finished["event"]["result"] == {"text": "é" * LARGEST}
    assert len(begin.encode()) <= LARGEST
    assert begin.startswith('{"text":"éé')
    assert not answer["result"]["isError"]
    assert "structuredContent" not in answer["result"]


async def test_what_is_interrupted_is_told_as_an_error(environment: Environment, plain: Plain, session_id: str) -> None:
    held = asyncio.create_task(plain.call("ask_for_cards", SEVENS))
    await opened(environment)
    await environment.gateway.post(SessionId(session_id), [TurnInterrupted(reason="enough")], by="-")
    answer = await held
    assert (answer["result"]["isError"], answer_texts(answer)) == (True, ["enough"])


async def test_what_is_not_finished_is_waited_on_by_get_result(
    environment: Environment, wire: httpx.AsyncClient, plain: Plain
) -> None:
    await environment.reload(HELD)
    answer = await plain.call("ask_for_cards", SEVENS)
    call_id = await opened(environment)
    text = f'Not finished. Call get_result with {{"call_id":"{call_id}"}} to wait; do not call ask_for_cards again.'
    assert (answer["result"]["isError"], answer_texts(answer)) == (False, [text])
    assert answer_texts(await plain.call("get_result", {"call_id": call_id})) == [text]
    waiting = asyncio.create_task(plain.call("get_result", {"call_id": call_id}))
    await settle(wire, call_id, {"outcome": "success", "result": {"cards": 1}})
    assert (await waiting)["result"]["structuredContent"] == {"cards": 1}
    # Whoever asks again hears it again.
    assert (await plain.call("get_result", {"call_id": call_id}))["result"]["structuredContent"] == {"cards": 1}
    assert len(environment.backend.asked) == 1


async def test_get_result_knows_only_callers_calls_of_its_session(
    environment: Environment, wire: httpx.AsyncClient, plain: Plain
) -> None:
    agents = await environment.ask(state="failed")
    other = await environment.attach("agent-8")
    foreign = (
        await wire.post(f"/v1/sessions/{other}/calls", json={"tool": "ask_for_cards", "arguments": SEVENS})
    ).json()
    for wrong in (agents, foreign["call_id"], "unknown", ""):
        answer = await plain.call("get_result", {"call_id": wrong})
        assert answer["result"]["isError"]
        assert "no such call" in answer_texts(answer)[0]


async def test_get_result_checks_its_arguments(environment: Environment, plain: Plain) -> None:
    await environment.reload(HELD)
    await plain.call("ask_for_cards", SEVENS)
    own = await opened(environment)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "at /call_id: missing; it is required (string: The call_id from the earlier result.)"),
        ({"call_id": None}, "at /call_id: null is not allowed; it must be a string"),
        ({"call_id": 7}, "at /call_id: 7 is not allowed; it must be a string"),
        ({"call_id": {"a": 1}}, "at /call_id: an object (1 members) is not allowed; it must be a string"),
        ({"call_id": own, "wait": 7}, 'at /wait: is not a known argument; known are "call_id"'),
        ({"id": own}, "at /call_id: missing; it is required"),
    ]
    for arguments, fault in wrong:
        answer = await plain.call("get_result", arguments)
        assert answer["result"]["isError"], arguments
        (told,) = answer_texts(answer)
        assert told.startswith("Invalid arguments for 'get_result': ")
        assert fault in told


async def test_a_key_makes_a_repeat_the_same_call(
    environment: Environment, wire: httpx.AsyncClient, plain: Plain
) -> None:
    key = {"dragoman/key": "order 1"}
    first = asyncio.create_task(plain.call("ask_for_cards", SEVENS, number=1, **key))
    call_id = await opened(environment)
    second = asyncio.create_task(plain.call("ask_for_cards", SEVENS, number=2, **key))
    differs = await plain.call("ask_for_cards", {"rank": "8"}, number=3, **key)
    assert differs["result"]["isError"]
    assert "'order 1' was used before" in answer_texts(differs)[0]
    await settle(wire, call_id, {"outcome": "success", "result": 7})
    assert [answer_texts(await one) for one in (first, second)] == [["7"], ["7"]]
    assert len(environment.backend.asked) == 1
    assert (await environment.call("caller:tool token:order 1")).call_id == call_id


async def test_a_key_that_is_none_is_refused(environment: Environment, plain: Plain) -> None:
    keys: list[Any] = ["", "é", "k" * 201, 7, ["k"], {}]
    for key in keys:
        answer = await plain.call("ask_for_cards", SEVENS, **{"dragoman/key": key})
        assert answer["result"]["isError"], key
        assert "dragoman/key" in answer_texts(answer)[0], key
    assert not environment.backend.asked


async def test_the_official_client_hears_of_progress(
    environment: Environment, wire: httpx.AsyncClient, url: str, path: str, token: str
) -> None:
    heard: list[tuple[float, str | None]] = []
    arrived = asyncio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        heard.append((progress, message))
        arrived.set()

    async def wait_for(count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(heard) < count:
                arrived.clear()
                await arrived.wait()

    async with connected(url + path, token, "auto") as client:
        asking = asyncio.create_task(client.call_tool("ask_for_cards", SEVENS, progress_callback=hear))
        call_id = await opened(environment)
        await wire.post(f"/v1/calls/{call_id}/progress", json={"done": 1})
        await wait_for(1)
        # Two beats, while nothing happens.
        await wait_for(3)
        await wire.post(f"/v1/calls/{call_id}/progress", json={"done": 2})
        before = len(heard)
        await wait_for(before + 1)
        await settle(wire, call_id, {"outcome": "success", "result": 7})
        assert texts(await asking) == ["7"]
    assert [number for number, _ in heard] == [float(n + 1) for n in range(len(heard))]
    assert [message for _, message in heard if message is not None] == ['{"done":1}', '{"done":2}']
    assert sum(message is None for _, message in heard) >= 2


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_stream_needs_a_version_that_survives_its_cut_a_token_and_a_client_that_accepts_it(
    environment: Environment,
    wire: httpx.AsyncClient,
    stranger_wire: httpx.AsyncClient,
    path: str,
    token: str,
    version: str | None,
) -> None:
    plain, call_id = Plain(stranger_wire, path, token, version), None
    asking: list[tuple[dict[str, Any], dict[str, str], bool]] = [
        ({}, {}, False),
        ({"progressToken": "p"}, {}, version == NEWEST),
        ({"progressToken": "p"}, {"accept": "application/json"}, False),
    ]
    for meta, headers, streams in asking:
        sent = asyncio.create_task(plain.send(call("ask_for_cards", SEVENS, **meta), **headers))
        call_id = await opened(environment, but=call_id)
        await wire.post(f"/v1/calls/{call_id}/progress", json={"done": 1})
        await settle(wire, call_id, {"outcome": "success", "result": 7})
        assert (await sent).headers["content-type"].startswith("text/event-stream" if streams else "application/json")


async def test_a_cancelled_notification_cancels_the_one_held_request(environment: Environment, plain: Plain) -> None:
    def cancelled(number: object) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}

    held = [asyncio.create_task(plain.call("ask_for_cards", SEVENS, number=n)) for n in (7, 8, 8)]
    await happens(lambda: len(environment.backend.asked) >= 3)
    # None has this id, and one is no text; of two with one id, nobody knows which is meant.
    for number in (9, "7", 8, None, [7], {"a": 7}):
        assert (await plain.send(cancelled(number))).status_code == 202
    assert not environment.backend.canceled
    assert (await plain.send(cancelled(7))).status_code == 202
    await happens(lambda: bool(environment.backend.canceled))
    assert len(environment.backend.canceled) == 1
    await environment.gateway.drain()
    assert ["Not finished" in answer_texts(await one)[0] for one in held[1:]] == [True, True]
    await asyncio.gather(*held)


Hold = Callable[[str], Awaitable[object]]


@asynccontextmanager
async def holding(
    url: str, path: str, token: str, client: str | None, *, streamed: bool = False
) -> AsyncGenerator[Hold]:
    """Make what calls the tool for a rank: the official client of an era, or plain requests of a version."""
    if client == "auto" or client == "legacy":
        async with connected(url + path, token, client) as official:

            async def hear(progress: float, total: float | None, message: str | None) -> None:
                del progress, total, message

            yield lambda rank: official.call_tool(
                "ask_for_cards", {"rank": rank}, progress_callback=hear if streamed else None
            )
    else:
        async with httpx.AsyncClient(base_url=url, verify=False) as http:  # noqa: S501
            meta: dict[str, Any] = {"progressToken": "p"} if streamed else {}

            async def send(rank: str) -> None:
                with suppress(ValueError):
                    await Plain(http, path, token, client).call("ask_for_cards", {"rank": rank}, **meta)

            yield send


async def hang_up(environment: Environment, hold: AbstractAsyncContextManager[Hold], rank: str = "7") -> str:
    """Close a client's connection while its call is held; returns the call's id."""
    seen = len(environment.backend.asked)
    async with hold as asking:
        held = asyncio.ensure_future(asking(rank))
        await happens(lambda: len(environment.backend.asked) != seen)
        call_id = await opened(environment)
        held.cancel()
        await asyncio.wait({held})
    await happens(lambda: not environment.gateway.callers.held)
    return call_id


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("client", [*VERSIONS, *MODES])
async def test_a_closed_connection_means_what_the_version_of_the_protocol_says(
    environment: Environment, url: str, path: str, token: str, client: str | None, *, streamed: bool
) -> None:
    call_id = await hang_up(environment, holding(url, path, token, client, streamed=streamed))
    if client in {NEWEST, "auto"}:
        await happens(lambda: bool(environment.backend.canceled))
        assert [one.data["call_id"] for one in environment.backend.canceled] == [call_id]
        asked = len(environment.backend.asked)
        # What was canceled is not gone on with, and not told again.
        environment.backend.answers["ask_for_cards"] = SEVEN
        async with connected(url + path, token, "auto") as again:
            assert texts(await again.call_tool("ask_for_cards", SEVENS)) == ['{"cards":["7H"]}']
        assert len(environment.backend.asked) == asked + 1
    else:
        # Behind one that is canceled, a cancel of this one would have been asked for as well.
        other = await hang_up(environment, holding(url, path, token, NEWEST), "8")
        await happens(lambda: bool(environment.backend.canceled))
        assert [one.data["call_id"] for one in environment.backend.canceled] == [other]
        assert (await environment.gateway.calls.one(CallId(call_id))).state == "accepted"


@pytest.mark.parametrize(("wanted", "version"), [("cancel", "2025-11-25"), ("continue", NEWEST)])
async def test_a_closed_connection_means_what_the_configuration_says(
    environment: Environment, wire: httpx.AsyncClient, url: str, path: str, token: str, wanted: str, version: str
) -> None:
    await environment.reload({"mcp": {"on_disconnect": wanted}})
    call_id = await hang_up(environment, holding(url, path, token, version))
    if wanted == "cancel":
        await happens(lambda: bool(environment.backend.canceled))
        assert [one.data["call_id"] for one in environment.backend.canceled] == [call_id]
    else:
        await settle(wire, call_id, {"outcome": "success", "result": 7})
        assert not environment.backend.canceled


async def test_whoever_waits_for_anothers_call_does_not_cancel_it(
    environment: Environment, wire: httpx.AsyncClient, url: str, path: str, token: str, session_id: str
) -> None:
    made = await wire.post(f"/v1/sessions/{session_id}/calls", json={"tool": "ask_for_cards", "arguments": SEVENS})
    call_id = made.json()["call_id"]
    await opened(environment)
    async with httpx.AsyncClient(base_url=url, verify=False) as http:  # noqa: S501
        client = Plain(http, path, token, NEWEST)
        held = asyncio.create_task(client.call("get_result", {"call_id": call_id}, number=7))
        await happens(lambda: environment.gateway.callers.held > 0)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        assert (await client.send(cancel)).status_code == 202
        named = {**cancel, "params": {"requestId": 7, "_meta": {"dragoman/call_id": call_id}}}
        assert (await client.send(named)).status_code == 202
        held.cancel()
        await asyncio.wait({held})
    await happens(lambda: not environment.gateway.callers.held)
    await settle(wire, call_id, {"outcome": "success", "result": 7})
    assert not environment.backend.canceled


async def test_who_asks_for_too_many_at_once_is_told_so_and_not_that_the_server_is_dead(
    environment: Environment, wire: httpx.AsyncClient, plain: Plain, session_id: str
) -> None:
    call_id = await wire.post(f"/v1/sessions/{session_id}/calls", json={"tool": "ask_for_cards", "arguments": SEVENS})
    wait_on = {"call_id": call_id.json()["call_id"]}
    held = [asyncio.create_task(plain.call("get_result", wait_on, number=n)) for n in range(MOST_HELD_OF_ONE + 1)]
    done, _ = await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
    (refused,) = done
    assert refused.result()["result"]["isError"]
    assert answer_texts(refused.result()) == ["too many calls at once; retry when some have ended"]
    asked = len(environment.backend.asked)
    again = await plain.call("ask_for_cards", SEVENS, number=99)
    assert answer_texts(again) == answer_texts(refused.result())
    assert len(environment.backend.asked) == asked
    await opened(environment)
    await settle(wire, wait_on["call_id"], {"outcome": "success", "result": 7})
    assert {answer_texts(await one)[0] for one in held if one is not refused} == {"7"}


@pytest.mark.slow
async def test_who_asks_a_thousand_times_is_answered_each_time_and_costs_nobody_else_a_call(
    environment: Environment, wire: httpx.AsyncClient, url: str, session_id: str, token: str
) -> None:
    path = f"/v1/sessions/{session_id}/calls"
    call_id = (await wire.post(path, json={"tool": "ask_for_cards", "arguments": SEVENS})).json()["call_id"]
    other_id = await environment.attach("agent-8")
    others = (await wire.get(f"/v1/sessions/{other_id}/mcp")).json()["token"]
    other, asked = Plain(wire, f"/mcp/{other_id}", others), len(environment.backend.asked)
    headers = {**bearer(token), "accept": "application/json, text/event-stream"}
    environment.backend.answers["ask_for_cards"] = SEVEN
    # Who waits does so for the whole test, on a slow machine too.
    await environment.reload({"mcp": {"hold": "80s"}})
    # The usual client would take most of the time.
    async with aiohttp.ClientSession(url, headers=headers) as http:

        async def ask(tool: str, arguments: dict[str, Any], number: int) -> str:
            async with http.post(f"/mcp/{session_id}", json=call(tool, arguments, number=number)) as answer:
                return answer_texts(await answer.json())[0]

        waiting = (ask("get_result", {"call_id": call_id}, number) for number in range(MOST_HELD_OF_ONE))
        held = [asyncio.create_task(one) for one in waiting]
        await until(_all_held(environment, session_id))
        for wave in range(10):
            told = await asyncio.gather(*(ask("ask_for_cards", SEVENS, 100 * wave + n) for n in range(100)))
            assert set(told) == {"too many calls at once; retry when some have ended"}
            if wave % 5 == 0:
                assert answer_texts(await other.call("ask_for_cards", {"rank": "8"})) == ['{"cards":["7H"]}']
        assert len(environment.backend.asked) == asked + 2
        await settle(wire, call_id, {"outcome": "success", "result": 7})
        assert set(await asyncio.gather(*held)) == {"7"}
        assert await ask("ask_for_cards", SEVENS, 1) == '{"cards":["7H"]}'


def _all_held(environment: Environment, session_id: str) -> Callable[[], Awaitable[bool | None]]:
    async def look() -> bool | None:
        try:
            with environment.gateway.callers.holding(SessionId(session_id)):
                return None
        except Overloaded:
            return True

    return look


async def test_who_is_held_while_the_store_goes_away_is_told_to_wait_on(
    environment: Environment,
    wire: httpx.AsyncClient,
    plain: Plain,
    session_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked, look = 0, environment.engine.call

    async def looking(call_id: CallId) -> Call | None:
        nonlocal looked
        looked += 1
        if looked > 20:
            # Both have been waiting for a while: what is looked up now is whether their calls have ended.
            raise EngineUnavailable("the store is away")
        return await look(call_id)

    monkeypatch.setattr(environment.engine, "call", looking)
    held = asyncio.create_task(plain.call("ask_for_cards", SEVENS))
    path = f"/v1/sessions/{session_id}/calls"
    waiting = asyncio.create_task(
        wire.post(path, params={"wait": 20}, json={"tool": "ask_for_cards", "arguments": SEVENS})
    )
    async with asyncio.timeout(PATIENCE):
        answer, still_open = await held, await waiting
    assert (answer["result"]["isError"], "Not finished" in answer_texts(answer)[0]) == (False, True)
    assert (still_open.status_code, still_open.json()["outcome"]) == (202, None)


async def test_a_closed_session_says_so(wire: httpx.AsyncClient, plain: Plain, session_id: str) -> None:
    await wire.delete(f"/v1/sessions/{session_id}")
    answer = await plain.call("ask_for_cards", SEVENS)
    assert (answer["result"]["isError"], answer_texts(answer)) == (True, ["the session is closed"])

"""The simulated servers refuse what the protocol refuses, and accept what real clients send."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gateway.testing.runtimes.huma.calls import SimBurst
from gateway.testing.runtimes.huma.rules import Violation, length_of_json
from gateway.testing.runtimes.huma.server import HumaServer, SimAgent, SimCall
from tests.simulators.raw_client import RawClient, connected

Pair = tuple[SimAgent, RawClient]
KEY = "ak_test"


@pytest.fixture
async def flat() -> AsyncGenerator[Pair]:
    async with HumaServer("0.2", api_key=KEY) as server:
        agent = server.agent("finn")
        async with connected(server.url, "finn", KEY) as client:
            yield agent, client


@pytest.fixture
async def wrapped() -> AsyncGenerator[Pair]:
    async with HumaServer("0.1", api_key=KEY) as server:
        agent = server.agent("finn")
        async with connected(server.url, "finn", KEY) as client:
            yield agent, client


def update(**changes: Any) -> dict[str, Any]:
    frame: dict[str, Any] = {"type": "context-update", "triggering": True, "name": "new-message", "context": {}}
    return {"description": ""} | frame | changes


def result(call: SimCall, **changes: Any) -> dict[str, Any]:
    frame = {
        "type": "tool-result",
        "triggering": True,
        "toolCallId": call.call_id,
        "toolName": call.tool,
        "outcome": "success",
    }
    return frame | changes


def without(frame: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in frame.items() if name != key}


def content_of(call: SimCall, **changes: Any) -> dict[str, Any]:
    content = {"type": "tool-result", "toolCallId": call.call_id, "status": "completed", "success": True}
    return {"type": "huma-0.1-event", "content": content | changes}


async def ask(pair: Pair, **changes: str) -> SimCall:
    agent, client = pair
    call = await agent.call("ask_for_cards", {"rank": "7"}, **changes)
    await client.next()
    return call


async def is_refused(pair: Pair, frame: object, *, channel: str = "error") -> str:
    """Send a frame and expect the documented error for it; returns its message."""
    agent, client = pair
    before = len(agent.violations)
    await client.send(frame)
    arrived, payload = await client.next()
    assert (arrived, payload["type"], payload["code"]) == (channel, "error", "INVALID_EVENT")
    assert len(agent.violations) == before + 1
    return payload["message"]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ("text", "an event must be a JSON object"),
        ([1], "an event must be a JSON object"),
        ({}, 'an event requires string "type"'),
        ({"type": "huma-0.1-event", "content": {}}, "unknown event type"),
        ({"type": "new-message", "content": {}}, "unknown event type"),
        (without(update(), "triggering"), 'context-update requires boolean "triggering"'),
        (update(triggering=1), 'context-update requires boolean "triggering"'),
        (update(triggering="true"), 'context-update requires boolean "triggering"'),
        (update(name=""), '"name" of 1 to 128 characters'),
        (update(name="n" * 129), '"name" of 1 to 128 characters'),
        (update(name="🐟" * 65), '"name" of 1 to 128 characters'),
        (without(update(), "context"), 'requires object "context"'),
        (update(context=None), 'requires object "context"'),
        (without(update(), "description"), 'requires string "description"'),
        (update(context={"a": [{"__proto__": {}}]}), "forbidden key '__proto__'"),
        (update(context={"constructor": 1}), "forbidden key 'constructor'"),
        (update(context={"a": {"b": {"prototype": 1}}}), "forbidden key 'prototype'"),
        (
            {"type": "addon-tool-event", "toolCallId": "x", "data": {"context": {"constructor": 1}}},
            "forbidden key 'constructor'",
        ),
        (update(context={"a": float("nan")}), "NaN"),
        ({"type": "addon-tool-event", "data": {}}, 'requires string "toolCallId"'),
        ({"type": "addon-tool-event", "toolCallId": "x", "data": []}, 'requires object "data"'),
        ({"type": "addon-tool-event", "toolCallId": "x", "data": {}}, 'unknown "toolCallId"'),
        (
            {"type": "tool-result", "triggering": True, "toolCallId": "x", "toolName": "y", "outcome": "success"},
            'unknown "toolCallId"',
        ),
    ],
)
async def test_a_malformed_0_2_event_is_answered_with_an_error(flat: Pair, frame: object, message: str) -> None:
    assert message in await is_refused(flat, frame)


async def test_a_valid_0_2_update_replaces_the_context(flat: Pair) -> None:
    agent, client = flat
    await client.send(update(context={"a": 1, "b": 2}))
    await client.send(update(context={"a": 3}, triggering=False, name="🐟" * 64))
    await agent.wait_for(lambda frame: frame["context"] == {"a": 3})
    assert agent.context == {"a": 3}
    assert [frame.number for frame in agent.received] == [0, 1]
    assert agent.violations == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"triggering": None}, 'tool-result requires boolean "triggering"'),
        ({"toolCallId": ""}, 'requires string "toolCallId"'),
        ({"toolName": "another"}, "\"toolName\" must be 'ask_for_cards'"),
        ({"outcome": "expired"}, '"outcome" to be one of success, failure, canceled'),
        ({"error": 5}, 'requires string "error"'),
        ({"result": "x" * 65_535}, "longer than 65536"),
    ],
)
async def test_a_malformed_0_2_result_does_not_settle_its_call(
    flat: Pair, changes: dict[str, Any], message: str
) -> None:
    call = await ask(flat)
    assert message in await is_refused(flat, result(call, **changes))
    assert call.results == []


async def test_a_0_2_result_of_exactly_the_limit_settles_its_call(flat: Pair) -> None:
    call = await ask(flat)
    frame = result(call, result="🐟" * 32_767)
    assert length_of_json(frame["result"]) == 65_536
    await flat[1].send(frame)
    assert await call.result() == frame
    assert call.reading is not None
    assert call.reading.outcome == "success"


async def test_a_second_result_is_refused_unless_it_is_the_same(flat: Pair) -> None:
    agent, client = flat
    call = await ask(flat)
    await client.send(result(call))
    await client.send(result(call))
    assert await call.wait_results(2) == [result(call)] * 2
    assert agent.violations == []
    assert "already ended" in await is_refused(flat, result(call, result=1))


async def test_the_same_call_id_with_other_arguments_is_another_call(flat: Pair) -> None:
    agent, client = flat
    first = await ask(flat, call_id="one")
    await client.send(result(first, result=1))
    await first.result()
    again = await agent.call("ask_for_cards", {"rank": "7"}, "one")
    other = await agent.call("ask_for_cards", {"rank": "K"}, "one")
    await client.send(result(other, result=2))
    assert (await other.result())["result"] == 2
    assert again is first
    assert len(first.results) == 1


async def test_a_cancel_names_the_tool_or_not_and_takes_a_canceled_result(flat: Pair) -> None:
    agent, client = flat
    call = await ask(flat)
    await agent.cancel(call, "interrupted")
    await agent.cancel(call, with_name=False)
    named = {"type": "cancel-tool-call", "toolCallId": call.call_id, "toolName": call.tool, "reason": "interrupted"}
    assert await client.next() == ("event", named)
    assert await client.next() == ("event", {"type": "cancel-tool-call", "toolCallId": call.call_id})
    await client.send(result(call, triggering=False, outcome="canceled"))
    await call.result()
    assert agent.violations == []


async def test_the_next_message_of_a_burst_waits_for_the_confirmation(flat: Pair) -> None:
    agent, client = flat
    burst = asyncio.create_task(agent.say(["one", "two"], {"channel": "c"}, call_id="b"))
    for index, text in enumerate(["one", "two"]):
        typing = {"type": "messaging", "toolCallId": "b", "extra_args": {"channel": "c"}, "event": "typing_start"}
        assert await client.next() == ("event", typing)
        sent = typing | {"event": "message_sent", "message": text, "messageIndex": index, "messageCount": 2}
        assert await client.next() == ("event", sent)
        assert client.arrived.empty()
        answer = {"messageIndex": index, "success": True, "context": {"conversationHistory": text}}
        await client.send({"type": "addon-tool-event", "toolCallId": "b", "data": answer})
    confirmations = await burst
    assert [(each.index, each.success, each.assumed) for each in confirmations] == [(0, True, False), (1, True, False)]
    assert agent.context == {"conversationHistory": "two"}
    assert agent.violations == []


async def test_a_failed_confirmation_ends_the_burst(flat: Pair) -> None:
    agent, client = flat
    burst = asyncio.create_task(agent.say(["one", "two"], call_id="b"))
    await client.next()
    await client.next()
    failed = {"messageIndex": 0, "success": False, "error": "rate limited"}
    await client.send({"type": "addon-tool-event", "toolCallId": "b", "data": failed})
    assert (await client.next())[1]["event"] == "typing_end"
    assert [each.payload for each in await burst] == [failed]
    assert agent.violations == []


async def test_success_is_assumed_at_the_time_limit_and_a_later_confirmation_is_a_breach(flat: Pair) -> None:
    agent, _ = flat
    confirmations = await agent.say(["one"], call_id="b", within=0.01)
    assert [(each.success, each.assumed) for each in confirmations] == [(True, True)]
    late = {"type": "addon-tool-event", "toolCallId": "b", "data": {"messageIndex": 0, "success": True}}
    client = flat[1]
    await client.next()
    await client.next()
    assert "too late" in await is_refused(flat, late)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"messageIndex": True}, "messageIndex"),
        ({"messageIndex": -1}, "messageIndex"),
        ({"messageIndex": 0.5}, "messageIndex"),
        ({"messageIndex": 1}, "was not sent yet"),
        ({"success": "yes"}, 'requires boolean "success"'),
        ({"context": None}, 'requires object "context"'),
        ({"error": 1}, 'requires string "error"'),
    ],
)
async def test_a_malformed_confirmation_is_refused(flat: Pair, changes: dict[str, Any], message: str) -> None:
    agent, client = flat
    burst = asyncio.create_task(agent.say(["one", "two"], call_id="b"))
    await client.next()
    await client.next()
    answer = {"messageIndex": 0, "success": True} | changes
    assert message in await is_refused(flat, {"type": "addon-tool-event", "toolCallId": "b", "data": answer})
    await agent.abort("b")
    assert await burst == []


async def test_a_burst_takes_no_tool_result(flat: Pair) -> None:
    agent, client = flat
    await agent.say(["one"], call_id="b", within=0.01)
    await client.next()
    await client.next()
    frame = {"type": "tool-result", "triggering": False, "toolCallId": "b", "toolName": "send_message"}
    assert "accepts no tool-result" in await is_refused(flat, frame | {"outcome": "success"})


async def test_a_new_burst_cancels_the_one_before_it(flat: Pair) -> None:
    agent, client = flat
    older = asyncio.create_task(agent.say(["one", "two"], call_id="a"))
    await client.next()
    await client.next()
    newer = asyncio.create_task(agent.say(["three"], call_id="b"))
    end = {"type": "messaging", "event": "typing_end", "toolCallId": "a", "reason": "canceled"}
    assert await client.next() == ("event", end)
    assert await older == []
    await client.next()
    await client.next()
    await client.send({"type": "addon-tool-event", "toolCallId": "b", "data": {"messageIndex": 0, "success": True}})
    assert [each.success for each in await newer] == [True]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (7, "an event must be a JSON object"),
        (update(), "unknown event type"),
        ({"type": "huma-0.1-event"}, 'requires object "content"'),
        ({"type": "huma-0.1-event", "content": {"name": "", "context": {}, "description": ""}}, 'string "name"'),
        ({"type": "huma-0.1-event", "content": {"name": "n", "description": ""}}, 'object "context"'),
        ({"type": "huma-0.1-event", "content": {"name": "n", "context": {}}}, 'string "description"'),
        ({"type": "huma-0.1-event", "content": {"type": "other"}}, "may only be tool-result"),
        (
            {"type": "huma-0.1-event", "content": {"name": "tool-result", "context": {}, "description": ""}},
            "not a name",
        ),
        ({"type": "tool-result", "content": {"toolCallId": "x"}}, "unknown event type"),
        ({"type": "new-message", "content": {"content": "hi", "participant": {}}}, 'string "id"'),
        ({"type": "new-message", "content": {"id": "1", "participant": {}}}, 'string "content"'),
        ({"type": "new-message", "content": {"id": "1", "content": "hi"}}, 'object "participant"'),
        (
            {"type": "new-message", "content": {"id": "1", "content": "hi", "participant": {"id": "a"}}},
            'string "nickname"',
        ),
        (
            {
                "type": "new-message",
                "content": {
                    "id": "1",
                    "content": "hi",
                    "participant": {"id": "a", "nickname": "Al"},
                    "images": [{"url": "https://example.com/a.png"}],
                },
            },
            "base64 data URL",
        ),
    ],
)
async def test_a_malformed_0_1_event_is_answered_on_the_event_channel(
    wrapped: Pair, frame: object, message: str
) -> None:
    assert message in await is_refused(wrapped, frame, channel="event")


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"result": "Go Fish!"}, "success"),
        ({}, "success"),
        ({"success": False, "error": "Not your turn"}, "failure"),
        ({"success": False}, "failure"),
        ({"status": "canceled", "success": False, "error": "canceled"}, "canceled"),
        ({"skipImmediateProcessing": True, "context": {"conversationHistory": "hi"}}, "success"),
    ],
)
async def test_the_0_1_results_of_real_clients_are_accepted(
    wrapped: Pair, changes: dict[str, Any], outcome: str
) -> None:
    agent, client = wrapped
    call = await ask(wrapped)
    await client.send(content_of(call, **changes))
    await call.result()
    assert call.reading is not None
    assert call.reading.outcome == outcome
    assert agent.context == changes.get("context", {})
    assert agent.violations == []


async def test_a_0_1_result_may_leave_its_status_out(wrapped: Pair) -> None:
    call = await ask(wrapped)
    frame = content_of(call)
    del frame["content"]["status"]
    await wrapped[1].send(frame)
    assert await call.result() == frame


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"toolCallId": None}, 'string "toolCallId"'),
        ({"toolCallId": "tc_unknown"}, 'unknown "toolCallId"'),
        ({"status": "failed"}, "completed or canceled"),
        ({"status": "canceled"}, "cannot be canceled and successful"),
        ({"success": 1}, 'boolean "success"'),
        ({"error": {}}, 'string "error"'),
    ],
)
async def test_a_malformed_0_1_result_does_not_settle_its_call(
    wrapped: Pair, changes: dict[str, Any], message: str
) -> None:
    call = await ask(wrapped)
    assert message in await is_refused(wrapped, content_of(call, **changes), channel="event")
    assert call.results == []


async def test_0_1_messages_follow_each_other_without_confirmation(wrapped: Pair) -> None:
    agent, client = wrapped
    assert await agent.say(["one", "two"], call_id="b") == []
    events = [(await client.next())[1]["event"] for _ in range(4)]
    assert events == ["typing_start", "message_sent"] * 2


def test_a_confirmation_that_is_said_again_may_tell_a_newer_context_but_no_other_fate() -> None:
    burst = SimBurst("c")
    burst.sent = 1
    for number in range(2):
        burst.confirm({"messageIndex": 0, "success": True, "context": {"n": number}})
    with pytest.raises(Violation, match="already confirmed otherwise"):
        burst.confirm({"messageIndex": 0, "success": False, "context": {"n": 1}})

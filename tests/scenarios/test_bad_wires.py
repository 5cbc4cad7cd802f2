"""What Herm and OpenHands must never send, sent: each is on record, and the next good message works."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.testing.runtimes.herm.server import HermServer, Manners, SimSession
from tests.scenarios.environment import GOOD, Running, until
from tests.scenarios.fleet import (
    ADA,
    HERM_KEY,
    HermEnvironment,
    OpenHandsEnvironment,
    condition,
    fate,
    herm_environment,
    message,
    openhands_environment,
    questions,
    send,
)

DEEP = "[" * 2_000 + "]" * 2_000
BIG = 9 * 1024 * 1024


# Herm ----------------------------------------------------------------------------------------------------


class Garbling(SimSession):
    """A session that can also write anything at all into its streams."""

    def garble(self, text: str) -> None:
        self.emit_envelope({"id": "raw", "type": "raw", "raw": text})

    async def listen(self, replay_after: str | None) -> AsyncGenerator[str]:
        async for text in super().listen(replay_after):
            if text.startswith("event: raw\n"):
                yield json.loads(text[text.index("data: ") + 6 :])["raw"]
            else:
                yield text


@pytest.fixture
async def herm(tmp_path: Path) -> AsyncIterator[HermEnvironment]:
    server = HermServer(api_key=HERM_KEY)
    server.sessions[ADA] = Garbling(ADA, "agent", wire=server, manners=Manners())
    async with herm_environment(tmp_path, server=server) as made:
        yield made
        assert made.agent.violations == []


def garbling(environment: HermEnvironment) -> Garbling:
    assert isinstance(environment.agent, Garbling)
    return environment.agent


def envelope(number: int, payload: str, **more: Any) -> str:
    """Write an event whose payload is any text, JSON or not."""
    head = {
        "id": f"evt_bad_{number}",
        "type": "agent.custom_tool_use",
        "sessionId": ADA,
        **more,
    }
    return f'data: {json.dumps(head)[:-1]}, "payload": {payload}}}\n\n'


def use(name: str, arguments: str) -> str:
    return f'{{"type": "agent.custom_tool_use", "id": "{name}", "tool": "free", "input": {arguments}}}'


GARBAGE = {
    "not json": "data: {not json\n\n",
    "no data": "event: agent.message\nid: 7\n\n",
    "a number": "data: 7\n\n",
    "a list": "data: [1, 2]\n\n",
    "null": "data: null\n\n",
    "done": "data: [DONE]\n\n",
    "a byte order mark": "\ufeffdata: {}\n\n",
    "strange lines": "nonsense\n: comment\nretry: soon\nid: \x00\n\n",
    "carriage returns": "data: {\r\rdata: }\r\r",
    "no payload": 'data: {"id": "evt_x", "type": "agent.message"}\n\n',
    "payload of a text": envelope(1, '"text"'),
    "type of a number": envelope(2, '{"type": 7}'),
    "unknown type": envelope(3, '{"type": "agent.dance", "steps": [1, 2]}'),
    "message without content": envelope(4, '{"type": "agent.message", "delta": false}'),
    "huge sequence": envelope(11, '{"type": "agent.dance"}', sequence=10**30),
    "deep": envelope(5, f'{{"type": "agent.dance", "steps": {DEEP}}}'),
    "nine megabytes": envelope(6, f'{{"type": "agent.dance", "steps": "{"x" * BIG}"}}'),
    "lone surrogate": envelope(
        7, '{"type": "agent.message", "delta": false, "content": [{"type": "text", "text": "\\ud800"}]}'
    ),
    "not a number": envelope(8, '{"type": "agent.dance", "steps": NaN}'),
    "call without an id": envelope(9, '{"type": "agent.custom_tool_use", "tool": "free", "input": {}}'),
    "idle without a reason": envelope(10, '{"type": "session.status_idle"}'),
    "error body": 'data: {"error": "server_error", "message": "something broke"}\n\n',
    "unfinished": 'data: {"id": "evt_',
}
SILENT = {"no data", "done", "a byte order mark", "strange lines", "carriage returns", "unfinished"}


async def serves_calls(environment: HermEnvironment, number: int) -> None:
    call = environment.agent.call("free", {"number": number})
    assert (await call.answered())["content"] == [{"type": "text", "text": f'{{"number":{number}}}'}]


async def test_herm_s_garbage_is_on_record_and_the_next_call_is_answered(herm: HermEnvironment) -> None:
    async with herm.running() as gateway:
        for number, (what, text) in enumerate(GARBAGE.items()):
            before = len(await gateway.events())
            opened = herm.agent.streams_opened
            garbling(herm).garble(text)
            if what == "unfinished":
                herm.agent.close_streams()
                await herm.agent.wait_streams(opened + 1)
            await serves_calls(herm, number)
            fresh = [one["event"]["kind"] for one in (await gateway.events())[before:]]
            evidence = [kind for kind in fresh if kind in {"frame.rejected", "opaque", "fault.reported"}]
            assert what in SILENT or what == "idle without a reason" or len(evidence) >= 1, (what, fresh)
        assert (await gateway.http.get("/readyz")).status_code == 200
    assert [one.data["arguments"] for one in herm.hooks.of("free")] == [{"number": n} for n in range(len(GARBAGE))]


BAD_ARGUMENTS = {
    "a list": "[1]",
    "a text": '"text"',
}
BROKEN_ARGUMENTS = {
    "not a number": '{"n": NaN}',
    "infinity": '{"n": -Infinity}',
    "huge": f'{{"n": {10**30}}}',
    "lone surrogate": '{"n": "\\ud800"}',
    "deep": f'{{"n": {DEEP[1_900:-1_900]}}}',
    "very deep": f'{{"n": {DEEP}}}',
}


@pytest.mark.parametrize("what", BAD_ARGUMENTS)
async def test_a_herm_call_with_unusable_arguments_is_answered_with_a_failure(herm: HermEnvironment, what: str) -> None:
    async with herm.running() as gateway:
        # The server has to know the call, or it takes no answer.
        asked = herm.agent.call("free", {"known": "to the server"}, call_id="toolu_known")
        await asked.answered()
        name = f"toolu_{what.replace(' ', '_')}"
        garbling(herm).garble(envelope(1, use(name, BAD_ARGUMENTS[what])))
        row = await gateway.wait_call(name, "failed")
        assert row["attempt"] == 0
        await condition(lambda: herm.agent.violations)
        await serves_calls(herm, 1)
    assert next(one.data["native_call_id"] for one in herm.hooks.of("free")) == "toolu_known"
    assert len(herm.hooks.of("free")) == 2
    # The server never asked for it, so it refuses the answer.
    assert herm.agent.violations == ["not_found: user.custom_tool_result answers an unknown request"]
    herm.agent.violations.clear()


@pytest.mark.parametrize("what", BROKEN_ARGUMENTS)
async def test_a_herm_call_that_no_json_parser_accepts_is_a_rejected_frame(herm: HermEnvironment, what: str) -> None:
    async with herm.running() as gateway:
        garbling(herm).garble(envelope(1, use("toolu_broken", BROKEN_ARGUMENTS[what])))
        assert len(await gateway.wait_events("frame.rejected")) == 1
        await serves_calls(herm, 1)
    assert len(herm.hooks.of("free")) == 1


async def test_unknown_tools_and_wrong_arguments_are_told_to_a_herm_agent(herm: HermEnvironment) -> None:
    herm.configure({"routes": [{"match": {"tool": "ask"}, "to": "cards"}]})
    async with herm.running() as gateway:
        calls = herm.agent.call_all([("nobody_has_it", {}), ("ask", {"player": 7}), ("ask", GOOD)])
        said = [await call.answered() for call in calls]
        assert [one.get("is_error", False) for one in said] == [True, True, False]
        assert "Unknown tool: nobody_has_it" in said[0]["content"][0]["text"]
        assert "player" in said[1]["content"][0]["text"]
        assert len((await gateway.get("/v1/calls"))["data"]) == 3
    assert len(herm.hooks.asked) == 1


async def test_repeated_and_reused_ids_of_herm_calls(herm: HermEnvironment) -> None:
    async with herm.running() as gateway:
        call = herm.agent.call("free", {"n": 1}, call_id="toolu_1")
        await call.answered()
        garbling(herm).garble(envelope(1, use("toolu_1", '{"n": 1}')))
        first = await until(lambda: answers(call.answers, 2))
        assert first[0] == first[1]
        # The same name for something else is another call; the server has settled the first and refuses its answer.
        for n in range(2, 8):
            garbling(herm).garble(envelope(n, use("toolu_1", f'{{"n": {n}}}')))
            await herm.hooks.wait_for(n)
            await gateway.wait_call("toolu_1", "succeeded")
        # The same envelope again is nothing new, nor is the last call in another one.
        garbling(herm).garble(envelope(7, use("toolu_1", '{"n": 7}')))
        garbling(herm).garble(envelope(8, use("toolu_1", '{"n": 7}')))
        await serves_calls(herm, 8)
    assert [one.data["arguments"] for one in herm.hooks.of("free")] == [*({"n": n} for n in range(1, 8)), {"number": 8}]
    assert len({one.key for one in herm.hooks.asked}) == 8
    herm.agent.violations.clear()


async def test_an_id_used_again_while_nobody_listens_is_another_call_of_the_history(herm: HermEnvironment) -> None:
    async with herm.running():
        await herm.agent.call("free", {"n": 1}, call_id="toolu_1").answered()
    again = herm.agent.call("free", {"n": 2}, call_id="toolu_1")
    async with herm.running() as gateway:
        await again.answered()
        calls = (await gateway.get("/v1/calls"))["data"]
        assert len({row["call_id"] for row in calls}) == 2
        assert {row["native_call_id"] for row in calls} == {"toolu_1"}
    assert [one.data["arguments"] for one in herm.hooks.of("free")] == [{"n": 1}, {"n": 2}]


async def answers(found: list[Any], count: int) -> list[Any] | None:
    return found if len(found) >= count else None


# OpenHands -----------------------------------------------------------------------------------------------


@pytest.fixture
async def openhands(tmp_path: Path) -> AsyncIterator[OpenHandsEnvironment]:
    async with openhands_environment(tmp_path) as made:
        yield made
        assert made.agent.violations == []
        assert made.hooks.asked == []


def event(body: str) -> str:
    return f'2["oh_event",{body}]'


def native(number: int, rest: str) -> str:
    return event(
        f'{{"id": {number}, "timestamp": "2026-11-20T12:00:00.000001", "source": "agent", "message": "", {rest}}}'
    )


PACKETS = {
    "not json": '2["oh_event",{not json]',
    "no event": "2[]",
    "no name": "2{}",
    "a number": event("7"),
    "null": event("null"),
    "a list": event("[1, 2]"),
    "nothing": '2["oh_event"]',
    "two payloads": '2["oh_event",{},{}]',
    "another channel": '2["oh_dance",{"steps":1}]',
    "an empty object": event("{}"),
    "id of a text": event('{"id": "seven", "timestamp": "t", "source": "agent", "action": "run", "args": {}}'),
    "a huge id": event(f'{{"id": {10**30}, "timestamp": "t", "source": "agent", "action": "run", "args": {{}}}}'),
    "unknown action": native(7001, '"action": "dance", "args": {}'),
    "unknown observation": native(7002, '"observation": "dance", "content": "", "extras": {}'),
    "args of a list": native(7003, '"action": "run", "args": [1]'),
    "run without a command": native(7004, '"action": "run", "args": {}'),
    "not a number": native(7005, '"action": "run", "args": {"command": NaN}'),
    "lone surrogate": native(7006, '"action": "message", "args": {"content": "\\ud800"}'),
    "deep": native(7007, f'"action": "dance", "args": {{"n": {DEEP}}}'),
    "nine megabytes": native(7008, f'"action": "dance", "args": {{"n": "{"x" * BIG}"}}'),
    "a state that is a number": native(
        7009, '"observation": "agent_state_changed", "content": "", "extras": {"agent_state": 7}'
    ),
    "an observation of nothing": native(
        7010, '"observation": "run", "content": "x", "cause": 999999, "extras": {"command": "ls"}'
    ),
    "binary": '51-["oh_event",{"_placeholder":true,"num":0}]',
    "an ack that nobody waits for": "3999[]",
    "an unknown packet": "9",
}


@pytest.mark.slow
async def test_openhands_garbage_is_on_record_and_the_next_message_works(openhands: OpenHandsEnvironment) -> None:
    work = openhands.agent
    async with openhands.running() as gateway:
        await gateway.wait_events("session.moved", state="awaiting_input")
        for number, packet in enumerate(PACKETS.values()):
            connections = work.connections
            await work.emit_text(packet)
            await still_works(openhands, gateway, number)
            # Whatever it costs is the link at most, and that comes back.
            await work.wait_connections(connections)
            await gateway.wait_link("up")
        assert (await gateway.http.get("/readyz")).status_code == 200
        rejected = await gateway.events(kind="frame.rejected")
        assert len(rejected) >= 10
        opaque = [one["event"]["channel"] for one in await gateway.events(kind="opaque")]
        assert "oh_event" in opaque
        assert (await gateway.get("/v1/calls"))["data"] == []


async def still_works(environment: OpenHandsEnvironment, gateway: Running, number: int) -> None:
    """The agent's words arrive and ours do."""
    await environment.agent.agent_says(f"word {number}")

    async def heard() -> bool:
        posted = await gateway.events(kind="message.posted")
        return any(one["event"]["content"][0]["text"] == f"word {number}" for one in posted)

    await until(heard)
    [sent] = await send(gateway, message(f"answer {number}"))
    settled = await fate(gateway, sent["sequence"])
    assert settled["state"] in {"delivered", "unknown"}, settled


@pytest.mark.parametrize("wire", ["herm", "openhands"])
async def test_a_wrong_key_is_told_and_shown_to_nobody(tmp_path: Path, wire: str) -> None:
    made = herm_environment(tmp_path) if wire == "herm" else openhands_environment(tmp_path)
    async with made as environment:
        key = "api_key" if wire == "herm" else "session_api_key"
        environment.options(**{key: "wrong-canary"})
        async with environment.running(linked=False) as gateway:
            link = await gateway.wait_link("refused")
            [changed] = await gateway.wait_events("link.changed", state="refused")
            assert "key" in changed["event"]["reason"] or "UNAUTHORIZED" in changed["event"]["reason"]
            assert "canary" not in str(link) + str(changed)
            assert (await gateway.http.get("/readyz")).status_code == 200


async def test_a_question_without_an_id_cannot_be_answered_and_costs_nothing(herm: HermEnvironment) -> None:
    async with herm.running() as gateway:
        garbling(herm).garble(envelope(1, '{"type": "agent.clarify_request", "question": "Which?", "choices": null}'))
        await gateway.wait_events("frame.rejected")
        asked = herm.agent.clarify("Which?")
        [waiting] = await questions(gateway)
        assert waiting["event"]["id"] == asked.asked_id

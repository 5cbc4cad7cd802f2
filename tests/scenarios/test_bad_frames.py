"""What an agent may send that it should not: each is answered or put on record clearly, and costs nothing else."""

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.testing.change import Change
from gateway.testing.runtimes.huma.calls import SimCall
from tests.scenarios.environment import GOOD, Scene, ended
from tests.scenarios.hooks import Gate, success


def packet(frame: Any) -> str:
    return "2" + json.dumps(["event", frame])


def tool_call(**changes: Any) -> dict[str, Any]:
    frame: dict[str, Any] = {"type": "tool-call", "toolCallId": "bad", "toolName": "free", "arguments": {}, **changes}
    return {name: value for name, value in frame.items() if value is not ...}


async def still_works(scene: Scene) -> None:
    """A good call is answered, on the same connection."""
    reading = await ended(await scene.agent.call("ask", GOOD))
    assert (reading.outcome, reading.result) == ("success", GOOD)
    assert scene.agent.connections == 1


MALFORMED: list[Any] = [
    tool_call(toolCallId=...), tool_call(toolCallId=7), tool_call(toolName=...), tool_call(toolName=None),
    {"type": "cancel-tool-call"}, {"type": "cancel-tool-call", "toolCallId": []},
    {"type": 5}, {}, [], "text", 12, None, True,
    {"type": "messaging", "event": "message_sent", "toolCallId": "b", "message": 5, "messageIndex": 0},
]  # fmt: skip


async def test_each_malformed_frame_is_put_on_record_and_the_link_lives_on(both: Scene) -> None:
    async with both.running() as gateway:
        for frame in MALFORMED:
            await both.agent.emit_text(packet(frame))
            await still_works(both)
        rejected = await gateway.events(kind="frame.rejected")
        assert len(rejected) + len(await gateway.events(kind="opaque")) == len(MALFORMED)
        assert all(one["event"]["reason"] and one["event"]["excerpt"] for one in rejected)
        counted = (await gateway.metrics())['dragoman_frames_rejected_total{runtime="finn"}']
        assert counted == len(rejected) >= 10
    assert len(both.hooks.asked) == len(MALFORMED)


@pytest.mark.parametrize(
    "text",
    [
        '2["event",{"type":"tool-call","toolCallId":"bad","toolName":"free","arguments":{"n":NaN}}]',
        '2["event",{"type":"tool-call","toolCallId":"bad","toolName":"free","arguments":{"n":Infinity}}]',
        f'2["event",{{"type":"tool-call","toolCallId":"bad","toolName":"free","arguments":{{"n":{10**30}}}}}]',
        '2["event",{"type":"tool-call","toolCallId":"bad","toolName":"free","arguments":{"t":"\\ud800"}}]',
        '2["event",{"type":"tool-call","toolCallId":"bad","toolName":"free","arguments":'
        + '{"d":' * 100
        + "1"
        + "}" * 100
        + "}]",
        '2["event",{"type":"tool-call","toolCallId":"bad","toolName":"free","arguments":'
        + '{"d":' * 2000
        + "1"
        + "}" * 2000
        + "}]",
        '2["event",{"type":"tool-call","toolCallId":"bad","toolName":"free","arguments":["no","object"]}]',
    ],
    ids=["NaN", "Infinity", "huge integer", "lone surrogate", "deep", "very deep", "no object"],
)
async def test_a_call_whose_arguments_cannot_be_used_is_answered_or_rejected_but_never_asked(
    both: Scene, text: str
) -> None:
    async with both.running() as gateway:
        # The agent knows the call, so that an answer to it is no breach.
        both.agent.calls["bad"] = SimCall("bad", "free", {}, change=Change())
        await both.agent.emit_text(text)
        await still_works(both)
        finished = [
            one for one in await gateway.events(kind="tool.finished") if one["event"]["native_call_id"] == "bad"
        ]
        rejected = await gateway.events(kind="frame.rejected")
        assert len(finished) + len(rejected) == 1
        # Whatever is wrong inside of the arguments, a call whose id can be read is answered.
        assert rejected == []
        if finished:
            assert finished[0]["event"]["outcome"] == "failure"
            assert finished[0]["event"]["error"]
    assert [asked.name for asked in both.hooks.asked] == ["ask"]


async def test_rejected_frames_are_one_warning_per_session_and_minute(both: Scene) -> None:
    async with both.running() as gateway:
        with capture_logs() as logs:
            for number in range(300):
                await both.agent.emit_text(packet({"type": "tool-call", "toolCallId": number}))
            await still_works(both)
            rejected = await gateway.events(kind="frame.rejected")
    assert len(rejected) == 300
    assert len([line for line in logs if line["event"] == "frame rejected"]) == 1


@pytest.mark.parametrize("key", ["__proto__", "constructor", "prototype"])
async def test_a_call_and_its_result_may_have_any_key(both: Scene, key: str) -> None:
    arguments: dict[str, Any] = {key: {"rank": "7"}, "deep": [{key: None}]}
    result: dict[str, Any] = {key: 1, "deep": [{key: {"admin": True}}]}
    both.hooks.scripts["free"] = success(result)
    async with both.running() as gateway:
        call = await ended(await both.agent.call("free", arguments))
        assert (call.outcome, call.result) == ("success", result)
        [asked] = both.hooks.asked
        assert asked.data["arguments"] == arguments
        [requested] = await gateway.events(kind="tool.requested")
        [finished] = await gateway.events(kind="tool.finished")
        assert (requested["event"]["arguments"], finished["event"]["result"]) == (arguments, result)
        assert (requested["losses"], finished["losses"]) == ([], [])


@pytest.mark.parametrize(
    "text",
    [
        "2[", '2["event"', "2", "2{}", '2{"event":1}', "2[5,6]", '2["event",', "9[]", '2/other,["event",{}]',
        '2["nothing-known",{"type":"tool-call"}]', '2["event",' + "[" * 2000 + "]" * 2000 + "]",
        '2["disconnect",{}]', '2["connect",{}]', '2["connect_error",{}]',
        '51-["event",{"_placeholder":true,"num":0}]',
    ],
    ids=lambda text: text[:24],
)  # fmt: skip
async def test_a_broken_packet_costs_the_link_at_most_and_no_call(newer: Scene, text: str) -> None:
    gate = Gate()
    newer.hooks.scripts["free"] = gate.answering(success("kept"))
    async with newer.running() as gateway:
        waiting = await newer.agent.call("free", {})
        await newer.hooks.wait_for(name="free")
        await newer.agent.emit_text(text)
        reading = await ended(await newer.agent.call("ask", GOOD))
        assert reading.outcome == "success"
        gate.open()
        assert (await ended(waiting)).result == "kept"
        await gateway.wait_link("up")


@pytest.mark.parametrize("megabytes", [2, 9])
async def test_a_large_frame_is_taken_or_answered(both: Scene, megabytes: int) -> None:
    both.hooks.scripts["free"] = success("read")
    async with both.running():
        call = await both.agent.call("free", {"text": "x" * (megabytes * 1024**2)})
        reading = await ended(call)
        assert reading.outcome == "success" or reading.error
        await still_works(both)


async def test_unknown_types_are_kept_as_they_are(both: Scene) -> None:
    frame = {"type": "speak-status", "status": {"started": True}}
    async with both.running() as gateway:
        await both.agent.emit("event", frame)
        await both.agent.emit("weather", {"sun": 1})
        await still_works(both)
        kept = [one["event"] for one in await gateway.events(kind="opaque")]
    assert [(one["channel"], one["payload"]) for one in kept] == [("event", frame), ("weather", {"sun": 1})]


async def test_a_call_repeated_while_it_is_open_is_one_call(both: Scene) -> None:
    gate = Gate()
    both.hooks.scripts["free"] = gate.answering(success("once"))
    async with both.running() as gateway:
        call = await both.agent.call("free", {"n": 1}, "same")
        await both.hooks.wait_for()
        await both.agent.call("free", {"n": 1}, "same")
        await both.agent.emit_text(packet(tool_call(toolCallId="same", arguments={"n": 2})))
        await still_works(both)
        [rejected] = await gateway.events(kind="frame.rejected")
        assert "still open" in rejected["event"]["reason"]
        gate.open()
        assert (await ended(call)).result == "once"
        assert len(await gateway.events(kind="tool.requested")) == 2
    assert len(both.hooks.of("free")) == len(call.results) == 1


async def test_a_settled_call_asked_again_gets_the_same_answer_and_with_other_arguments_a_new_one(both: Scene) -> None:
    async with both.running() as gateway:
        call = await both.agent.call("free", {"n": 1}, "same")
        await ended(call)
        await both.agent.call("free", {"n": 1}, "same")
        first, second = await call.wait_results(2)
        assert first == second
        again = await both.agent.call("free", {"n": 2}, "same")
        assert (await ended(again)).result == {"n": 2}
        rows = [row for row in (await gateway.get("/v1/calls"))["data"] if row["native_call_id"] == "same"]
        assert len({row["call_id"] for row in rows}) == 2
        # The newest use of the id is the one that is remembered.
        await both.agent.call("free", {"n": 2}, "same")
        await again.wait_results(2)
    assert [asked.data["arguments"] for asked in both.hooks.asked] == [{"n": 1}, {"n": 2}]
    assert len({asked.key for asked in both.hooks.asked}) == 2


async def test_the_same_unknown_tool_asked_many_times_at_once_is_refused_in_the_same_words(both: Scene) -> None:
    both.configure({"routes": [{"match": {"tool": "ask"}, "to": "cards"}]})
    async with both.running() as gateway:
        call = await both.agent.call("fly", {}, "same")
        for _ in range(4):
            await both.agent.call("fly", {}, "same")
        await still_works(both)
        assert all(frame == call.results[0] for frame in call.results)
        assert len(await gateway.events(kind="tool.finished")) == 2


async def test_a_cancel_for_an_unknown_or_ended_call_does_no_harm(both: Scene) -> None:
    async with both.running():
        call = await both.agent.call("free", {})
        await ended(call)
        await both.agent.cancel(call)
        await both.agent.emit("event", {"type": "cancel-tool-call", "toolCallId": "never-heard-of", "toolName": "free"})
        await still_works(both)
    assert len(call.results) == 1


async def test_long_names_and_ids_are_answered_and_boundless_ones_are_put_on_record(both: Scene) -> None:
    both.configure({"routes": [{"match": {"tool": "*"}, "to": "cards", "undeclared": True}]})
    async with both.running() as gateway:
        long_name = await both.agent.call("t" * 1_000, {})
        assert (await ended(long_name)).outcome == "success"
        long_id = await both.agent.call("free", {}, "i" * 1_000)
        assert (await ended(long_id)).outcome == "success"
        await both.agent.call("t" * 50_000, {})
        await both.agent.call("free", {}, "i" * 50_000)
        await still_works(both)
        rejected = await gateway.events(kind="frame.rejected")
        assert [one["event"]["path"] for one in rejected] == ["/toolName", "/toolCallId"]
        assert len(str(rejected)) < 5_000

"""One API for four runtimes in one gateway: the same requests to each, taken or refused as it says beforehand."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.environment import GOOD, Running, until
from tests.scenarios.fleet import ADA, WORK, condition
from tests.scenarios.four import RUNTIMES, Four, all_up, four


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[Four]:
    async with four(tmp_path) as made:
        yield made
        assert made.violations() == []


def requests(ids: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The list: ids are those of what a runtime asks, where it can ask."""
    return {
        # A message would end the waiting of OpenHands, so the answers come first.
        "approval.given": {"id": ids.get("approval.asked", "none"), "decision": "allow"},
        "question.answered": {"id": ids.get("question.asked", "none"), "answer": "Alice"},
        "secret.supplied": {"id": ids.get("secret.asked", "none"), "purpose": "sudo", "value": "a password"},
        "message.posted": {"content": "Hello there."},
        "context.updated": {"name": "score", "context": {"score": 7}, "description": "The score is 7."},
        "turn.steered": {"text": "Think of the rank."},
        "action.ordered": {"action": "run", "arguments": {"command": "ls"}},
        "turn.interrupted": {"reason": "Enough."},
    }


TOLD: dict[str, dict[str, str]] = {
    "message.posted": dict.fromkeys(RUNTIMES, "Hello there."),
    "context.updated": dict.fromkeys(RUNTIMES, "The score is 7."),
    "turn.steered": dict.fromkeys(RUNTIMES, "Think of the rank."),
    "action.ordered": {"work": '"command": "ls"'},
    "approval.given": {"ada": "user.tool_confirmation", "work": "user_confirmed"},
    "question.answered": {"ada": "user.clarify_result"},
    "secret.supplied": {"ada": "user.sudo_result"},
    "turn.interrupted": {"lena": "Enough.", "finn": "Enough.", "ada": "user.interrupt", "work": "stopped"},
}
"""What of a request is found in what a runtime is told; a runtime that is not named cannot be told."""


async def let_ask(environment: Four, gateway: Running, runtime: str) -> dict[str, str]:
    """Let a runtime ask whatever it can; returns the ids by kind."""
    match runtime:
        case "ada":
            ada = environment.herm.session(ADA)
            for ask in (lambda: ada.ask_approval("terminal", {}), lambda: ada.clarify("Whom?"), ada.ask_sudo):
                ask()
            count = 3
        case "work":
            work = environment.openhands.conversation(WORK)
            await condition(lambda: work.state == "awaiting_user_input")
            work_task = asyncio.create_task(work.agent_runs("rm a", "", gated=True))
            work_task.add_done_callback(lambda done: done.exception())
            count = 1
        case _:
            return {}
    session_id = await gateway.session()

    async def asked() -> dict[str, str] | None:
        waiting = (await gateway.get("/v1/interactions", state="waiting"))["data"]
        found = [one["event"] for one in waiting if one["session_id"] == session_id]
        return {one["kind"]: one["id"] for one in found} if len(found) >= count else None

    return await until(asked)


async def test_each_runtime_takes_and_refuses_the_same_requests_as_it_says_beforehand(environment: Four) -> None:
    async with environment.running(linked=False) as gateway:
        each = await all_up(gateway)
        says = {one["runtime"]: one["takes"] for one in (await gateway.get("/v1/capabilities"))["data"]}
        for runtime, one in each.items():
            ids = await let_ask(environment, one, runtime)
            # The turn of a runtime that asks is over once it is interrupted, and then it takes the message.
            for kind, fields in requests(ids).items():
                path = f"/v1/sessions/{await one.session()}/events"
                reply = await one.http.post(path, json={"kind": kind, **fields})
                expected = 202 if says[runtime][kind] is not None else 422
                assert reply.status_code == expected, (runtime, kind, reply.text)
                if expected == 422:
                    assert kind in reply.json()["detail"]
                assert (says[runtime][kind] is not None) == (runtime in TOLD[kind]), (runtime, kind)
        for kind, words in TOLD.items():
            for runtime, word in words.items():
                await condition(lambda r=runtime, w=word: any(w in json.dumps(frame) for frame in environment.heard(r)))
                assert says[runtime][kind] is not None
        await all_up(gateway)


async def test_one_backend_serves_every_runtime_that_asks_for_its_tools(environment: Four) -> None:
    async with environment.running(linked=False) as gateway:
        await all_up(gateway)
        huma = [
            await environment.older.agent("lena").call("ask", GOOD),
            await environment.newer.agent("finn").call("ask", GOOD),
        ]
        herm = environment.herm.session(ADA).call("ask", GOOD)
        await environment.openhands.conversation(WORK).agent_runs("ask", "nobody")
        for call in huma:
            await call.result()
        await herm.answered()
        requested = await replace(gateway, runtime="work").wait_events("tool.requested")
        assert requested[0]["event"]["runs_in"] == "runtime"
        bodies: list[dict[str, Any]] = [{**one.data, "headers": sorted(one.headers)} for one in environment.hooks.asked]
    assert {one["runtime"] for one in bodies} == {"lena", "finn", "ada"}
    # The backend cannot tell them apart but by what it is told.
    assert len({json.dumps([one["tool"], one["arguments"], sorted(one.keys()), one["headers"]]) for one in bodies}) == 1


@pytest.mark.parametrize("between", ["another client", "a hint"])
@pytest.mark.parametrize("runtime", ["ada", "work"])
async def test_a_context_that_is_held_goes_with_the_next_message_of_ours_whatever_comes_between(
    environment: Four, runtime: str, between: str
) -> None:
    async with environment.running(linked=False) as gateway:
        one = (await all_up(gateway))[runtime]
        if runtime == "work":
            await one.wait_events("session.moved", state="awaiting_input")
        path = f"/v1/sessions/{await one.session()}/events"
        score = {"kind": "context.updated", "name": "score", "context": {"score": 7}, "description": "The score."}
        await one.post(path, score, status=202)
        if between == "a hint":
            await one.post(path, {"kind": "turn.steered", "text": "Think."}, status=202)
        elif runtime == "ada":
            ada = environment.herm.session(ADA)
            ada.accept([{"type": "user.message", "content": [{"type": "text", "text": "Think."}]}])
            await one.wait_events("message.posted")
            ada.end_turn()
            await one.wait_events("session.moved", state="idle")
        else:
            await environment.openhands.conversation(WORK).accept({"action": "message", "args": {"content": "Think."}})
            await one.wait_events("message.posted")
        await one.post(path, {"kind": "message.posted", "content": "Your turn."}, status=202)
        await condition(lambda: any("Your turn." in json.dumps(frame) for frame in environment.heard(runtime)))
        [told] = [frame for frame in environment.heard(runtime) if "The score." in json.dumps(frame)]
        assert all(word in json.dumps(told) for word in ("score", "7"))
        # A hint to OpenHands is a message, so that one has it.
        assert ("Your turn." in json.dumps(told)) != (runtime == "work" and between == "a hint")


async def test_what_is_said_beforehand_agrees_with_what_is_taken_for_unknown_and_misshapen_kinds(
    environment: Four,
) -> None:
    async with environment.running(linked=False) as gateway:
        each = await all_up(gateway)
        for runtime, one in each.items():
            path = f"/v1/sessions/{await one.session()}/events"
            before = len(environment.heard(runtime))
            bodies: list[Any] = [{"kind": "nonsense"}, {"kind": "message.posted"}, {"kind": "tool.finished"}]
            for body in [*bodies, {"events": [1]}, [1], "text"]:
                reply = await one.http.post(path, json=body)
                assert reply.status_code in {400, 422}, (body, reply.text)
                assert reply.headers["content-type"].startswith("application/problem+json")
            assert len(environment.heard(runtime)) == before


async def test_each_runtime_loses_on_record_what_of_the_tools_it_is_not_told(environment: Four) -> None:
    agent = {"name": "Gus", "class_name": "Gus", "personality": "calm", "instructions": "Play."}
    environment.configure({"runtimes": {
        "lena": {"agent_id": None, "agent": agent},
        "finn": {"agent_id": None, "agent": agent},
        "ada": {"session_id": None, "agent_id": "agent"},
        "work": {"conversation_id": None, "conversation": {}},
    }})  # fmt: skip
    narrowed = [("narrowed", "/tools/ask/parameters/properties/rank/enum")]
    lost = {
        "lena": narrowed,
        "finn": narrowed,
        "ada": [("dropped", "/tools/ask"), ("dropped", "/tools/free"), ("dropped", "/instructions")],
        # It is told where it finds them as an MCP server.
        "work": [("dropped", "/name")],
    }
    async with environment.running(linked=False) as gateway:
        for runtime, expected in lost.items():
            wanted = {"runtime": runtime, "name": "Table 4", "instructions": "Be brief."}
            made = await gateway.post("/v1/sessions", wanted, status=201)
            page = await gateway.get(f"/v1/sessions/{made['session_id']}/events", limit=1)
            assert [(loss["how"], loss["path"]) for loss in page["data"][0]["losses"]] == expected

"""The simulated agent-server runs ACP agents as the real one does, seen by a client that knows nothing of it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest

from gateway.testing.runtimes.openhands_v1.server import AcpConversation, AgentServer, Manners
from tests.simulators.raw_openhands_v1 import Frame, RawRest, RawSocket, is_state, kinds, socket

QUICK = Manners(
    ending=timedelta(milliseconds=50), acp_cancel=timedelta(milliseconds=50), acp_end=timedelta(milliseconds=20)
)


@asynccontextmanager
async def world(
    manners: Manners = QUICK, **settings: Any
) -> AsyncGenerator[tuple[AgentServer, AcpConversation, RawRest, RawSocket]]:
    """A server with one ACP agent, and a client with a session socket."""
    async with AgentServer(manners=manners) as server:
        work = server.add_acp(**settings)
        async with (
            RawRest(server.url, work.conversation_id) as rest,
            socket(server.url, "session", work.conversation_id, "?after_seq=-1") as seen,
        ):
            await seen.until_event(is_state("idle"))
            yield server, work, rest, seen


async def prompted(work: AcpConversation, rest: RawRest, text: str) -> None:
    await rest.say(text)
    await work.wait_prompt(text)


def cards(events: list[Frame]) -> list[tuple[str, str]]:
    return [(event["tool_call_id"], event["status"]) for event in events if event["kind"] == "ACPToolCallEvent"]


# OV52
async def test_what_a_creation_may_say() -> None:
    async with AgentServer() as server, httpx.AsyncClient(base_url=server.url) as http:
        for settings, status in (
            ({"agent_kind": "acp", "acp_server": "claude-code"}, 201),
            ({"agent_kind": "acp", "acp_server": "codex", "llm": {"model": "m"}}, 422),
            ({"agent_kind": "acp", "acp_server": "nobody"}, 422),
            ({"agent_kind": "acp", "acp_server": "custom"}, 422),
            ({"agent_kind": "acp", "acp_server": "custom", "acp_command": ["agent"]}, 201),
        ):
            answer = await http.post("/api/conversations", json={"agent_settings": settings, "workspace": {}})
            assert answer.status_code == status


# OV54, OV57
async def test_a_turn_is_told_in_the_order_of_the_real_server() -> None:
    async with world() as (_, work, rest, seen):
        await prompted(work, rest, "go")
        work.thinks("hm")
        work.says("Before. ")
        work.says("After.")
        work.ends_turn()
        await seen.until_event(is_state("finished"))
        assert kinds(seen.stored) == [
            *("user says", "agent_state", "SystemPrompt", "running", "agent_state"),
            *("Action", "Observation", "finished", "agent_state"),
        ]
        finish = next(event for event in seen.stored if event["kind"] == "ActionEvent")
        assert (finish["action"]["message"], finish["reasoning_content"]) == ("Before. After.", "hm")
        deltas = [frame for frame in seen.frames if frame["type"] == "delta"]
        assert [(frame["item_id"], frame["order"]) for frame in deltas] == [(finish["id"], 0), (finish["id"], 1)]
        states = [event["value"] for event in seen.stored if event.get("key") == "agent_state"]
        assert len({state["acp_session_id"] for state in states}) == 1


# OV55, OV56
async def test_tools_are_told_twice_and_open_ones_get_an_invented_end() -> None:
    async with world() as (_, work, rest, seen):
        await prompted(work, rest, "go")
        first = work.starts_tool("mcp__host__add", kind="other", raw_input={}, status="pending")
        ended = work.ends_tool(first, "3", raw_input={"a": 1})
        assert (ended["raw_input"], ended["raw_output"]) == ({"a": 1}, "3")
        work.uses_tool("Read x")
        work.starts_tool("never closed", raw_input={"cmd": "x"})
        failing = work.starts_tool("fails", status="pending")
        assert work.ends_tool(failing, failed=True)["is_error"] is True
        work.ends_turn()
        await seen.until_event(is_state("finished"))
        assert cards(work.events) == [
            *(("tc1", "pending"), ("tc1", "completed"), ("tc2", "completed"), ("tc3", "in_progress")),
            *(("tc4", "pending"), ("tc4", "failed"), ("tc3", "completed")),
        ]


# OV61
async def test_requests_and_new_sockets_do_not_wait_for_its_tools() -> None:
    async with world() as (server, work, rest, _seen):
        await prompted(work, rest, "go")
        work.starts_tool("sleep")
        assert await rest.status() == "running"
        async with socket(server.url, "session", work.conversation_id, "?after_seq=-1") as later:
            await later.until_event(is_state("running"))
        assert (await rest.post("pause")).status_code == 200
        assert kinds(work.events)[-2:] == ["paused", "Pause"]
        work.says("I go on.")
        work.ends_turn()
        await work.ended()
        assert kinds(work.events)[-3:] == ["finished", "agent_state", "paused"]


# OV59
@pytest.mark.parametrize("run", [True, False])
async def test_a_message_in_a_turn_replaces_it_or_gets_the_next(run: bool) -> None:
    async with world() as (_, work, rest, seen):
        await prompted(work, rest, "first")
        work.starts_tool("sleep")
        work.says("working ")
        await rest.say("second", run=run)
        if not run:
            assert work.prompts == ["first"]
            work.ends_turn()
        await work.wait_prompt("second")
        assert work.prompts == ["first", "second"]
        told = kinds(work.events)
        assert ("Interrupt" in told, "paused" in told) == (run, run)
        assert cards(work.events)[-1] == ("tc1", "failed" if run else "completed")
        assert any(frame["type"] == "item_aborted" for frame in seen.frames) == run
        assert told[-1] == ("SystemPrompt" if run else "agent_state")
        work.ends_turn()
        await work.wait_status("finished")


# OV60
@pytest.mark.parametrize("how", ["interrupt", "error", "crash"])
async def test_an_unanswered_message_is_prompted_again_before_the_next(how: str) -> None:
    async with world() as (_, work, rest, _seen):
        await prompted(work, rest, "answered")
        await work.agent_says("Yes.")
        await work.ended()
        await prompted(work, rest, "dangerous")
        work.starts_tool("pay")
        match how:
            case "interrupt":
                await rest.post("interrupt")
                assert cards(work.events)[-1] == ("tc1", "failed")
            case "error":
                work.fails("overloaded")
                await work.wait_status("error")
                assert kinds(work.events)[-3:] == ["agent says", "ConversationError", "error"]
            case _:
                work.dies()
                await work.wait_status("error")
                assert cards(work.events)[-1] == ("tc1", "in_progress")
        await rest.say("next")
        await work.wait_prompt("dangerous", times=2)
        await work.agent_says("Done twice.")
        await work.wait_prompt("next")
        assert work.prompts == ["answered", "dangerous", "dangerous", "next"]
        await work.agent_says("ok")
        assert kinds(work.events).count("SystemPrompt") == (2 if how == "crash" else 1)


# OV60
@pytest.mark.parametrize("first", [True, False])
async def test_navigating_before_the_unanswered_message_cures_it(first: bool) -> None:
    async with world() as (_, work, rest, _seen):
        if not first:
            await prompted(work, rest, "answered")
            await work.agent_says("Yes.")
            await work.ended()
        await prompted(work, rest, "dangerous")
        assert (await rest.post("navigate", {"event_id": None})).status_code == 409
        await rest.post("interrupt")
        message = next(event for event in work.events if event.get("source") == "user" and "dangerous" in str(event))
        assert ("parent_id" in message) is not first
        assert (await rest.post("navigate", {"event_id": "nothing"})).status_code == 404
        assert (await rest.post("navigate", {"event_id": message.get("parent_id")})).status_code == 200
        await prompted(work, rest, "next")
        assert work.prompts.count("dangerous") == 1
        work.ends_turn()


async def test_a_restart_of_the_server_forgets_no_unanswered_message() -> None:
    async with world() as (server, work, rest, _seen):
        await prompted(work, rest, "dangerous")
        await server.stop()
        await server.start()
        assert work.status == "error"
        await rest.say("next")
        await work.wait_prompt("dangerous", times=2)
        work.ends_turn()
        await work.wait_prompt("next")
        work.ends_turn()
        await work.wait_status("finished")


# OV62
async def test_a_lost_connection_repeats_the_prompt_with_new_tools() -> None:
    async with world() as (_, work, rest, seen):
        await prompted(work, rest, "go")
        work.starts_tool("pay")
        work.says("one ")
        work.loses_connection()
        work.starts_tool("pay")
        work.says("two")
        work.ends_turn()
        await seen.until_event(is_state("finished"))
        assert work.prompts == ["go", "go"]
        assert [card for card in cards(work.events) if card[1] != "in_progress"] == [
            ("tc1", "failed"),
            ("tc2", "completed"),
        ]
        assert [frame["attempt"] for frame in seen.frames if frame["type"] == "item_started"] == [1, 2]


# OV58
async def test_nothing_is_ever_held() -> None:
    async with world() as (_, work, rest, _seen):
        await rest.post("confirmation_policy", {"policy": {"kind": "AlwaysConfirm"}})
        await prompted(work, rest, "go")
        work.uses_tool("rm a", kind="execute")
        for accept in (True, False):
            assert (await rest.answer(accept)).status_code == 200
        assert work.status == "running"
        await asyncio.wait_for(work.agent_says("done"), 60)

"""Rules that the adapter depends on, held to real servers without the adapter."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from tests.peers import acp_agent
from tests.peers.agent_server import AgentServer
from tests.peers.conftest import agent_server
from tests.peers.model import Answer, Call, Model
from tests.peers.raw import Conversation, Event, Heard, is_kind
from tests.scenarios.environment import until

LIST = (Answer(calls=(Call("terminal", {"command": "echo listed"}),)), Answer("Listed."))
SLEEP = (Answer(calls=(Call("terminal", {"command": "sleep 6", "timeout": 30}),)), Answer("Slept."))
ALWAYS = {"confirmation_policy": {"kind": "AlwaysConfirm"}}
BIG = 5 * 1024**2


@pytest.fixture
async def http(server: AgentServer) -> AsyncIterator[httpx.AsyncClient]:
    async with server.client() as made:
        yield made


@pytest.fixture(autouse=True)
def _stories(model: Model) -> None:
    model.stories = {"List": list(LIST), "Sleep": list(SLEEP)}


def scripted(model: Model, **more: Any) -> Event:
    """Describe a conversation of the built-in agent with the scripted model."""
    llm = {"model": "openai/scripted", "api_key": "none", "base_url": model.url, "usage_id": "agent", "num_retries": 1}
    agent = {"kind": "Agent", "llm": llm, "tools": [{"name": "terminal"}]}
    workspace = {"kind": "LocalWorkspace", "working_dir": "project"}
    return {"agent": agent, "workspace": workspace, "autotitle": False, **more}


@pytest.fixture
async def work(server: AgentServer, http: httpx.AsyncClient, model: Model) -> Conversation:
    return await Conversation.create(server, http, scripted(model))


@pytest.fixture
async def careful(server: AgentServer, http: httpx.AsyncClient, model: Model) -> Conversation:
    """A conversation whose actions wait for an approval."""
    return await Conversation.create(server, http, scripted(model, **ALWAYS))


# OV5, OV6


async def test_the_first_frame_authenticates(work: Conversation) -> None:
    async with work.listening() as heard:
        await heard.wait(lambda event: event.get("key") == "full_state")
    async with work.listening(key="wrong") as heard:
        assert await heard.wait_closed() == 4001
    stranger = Conversation(work.server, work.http, "00000000-0000-4000-8000-000000000000")
    async with stranger.listening() as heard:
        assert await heard.wait_closed() == 4004
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        async with work.listening("?session_api_key=wrong", key=None):
            pass
    assert caught.value.status == 403


# OV11, OV20


async def test_the_session_socket_goes_on_after_a_sequence(work: Conversation) -> None:
    if not work.server.sequenced:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            async with aiohttp.ClientSession() as session:
                await session.ws_connect(f"{work.server.url}/sockets/session/{work.id}")
        assert caught.value.status == 403
        return
    async with work.listening() as heard:
        await work.say("List")
        await heard.settled("finished")
    ids = [event["id"] for event in (await work.page())["items"]]
    last = len(ids) - 1
    for after in (-1, 3, last, last + 5):
        async with work.listening(f"?after_seq={after}") as heard:
            await heard.wait(lambda event: event.get("key") == "full_state")
        assert heard.frames[0] == {"type": "sync", "from_seq": after, "through_seq": last}
        assert heard.stored == list(range(after + 1, last + 1))
        assert [event["id"] for event in heard.events[:-1]] == ids[after + 1 :]


async def test_an_event_over_four_mebibytes_locks_the_session_socket_out(work: Conversation) -> None:
    await work.say("x" * BIG, run=False)
    (big,) = [number for number, event in enumerate((await work.page())["items"]) if is_kind("MessageEvent")(event)]
    if not work.server.sequenced:
        return
    for _ in range(2):
        async with work.listening(f"?after_seq={big - 1}") as heard:
            assert await heard.wait_closed() == 1013
    async with work.listening(f"?after_seq={big}") as heard:
        await heard.wait(lambda event: event.get("key") == "full_state")


# OV21


async def test_a_page_starts_with_its_cursor_and_an_unknown_one_is_the_first(work: Conversation) -> None:
    async with work.listening() as heard:
        await work.say("List")
        await heard.settled("finished")
    ids = [event["id"] for event in (await work.page())["items"]]
    page = await work.page(page_id=ids[3], limit=2)
    assert ([event["id"] for event in page["items"]], page["next_page_id"]) == (ids[3:5], ids[5])
    page = await work.page(page_id=ids[-1])
    assert ([event["id"] for event in page["items"]], page["next_page_id"]) == (ids[-1:], None)
    page = await work.page(page_id="00000000-0000-4000-8000-000000000000", limit=2)
    assert [event["id"] for event in page["items"]] == ids[:2]


# OV13, OV24, OV29, OV31


async def test_a_message_waits_for_the_tool_and_one_given_up_is_saved(work: Conversation) -> None:
    async with work.listening() as heard:
        await work.say("Sleep")
        await heard.wait(is_kind("ActionEvent"))
        with pytest.raises(httpx.ReadTimeout):
            await work.say("Are you there?", within=2)
        assert not [event for event in (await work.page())["items"] if is_kind("MessageEvent", "there?")(event)]
        async with work.listening() as late:
            with pytest.raises(TimeoutError):
                await late.wait(lambda _: True, within=0.5)
            await late.wait(lambda event: event.get("key") == "full_state")
        await heard.wait(is_kind("ObservationEvent"))
        await heard.wait(is_kind("MessageEvent", "there?"))
        await heard.settled("finished")


async def test_an_interrupt_ends_the_running_tool(work: Conversation) -> None:
    async with work.listening() as heard:
        await work.say("Sleep")
        await heard.wait(is_kind("ActionEvent"))
        assert (await work.post("interrupt")).status_code == 200
        await heard.wait(is_kind("AgentErrorEvent", "interrupted"))
        await heard.settled("paused")
        await heard.wait(is_kind("InterruptEvent"))
        assert not [event for event in heard.events if is_kind("ObservationEvent")(event)]


# OV34, OV35, OV36


@pytest.mark.parametrize("by", ["accept", "message", "run"])
async def test_whatever_runs_accepts_the_waiting_action(careful: Conversation, by: str) -> None:
    async with careful.listening() as heard:
        await asked(careful, heard)
        match by:
            case "accept":
                await careful.answer(accept=True)
            case "message":
                await careful.say("No, do something else.")
            case _:
                await careful.post("run")
        await heard.wait(is_kind("ObservationEvent", "listed"))


@pytest.mark.parametrize("by", ["message", "interrupt", "pause"])
async def test_a_silent_message_and_a_stop_leave_the_action_waiting(careful: Conversation, by: str) -> None:
    async with careful.listening() as heard:
        await asked(careful, heard)
        match by:
            case "message":
                await careful.say("Note this.", run=False)
            case _:
                assert (await careful.post(by)).status_code == 200
        answer = await careful.http.get(f"/api/conversations/{careful.id}")
        assert answer.json()["execution_status"] == "waiting_for_confirmation"
        await careful.answer(accept=True)
        await heard.wait(is_kind("ObservationEvent", "listed"))


async def test_a_reject_leaves_the_agent_idle_until_it_runs(careful: Conversation, model: Model) -> None:
    async with careful.listening() as heard:
        await asked(careful, heard)
        prompted = len(model.requests)
        await careful.answer(accept=False, reason="Too risky.")
        await heard.wait(is_kind("UserRejectObservation", "Too risky."))
        await heard.status("idle")
        assert len(model.requests) == prompted

        async def ran() -> bool:
            # 409 while the run that was rejected still ends.
            return (await careful.post("run")).status_code == 200

        await until(ran)
        await heard.settled("finished")
    assert "Too risky." in json.dumps(model.requests[-1]["messages"])


async def asked(conversation: Conversation, heard: Heard) -> None:
    await conversation.say("List")
    await heard.settled("waiting_for_confirmation")


# OV25


async def test_a_message_beyond_the_servers_capacity_is_saved(tmp_path: Path, model: Model) -> None:
    server = agent_server(tmp_path / "server", "1.58.2", OH_MAX_CONCURRENT_RUNS="1")
    server.start()
    try:
        await server.ready()
        async with server.client() as http:
            busy = await Conversation.create(server, http, scripted(model))
            other = await Conversation.create(server, http, scripted(model))
            async with busy.listening() as heard:
                await busy.say("Sleep")
                await heard.wait(is_kind("ActionEvent"))
                assert (await other.say("List")).status_code == 429
                assert [event for event in (await other.page())["items"] if is_kind("MessageEvent", "List")(event)]
                assert (await other.post("run")).status_code == 429
                await heard.settled("finished")
            async with other.listening() as heard:
                assert (await other.post("run")).status_code == 200
                await heard.wait(is_kind("MessageEvent", "Listed."))
    finally:
        server.kill()


# OV59, OV60


@pytest.fixture
async def acp(server: AgentServer, http: httpx.AsyncClient, tmp_path: Path) -> Conversation:
    command = [sys.executable, acp_agent.__file__, str(tmp_path / "prompts")]
    settings = {"agent_kind": "acp", "acp_server": "custom", "acp_command": command}
    workspace = {"kind": "LocalWorkspace", "working_dir": "project"}
    return await Conversation.create(
        server, http, {"agent_settings": settings, "workspace": workspace, "autotitle": False}
    )


def prompts(folder: Path) -> list[str]:
    return [json.loads(line) for line in (folder / "prompts").read_text().splitlines()]


async def test_an_acp_agent_gets_an_interrupted_prompt_again(acp: Conversation, tmp_path: Path) -> None:
    await interrupted(acp)
    async with acp.listening() as heard:
        await acp.say("next")
        await heard.wait(is_kind("ActionEvent", "next"))
    assert prompts(tmp_path) == ["work", "work", "next"]


async def test_navigating_before_the_interrupted_prompt_cures_that(acp: Conversation, tmp_path: Path) -> None:
    message = await interrupted(acp)
    answer = await acp.post("navigate", {"event_id": message.get("parent_id")})
    assert answer.status_code == 200
    async with acp.listening() as heard:
        await acp.say("next")
        await heard.wait(is_kind("ActionEvent", "next"))
    assert prompts(tmp_path) == ["work", "next"]


async def test_a_prompt_that_fails_keeps_the_next_from_the_acp_agent(acp: Conversation, tmp_path: Path) -> None:
    async with acp.listening() as heard:
        await acp.say("fail")
        await heard.settled("error")
        (message,) = await heard.wait(is_kind("MessageEvent", "fail", "user"))
        await acp.say("lost")
        await heard.wait(is_kind("ConversationErrorEvent"), 2)
        assert prompts(tmp_path) == ["fail", "fail"]
        await heard.status("error", 2)
        await acp.post("navigate", {"event_id": message.get("parent_id")})
        await acp.say("next")
        await heard.wait(is_kind("ActionEvent", "next"))
    assert prompts(tmp_path) == ["fail", "fail", "next"]


@pytest.mark.parametrize(("run", "expected"), [(False, "completed"), (True, "failed")])
async def test_a_message_during_the_turn_replaces_it_if_it_runs(
    acp: Conversation, tmp_path: Path, run: bool, expected: str
) -> None:
    async with acp.listening() as heard:
        await acp.say("work")
        await heard.wait(is_kind("ACPToolCallEvent"))
        await acp.say("next", run=run)
        await heard.wait(is_kind("ActionEvent", "next"))
        ended = [one for one in heard.events if is_kind("ACPToolCallEvent")(one) and one["status"] == expected]
        assert len(ended) == 1
    assert prompts(tmp_path) == ["work", "next"]


async def interrupted(conversation: Conversation) -> Event:
    """Interrupt an ACP agent in its first turn; return the message that it worked on."""
    async with conversation.listening() as heard:
        await conversation.say("work")
        await heard.wait(is_kind("ACPToolCallEvent"))
        await conversation.post("interrupt")
        await heard.settled("paused")
        (message,) = await heard.wait(is_kind("MessageEvent"))
        return message

"""The gateway with real agent-servers: a scripted model plays against a backend, and everything happens once."""

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.events import InteractionId
from tests.faults.process import Forked, end, run_mortal
from tests.pace import PATIENCE
from tests.peers import acp_agent
from tests.peers.agent_server import KEY, AgentServer
from tests.peers.model import Answer, Call, Model, finish
from tests.peers.raw import Conversation, Event
from tests.peers.test_rules import LIST, prompts
from tests.ports import free_port
from tests.scenarios.environment import API_KEY, GOOD, Running, until
from tests.scenarios.fleet import Environment, answer, base, fate, message, questions, send
from tests.scenarios.hooks import Hooks, success

HELLO = Answer("Hello there.")
ASK = (Answer("I ask Victoria.", (Call("ask", GOOD),)), finish("She has two."))


@dataclass
class Peer(Environment):
    """A gateway whose runtime `work` creates conversations at a real server."""

    server: AgentServer = field(kw_only=True)
    model: Model = field(kw_only=True)

    def acts(self, agent: dict[str, Any] | None = None, **more: Any) -> None:
        """Choose the agent of new conversations, by default the built-in one, and their other options."""
        llm = {"model": "openai/scripted", "api_key": "none", "base_url": self.model.url, "more": {"num_retries": 1}}
        agent = agent or {"kind": "openhands", "llm": llm, "tools": ["terminal"]}
        options = {"adapter": "openhands-v1", "url": self.server.url, "session_api_key": KEY}
        conversation = {"agent": agent, "working_dir": "project", **more}
        self.configure({"runtimes": {"work": None}})
        self.configure({"runtimes": {"work": {**options, "conversation": conversation}}})

    async def stored(self, http: httpx.AsyncClient, conversation_id: str) -> list[Event]:
        """Read all events of a conversation from the server itself."""
        return (await Conversation(self.server, http, conversation_id).page())["items"]

    @asynccontextmanager
    async def forked(self, die_at: str | None = None) -> AsyncGenerator[tuple[Running, Forked]]:
        """Run the gateway in a process of its own, which may die at a point."""
        self.port = self.port or free_port()
        url = f"http://127.0.0.1:{self.port}"
        self.configure({"public_url": url})
        process = Forked(self.folder / "gateway.log", run_mortal, self.config, self.port, die_at)
        headers = {"authorization": f"Bearer {API_KEY}"}
        try:
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE) as http:

                async def ready() -> bool:
                    try:
                        return (await http.get("/readyz")).status_code == 200
                    except httpx.TransportError:
                        return False

                await until(ready)
                # What needs the gateway's own objects is not asked of another process.
                yield Running(None, url, http, "work"), process  # pyright: ignore[reportArgumentType]
        finally:
            await end(process)


@pytest.fixture
async def peer(tmp_path: Path, server: AgentServer, model: Model) -> AsyncGenerator[Peer]:
    model.stories = {"Hello": [HELLO], "Ask": list(ASK), "List": list(LIST)}
    async with Hooks() as hooks:
        hooks.scripts["ask"] = success({"cards": 2})
        made = Peer(tmp_path, hooks, "work", base(tmp_path, hooks), server=server, model=model)
        made.acts()
        yield made


async def create(gateway: Running) -> str:
    """Create a conversation; return its id once the gateway is linked to it."""
    row = await gateway.post("/v1/sessions", {"runtime": "work"}, status=201)
    await gateway.wait_link("up")
    return row["native_id"]


async def says(gateway: Running, text: str, count: int = 1) -> None:
    """Wait until the agent has said something this often."""

    async def look() -> bool:
        posted = await gateway.events(kind="message.posted")
        return len([one for one in posted if one["origin"] and text in str(one["event"]["content"])]) >= count

    await until(look)


async def tell(gateway: Running, text: str) -> None:
    [sent] = await send(gateway, message(text))
    assert (await fate(gateway, sent["sequence"]))["state"] == "delivered"


async def decide(gateway: Running, **decision: str) -> dict[str, Any]:
    """Answer the only open approval; return its event."""
    [asked] = await questions(gateway)
    await answer(gateway, asked, decision)
    return asked["event"]


async def all_recorded(peer: Peer, gateway: Running, conversation_id: str) -> None:
    """Wait until each event of the server is on record, and check that each is once."""
    async with peer.server.client() as http:
        silent = {"stats", "last_user_message_id", "agent_state"}
        wanted = {
            event["id"]
            for event in await peer.stored(http, conversation_id)
            if event.get("key") not in silent
            # A call of an ACP agent begins under a key of its own.
            and event.get("status") != "in_progress"
            and event.get("observation", {}).get("kind") not in {"FinishObservation", "ThinkObservation"}
        }

    async def look() -> bool:
        return wanted <= set(native_ids(await gateway.events()))

    await until(look)
    ids = native_ids(await gateway.events())
    assert len(ids) == len(set(ids))


def native_ids(journal: list[dict[str, Any]]) -> list[str]:
    return [one["origin"]["native_id"] for one in journal if one["origin"] and one["origin"]["native_id"]]


async def test_the_game_is_played(peer: Peer) -> None:
    peer.acts(confirmation_policy="always")
    async with peer.running(linked=False) as gateway:
        conversation_id = await create(gateway)
        await tell(gateway, "Hello")
        await says(gateway, "Hello there.")
        # The backend's tool, over MCP.
        await tell(gateway, "Ask Victoria.")
        assert (await decide(gateway, decision="allow"))["tool"] == "ask"
        await says(gateway, "She has two.")
        [linked] = await gateway.events(kind="call.linked")
        [call] = (await gateway.get("/v1/calls"))["data"]
        assert (linked["event"]["call_id"], call["state"]) == (call["call_id"], "succeeded")
        assert len(peer.hooks.of("ask")) == 1
        # Its own tool, allowed and denied.
        await tell(gateway, "List the files.")
        assert (await decide(gateway, decision="allow"))["tool"] == "terminal"
        await says(gateway, "Listed.")
        await tell(gateway, "List them again.")
        await decide(gateway, decision="deny", reason="Too risky.")
        await says(gateway, "Listed.", 2)
        ended = [one["event"] for one in await gateway.events(kind="tool.finished")]
        assert [one["outcome"] for one in ended if one["tool"] == "terminal"] == ["success", "canceled"]
        await all_recorded(peer, gateway, conversation_id)


async def test_a_call_that_a_person_changes_and_one_that_a_person_denies(peer: Peer) -> None:
    peer.configure({"routes": [{"match": {"tool": "ask"}, "to": "cards", "approve": True}]})
    peer.model.stories["Ask"] = [ASK[0], Answer(calls=(Call("get_result", named),)), ASK[1]]
    async with peer.running(linked=False) as gateway:
        conversation_id = await create(gateway)
        await tell(gateway, "Ask Victoria.")
        changed = {**GOOD, "rank": "9"}
        await rule(gateway, peer, decision="allow", arguments=changed)
        await says(gateway, "She has two.")
        [asked] = peer.hooks.of("ask")
        assert (asked.data["arguments"], asked.data["edited"]) == (changed, True)
        assert "A person changed the arguments to" in str(peer.model.requests[-1])
        await tell(gateway, "Ask once more.")
        await rule(gateway, peer, decision="deny", reason="Not today.")
        await says(gateway, "She has two.", 2)
        assert len(peer.hooks.of("ask")) == 1
        assert "a person denied it: Not today." in str(peer.model.requests[-1])
        await all_recorded(peer, gateway, conversation_id)


async def test_a_conversation_is_told_once_what_its_agent_did_not_wait_for(peer: Peer) -> None:
    """A person answers after the wait of `get_result` and the turn have ended, the second time after a restart."""
    peer.configure({"routes": [{"match": {"tool": "ask"}, "to": "cards", "approve": True}], "mcp": {"hold": "100ms"}})
    peer.tuning = replace(peer.tuning, tell_after=timedelta(milliseconds=300))
    for word, rank in (("Ask", "7"), ("Demand", "8")):
        asks = [Answer(calls=(Call("ask", {**GOOD, "rank": rank}),)), Answer(calls=(Call("get_result", named),))]
        peer.model.stories[word] = [*asks, Answer("A person decides.")]
    peer.model.stories["has run, with this result:"] = [Answer("So it ran.")]
    peer.model.stories["has ended without a result:"] = [Answer("So it did not run.")]
    async with peer.running(linked=False) as gateway:
        conversation_id = await create(gateway)
        await tell(gateway, "Ask Victoria.")
        await says(gateway, "A person decides.")
        await rule(gateway, peer, decision="allow")
        await says(gateway, "So it ran.")
        assert [one["unheard_since"] for one in (await gateway.get("/v1/calls"))["data"]] == [None]
        await tell(gateway, "Demand more.")
        await says(gateway, "A person decides.", 2)
    async with peer.running() as gateway:
        await rule(gateway, peer, decision="deny", reason="Not today.")
        await says(gateway, "So it did not run.")
        await all_recorded(peer, gateway, conversation_id)
        async with peer.server.client() as http:
            stored = await peer.stored(http, conversation_id)
        got = [one["llm_message"]["content"][0]["text"] for one in stored if one["kind"] == "MessageEvent"]
        ran, denied = [text for text in got if "which has waited for a person's approval" in text]
        assert ran.endswith('has run, with this result:\n\n{"cards":2}')
        assert denied.endswith("The call was not made: a person denied it: Not today.")
    assert len(peer.hooks.of("ask")) == 1


def named(result: str) -> dict[str, Any]:
    """Return the arguments of `get_result` that the text about a held call names."""
    assert "Waits for a person's approval. Call get_result" in result
    found = re.search(r'{"call_id":"[^"]+"}', result)
    assert found is not None, result
    return json.loads(found[0])


async def rule(gateway: Running, peer: Peer, **body: Any) -> None:
    """Answer the question about the only held call, once its agent has been told that it waits."""
    waiting = partial(gateway.get, "/v1/interactions", state="waiting")

    async def look() -> dict[str, Any] | None:
        if "Waits for a person" not in str([one["messages"][-1] for one in peer.model.requests[-1:]]):
            return None
        [asked] = (await waiting())["data"]
        return asked

    asked = await until(look)
    if body["decision"] == "allow":
        body["binding"] = asked["event"]["binding"]
    await gateway.gateway.interactions.answer(InteractionId(asked["interaction_id"]), body, by="lead")


async def test_an_interrupted_agent_works_on(peer: Peer) -> None:
    peer.model.stories["Sleep"] = [Answer(calls=(Call("terminal", {"command": "sleep 60", "timeout": 90}),))]
    async with peer.running(linked=False) as gateway:
        await create(gateway)
        await tell(gateway, "Sleep.")
        await gateway.wait_events("tool.requested")
        await send(gateway, {"kind": "turn.interrupted", "reason": "enough"})
        await gateway.wait_events("session.moved", state="paused")
        await gateway.wait_events("tool.finished")
        await tell(gateway, "Hello")
        await says(gateway, "Hello there.")


async def test_a_restarted_gateway_records_what_it_missed_once(peer: Peer) -> None:
    awake = asyncio.Event()
    peer.model.stories["Wait"] = [*LIST[:1], Answer("I waited.", when=awake)]
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(peer.running(linked=False))
        conversation_id = await create(gateway)
        await tell(gateway, "Wait.")
        await gateway.wait_events("tool.finished")
    awake.set()
    async with peer.server.client() as http:

        async def ended() -> bool:
            return "I waited." in str(await peer.stored(http, conversation_id))

        await until(ended)
    async with peer.running() as gateway:
        await says(gateway, "I waited.")
        await all_recorded(peer, gateway, conversation_id)
        await tell(gateway, "Hello")
        await says(gateway, "Hello there.")


async def test_a_kill_between_outcome_and_answer_runs_the_tool_once(peer: Peer) -> None:
    back = asyncio.Event()
    peer.model.stories["Ask"] = [ASK[0], Answer("Again.", (Call("ask", GOOD),), when=back), ASK[1]]
    async with peer.forked("after-outcome") as (gateway, process):
        conversation_id = await create(gateway)
        await send(gateway, message("Ask Victoria."))
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == -signal.SIGKILL
    async with peer.forked() as (gateway, _):
        await gateway.wait_link("up")
        back.set()
        await says(gateway, "She has two.")
        assert len(peer.hooks.of("ask")) == 1
        [call] = (await gateway.get("/v1/calls"))["data"]
        assert call["state"] == "succeeded"
        await all_recorded(peer, gateway, conversation_id)


async def test_a_kill_of_the_server_loses_nothing(peer: Peer) -> None:
    async with peer.running(linked=False) as gateway:
        conversation_id = await create(gateway)
        await tell(gateway, "List the files.")
        await says(gateway, "Listed.")
        peer.server.kill()
        await until(lambda: is_cut(gateway))
        peer.server.start()
        await peer.server.ready()
        await gateway.wait_link("up")
        await tell(gateway, "Hello")
        await says(gateway, "Hello there.")
        await all_recorded(peer, gateway, conversation_id)


async def is_cut(gateway: Running) -> bool:
    link = await gateway.link()
    return link is not None and link["state"] != "up"


async def test_an_acp_agent_gets_each_message_once(peer: Peer, tmp_path: Path) -> None:
    command = [sys.executable, acp_agent.__file__, str(tmp_path / "prompts")]
    peer.acts({"kind": "acp", "server": "custom", "command": command})
    async with peer.running(linked=False) as gateway:
        conversation_id = await create(gateway)
        await tell(gateway, "work")
        await gateway.wait_events("tool.requested")
        await send(gateway, {"kind": "turn.interrupted", "reason": "enough"})
        await gateway.wait_events("session.moved", state="paused")
        await tell(gateway, "next")
        await says(gateway, "Done: next")
        assert prompts(tmp_path) == ["work", "next"]
        await all_recorded(peer, gateway, conversation_id)

"""OpenHands V1 through a whole gateway: created with our tools, spoken to, approved, restarted, and cut off."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.testing.runtimes.openhands_v1.server import AcpConversation, AgentServer, Manners, SimConversation
from tests.scenarios.environment import Running
from tests.scenarios.fleet import Environment, answer, base, condition, message, questions, send
from tests.scenarios.hooks import Hooks, success

KEY = "oh_session-canary-2WsX"
LLM_KEY = "llm-canary-5QwE"
GOOD = {"player": "Victoria", "rank": "7"}
BUILT_IN: dict[str, Any] = {"kind": "openhands", "llm": {"model": "openai/gpt-4o", "api_key": LLM_KEY}}


@dataclass
class V1Environment(Environment):
    """An environment with an agent-server, at which the gateway creates its conversation at start."""

    server: AgentServer = field(default_factory=AgentServer)

    @property
    def work(self) -> Any:
        (made,) = self.server.conversations.values()
        return made

    @asynccontextmanager
    async def created(self) -> AsyncGenerator[tuple[Running, Any]]:
        """Run the gateway and wait until its conversation is linked."""
        async with self.running(linked=False) as gateway:
            await condition(lambda: self.server.conversations or None)
            await gateway.wait_link("up")
            yield gateway, self.work


@pytest.fixture(params=["1.58.2", "1.44.0"])
async def environment(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[V1Environment]:
    server = AgentServer(session_api_key=KEY, manners=Manners(version=request.param))
    async with server, Hooks() as hooks:
        made = V1Environment(tmp_path, hooks, "work", base(tmp_path, hooks), server=server)
        made.configure({"runtimes": {"work": options(server, BUILT_IN)}})
        yield made
        assert server.violations == []
        assert made.work.violations == []


def options(server: AgentServer, agent: dict[str, Any]) -> dict[str, Any]:
    return {
        "adapter": "openhands-v1",
        "url": server.url,
        "session_api_key": KEY,
        "autostart": True,
        "conversation": {"agent": agent},
    }


async def test_an_agent_calls_our_tool_which_runs_once_and_is_linked(environment: V1Environment) -> None:
    environment.hooks.scripts["ask"] = success("Go fish!")
    async with environment.created() as (gateway, work):
        assert isinstance(work, SimConversation)
        await send(gateway, message("Play."))
        seen = await work.agent_calls("ask", GOOD)
        assert "Go fish!" in str(seen)
        await work.finish("Done.")
        await gateway.wait_events("tool.finished", 2)
        [linked] = await gateway.wait_events("call.linked")
        [call] = (await gateway.get("/v1/calls"))["data"]
        assert (call["call_id"], call["state"]) == (linked["event"]["call_id"], "succeeded")
        said = await gateway.wait_events("message.posted", 2)
        assert said[-1]["event"]["content"] == [{"type": "text", "text": "Done."}]
    assert len(environment.hooks.of("ask")) == 1


@pytest.mark.parametrize(("decision", "outcome"), [("allow", "success"), ("deny", "canceled")])
async def test_held_actions_are_one_question_and_its_answer_decides_them(
    environment: V1Environment, decision: str, outcome: str
) -> None:
    environment.options(conversation={"agent": BUILT_IN, "confirmation_policy": "always"})
    async with environment.created() as (gateway, work):
        await send(gateway, message("Tidy up."))
        # The agent starts by the message, not by itself.
        await gateway.wait_events("delivery.settled")
        running = asyncio.ensure_future(work.agent_runs("rm a.txt", "gone"))
        [question] = await questions(gateway)
        # A message may not execute what waits.
        await send(gateway, message("And then?"))
        await answer(gateway, question, {"decision": decision})
        assert (await running)["kind"] == ("ObservationEvent" if decision == "allow" else "UserRejectObservation")
        [finished] = await gateway.wait_events("tool.finished")
        assert finished["event"]["outcome"] == outcome
        await work.finish("Done.")
        await gateway.wait_events("session.moved", state="finished")


async def test_a_restarted_gateway_goes_on_after_its_cursor(environment: V1Environment) -> None:
    async with environment.created() as (gateway, work):
        await send(gateway, message("Work."))
        await work.agent_runs("ls", "a.txt")
        await gateway.wait_events("tool.finished")
    await work.agent_runs("pwd", "/workspace")
    async with environment.running() as gateway:
        await work.finish("Done.")
        await gateway.wait_events("session.moved", state="finished")
        journal = await gateway.events()
        natives = [one["origin"]["native_id"] for one in journal if one["origin"] and one["origin"]["native_id"]]
        assert len(natives) == len(set(natives))
        asked = await gateway.events(kind="tool.requested")
        assert [one["event"]["arguments"]["command"] for one in asked] == ["ls", "pwd"]


async def test_a_cut_link_comes_back_without_loss_or_repeat(environment: V1Environment) -> None:
    async with environment.created() as (gateway, work):
        await send(gateway, message("Work."))
        for number in range(6):
            await work.agent_runs(f"echo {number}", str(number))
            if number % 2:
                environment.server.cut(work.conversation_id)
        await work.finish("Done.")
        await gateway.wait_events("session.moved", state="finished")
        asked = await gateway.events(kind="tool.requested")
        assert [one["event"]["arguments"]["command"] for one in asked] == [f"echo {number}" for number in range(6)]


async def test_a_message_whose_answer_is_lost_is_said_once(environment: V1Environment) -> None:
    async with environment.created() as (gateway, work):
        environment.server.lose_answers()
        await send(gateway, message("Work."))
        await work.finish("Done.")
        await gateway.wait_events("session.moved", state="finished")
        heard = [event for event in work.events if event["kind"] == "MessageEvent" and event["source"] == "user"]
        assert len(heard) == 1


async def test_an_acp_agent_calls_our_tool_and_repeats_nothing_after_an_interrupt(environment: V1Environment) -> None:
    environment.hooks.scripts["ask"] = success("Go fish!")
    environment.configure({"runtimes": {"work": {"conversation": {"agent": None}}}})
    environment.configure({"runtimes": {"work": {"conversation": {"agent": {"kind": "acp", "server": "claude-code"}}}}})
    async with environment.created() as (gateway, work):
        assert isinstance(work, AcpConversation)
        await send(gateway, message("one"))
        await work.wait_prompt("one")
        assert "Go fish!" in str(await work.agent_calls("ask", GOOD))
        await send(gateway, {"kind": "turn.interrupted", "reason": "enough"})
        await gateway.wait_events("session.moved", state="paused")
        await send(gateway, message("two"))
        await work.wait_prompt("two")
        assert work.prompts == ["one", "two"]
    assert len(environment.hooks.of("ask")) == 1


async def test_no_key_reaches_the_log_or_the_record(
    environment: V1Environment, capfd: pytest.CaptureFixture[str]
) -> None:
    async with environment.created() as (gateway, work):
        environment.server.stumble("/events", 422)
        await send(gateway, message("Work."))
        await gateway.wait_events("delivery.settled")
        await work.finish("Done.")
        await gateway.wait_events("session.moved", state="finished")
        shown = str(await gateway.events())
    shown += "".join(capfd.readouterr())
    assert KEY not in shown
    assert LLM_KEY not in shown

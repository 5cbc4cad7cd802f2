"""A Herm stream that breaks after every single frame: each event is on record once, each tool executed once."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gateway.testing.runtimes.herm.server import Asked, HermServer, Manners, SimSession
from tests.pace import PATIENCE
from tests.scenarios.environment import Running, until
from tests.scenarios.fleet import (
    ADA,
    HERM_KEY,
    HermEnvironment,
    answer,
    condition,
    herm_environment,
    message,
    questions,
    send,
)
from tests.scenarios.hooks import success, update

LEAST_FRAMES = 20
"""A round has more than these; fewer would mean that the script of `play` was cut short."""


class Brittle(SimSession):
    """A session whose streams break right after a frame, counted from the start of a round."""

    written = 0
    breaks_after = -1

    async def listen(self, replay_after: str | None) -> AsyncGenerator[str]:
        async for text in super().listen(replay_after):
            yield text
            if not text.startswith(":"):
                self.written += 1
                if self.written == self.breaks_after:
                    self.drop_streams()
                # Each frame travels by itself, or it would be cut off together with those behind it.
                await asyncio.sleep(0)


def told(asked: Asked) -> list[str]:
    assert all(again == asked.answers[0] for again in asked.answers)
    return [block["text"] for block in asked.answers[0]["content"]]


async def play(environment: HermEnvironment, gateway: Running, number: int) -> list[Asked]:
    """Play one round: a message, thoughts, words, tools of both kinds, questions, and the end of the turn."""
    agent = environment.agent
    await send(gateway, message(f"round {number}"))
    await condition(lambda: agent.turn)
    agent.thinks("Who has?")
    agent.says("Let me see.")
    await agent.agent_uses("terminal", {"command": "ls"}, "a.txt")
    calls = agent.call_all([("ask", {"player": "Victoria", "rank": "7"}), ("free", {"number": number})])
    for call in calls:
        await call.answered()
    approval = agent.ask_approval("terminal", {"command": f"rm {number}"})
    [asked] = await questions(gateway)
    await answer(gateway, asked, {"decision": "allow"})
    assert (await approval.answered())["result"] == "allow"
    question = agent.clarify("Which?", ["this", "that"])
    [asked] = await questions(gateway)
    await answer(gateway, asked, {"answer": "that"})
    assert (await question.answered())["answer"] == "that"
    agent.end_turn()
    return calls


@pytest.mark.slow
@pytest.mark.requirement("H-g", "H-i", "H-u")
@pytest.mark.parametrize("echoes", [True, False], ids=["echoes", "no echoes"])
async def test_a_conversation_cut_after_each_frame_is_on_record_once_and_executed_once(
    tmp_path: Path, echoes: bool
) -> None:
    server = HermServer(api_key=HERM_KEY)
    agent = Brittle(ADA, "agent", wire=server, manners=Manners(echoes=echoes))
    server.sessions[ADA] = agent
    async with herm_environment(tmp_path, server=server) as environment:
        environment.hooks.scripts["ask"] = success("go fish", updates=[update("asked", by="Ada")])
        calls: list[Asked] = []
        maintenance = 0
        async with environment.running() as gateway:
            while agent.written >= agent.breaks_after:
                maintenance += 1
                agent.written, agent.breaks_after = 0, maintenance
                opened = agent.streams_opened
                calls += await play(environment, gateway, maintenance)
                await recorded(agent, gateway)
                if agent.written >= maintenance:
                    await agent.wait_streams(opened + 1)
                    await gateway.wait_link("up")
            assert maintenance > LEAST_FRAMES
            journal = await gateway.events()
            asked_for = [one["event"]["native_call_id"] for one in journal if is_call(one)]
            assert asked_for == [call.asked_id for call in calls]
            rows = (await gateway.get("/v1/calls", limit=500))["data"]
            assert {row["state"] for row in rows} == {"succeeded"}
            assert len(rows) == len(calls)
            assert (await gateway.get("/v1/dead-letters"))["data"] == []
        assert Counter(one.data["native_call_id"] for one in environment.hooks.asked) == Counter(
            c.asked_id for c in calls
        )
        for number, call in enumerate(calls):
            asked = (
                ["[asked] asked happened", "go fish"]
                if call.payload["tool"] == "ask"
                else [f'{{"number":{number // 2 + 1}}}']
            )
            assert [text.partition("\n")[0] for text in told(call)] == asked
        heard = [one.payload["content"][0]["text"] for one in agent.received if one.payload["type"] == "user.message"]
        assert heard == [f"round {number}" for number in range(1, maintenance + 1)]
        assert agent.violations == []


def is_call(envelope: dict[str, object]) -> bool:
    match envelope["event"]:
        case {"kind": "tool.requested", "runs_in": "host"}:
            return True
        case _:
            return False


async def recorded(agent: SimSession, gateway: Running) -> None:
    """Wait until every durable event of the agent is on record, and see that none is twice."""
    wanted = [one["id"] for one in agent.events if not one["type"].startswith("user.")]

    async def look() -> bool:
        return set(wanted) <= set(names(await gateway.events()))

    await until(look, within=PATIENCE)
    found = names(await gateway.events())
    assert [name for name in found if name in set(wanted)] == wanted
    assert len(found) == len(set(found))


def names(journal: list[dict[str, object]]) -> list[str]:
    """List the native ids on record; the second event of one frame is marked as such."""
    found: list[str] = []
    for one in journal:
        match one["origin"]:
            case {"native_id": str(name)}:
                found.append(name)
            case _:
                pass
    return found

"""An OpenHands socket that breaks after every single frame: each event is on record once, nothing is executed."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.testing.runtimes.openhands.progress import Manners
from gateway.testing.runtimes.openhands.server import OpenHandsServer
from tests.scenarios.environment import Running, until
from tests.scenarios.fleet import (
    OPENHANDS_KEY,
    OpenHandsEnvironment,
    answer,
    fate,
    message,
    openhands_environment,
    send,
)

CAPTURES = sorted((Path(__file__).parents[1] / "vectors" / "openhands" / "captures").glob("*.jsonl"))


class Brittle(OpenHandsServer):
    """A server whose sockets break right after a frame, counted from the start of a round."""

    written = 0
    breaks_after = -1

    async def broadcast(self, conversation_id: str, payload: Any) -> None:
        await super().broadcast(conversation_id, payload)
        self.written += 1
        number = self.written
        # Each frame travels by itself, or it would be cut off together with those before it; others come meanwhile.
        await asyncio.sleep(0)
        if number == self.breaks_after:
            self.cut(conversation_id)


def shown(environment: OpenHandsEnvironment) -> set[str]:
    """Ids that have to be on record: all but what no client is ever shown, and states that have gone by."""
    hidden = {"null", "recall"}
    return {
        str(event["id"])
        for event in environment.agent.events
        if event.get("action") not in hidden
        and event.get("observation") not in {"null", "agent_state_changed"}
        and not (event["source"] == "environment" and event.get("action") == "change_agent_state")
    }


def on_record(journal: list[dict[str, Any]]) -> list[str]:
    """List the numbers of native events, whatever the rest of their names; an echo has its number only."""
    return [
        str(one["origin"]["native_sequence"])
        for one in journal
        if one["origin"] and one["origin"]["native_sequence"] is not None
    ]


async def all_recorded(environment: OpenHandsEnvironment, gateway: Running) -> list[dict[str, Any]]:
    async def look() -> bool:
        return shown(environment) <= set(on_record(await gateway.events()))

    await until(look)
    journal = await gateway.events()
    names = [one["origin"]["native_id"] for one in journal if one["origin"] and one["origin"]["native_id"]]
    assert len(names) == len(set(names))
    return journal


async def question_about(gateway: Running, command: str) -> dict[str, Any] | None:
    """Find the question about a command; for a moment there may be one about what only seems to be unfinished."""
    waiting = (await gateway.get("/v1/interactions", state="waiting"))["data"]
    return next((one for one in waiting if one["event"]["arguments"].get("command") == command), None)


async def play(environment: OpenHandsEnvironment, gateway: Running, number: int) -> None:
    """Play one round: a message, a command, an edit, an approval, a delegate, words, the end."""
    work = environment.agent
    [sent] = await send(gateway, message(f"round {number}"))
    settled = await fate(gateway, sent["sequence"])
    assert settled["state"] == "delivered", settled
    await work.agent_runs("ls", "a.txt")
    await work.agent_edits(f"/workspace/{number}", "one")
    gated = asyncio.create_task(work.agent_runs(f"rm {number}", "", gated=True))
    asked = await until(lambda: question_about(gateway, f"rm {number}"))
    await answer(gateway, asked, {"decision": "allow"})
    assert (await gated)["observation"] == "run"
    await work.delegate("BrowsingAgent", "look", {"found": number})
    await work.agent_says("Found it.", waits=False)
    await work.finish("Done.")


@pytest.mark.slow
@pytest.mark.requirement("OH14", "OH17", "OH18", "OH20")
@pytest.mark.parametrize("reorders", [False, True], ids=["in order", "out of order"])
async def test_a_conversation_cut_after_each_frame_is_on_record_once(tmp_path: Path, reorders: bool) -> None:
    server = Brittle(session_api_key=OPENHANDS_KEY, manners=Manners(reorders=reorders))
    async with openhands_environment(tmp_path, server=server) as environment:
        # What is not confirmed in time counts as unknown, and a busy machine takes its time.
        environment.options(ack_timeout="10s")
        maintenance = 0
        async with environment.running() as gateway:
            await gateway.wait_events("session.moved", state="awaiting_input")
            while server.written >= server.breaks_after:
                maintenance += 1
                server.written, server.breaks_after = 0, maintenance
                opened = environment.agent.connections
                await play(environment, gateway, maintenance)
                await all_recorded(environment, gateway)
                if server.written >= maintenance:
                    await environment.agent.wait_connections(opened + 1)
                    await gateway.wait_link("up")
            journal = await gateway.events()
            assert maintenance > 20
            assert (await gateway.get("/v1/calls"))["data"] == []
            assert (await gateway.get("/v1/dead-letters"))["data"] == []
            requested = [one["event"]["tool"] for one in journal if one["event"]["kind"] == "tool.requested"]
            # The one that was approved comes twice, the second in place of the first.
            assert requested == ["run", "edit", "run", "run"] * maintenance
        heard = [one.payload for one in environment.agent.received]
        assert [one["args"]["content"] for one in heard if one["action"] == "message"] == [
            f"round {number}" for number in range(1, maintenance + 1)
        ]
        assert sum(one["action"] == "change_agent_state" for one in heard) == maintenance
        assert environment.agent.violations == []
        assert environment.hooks.asked == []


@pytest.mark.parametrize("conversation", [pytest.param(path.read_text("utf-8"), id=path.stem) for path in CAPTURES])
async def test_a_recorded_conversation_cut_at_each_frame_is_on_record_once(tmp_path: Path, conversation: str) -> None:
    frames = [json.loads(line) for line in conversation.splitlines()]
    events = [dict(event) for event in {event["id"]: event for event in frames if "timestamp" in event}.values()]
    # A replay leaves out what the agent recalls.
    wanted = {str(event["id"]) for event in events if event.get("action") != "recall"}
    last = str(events[-1]["id"])
    async with openhands_environment(tmp_path) as environment:
        work = environment.agent
        # The agent of the recording is the only one; the simulated one does not begin.
        work.begin()
        work.events.clear()
        async with environment.running() as gateway:
            for event in events:
                work.events.append(event)
                await work.emit(event)
                opened = work.connections
                await work.drop()
                await work.wait_connections(opened + 1)
            await gateway.wait_link("up")

            async def look() -> bool:
                return last in on_record(await gateway.events())

            await until(look)
            journal = await gateway.events()
            assert wanted <= set(on_record(journal)) <= {str(event["id"]) for event in events}
            names = [one["origin"]["native_id"] for one in journal if one["origin"] and one["origin"]["native_id"]]
            assert len(names) == len(set(names))
            assert (await gateway.get("/v1/calls"))["data"] == []
            assert await gateway.events(kind="frame.rejected") == []
        assert work.received == []

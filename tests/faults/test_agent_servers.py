"""kill -9 and broken links around an OpenHands agent-server, whose answers come late and name no event."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.testing.runtimes.openhands_v1.events import terminal_call
from gateway.testing.runtimes.openhands_v1.manners import Manners
from tests.faults.environment import until
from tests.faults.fleet import OpenHandsV1Scene
from tests.pace import PATIENCE

pytestmark = pytest.mark.faults

COMMANDS = [f"echo {number}" for number in range(12)]


async def recorded(scene: OpenHandsV1Scene, kind: str) -> list[dict[str, Any]]:
    """The events of a kind in the journal, in order."""
    events = await scene.rows(f"/v1/sessions/{await scene.session_id()}/events")
    return [one["event"] for one in events if one["event"]["kind"] == kind]


async def on_record(scene: OpenHandsV1Scene, commands: list[str]) -> None:
    """Wait until the commands are on record, each once and in order, and each with one end."""

    async def so() -> bool:
        asked = [one for one in await recorded(scene, "tool.requested") if one["tool"] == "terminal"]
        ends = [one["native_call_id"] for one in await recorded(scene, "tool.finished")]
        return [one["arguments"]["command"] for one in asked] == commands and ends == [
            one["native_call_id"] for one in asked
        ]

    await until(so)


@pytest.mark.fault("SIGKILL while an OpenHands agent-server holds its answer to a message")
async def test_a_message_that_was_saved_is_found_by_the_next_process_and_not_repeated(
    tmp_path: Path, store: str
) -> None:
    async with OpenHandsV1Scene(tmp_path, store=store) as scene:
        await scene.run()
        scene.server.hold_answers()
        assert await scene.post({"kind": "message.posted", "content": "one"}) == 202
        await scene.agent.wait_event(lambda event: event["source"] == "user" and event["kind"] == "MessageEvent")
        scene.kill()
        await scene.dead()
        scene.server.release_answers()
        await scene.run()
        assert await scene.post({"kind": "message.posted", "content": "two"}) == 202

        async def told() -> bool:
            return scene.heard()[-1:] == ["two"]

        await until(told)
        await scene.settled()
        assert scene.heard() == ["one", "two"]
        assert await scene.rows("/v1/dead-letters") == []
        await scene.stop()
        await scene.verify_journal()


@pytest.mark.fault("SIGKILL while an OpenHands agent-server without capacity has only saved a message")
async def test_a_message_that_was_only_saved_is_run_after_the_restart(tmp_path: Path, store: str) -> None:
    async with OpenHandsV1Scene(tmp_path, store=store) as scene:
        await scene.run()
        # The message, and what the first process tries in the next seconds.
        scene.server.refuse_runs(5)
        assert await scene.post({"kind": "message.posted", "content": "one"}) == 202

        async def echoed() -> bool:
            return bool(await recorded(scene, "delivery.settled"))

        await until(echoed)
        scene.kill()
        await scene.dead()
        await scene.run()
        await scene.agent.wait_status("running")
        assert scene.heard() == ["one"]
        await scene.settled()
        await scene.stop()
        await scene.verify_journal()


@pytest.mark.fault("SIGKILL during a call of an OpenHands V1 agent over MCP")
@pytest.mark.parametrize("tool", ["again", "once"])
async def test_a_call_runs_once_whatever_its_agent_was_told(tmp_path: Path, store: str, tool: str) -> None:
    async with OpenHandsV1Scene(tmp_path, store=store) as scene:
        await scene.run()
        scene.backend.close("tools")
        calling = asyncio.create_task(scene.agent.agent_calls(tool, {"n": 1}))
        await scene.backend.wait(lambda seen: seen.kind == "tool.requested")
        scene.kill()
        await scene.dead()
        told = (await asyncio.wait_for(calling, PATIENCE))["observation"]
        # A cut call is an error for the agent, which the server never repeats.
        assert told["is_error"]
        scene.backend.open()
        await scene.run()
        await scene.settled()
        (row,) = await scene.rows("/v1/calls")
        assert (row["state"], row["unknown"]) == (("succeeded", False) if tool == "again" else ("failed", True))
        assert {seen.key for seen in scene.backend.seen} == {row["call_id"]}
        (finished,) = [one for one in await recorded(scene, "tool.finished") if one.get("call_id") == row["call_id"]]
        assert finished["outcome"] == ("success" if tool == "again" else "failure")
        seen = (await scene.agent.agent_calls("again", {"n": 2}))["observation"]
        assert not seen["is_error"]
        await scene.settled()
        await scene.stop()
        await scene.verify_journal()


def text_of(event: dict[str, Any]) -> str:
    """What the agent read as the result of its call."""
    return "".join(block.get("text", "") for block in event["observation"]["content"])


@pytest.mark.fault("SIGKILL after an outcome's commit, before its answer to an OpenHands V1 agent")
@pytest.mark.parametrize("by", ["repeat", "get_result"])
async def test_an_outcome_that_was_not_answered_is_told_after_the_restart(tmp_path: Path, store: str, by: str) -> None:
    async with OpenHandsV1Scene(tmp_path, store=store, hold="1s" if by == "get_result" else "50s") as scene:
        await scene.run("after-outcome")
        scene.backend.close("tools")
        tool, arguments = "once", {"n": 1}
        calling = asyncio.create_task(scene.agent.agent_calls(tool, arguments))
        if by == "get_result":
            told = text_of(await asyncio.wait_for(calling, PATIENCE))
            (row,) = await scene.rows("/v1/calls")
            assert row["call_id"] in told
            tool, arguments = "get_result", {"call_id": row["call_id"]}
            calling = asyncio.create_task(scene.agent.agent_calls(tool, arguments))
        (asked,) = await scene.backend.wait(lambda seen: seen.kind == "tool.requested")
        scene.backend.open()
        cut = (await asyncio.wait_for(calling, PATIENCE))["observation"]
        # PostgreSQL may announce the commit to the waiting request before the process that dies of it.
        assert cut["is_error"] or store == "postgres"
        await scene.dead()
        await scene.run()
        again = await scene.agent.agent_calls(tool, arguments)
        assert not again["observation"]["is_error"]
        assert json.loads(asked.answers[0])["result"]["answer"] in text_of(again)
        await scene.settled()
        (row,) = await scene.rows("/v1/calls")
        assert (row["state"], row["call_id"]) == ("succeeded", asked.key)
        assert [one["call_id"] for one in await recorded(scene, "tool.finished") if one.get("call_id")] == [asked.key]
        assert [seen.key for seen in scene.backend.seen] == [asked.key]
        await scene.stop()
        await scene.verify_journal()


@pytest.mark.fault("SIGKILL while an OpenHands V1 agent waits for an approval")
async def test_an_approval_is_asked_once_and_carried_out_once(tmp_path: Path, store: str) -> None:
    async with OpenHandsV1Scene(tmp_path, store=store) as scene:
        await scene.run()
        acting = asyncio.create_task(scene.agent.agent_acts(*map(terminal_call, ("rm a", "rm b")), gated=True))

        async def asked() -> bool:
            return len(await scene.rows("/v1/interactions", state="waiting")) == 1

        await until(asked)
        scene.kill()
        await scene.dead()
        await scene.run()
        await until(asked)
        (waiting,) = await scene.rows("/v1/interactions")
        answer = await scene.http.post(
            f"/v1/interactions/{waiting['interaction_id']}/answer", json={"decision": "allow"}
        )
        assert answer.status_code < 300, answer.text
        seen = await asyncio.wait_for(acting, PATIENCE)
        assert [event["kind"] for event in seen] == ["ObservationEvent"] * 2
        await on_record(scene, ["rm a", "rm b"])
        await scene.settled()
        assert len(await recorded(scene, "approval.asked")) == 1
        assert scene.agent.violations == []
        assert [arguments["command"] for _, arguments in scene.agent.executed] == ["rm a", "rm b"]
        await scene.stop()
        await scene.verify_journal()


@pytest.mark.fault("Link to an OpenHands agent-server cut in a burst of events")
@pytest.mark.parametrize("version", ["1.58.2", "1.44.0"])
async def test_what_happened_in_a_burst_is_on_record_once(tmp_path: Path, version: str) -> None:
    async with OpenHandsV1Scene(tmp_path, manners=Manners(version=version)) as scene:
        await scene.run()
        cuts = scene.agent.connections
        for number, command in enumerate(COMMANDS):
            await scene.agent.agent_runs(command, command)
            match number % 3:
                case 1:
                    cuts += await scene.agent.drop()
                case 2:
                    await scene.agent.wait_connections(cuts)
                case _:
                    pass
        await on_record(scene, COMMANDS)
        await scene.settled()
        await scene.verify()
        assert scene.agent.violations == scene.server.violations == []
        await scene.stop()
        await scene.verify_journal()


@pytest.mark.fault("SIGKILL while an OpenHands V1 agent works, replayed after the restart")
@pytest.mark.parametrize("version", ["1.58.2", "1.44.0"])
async def test_what_happened_without_a_gateway_is_on_record_once(tmp_path: Path, store: str, version: str) -> None:
    async with OpenHandsV1Scene(tmp_path, store=store, manners=Manners(version=version)) as scene:
        await scene.run()
        for command in COMMANDS[:4]:
            await scene.agent.agent_runs(command, command)
        scene.kill()
        for command in COMMANDS[4:8]:
            await scene.agent.agent_runs(command, command)
        await scene.dead()
        for command in COMMANDS[8:]:
            await scene.agent.agent_runs(command, command)
        await scene.run()
        await on_record(scene, COMMANDS)
        await scene.settled()
        await scene.verify()
        assert scene.agent.violations == scene.server.violations == []
        await scene.stop()
        await scene.verify_journal()

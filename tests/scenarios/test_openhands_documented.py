"""An OpenHands server as its public document describes it: Socket.IO alone, and `oh_action` for what clients send."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.testing.runtimes.openhands.server import Manners
from tests.scenarios.environment import until
from tests.scenarios.fleet import (
    OpenHandsEnvironment,
    answer,
    fate,
    message,
    openhands_environment,
    questions,
    send,
)
from tests.scenarios.test_openhands import native_ids, ready

DOCUMENTED = Manners(listens=frozenset({"oh_action"}), rest_status=404)


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[OpenHandsEnvironment]:
    async with openhands_environment(tmp_path, manners=DOCUMENTED) as made:
        made.options(ack_timeout="10s")
        yield made
        assert made.agent.violations == []
        assert made.server.violations == []


@pytest.mark.requirement("OH2")
@pytest.mark.parametrize("name", ["oh_action", "oh_user_action"])
async def test_a_server_that_listens_for_one_name_alone_is_served(tmp_path: Path, name: str) -> None:
    manners = Manners(listens=frozenset({name}))
    async with openhands_environment(tmp_path, manners=manners) as environment:
        environment.options(ack_timeout="10s")
        if name != "oh_action":
            environment.options(action_event=name)
        async with environment.running() as gateway:
            await ready(environment, gateway)
            [sent] = await send(gateway, message("Tidy up."))
            assert (await fate(gateway, sent["sequence"]))["state"] == "delivered"
        assert environment.agent.violations == []
        assert [one.payload["args"]["content"] for one in environment.agent.received] == ["Tidy up."]


@pytest.mark.requirement("OH2", "OH8")
@pytest.mark.parametrize(("set_to", "listens"), [("oh_action", "oh_user_action"), ("oh_user_action", "oh_action")])
async def test_a_missing_acknowledgement_names_the_option(tmp_path: Path, set_to: str, listens: str) -> None:
    manners = Manners(listens=frozenset({listens}))
    async with openhands_environment(tmp_path, manners=manners) as environment:
        environment.options(action_event=set_to, ack_timeout="1s")
        async with environment.running() as gateway:
            await ready(environment, gateway)
            [sent] = await send(gateway, message("Tidy up."))
            settled = await fate(gateway, sent["sequence"])
            assert settled["state"] == "unknown"
            assert f"set `action_event: {listens}`" in settled["reason"]
            [letter] = (await gateway.get("/v1/dead-letters"))["data"]
            assert f"set `action_event: {listens}`" in letter["reason"]
        assert environment.agent.received == []


async def test_a_whole_conversation_needs_socketio_alone(environment: OpenHandsEnvironment) -> None:
    work = environment.agent
    async with environment.running() as gateway:
        await ready(environment, gateway)
        [sent] = await send(gateway, message("Tidy up."))
        assert (await fate(gateway, sent["sequence"]))["state"] == "delivered"
        await work.agent_runs("ls", "a.txt")
        await work.agent_says("One file. Remove it?")
        await gateway.wait_events("message.posted", 2)
    # Missed while no gateway runs.
    await work.agent_runs("pwd", "/workspace")
    await work.agent_says("Still here.")
    async with environment.running() as gateway:
        await gateway.wait_events("message.posted", 3)
        journal = await gateway.events()
        assert len(set(native_ids(journal))) == len(native_ids(journal))
        [again] = await send(gateway, message("Go on."))
        assert (await fate(gateway, again["sequence"]))["state"] == "delivered"
        await work.finish("Done.")
        await gateway.wait_events("session.moved", state="finished")
        ran = [one["event"]["arguments"]["command"] for one in await gateway.events(kind="tool.requested")]
        assert ran == ["ls", "pwd"]
    assert [one.payload["args"]["content"] for one in work.received] == ["Tidy up.", "Go on."]
    assert work.unheard == []


async def test_an_approval_is_given_over_socketio_alone(environment: OpenHandsEnvironment) -> None:
    async with environment.running() as gateway:
        await ready(environment, gateway)
        running = asyncio.create_task(environment.agent.agent_runs("rm a.txt", "", gated=True))
        [question] = await questions(gateway)
        await answer(gateway, question, {"decision": "allow"})
        assert (await running)["observation"] == "run"
        await gateway.wait_events("tool.finished", outcome="success")


async def test_a_server_that_restarts_is_caught_up_and_hears_what_waited(environment: OpenHandsEnvironment) -> None:
    work, server = environment.agent, environment.server
    async with environment.running() as gateway:
        await ready(environment, gateway)
        await work.agent_says("Before.")
        await gateway.wait_events("message.posted")
        await server.stop()
        await gateway.wait_link("down")
        [sent] = await send(gateway, message("While you were away."))
        await server.start()
        await gateway.wait_link("up")
        # The restarted server begins the agent anew on our join, and its agent hears nothing while it loads.
        assert (await fate(gateway, sent["sequence"]))["state"] == "delivered"
        await until(lambda: _received(environment))
        assert work.unheard == []
        posted = await gateway.events(kind="message.posted")
        assert [one["event"]["content"][0]["text"] for one in posted] == ["Before.", "While you were away."]


async def _received(environment: OpenHandsEnvironment) -> bool | None:
    return [one.payload["args"]["content"] for one in environment.agent.received] == ["While you were away."] or None


async def test_a_cut_link_is_caught_up_by_the_replay(environment: OpenHandsEnvironment) -> None:
    work = environment.agent
    async with environment.running() as gateway:
        await ready(environment, gateway)
        for number in range(60):
            await work.agent_says(f"{number}", waits=False)
        await gateway.wait_events("message.posted", 60)
        assert await work.drop() == 1
        for number in range(60, 130):
            await work.agent_says(f"{number}", waits=False)
        posted = await gateway.wait_events("message.posted", 130)
        assert [one["event"]["content"][0]["text"] for one in posted] == [str(number) for number in range(130)]
        # From some events behind the last one on, and not from the beginning.
        assert int(work.handshakes[-1]["latest_event_id"]) > 0


async def test_a_conversation_cannot_be_created_without_rest_and_the_error_says_why(tmp_path: Path) -> None:
    async with openhands_environment(tmp_path, manners=DOCUMENTED) as environment:
        environment.options(conversation_id=None, conversation={})
        async with environment.running(linked=False) as gateway:
            problem = await gateway.post("/v1/sessions", {"runtime": "work"}, status=502)
    assert f"POST {environment.server.url}/api/conversations: HTTP 404" in problem["detail"]

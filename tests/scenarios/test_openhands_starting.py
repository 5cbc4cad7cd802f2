"""An OpenHands agent hears nothing while it loads: what is said to it waits until it listens."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.testing.runtimes.openhands.events import is_state, live_of
from gateway.testing.runtimes.openhands.progress import Manners
from gateway.testing.runtimes.openhands.server import SimConversation
from tests.scenarios.environment import Running, until
from tests.scenarios.fleet import OpenHandsEnvironment, condition, fate, message, openhands_environment, send

FROM_WORK = 'dragoman_frames_total{direction="from_runtime",runtime="work"}'
RUN: dict[str, Any] = {"kind": "action.ordered", "action": "run", "arguments": {"command": "ls"}}


@asynccontextmanager
async def loading(folder: Path, *, stale_state: timedelta | None) -> AsyncGenerator[OpenHandsEnvironment]:
    """Set an environment whose agents load until a test lets them listen."""
    manners = Manners(loading=None, stale_state=stale_state)
    async with openhands_environment(folder, manners=manners) as made:
        made.options(ack_timeout="10s")
        yield made
        assert made.server.violations == []
        assert all(work.violations == [] for work in made.server.conversations.values())


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[OpenHandsEnvironment]:
    async with loading(tmp_path, stale_state=timedelta(seconds=0.1)) as made:
        yield made


def heard(work: SimConversation) -> list[str]:
    return [one.payload["args"].get("content", one.payload["action"]) for one in work.received]


@pytest.mark.requirement("OH40")
async def test_what_is_said_to_a_new_conversation_at_once_is_worked_on(environment: OpenHandsEnvironment) -> None:
    environment.options(conversation_id=None, conversation={})
    async with environment.running(linked=False) as gateway:
        made = await gateway.post("/v1/sessions", {"runtime": "work"}, status=201)
        [first] = await send(gateway, message("Begin."))
        await send(gateway, RUN)
        work = environment.server.conversation(made["native_id"])
        await work.wait_connections()
        await gateway.wait_events("session.moved", state="starting")
        await gateway.wait_events("link.changed", state="up")
        # An interrupt is not work: it goes out although what was said before it waits.
        await send(gateway, {"kind": "turn.interrupted"})
        await work.wait_for(lambda payload: payload["args"].get("agent_state") == "stopped")
        assert heard(work) == ["change_agent_state"]
        work.end_loading()
        settled = await fate(gateway, first["sequence"], "delivered")
        assert "reason" not in settled
        await condition(lambda: work.workspace.executed or None)
        assert [one["action"] for one in work.unheard] == ["change_agent_state"]
        assert sorted(heard(work)[1:]) == ["Begin.", "run"]
        await work.wait_event(lambda event: is_state(event, "running"))


@pytest.mark.requirement("OH40")
async def test_a_steer_said_as_a_message_waits_as_well(environment: OpenHandsEnvironment) -> None:
    async with environment.running() as gateway:
        [sent] = await send(gateway, {"kind": "turn.steered", "text": "Look left."})
        await send(gateway, {"kind": "turn.interrupted"})
        await environment.agent.wait_for(lambda payload: payload["args"].get("agent_state") == "stopped")
        assert heard(environment.agent) == ["change_agent_state"]
        environment.agent.end_loading()
        said = await until(lambda: _answer_to(gateway, sent["sequence"]))
        assert (await fate(gateway, said))["state"] == "delivered"
        assert heard(environment.agent) == ["change_agent_state", "Look left."]


async def _answer_to(gateway: Running, sequence: int) -> int | None:
    found = [one for one in await gateway.events(kind="message.posted") if one["caused_by"] == sequence]
    return found[0]["sequence"] if found else None


@pytest.mark.requirement("OH40", "OH21")
async def test_what_waited_for_a_server_that_began_anew_is_worked_on(environment: OpenHandsEnvironment) -> None:
    work = environment.agent
    work.end_loading()
    async with environment.running() as gateway:
        await gateway.wait_events("session.moved", state="awaiting_input")
        await environment.server.stop()
        await gateway.wait_link("down")
        [sent] = await send(gateway, message("Still there?"))
        await environment.server.start()
        await work.wait_connections(2)
        # The replay shows how it stood before; that it begins again is told behind it.
        await gateway.wait_events("session.moved", 2, state="starting")
        await gateway.wait_link("up")
        await send(gateway, {"kind": "turn.interrupted"})
        await work.wait_for(lambda payload: payload["args"].get("agent_state") == "stopped")
        assert heard(work) == ["change_agent_state"]
        work.end_loading()
        assert (await fate(gateway, sent["sequence"]))["state"] == "delivered"
        assert [one["action"] for one in work.unheard] == ["change_agent_state"]


async def test_an_agent_that_never_listens_is_told_all_the_same_and_the_delivery_says_so(
    environment: OpenHandsEnvironment,
) -> None:
    environment.options(start_wait="300ms")
    async with environment.running() as gateway:
        [sent] = await send(gateway, message("Anybody there?"))
        settled = await fate(gateway, sent["sequence"], "delivered")
        assert "has started" in settled["reason"]
        assert len(environment.agent.unheard) == 1


@pytest.mark.requirement("OH30")
async def test_an_agent_that_cannot_begin_is_waited_for_no_longer(environment: OpenHandsEnvironment) -> None:
    environment.options(start_wait="1h")
    async with environment.running() as gateway:
        [sent] = await send(gateway, message("Begin."))
        await environment.agent.emit({"error": True, "message": "Failed to create agent session: RetryError"})
        settled = await fate(gateway, sent["sequence"], "delivered")
        assert "has started" in settled["reason"]


async def test_what_was_held_when_the_gateway_ended_is_sent_by_the_next_one(environment: OpenHandsEnvironment) -> None:
    async with environment.running() as gateway:
        await gateway.wait_events("session.moved", state="starting")
        [sent] = await send(gateway, message("Begin."))
    assert heard(environment.agent) == []
    environment.agent.end_loading()
    async with environment.running() as gateway:
        assert (await fate(gateway, sent["sequence"]))["state"] == "delivered"
        assert (await gateway.get("/v1/dead-letters"))["data"] == []
    assert heard(environment.agent) == ["Begin."]
    assert environment.agent.unheard == []


async def test_what_was_said_without_a_link_when_the_gateway_ended_is_sent_by_the_next_one(
    environment: OpenHandsEnvironment,
) -> None:
    environment.agent.end_loading()
    async with environment.running() as gateway:
        await gateway.wait_events("session.moved", state="awaiting_input")
        await environment.server.stop()
        await gateway.wait_link("down")
        [sent] = await send(gateway, message("Begin."))
    await environment.server.start()
    environment.agent.end_loading()
    async with environment.running() as gateway:
        assert (await fate(gateway, sent["sequence"]))["state"] == "delivered"
    assert heard(environment.agent) == ["Begin."]


@pytest.mark.requirement("OH14")
async def test_one_that_shows_no_state_because_nothing_is_new_is_asked_how_it_stands(tmp_path: Path) -> None:
    # The server's own late state would come at a time that the test does not know.
    async with loading(tmp_path, stale_state=None) as environment:
        environment.options(start_wait="1h")
        work = environment.agent
        work.end_loading()
        async with environment.running() as gateway:
            await gateway.wait_events("session.moved", state="awaiting_input")
            # So many that the replay of the next link shows no state.
            for number in range(60):
                await work.agent_says(f"{number}", waits=False)
            await gateway.wait_events("message.posted", 60)
            last = max(event["id"] for event in work.events if "agent_state" in event.get("extras", {}))
            await work.drop()
            await work.wait_connections(2)
            assert int(work.handshakes[-1]["latest_event_id"]) >= last
            await gateway.wait_events("link.changed", 2, state="up")
            before = (await gateway.metrics())[FROM_WORK]
            # A server says its first state once more, though it is long gone by.
            await work.emit(live_of(next(event for event in work.events if is_state(event, "loading"))))

            async def taken() -> bool:
                return (await gateway.metrics())[FROM_WORK] > before

            await until(taken)
            [sent] = await send(gateway, message("Go on."))
            assert "reason" not in await fate(gateway, sent["sequence"], "delivered")

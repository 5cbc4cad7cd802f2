"""What an OpenHands server has ended stays ended until there is something to say, and nobody is driven out in turns."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.cli.doctor_gateway import check_links
from gateway.testing.runtimes.openhands.progress import Manners
from tests.scenarios.environment import API_KEY, Running, until
from tests.scenarios.fleet import (
    OPENHANDS_KEY,
    WORK,
    OpenHandsEnvironment,
    answer,
    condition,
    fate,
    message,
    openhands_environment,
    questions,
    send,
)
from tests.scenarios.replicas import LEASE, cluster


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[OpenHandsEnvironment]:
    async with openhands_environment(tmp_path) as made:
        made.options(ack_timeout="10s", look_again="50ms", evicted_wait="1h")
        yield made
        assert made.server.violations == []


async def stop(environment: OpenHandsEnvironment, native_id: str = WORK) -> None:
    """Stop a conversation as an operator does."""
    async with httpx.AsyncClient(headers={"X-Session-API-Key": OPENHANDS_KEY}) as rest:
        answered = await rest.post(f"{environment.server.url}/api/conversations/{native_id}/stop")
        assert answered.status_code == 200


async def looked_at(environment: OpenHandsEnvironment, times: int = 3, *, native_id: str = WORK) -> None:
    """Wait until the gateway has looked at a conversation some more times."""
    work = environment.server.conversation(native_id)
    before = work.looks
    await condition(lambda: work.looks >= before + times or None)


async def ready(environment: OpenHandsEnvironment, gateway: Running) -> None:
    await gateway.wait_events("session.moved", state="awaiting_input")
    await gateway.wait_link("up")


async def attach(gateway: Running, native_id: str) -> str:
    made = await gateway.post("/v1/sessions", {"runtime": "work", "native_id": native_id}, status=201)
    await until(lambda: _is(gateway, native_id, "up"))
    return made["session_id"]


async def links(gateway: Running) -> dict[str, dict[str, Any]]:
    [runtime] = (await gateway.get("/v1/runtimes"))["data"]
    return {link["native_id"]: link for link in runtime["links"]}


async def _is(gateway: Running, native_id: str, state: str) -> dict[str, Any] | None:
    link = (await links(gateway))[native_id]
    return link if link["state"] == state else None


@pytest.mark.requirement("OH21")
async def test_a_conversation_that_an_operator_stops_stays_stopped_until_somebody_says_something(
    environment: OpenHandsEnvironment,
) -> None:
    work = environment.agent
    async with environment.running() as gateway:
        await ready(environment, gateway)
        await stop(environment)
        link = await gateway.wait_link("asleep")
        assert "an event waits for it" in link["reason"]
        await looked_at(environment)
        assert (work.connections, work.status_name) == (1, "STOPPED")
        series = await gateway.metrics()
        assert series['dragoman_link_up{runtime="work"}'] == 1
        assert series['dragoman_links_asleep{runtime="work"}'] == 1
    # A gateway that starts is no reason either.
    async with environment.running(linked=False) as gateway:
        await gateway.wait_link("asleep")
        await looked_at(environment)
        assert (work.connections, work.status_name) == (1, "STOPPED")
        [sent] = await send(gateway, message("Go on."))
        assert (await fate(gateway, sent["sequence"]))["state"] == "delivered"
        await gateway.wait_link("up")
        assert (await gateway.metrics())['dragoman_links_asleep{runtime="work"}'] == 0
        assert work.unheard == []


@pytest.mark.requirement("OH61")
async def test_a_server_that_fails_at_how_a_conversation_stands_is_served_all_the_same(tmp_path: Path) -> None:
    async with openhands_environment(tmp_path, manners=Manners(tells_status=False)) as environment:
        environment.options(ack_timeout="10s", look_again="50ms")
        work = environment.agent
        async with environment.running() as gateway:
            await ready(environment, gateway)
            await stop(environment)
            await gateway.wait_link("asleep")
            await looked_at(environment)
            assert (work.connections, work.status_name) == (1, "STOPPED")
            [sent] = await send(gateway, message("Go on."))
            assert (await fate(gateway, sent["sequence"]))["state"] == "delivered"
            await gateway.wait_link("up")
            assert work.unheard == []


@pytest.mark.slow
@pytest.mark.requirement("OH21")
async def test_a_takeover_is_no_reason_to_begin_it_again(environment: OpenHandsEnvironment) -> None:
    store, work = cluster(environment), environment.agent
    async with store.replica() as one:
        one.runtime = "work"
        await ready(environment, one)
        await stop(environment)
        await one.wait_link("asleep")
        async with store.replica() as other:
            other.runtime = "work"
            one.faults.cut_off = True
            await other.wait_link("asleep", within=4 * LEASE)
            await looked_at(environment)
            assert (work.connections, work.status_name) == (1, "STOPPED")
            [sent] = await send(other, message("Go on."))
            assert (await fate(other, sent["sequence"]))["state"] == "delivered"
            assert work.connections == 2


@pytest.mark.requirement("OH21")
async def test_one_that_somebody_else_has_begun_again_is_mirrored_again(environment: OpenHandsEnvironment) -> None:
    async with environment.running() as gateway:
        await ready(environment, gateway)
        await stop(environment)
        await gateway.wait_link("asleep")
        environment.agent.begin()
        await environment.agent.warm_up()
        await gateway.wait_link("up")


async def test_a_conversation_that_was_kept_is_not_begun_again_by_autostart(environment: OpenHandsEnvironment) -> None:
    environment.options(conversation_id=None, conversation={}, autostart=True)
    async with environment.running() as gateway:
        await ready(environment, gateway)
        [native_id] = environment.server.conversations
        await stop(environment, native_id)
        await gateway.wait_link("asleep")
    async with environment.running(linked=False) as gateway:
        await gateway.wait_link("asleep")
        await looked_at(environment, native_id=native_id)
        assert list(environment.server.conversations) == [native_id]
        assert environment.server.conversation(native_id).connections == 1


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "expired"])
async def test_an_answer_of_a_person_wakes_a_conversation_and_nobodys_does_not(
    environment: OpenHandsEnvironment, answered: bool
) -> None:
    environment.configure({"limits": {"interaction_timeout": "1h" if answered else "700ms"}})
    async with environment.running() as gateway:
        await ready(environment, gateway)
        gated = asyncio.create_task(environment.agent.agent_runs("rm a", "", gated=True))
        [asked] = await questions(gateway)
        gated.cancel()
        await stop(environment)
        await gateway.wait_link("asleep")
        if answered:
            await answer(gateway, asked, {"decision": "allow"})
            await gateway.wait_link("up")
            assert environment.agent.connections == 2
        else:
            await questions(gateway, state="expired")
            await looked_at(environment)
            assert (await gateway.wait_link("asleep"))["state"] == "asleep"
            assert environment.agent.connections == 1
    async with environment.running(linked=False) as gateway:
        await gateway.wait_link("up" if answered else "asleep")


@pytest.mark.requirement("OH65")
async def test_four_conversations_on_a_server_that_keeps_three_settle(environment: OpenHandsEnvironment) -> None:
    async with environment.running() as gateway:
        await ready(environment, gateway)
        sessions = {native_id: await attach(gateway, native_id) for native_id in ("c2", "c3", "c4")}
        link = await until(lambda: _is(gateway, WORK, "asleep"))
        assert link["reason"].startswith("TOO_MANY_CONVERSATIONS")
        assert "max_concurrent_conversations" in link["reason"]
        assert environment.server.evicted == [WORK]
        env = {"DRAGOMAN_URL": f"http://127.0.0.1:{environment.port}", "DRAGOMAN_KEY": API_KEY}
        checks = await asyncio.to_thread(lambda: list(check_links(env)))
        assert [check.state for check in checks] == ["ok", "note"]
        assert f"work/{WORK} is asleep: TOO_MANY_CONVERSATIONS" in checks[1].text
        # What is said to the three is worked on, and drives nobody out.
        for native_id, session_id in sessions.items():
            await gateway.post(f"/v1/sessions/{session_id}/events", message("Go on."), status=202)
            await environment.server.conversation(native_id).wait_for(lambda payload: payload["action"] == "message")
        assert environment.server.evicted == [WORK]
        assert (await gateway.metrics())['dragoman_link_up{runtime="work"}'] == 1
        # One that was driven out waits with its work as well, and says why.
        await gateway.post(
            f"/v1/sessions/{(await links(gateway))[WORK]['session_id']}/events", message("Me too."), status=202
        )
        link = await until(lambda: _is(gateway, WORK, "refused"))
        assert link["reason"].startswith("TOO_MANY_CONVERSATIONS")
        assert environment.server.evicted == [WORK]
        assert (await gateway.metrics())['dragoman_link_up{runtime="work"}'] == 0


@pytest.mark.requirement("OH65")
async def test_one_that_was_driven_out_comes_back_with_its_work_after_a_while(
    environment: OpenHandsEnvironment,
) -> None:
    environment.options(evicted_wait="50ms")
    async with environment.running() as gateway:
        await ready(environment, gateway)
        for native_id in ("c2", "c3", "c4"):
            await attach(gateway, native_id)
        await until(lambda: _is(gateway, WORK, "asleep"))
        await looked_at(environment)
        assert environment.server.evicted == [WORK]
        session = (await links(gateway))[WORK]["session_id"]
        await gateway.post(f"/v1/sessions/{session}/events", message("Me too."), status=202)
        await environment.agent.wait_for(lambda payload: payload["action"] == "message")
        # The next oldest had to go for it, has nothing to say, and stays away.
        await until(lambda: _is(gateway, "c2", "asleep"))
        await looked_at(environment, native_id="c2")
        assert environment.server.evicted == [WORK, "c2"]

"""The outcome of a held call that its agent does not fetch: the conversation is told once, as a message."""

import asyncio
import json
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.testing.runtimes.openhands.progress import Manners
from gateway.testing.runtimes.openhands.server import SimConversation
from gateway.testing.runtimes.openhands_v1.server import AgentServer
from tests.ports import free_port
from tests.scenarios.environment import API_KEY, Running, until
from tests.scenarios.fleet import OpenHandsEnvironment, answer, openhands_environment, questions
from tests.scenarios.hooks import success
from tests.scenarios.replica_processes import fleet
from tests.scenarios.replicas import cluster

SCOPES = ["read", "drive", "operate", "answer", "approve"]
SOON, NEVER = timedelta(milliseconds=300), timedelta(minutes=2)
MANNERS = Manners(loading=timedelta(0), stale_state=None, mcp_patience=timedelta(seconds=20))
SAID = "which has waited for a person's approval"


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[OpenHandsEnvironment]:
    """A person is asked about each call of `free`; the conversation is told soon after its end."""
    async with openhands_environment(tmp_path, manners=MANNERS) as made:
        made.options(conversation_id=None, conversation={}, ack_timeout="10s")
        made.configure(
            {
                "routes": [{"match": {"tool": "free"}, "to": "cards", "approve": True}],
                "api": {"keys": [{"name": "lead", "key": API_KEY, "scopes": SCOPES}]},
            }
        )
        made.tuning = replace(made.tuning, tell_after=SOON)
        made.hooks.scripts["free"] = success("refunded")
        yield made
        assert made.server.violations == []


async def create(environment: OpenHandsEnvironment, gateway: Running) -> tuple[str, SimConversation]:
    """Create a conversation; return the id of its session, and the conversation once its agent listens."""
    row = await gateway.post("/v1/sessions", {"runtime": "work"}, status=201)
    conversation = environment.server.conversation(row["native_id"])
    await conversation.wait_event(lambda event: event.get("action") == "system")
    return row["session_id"], conversation


async def hold(gateway: Running, conversation: SimConversation) -> tuple[str, dict[str, Any]]:
    """Let the agent call, and return the id of the held call and the question about it."""
    # No call repeats an earlier one.
    seen = await conversation.agent_calls("free", {"amount": len(conversation.events)})
    assert "Waits for a person's approval. Call get_result" in str(seen["content"])
    (question,) = await questions(gateway)
    return question["call_id"], question


async def allow(gateway: Running, question: dict[str, Any]) -> None:
    await answer(gateway, question, {"decision": "allow", "binding": question["binding"]})
    await until(lambda: succeeded(gateway, question["call_id"]))


async def succeeded(gateway: Running, call_id: str) -> bool:
    return (await gateway.get(f"/v1/calls/{call_id}"))["state"] == "succeeded"


async def unheard(gateway: Running, call_id: str) -> str | None:
    return (await gateway.get(f"/v1/calls/{call_id}"))["unheard_since"]


def told(conversation: SimConversation) -> list[str]:
    """The messages in which the conversation was told of an outcome."""
    messages = [event["args"]["content"] for event in conversation.events if event.get("action") == "message"]
    return [text for text in messages if SAID in text]


async def wait_told(conversation: SimConversation) -> str:
    async def look() -> list[str]:
        return told(conversation)

    return (await until(look))[0]


@pytest.mark.parametrize("decision", ["allow", "deny", "nobody"])
async def test_the_conversation_is_told_what_became_of_a_held_call(
    environment: OpenHandsEnvironment, decision: str
) -> None:
    if decision == "nobody":
        environment.configure({"approvals": {"timeout": "1s"}})
    async with environment.running(linked=False) as gateway:
        session_id, conversation = await create(environment, gateway)
        call_id, question = await hold(gateway, conversation)
        named = f'The call {{"call_id":"{call_id}"}} of free, {SAID}, has '
        match decision:
            case "allow":
                await allow(gateway, question)
                text = f"{named}run, with this result:\n\nrefunded"
            case "deny":
                await answer(gateway, question, {"decision": "deny", "reason": "Not today."})
                text = f"{named}ended without a result:\n\nThe call was not made: a person denied it: Not today."
            case _:
                text = f"{named}ended without a result:\n\nThe call was not made: nobody allowed it within 1 second."
        assert await wait_told(conversation) == text
        posted = await gateway.events(session_id, kind="message.posted")
        (message,) = [one for one in posted if text in one["event"]["content"][0]["text"]]
        assert (message["synthetic"], message["event"]["author"]["role"]) == (True, "system")
        row = await gateway.get(f"/v1/calls/{call_id}")
        assert (message["caused_by"], row["unheard_since"]) == (row["outcome_sequence"], None)


async def test_a_long_result_is_cut_and_the_message_says_where_the_rest_is(environment: OpenHandsEnvironment) -> None:
    environment.hooks.scripts["free"] = success("refunded " * 1_000)
    async with environment.running(linked=False) as gateway:
        _, conversation = await create(environment, gateway)
        call_id, question = await hold(gateway, conversation)
        await allow(gateway, question)
        text = await wait_told(conversation)
        assert len(text) < 2_500
        assert text.endswith(f'…\n\nThis is not all of it. Call get_result with {{"call_id":"{call_id}"}}.')


async def test_an_agent_that_has_fetched_the_outcome_is_told_nothing(environment: OpenHandsEnvironment) -> None:
    environment.tuning = replace(environment.tuning, tell_after=timedelta(seconds=2))
    async with environment.running(linked=False) as gateway:
        _, conversation = await create(environment, gateway)
        call_id, question = await hold(gateway, conversation)
        assert await unheard(gateway, call_id) == (await gateway.get("/v1/approvals"))["data"][0]["unheard_since"]
        await allow(gateway, question)
        assert "refunded" in str((await conversation.agent_calls("get_result", {"call_id": call_id}))["content"])
        await until(lambda: heard(gateway, call_id))
        # The next held call is told: the first would have been told before it.
        call_id, question = await hold(gateway, conversation)
        await answer(gateway, question, {"decision": "deny"})
        assert call_id in await wait_told(conversation)
        assert len(told(conversation)) == 1


async def test_an_outcome_stays_not_heard_where_nobody_is_to_be_told(environment: OpenHandsEnvironment) -> None:
    environment.configure({"approvals": {"tell": False}})
    async with environment.running(linked=False) as gateway:
        _, conversation = await create(environment, gateway)
        call_id, question = await hold(gateway, conversation)
        await allow(gateway, question)
        row = await gateway.get(f"/v1/calls/{call_id}")
        assert row["unheard_since"] is not None
        (shown,) = (await gateway.get("/v1/approvals"))["data"]
        assert shown["unheard_since"] == row["unheard_since"]
        # Nothing shows that the time has passed at which it would have been told.
        await asyncio.sleep(2 * SOON.total_seconds())
        environment.configure({"approvals": {"tell": True}})
        await gateway.post("/v1/reload", status=200)
        later, question = await hold(gateway, conversation)
        await answer(gateway, question, {"decision": "deny"})
        assert later in await wait_told(conversation)
        assert await unheard(gateway, call_id) == row["unheard_since"]


async def test_a_canceled_call_is_not_told(environment: OpenHandsEnvironment) -> None:
    async with environment.running(linked=False) as gateway:
        session_id, conversation = await create(environment, gateway)
        first, _ = await hold(gateway, conversation)
        await gateway.post(f"/v1/sessions/{session_id}/events", {"kind": "turn.interrupted"}, status=202)
        await until(lambda: ended_as(gateway, first, "canceled"))
        assert await unheard(gateway, first) is None
        second, question = await hold(gateway, conversation)
        await answer(gateway, question, {"decision": "deny"})
        assert second in await wait_told(conversation)
        assert len(told(conversation)) == 1


async def ended_as(gateway: Running, call_id: str, state: str) -> bool:
    return (await gateway.get(f"/v1/calls/{call_id}"))["state"] == state


async def test_a_wait_without_the_outcome_counts_from_its_end(environment: OpenHandsEnvironment) -> None:
    environment.configure({"mcp": {"hold": "100ms"}})
    async with environment.running(linked=False) as gateway:
        _, conversation = await create(environment, gateway)
        call_id, _ = await hold(gateway, conversation)
        before = await unheard(gateway, call_id)
        assert "Waits for a person" in str(await conversation.agent_calls("get_result", {"call_id": call_id}))

        async def later() -> bool:
            return str(await unheard(gateway, call_id)) > str(before)

        await until(later)
        (row,) = await questions(gateway)
        assert row["unheard_since"] == await unheard(gateway, call_id)


async def test_a_conversation_of_openhands_v1_is_told_too(environment: OpenHandsEnvironment) -> None:
    async with AgentServer(session_api_key="key") as server:
        llm = {"model": "openai/gpt-4o", "api_key": "sk"}
        options = {"adapter": "openhands-v1", "url": server.url, "session_api_key": "key", "autostart": True}
        agent = {"conversation": {"agent": {"kind": "openhands", "llm": llm}}}
        environment.configure({"runtimes": {"work": None, "v1": {**options, **agent}}})
        environment.runtime = "v1"
        async with environment.running() as gateway:
            [work] = server.conversations.values()
            await work.agent_calls("free", {})
            (question,) = await questions(gateway)
            await answer(gateway, question, {"decision": "deny", "reason": "Not today."})
            await until(lambda: heard(gateway, question["call_id"]))

            async def look() -> list[str]:
                return [text for event in work.events if SAID in (text := json.dumps(event))]

            (message,) = await until(look)
            assert "a person denied it: Not today." in message
        assert server.violations == []


# Over the end of a process, and at several instances ---------------------------------------------------------


async def test_an_outcome_is_told_after_a_restart(environment: OpenHandsEnvironment) -> None:
    environment.tuning = replace(environment.tuning, tell_after=NEVER)
    async with environment.running(linked=False) as gateway:
        _, conversation = await create(environment, gateway)
        call_id, question = await hold(gateway, conversation)
        await allow(gateway, question)
    assert told(conversation) == []
    environment.tuning = replace(environment.tuning, tell_after=SOON)
    async with environment.running(linked=False) as gateway:
        assert call_id in await wait_told(conversation)
        assert await unheard(gateway, call_id) is None
    async with environment.running() as gateway:
        await told_the_next_one(gateway, conversation)


async def told_the_next_one(gateway: Running, conversation: SimConversation) -> None:
    """Let one more held call be told, and find that nothing was told twice before it."""
    before = told(conversation)
    call_id, question = await hold(gateway, conversation)
    await answer(gateway, question, {"decision": "deny"})
    await until(lambda: heard(gateway, call_id))

    async def look() -> bool:
        return len(told(conversation)) > len(before)

    await until(look)
    assert call_id in told(conversation)[-1]
    assert len(set(told(conversation))) == len(told(conversation)) == len(before) + 1


async def heard(gateway: Running, call_id: str) -> bool:
    return await unheard(gateway, call_id) is None


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before the message", "after the message", "after get_result"])
async def test_a_killed_gateway_tells_an_outcome_once(environment: OpenHandsEnvironment, when: str) -> None:
    port = free_port()
    here, store = f"http://127.0.0.1:{port}", environment.folder / "dragoman.db"
    async with fleet(environment, engine={"type": "sqlite", "path": str(store)}) as gateways:
        one = await gateways.serve("one", port=port, public_url=here)
        _, conversation = await create(environment, one)
        call_id, question = await hold(one, conversation)
        await allow(one, question)
        if when == "after get_result":
            assert "refunded" in str((await conversation.agent_calls("get_result", {"call_id": call_id}))["content"])
            await until(lambda: heard(one, call_id))
        one.signal(signal.SIGKILL)
        await one.ended()
        two_minutes_pass(store)
        two = await gateways.serve("two", port=port, public_url=here)
        if when != "after get_result":
            assert call_id in await wait_told(conversation)
        if when == "after the message":
            two.signal(signal.SIGKILL)
            await two.ended()
            two_minutes_pass(store)
            two = await gateways.serve("three", port=port, public_url=here)
        await until(lambda: heard(two, call_id))
        later, question = await hold(two, conversation)
        await answer(two, question, {"decision": "deny"})
        two.signal(signal.SIGKILL)
        await two.ended()
        two_minutes_pass(store)
        await gateways.serve("last", port=port, public_url=here)
        expected = [later] if when == "after get_result" else [call_id, later]

        async def look() -> bool:
            return len(told(conversation)) == len(expected)

        await until(look)
        assert all(one in text for one, text in zip(expected, told(conversation), strict=True))


def two_minutes_pass(store: Path) -> None:
    """Let the calls on record have ended two minutes earlier."""
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("UPDATE calls SET finished_at = finished_at - 120000000")
        connection.commit()


@pytest.mark.slow
async def test_of_two_replicas_one_tells_what_was_fetched_at_neither(environment: OpenHandsEnvironment) -> None:
    environment.tuning = replace(environment.tuning, tell_after=timedelta(seconds=3))
    store = cluster(environment)
    async with store.replica() as one, store.replica() as other:
        # The agent calls at the instance that does not own its session.
        environment.options(mcp_url=other.url)
        await one.post("/v1/reload", status=200)
        session_id, conversation = await create(environment, one)
        await one.wait_carries(session_id)
        fetched, question = await hold(other, conversation)
        await allow(other, question)
        assert "refunded" in str((await conversation.agent_calls("get_result", {"call_id": fetched}))["content"])
        await until(lambda: heard(one, fetched))
        missed, question = await hold(other, conversation)
        await allow(other, question)
        one.faults.cut_off = True
        await other.wait_carries(session_id)
        assert missed in await wait_told(conversation)
        one.faults.cut_off = False
        await told_the_next_one(other, conversation)
        assert not any(fetched in text for text in told(conversation))

"""Calls that wait for a person, in a whole gateway: over restarts and takeovers, at their end, and beside messages."""

import asyncio
from typing import Any

import pytest

from gateway.errors import Conflict
from gateway.events import InteractionId
from gateway.store.rows import InteractionRow
from gateway.testing.runtimes.huma.calls import SimCall
from tests.scenarios.environment import GOOD, Running, Scene, ended, until
from tests.scenarios.hooks import Gate, success
from tests.scenarios.replicas import cluster, owner_and_other

GIVEN, CHANGED = {"amount": 150}, {"amount": 120}
MESSAGE = {"kind": "message.posted", "content": "Still there?"}
ROUTES = [{"match": {"tool": "free"}, "to": "cards", "approve": True}, {"match": {"tool": "*"}, "to": "cards"}]


@pytest.fixture
def gated(newer: Scene) -> Scene:
    """A scene in which a person is asked about each call of `free`."""
    newer.configure({"routes": ROUTES})
    newer.hooks.scripts["free"] = success("refunded")
    return newer


async def held(scene: Scene, gateway: Running) -> tuple[SimCall, dict[str, Any], dict[str, Any]]:
    """Let the agent call, and return the call as the agent, the ledger and the inbox have it."""
    call = await scene.agent.call("free", GIVEN)
    row = await gateway.wait_call(call.call_id, "held")
    (asked,) = await waiting(gateway)
    return call, row, asked


async def waiting(gateway: Running) -> list[dict[str, Any]]:
    return (await gateway.get("/v1/interactions", state="waiting"))["data"]


async def answer(gateway: Running, asked: dict[str, Any], **body: Any) -> InteractionRow:
    """Answer as the person `lead`."""
    row, _ = await gateway.gateway.interactions.answer(InteractionId(asked["interaction_id"]), body, by="lead")
    return row


async def allow(gateway: Running, asked: dict[str, Any], **more: Any) -> InteractionRow:
    return await answer(gateway, asked, decision="allow", binding=asked["event"]["binding"], **more)


async def test_a_held_call_survives_a_restart_and_leaves_with_what_a_person_allows(gated: Scene) -> None:
    async with gated.running() as gateway:
        call, row, before = await held(gated, gateway)
        assert before["event"]["call_id"] == row["call_id"]
        assert (before["event"]["arguments"], before["event"]["rule"]) == (GIVEN, "routes[0]")
        assert before["expires_at"] == row["deadline_at"]
    async with gated.running() as gateway:
        (asked,) = await waiting(gateway)
        assert asked == before
        assert gated.hooks.asked == []
        await allow(gateway, asked, arguments=CHANGED)
        assert (await ended(call)).result == 'A person changed the arguments to {"amount":120}\n\nrefunded'
        (sent,) = gated.hooks.of("free")
        assert (sent.data["arguments"], sent.data["edited"], sent.attempt) == (CHANGED, True, 1)
        kinds = [one["event"]["kind"] for one in (await gateway.get(f"/v1/calls/{row['call_id']}"))["events"]]
        assert kinds == ["tool.requested", "approval.asked", "approval.given", "tool.finished"]
        (given,) = await gateway.events(kind="approval.given")
        assert (given["origin"]["adapter"], given["event"]["by"]) == ("gateway", "lead")
        assert await waiting(gateway) == []
        with pytest.raises(Conflict):
            await answer(gateway, asked, decision="deny")
        listed = (await gateway.get("/v1/calls", arguments="true"))["data"]
        assert [one["arguments_excerpt"] for one in listed] == ['{"amount": 120}']


async def test_a_redrive_asks_again_about_what_a_person_allowed(gated: Scene) -> None:
    gated.hooks.scripts["free"] = {"outcome": "failure", "error": "The bank is closed."}
    async with gated.running() as gateway:
        call, row, asked = await held(gated, gateway)
        await allow(gateway, asked, arguments=CHANGED)
        await ended(call)
        again = await gateway.post(f"/v1/calls/{row['call_id']}/redrive", {}, status=202)
        assert (again["state"], again["idempotency_key"]) == ("held", row["call_id"])
        (asked,) = await waiting(gateway)
        assert (asked["event"]["arguments"], asked["event"]["edited"]) == (CHANGED, True)
    async with gated.running() as gateway:
        await allow(gateway, asked)
        first, second = await gated.hooks.wait_for(2, name="free")
        assert (second.data["arguments"], second.data["edited"], second.key) == (CHANGED, True, first.key)


async def test_an_allow_on_record_is_carried_out_once_after_a_restart(gated: Scene) -> None:
    gate = one_slot(gated)
    async with gated.running() as gateway:
        # It has the only slot, so that the allowed call waits.
        await gated.agent.call("ask", GOOD)
        await gated.hooks.wait_for(name="ask")
        call, row, asked = await held(gated, gateway)
        await allow(gateway, asked, arguments=CHANGED)
        assert (await gateway.call_of(call.call_id))["state"] == "queued"
    assert gated.hooks.of("free") == []
    gate.open()
    async with gated.running():
        assert "refunded" in str((await ended(call)).result)
    (sent,) = gated.hooks.of("free")
    assert (sent.data["arguments"], sent.data["edited"], sent.key) == (CHANGED, True, row["call_id"])


@pytest.mark.slow
async def test_a_held_call_and_an_allowed_one_go_to_the_next_owner(gated: Scene) -> None:
    gate = one_slot(gated)
    store = cluster(gated)
    async with store.replica() as a, store.replica() as b:
        session_id = await a.session()
        first, second = await owner_and_other(session_id, [a, b])
        await gated.agent.call("ask", GOOD)
        await gated.hooks.wait_for(name="ask")
        call, _, asked = await held(gated, first)
        first.faults.cut_off = True
        await second.wait_carries(session_id)
        assert await waiting(second) == [asked]
        await gated.hooks.wait_for(2, name="ask")
        await allow(second, asked, arguments=CHANGED)
        assert (await second.call_of(call.call_id))["state"] == "queued"
        first.faults.cut_off = False
        second.faults.cut_off = True
        await first.wait_carries(session_id)
        gate.open()
        assert "refunded" in str((await ended(call)).result)
        second.faults.cut_off = False
        (sent,) = gated.hooks.of("free")
        assert (sent.data["arguments"], sent.data["edited"]) == (CHANGED, True)
        assert await waiting(first) == []


def one_slot(scene: Scene) -> Gate:
    """Let the calls of `ask` keep the only slot of the executor until a gate opens."""
    gate = Gate()
    scene.hooks.scripts["ask"] = gate.answering(success("freed"))
    scene.configure({"executors": {"cards": {"concurrency": 1, "timeout": "60s", "deadline": "120s"}}})
    return gate


async def test_of_two_answers_at_once_one_counts(gated: Scene) -> None:
    async with gated.running() as gateway:
        call, _, asked = await held(gated, gateway)
        yes, no = allow(gateway, asked), answer(gateway, asked, decision="deny", reason="No.")
        answers = await asyncio.gather(yes, no, return_exceptions=True)
        assert sorted(isinstance(one, Conflict) for one in answers) == [False, True]
        reading = await ended(call)
        allowed = not isinstance(answers[0], Conflict)
        assert reading.outcome == ("success" if allowed else "failure")
        assert len(gated.hooks.of("free")) == allowed
        assert len(await gateway.events(kind="approval.given")) == 1


@pytest.mark.parametrize("how", ["cancel", "interrupt", "close", "erase"])
async def test_what_ends_a_call_ends_its_question(gated: Scene, how: str) -> None:
    async with gated.running() as gateway:
        call, row, _ = await held(gated, gateway)
        session_id = await gateway.session()
        match how:
            case "cancel":
                await gateway.post(f"/v1/calls/{row['call_id']}/cancel", {}, status=202)
            case "interrupt":
                await gateway.post(f"/v1/sessions/{session_id}/events", {"kind": "turn.interrupted"}, status=202)
            case _:
                query = {"erase": "true"} if how == "erase" else {}
                assert (await gateway.http.delete(f"/v1/sessions/{session_id}", params=query)).status_code < 300

        async def over() -> bool:
            return await waiting(gateway) == []

        await until(over)
        assert (await gateway.get(f"/v1/calls/{row['call_id']}"))["state"] == "canceled"
        assert gated.hooks.asked == []
        assert call.call_id == row["native_call_id"]


async def test_a_call_that_nobody_allows_in_time_is_told_so(gated: Scene) -> None:
    gated.configure({"approvals": {"timeout": "1s"}})
    async with gated.running() as gateway:
        call, row, asked = await held(gated, gateway)
        assert (await ended(call)).error == "The call was not made: nobody allowed it within 1 second."
        assert (await gateway.get(f"/v1/interactions/{asked['interaction_id']}"))["state"] == "expired"
        assert (await gateway.get(f"/v1/calls/{row['call_id']}"))["dead"] is False


@pytest.mark.parametrize("while_held", ["deliver", "queue"])
async def test_a_message_that_wakes_the_agent_waits_for_the_approval_if_it_is_to(gated: Scene, while_held: str) -> None:
    gated.configure({"approvals": {"while_held": while_held}})
    async with gated.running() as gateway:
        _, _, asked = await held(gated, gateway)
        before = gated.agent.received[-1].number if gated.agent.received else -1
        await gateway.post(f"/v1/sessions/{await gateway.session()}/events", MESSAGE, status=202)
        if while_held == "deliver":
            await gated.agent.wait_for(lambda payload: bool(gated.waking(payload)), after=before)
            return
        quiet = {"kind": "context.updated", "name": "table", "context": {"cards": 3}}
        await gateway.post(f"/v1/sessions/{await gateway.session()}/events", quiet, status=202)
        # The later context has arrived, the message has not.
        frame = await gated.agent.wait_for(lambda _: True, after=before)
        assert not gated.waking(frame.payload)
        await answer(gateway, asked, decision="deny")
        result = await gated.agent.wait_for(lambda payload: "toolCallId" in payload, after=frame.number)
        message = await gated.agent.wait_for(lambda payload: payload.get("name") != "table", after=result.number)
        assert gated.waking(message.payload)
        assert "Still there?" in str(message.payload)

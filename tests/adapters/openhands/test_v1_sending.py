"""What a V1 link makes of its posts: doubt, capacity, held actions, interrupts, and agents that repeat themselves."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from gateway.adapter.port import Frame
from gateway.errors import LinkLost
from gateway.testing.conformance.collector import Collector, within
from tests.adapters.openhands.raw_agent_server import (
    KEY,
    RawAgentServer,
    RestAnswer,
    agent_message,
    snapshot,
    status,
    user_message,
)
from tests.adapters.openhands.v1_links import SHORT, linked

ACCEPT = Frame("POST respond_to_confirmation", {"accept": True})
DENY = Frame("POST respond_to_confirmation", {"accept": False, "reason": "No."})
INTERRUPT = Frame("POST interrupt", {})
RUN, PAUSE = Frame("POST run", {}), Frame("POST pause", {})
WAITING, RUNNING, IDLE = "waiting_for_confirmation", "running", "idle"


def text(words: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": words}]


def message(words: str, *, run: bool = True) -> Frame:
    return Frame("POST events", {"role": "user", "content": text(words), "run": run})


def action(name: str) -> dict[str, Any]:
    return {"kind": "ActionEvent", "id": name, "source": "agent", "action": {"kind": "TerminalAction"}}


def server_in(value: str, **more: Any) -> RawAgentServer:
    """A server whose conversation is in this state, which is the oldest stored event."""
    server = RawAgentServer()
    server.stored, server.first_state = [status("status-0", value)], snapshot(value, **more)
    return server


@asynccontextmanager
async def talking(server: RawAgentServer, record: Collector | None = None, **more: Any) -> AsyncGenerator[Any]:
    """Connect, and wait for the snapshot of the connection."""
    record = record or Collector()
    async with server.serve(), linked(server, record, **more) as link:
        await record.wait_for(len(server.stored) + 1)
        yield link


def react(server: RawAgentServer, **events: list[dict[str, Any]]) -> None:
    """Let the n-th command of a name be followed by the n-th of these events; snapshots are only shown."""
    left = {name: list(given) for name, given in events.items()}

    async def happen(channel: str, _: Any) -> None:
        for event in left.pop(channel.removeprefix("POST "), []):
            if event.get("key") == "full_state":
                server.show(event)
            else:
                server.store(event)

    server.on_post = happen


# Messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("OV28")
async def test_a_message_to_an_agent_that_never_asks_runs_at_once() -> None:
    async with talking(server := server_in(IDLE)) as link:
        assert (await link.send_all([message("Hi")])).state == "delivered"
        assert server.bodies("POST events") == [message("Hi").payload]
        assert server.paths("POST") == ["/events"]


@pytest.mark.requirement("OV35")
async def test_a_message_while_actions_are_held_waits_for_the_answer() -> None:
    async with talking(server := server_in(WAITING, policy="AlwaysConfirm")) as link:
        receipt = await link.send_all([message("No, do X instead")])
        assert (receipt.state, bool(receipt.reason)) == ("busy", True)
        for frame in (RUN, PAUSE):
            assert (await link.send_all([frame])).state == "refused"
        assert server.paths("POST") == []
        # One that wakes nobody executes nothing.
        assert (await link.send_all([message("For later", run=False)])).state == "delivered"


@pytest.mark.requirement("OV35")
async def test_a_message_that_waits_for_a_step_cannot_execute_what_the_step_holds() -> None:
    """While the POST waits for the lock, the agent comes to hold an action; `run: true` would execute it."""
    server = server_in(RUNNING, policy="AlwaysConfirm")
    react(server, events=[action("a-1"), status("s-1", WAITING), user_message("m-1", text("Hi")), snapshot(WAITING)])
    async with talking(server) as link:
        assert (await link.send_all([message("Hi")])).state == "delivered"
        assert server.bodies("POST events") == [message("Hi", run=False).payload]
        assert server.paths("POST") == ["/events"]


@pytest.mark.requirement("OV30")
async def test_a_message_to_a_run_that_goes_on_needs_no_second_run() -> None:
    server = server_in(RUNNING, policy="ConfirmRisky")
    react(server, events=[user_message("m-1", text("Hi"))])
    async with talking(server) as link:
        assert (await link.send_all([message("Hi")])).state == "delivered"
        assert server.paths("POST") == ["/events"]


@pytest.mark.requirement("OV27")
@pytest.mark.parametrize("value", [IDLE, "finished", "paused", "error"])
async def test_a_message_to_an_agent_that_may_ask_is_stored_first_and_run_then(value: str) -> None:
    server = server_in(value, policy="AlwaysConfirm")
    starts = [status("s-1", IDLE)] if value == "finished" else []
    react(server, events=[*starts, user_message("m-1", text("Hi"))], run=[status("s-2", RUNNING)])
    async with talking(server) as link:
        assert (await link.send_all([message("Hi")])).state == "delivered"
        assert server.bodies("POST events") == [message("Hi", run=False).payload]
        assert server.paths("POST") == ["/events", "/run"]


@pytest.mark.requirement("OV34")
async def test_a_message_after_an_error_waits_for_the_snapshot() -> None:
    record = Collector()
    async with talking(server := server_in(RUNNING), record) as link:
        server.store(status("s-1", "error"))
        await record.wait_for(3)
        sending = asyncio.ensure_future(link.send_all([message("Again")]))
        # Interrupts overtake; the second one leaves after a message that did not wait.
        for _ in range(2):
            assert (await link.send_all([INTERRUPT])).state == "delivered"
        assert server.paths("POST") == ["/interrupt"] * 2
        server.show(snapshot("error"))
        assert (await within(sending)).state == "delivered"
        assert server.paths("POST") == ["/interrupt", "/interrupt", "/events"]


@pytest.mark.requirement("OV25")
async def test_a_429_means_that_the_message_is_saved_and_only_the_run_is_repeated() -> None:
    server = server_in(IDLE)
    server.answers["events"].append(RestAnswer(429, {"detail": "Message saved, but no capacity."}))
    server.answers["run"] += [RestAnswer(429, {"detail": "No capacity."})] * 3
    async with talking(server) as link:
        assert (await link.send_all([message("Hi")])).state == "delivered"
        assert server.paths("POST") == ["/events", "/run", "/run", "/run", "/run"]


@pytest.mark.requirement("OV25")
async def test_a_saved_message_whose_run_fails_is_never_called_unsent() -> None:
    server = server_in(IDLE)
    server.answers["events"].append(RestAnswer(429, {"detail": "Message saved."}))
    server.answers["run"].append(RestAnswer(401, {"detail": "Unauthorized"}))
    async with talking(server) as link:
        with pytest.raises(LinkLost) as lost:
            await link.send_all([message("Hi")])
        assert not lost.value.unsent


@pytest.mark.requirement("OV35")
async def test_a_run_that_another_one_precedes_is_not_repeated_when_that_one_holds_actions() -> None:
    """Another client has started the agent; a second `/run` would execute what it has come to hold."""
    server = server_in(IDLE, policy="AlwaysConfirm")
    react(server, events=[user_message("m-1", text("Hi"))])
    news = [status("s-1", RUNNING), action("a-1"), status("s-2", WAITING), snapshot(WAITING)]
    server.answers["run"].append(RestAnswer(409, {"detail": "Conversation already running."}, shows=news))
    async with talking(server) as link:
        assert (await link.send_all([message("Hi")])).state == "delivered"
        assert server.paths("POST") == ["/events", "/run"]


@pytest.mark.requirement("OV35")
async def test_a_run_whose_refusal_nothing_explains_is_not_repeated() -> None:
    server = server_in(IDLE, policy="AlwaysConfirm")
    react(server, events=[user_message("m-1", text("Hi"))])
    server.answers["run"].append(RestAnswer(409, {"detail": "Conversation already running."}))
    async with talking(server, tuning=replace(SHORT, settle=0.3)) as link:
        with pytest.raises(LinkLost) as lost:
            await link.send_all([message("Hi")])
        assert not lost.value.unsent
        assert server.paths("POST") == ["/events", "/run"]


# Doubt --------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("OV24", "OV29")
@pytest.mark.parametrize("failure", ["hang", "break", "500"])
async def test_a_message_without_an_answer_is_delivered_if_the_store_has_it(failure: Any) -> None:
    server = server_in(IDLE)
    fail(server, failure)
    async with talking(server, send_timeout="300ms") as link:
        server.stored.append(user_message("m-1", text("Hi")))
        assert (await link.send_all([message("Hi")])).state == "delivered"
        assert server.paths("POST") == ["/events"]


@pytest.mark.requirement("OV24", "OV29")
@pytest.mark.parametrize("failure", ["hang", "break", "500"])
async def test_a_message_without_an_answer_may_have_arrived_if_the_store_lacks_it(failure: Any) -> None:
    server = server_in(IDLE)
    # An equal text from before the send is another message.
    server.stored.append(user_message("m-0", text("Hi")))
    fail(server, failure)
    async with talking(server, send_timeout="300ms") as link:
        server.stored += [user_message("m-1", text("Ho")), agent_message("m-2", "Hi")]
        with pytest.raises(LinkLost) as lost:
            await link.send_all([message("Hi")])
        assert not lost.value.unsent
        assert await within(link.wait_closed())


@pytest.mark.requirement("OV24", "OV90")
async def test_a_message_that_hangs_while_its_link_ends_is_in_doubt() -> None:
    """A frozen sandbox keeps its connections open and answers nothing."""
    server, asked = server_in(IDLE), asyncio.Event()

    async def freeze(_channel: str, _body: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    server.on_post = freeze
    async with server.serve():
        async with linked(server, record := Collector()) as link:
            await record.wait_for(len(server.stored) + 1)
            sending = asyncio.ensure_future(link.send_all([message("Hi")]))
            await within(asked.wait())
        with pytest.raises(LinkLost) as lost:
            await within(sending)
    assert not lost.value.unsent


@pytest.mark.requirement("OV29")
async def test_an_equal_message_that_was_sent_before_proves_nothing_about_the_next() -> None:
    server = server_in(IDLE)
    async with talking(server, send_timeout="300ms") as link:
        # Its echo is in the store and has not reached the socket.
        assert (await link.send_all([message("Hi")])).state == "delivered"
        server.stored.append(user_message("m-1", text("Hi")))
        fail(server, "break")
        with pytest.raises(LinkLost) as lost:
            await link.send_all([message("Hi")])
        assert not lost.value.unsent


def fail(server: RawAgentServer, failure: Any) -> None:
    if failure == "500":
        body = {"detail": "Internal Server Error", "exception": "boom", "error_id": "e-1"}
        server.answers["events"].append(RestAnswer(500, body))
    else:
        server.fail_next_send(failure)


@pytest.mark.requirement("OV6")
async def test_a_validation_error_names_the_place_and_quotes_nothing() -> None:
    server = server_in(IDLE)
    detail = [{"type": "missing", "loc": ["body", "role"], "msg": f"no {KEY}", "input": {"content": "a secret text"}}]
    server.answers["events"].append(RestAnswer(422, {"detail": detail}))
    async with talking(server) as link:
        receipt = await link.send_all([message("a secret text")])
        assert receipt.state == "refused"
        assert receipt.reason is not None
        assert "body.role: missing" in receipt.reason
        assert "secret" not in receipt.reason
        assert KEY not in receipt.reason
        assert (await link.send_all([message("Hi")])).state == "delivered"


@pytest.mark.requirement("OV6")
@pytest.mark.parametrize("code", [401, 403, 404])
async def test_a_key_or_conversation_that_is_refused_leaves_the_message_unsent(code: int) -> None:
    server = server_in(IDLE)
    server.answers["events"].append(RestAnswer(code, {"detail": "Unauthorized"}))
    async with talking(server) as link:
        with pytest.raises(LinkLost) as lost:
            await link.send_all([message("Hi")])
        assert lost.value.unsent
        assert KEY not in str(lost.value)


async def test_what_the_server_has_no_path_for_is_refused() -> None:
    async with talking(server_in(IDLE)) as link:
        assert (await link.send_all([Frame("POST nonsense", {})])).state == "refused"


# Approvals ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("OV34")
async def test_an_accept_waits_for_the_snapshot_after_the_status() -> None:
    server = server_in(RUNNING, policy="AlwaysConfirm")
    react(server, respond_to_confirmation=[status("s-2", RUNNING)])
    record = Collector()
    async with talking(server, record) as link, linked(server, Collector()) as beside:
        server.store(action("a-1"), status("s-1", WAITING))
        await record.wait_for(4)
        accepting = asyncio.ensure_future(link.send_all([ACCEPT]))
        # The second post of another link leaves after an accept that did not wait.
        for _ in range(2):
            assert (await beside.send_all([message("For later", run=False)])).state == "delivered"
        assert server.paths("POST") == ["/events"] * 2
        server.show(snapshot(WAITING, policy="AlwaysConfirm"))
        assert (await within(accepting)).state == "delivered"
        assert server.bodies("POST respond_to_confirmation") == [{"accept": True}]


@pytest.mark.requirement("OV34")
async def test_an_accept_that_was_swallowed_is_sent_once_more() -> None:
    server = server_in(WAITING, policy="AlwaysConfirm")
    count = 0

    async def happen(_: str, __: Any) -> None:
        nonlocal count
        count += 1
        if count == 2:
            server.store(status("s-2", RUNNING))

    server.on_post = happen
    async with talking(server, tuning=replace(SHORT, proof=1.0)) as link:
        assert (await link.send_all([ACCEPT])).state == "delivered"
        assert server.paths("POST") == ["/events/respond_to_confirmation"] * 2


@pytest.mark.requirement("OV34")
async def test_an_accept_without_any_effect_is_not_delivered() -> None:
    server = server_in(WAITING, policy="AlwaysConfirm")
    async with talking(server, tuning=replace(SHORT, proof=0.1)) as link:
        with pytest.raises(LinkLost, match="without an effect"):
            await link.send_all([ACCEPT])
        assert len(server.bodies("POST respond_to_confirmation")) == 2


@pytest.mark.requirement("OV37")
@pytest.mark.parametrize("frame", [ACCEPT, DENY])
async def test_an_answer_when_nothing_is_held_is_moot(frame: Frame) -> None:
    """An accept would be a run."""
    async with talking(server := server_in("finished", policy="AlwaysConfirm")) as link:
        assert (await link.send_all([frame])).state == "moot"
        assert server.paths("POST") == []


@pytest.mark.requirement("OV36")
async def test_after_a_deny_the_agent_runs_when_the_snapshot_has_come() -> None:
    server = server_in(WAITING, policy="AlwaysConfirm")
    react(server, respond_to_confirmation=[status("s-1", IDLE), snapshot(IDLE)])
    # Until its snapshot, which follows, the server has not ended the earlier run.
    server.answers["run"].append(RestAnswer(409, {"detail": "Conversation already running."}, shows=[snapshot(IDLE)]))
    async with talking(server) as link:
        assert (await link.send_all([DENY])).state == "delivered"
        assert server.bodies("POST respond_to_confirmation") == [{"accept": False, "reason": "No."}]
        assert server.paths("POST") == ["/events/respond_to_confirmation", "/run", "/run"]


@pytest.mark.requirement("OV36")
async def test_after_a_deny_the_agent_waits_if_the_option_says_so() -> None:
    server = server_in(WAITING, policy="AlwaysConfirm")
    react(server, respond_to_confirmation=[status("s-1", IDLE), snapshot(IDLE)])
    async with talking(server, after_deny="wait") as link:
        assert (await link.send_all([DENY])).state == "delivered"
        assert server.paths("POST") == ["/events/respond_to_confirmation"]


# Interrupts ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("OV31")
async def test_an_interrupt_does_not_wait_for_a_message_behind_a_tool() -> None:
    server = server_in(RUNNING)
    tool = asyncio.Event()
    server.answers["events"].append(RestAnswer(200, {"success": True}, after=tool))
    react(server, interrupt=[status("s-1", "paused"), snapshot("paused")])
    async with talking(server) as link:
        sending = asyncio.ensure_future(link.send_all([message("Hi")]))
        await within(server.asked("/events"))
        assert (await within(link.send_all([INTERRUPT]))).state == "delivered"
        assert server.paths("POST") == ["/events", "/interrupt"]
        tool.set()
        assert (await within(sending)).state == "delivered"


@pytest.mark.requirement("OV32")
async def test_an_interrupt_while_actions_are_held_denies_them_and_runs_nothing() -> None:
    server = server_in(WAITING, policy="AlwaysConfirm")
    react(server, respond_to_confirmation=[status("s-1", IDLE), snapshot(IDLE)])
    async with talking(server) as link:
        assert (await link.send_all([INTERRUPT])).state == "delivered"
        (body,) = server.bodies("POST respond_to_confirmation")
        assert body["accept"] is False
        assert server.paths("POST") == ["/events/respond_to_confirmation"]


@pytest.mark.requirement("OV32")
async def test_an_interrupt_that_crosses_a_request_for_approval_denies_it() -> None:
    """The agent came to hold an action while the interrupt was under way, so that it did nothing."""
    server = server_in(RUNNING, policy="AlwaysConfirm")
    react(
        server,
        interrupt=[action("a-1"), status("s-1", WAITING), snapshot(WAITING, policy="AlwaysConfirm")],
        respond_to_confirmation=[status("s-2", IDLE), snapshot(IDLE)],
    )
    async with talking(server) as link:
        assert (await link.send_all([INTERRUPT])).state == "delivered"
        assert server.paths("POST") == ["/interrupt", "/events/respond_to_confirmation"]


# ACP agents ---------------------------------------------------------------------------------------------------------


def finish(name: str) -> dict[str, Any]:
    return {
        "kind": "ActionEvent",
        "id": name,
        "source": "agent",
        "action": {"kind": "FinishAction", "message": "Done."},
    }


@pytest.mark.requirement("OV59")
@pytest.mark.parametrize(("steer", "run"), [("join", False), ("replace", True)])
async def test_a_message_in_the_turn_of_an_acp_agent_joins_or_replaces_it(steer: str, run: bool) -> None:
    server = server_in(RUNNING, agent="ACPAgent")
    react(server, events=[user_message("m-1", text("Hi"))])
    async with talking(server, steer=steer) as link:
        assert (await link.send_all([message("Hi")])).state == "delivered"
        assert server.bodies("POST events") == [message("Hi", run=run).payload]
        assert server.paths("POST") == ["/events"]


@pytest.mark.requirement("OV59")
async def test_a_joining_message_that_comes_after_the_turn_is_run() -> None:
    server = server_in(RUNNING, agent="ACPAgent")
    react(server, events=[status("s-1", "finished"), status("s-2", IDLE), user_message("m-1", text("Hi"))])
    async with talking(server) as link:
        assert (await link.send_all([message("Hi")])).state == "delivered"
        assert server.paths("POST") == ["/events", "/run"]


@pytest.mark.requirement("OV60")
@pytest.mark.parametrize("parent", ["status-0", None])
@pytest.mark.parametrize("end", ["paused", "error"])
async def test_the_last_message_of_an_acp_agent_is_taken_back_before_the_next(parent: str | None, end: str) -> None:
    server = server_in(IDLE, agent="ACPAgent")
    more = {} if parent is None else {"parent_id": parent}
    asked = user_message("m-1", text("slow"), **more)
    server.stored += [asked, status("s-1", RUNNING), agent_message("x", "ACP error"), status("s-2", end)]
    server.first_state = snapshot(end, agent="ACPAgent")
    async with talking(server) as link:
        assert (await link.send_all([message("Hi")])).state == "delivered"
        assert server.bodies("POST navigate") == [{"event_id": parent}]
        assert server.paths("POST") == ["/navigate", "/events"]


@pytest.mark.requirement("OV60")
async def test_an_answered_or_untouched_message_of_an_acp_agent_stays() -> None:
    server = server_in(IDLE, agent="ACPAgent")
    server.stored += [user_message("m-1", text("a")), status("s-1", RUNNING), finish("f"), status("s-2", "finished")]
    async with talking(server) as link:
        await link.send_all([message("Hi")])
        server.stored += [user_message("m-2", text("noted"))]
        await link.send_all([message("Ho")])
        assert "/navigate" not in server.paths("POST")


@pytest.mark.requirement("OV60")
async def test_a_message_is_held_until_the_last_one_is_taken_back() -> None:
    server = server_in(IDLE, agent="ACPAgent")
    server.stored += [user_message("m-1", text("slow")), status("s-1", RUNNING), status("s-2", "paused")]
    server.first_state = snapshot("paused", agent="ACPAgent")
    server.answers["navigate"].append(RestAnswer(500, {"detail": "Internal Server Error"}))
    async with talking(server) as link:
        with pytest.raises(LinkLost) as lost:
            await link.send_all([message("Hi")])
        assert lost.value.unsent
        assert server.paths("POST") == ["/navigate"]

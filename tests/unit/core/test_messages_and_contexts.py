"""Bursts and their confirmations, full contexts, hydration, turns, and posted events."""

from datetime import timedelta
from typing import Any

import pytest

from gateway.adapter.port import Adapter, Frame, RuntimeOptions
from gateway.core import confirmations, lifecycle, live
from gateway.core.effects import Ask, AwaitCopy, Tell, Transmit
from gateway.core.routing import Route
from gateway.core.session import RetryPolicy
from gateway.core.snapshots import from_snapshot, to_snapshot
from gateway.core.state import MOST_CONFIRMATIONS
from gateway.errors import Conflict, Inexpressible
from gateway.events import (
    ActionOrdered,
    Author,
    ContextUpdated,
    Image,
    LinkChanged,
    MessageConfirmed,
    MessagePosted,
    Text,
    TurnSteered,
)
from gateway.executors.port import Accepted, Replied
from tests.unit.core.harness import HUMA_0_1, HUMA_0_2, Harness

CHAT = (Route(event="message.posted", to="chat"),)


def _user(text: str) -> MessagePosted:
    return MessagePosted(author=Author(name="Alice", id="u1"), content=(Text(text=text),), message_id="m1")


# Confirmations -------------------------------------------------------------------------------------------


@pytest.mark.requirement("N76", "N79", "A29", "N22")
def test_a_message_without_a_route_is_confirmed_once_with_the_full_context():
    harness = Harness()
    harness.post(ContextUpdated(name="start", context={"group": "Movie Night"}, description=""))
    harness.send("How about Inception?", index=0, count=2)
    (payload,) = harness.sent
    assert payload["toolCallId"] == "burst-1"
    assert payload["data"]["messageIndex"] == 0
    assert payload["data"]["success"] is True
    assert payload["data"]["context"] == {
        "group": "Movie Night",
        "conversationHistory": "[12:00] Agent: How about Inception?",
    }
    harness.send("Or Heat?", index=1, count=2)
    assert harness.sent[0]["data"]["messageIndex"] == 1


@pytest.mark.requirement("N76")
def test_a_message_repeated_while_it_waits_is_not_delivered_twice():
    harness = Harness(routes=CHAT)
    harness.send()
    harness.send()
    assert harness.effects == ()


COPY = (Route(event="message.posted", copy_to=("chat-log",)),)


@pytest.mark.parametrize(
    ("routes", "options", "confirmer"),
    [
        ((), {}, ("recorded", None)),
        (CHAT, {}, ("executor", "chat")),
        (COPY, {}, ("copied", "chat-log")),
        (CHAT + COPY, {}, ("executor", "chat")),
        ((Route(event="message.*", copy_to=("audit",)),), {}, ("recorded", None)),
        ((Route(copy_to=("audit",)),), {}, ("recorded", None)),
        ((*COPY, Route(event="message.posted", copy_to=("other",))), {}, ("recorded", None)),
        ((Route(event="message.posted", runtime="other", copy_to=("chat-log",)),), {}, ("recorded", None)),
        (CHAT + COPY, {"confirm": "copied"}, ("copied", "chat-log")),
        (CHAT, {"confirm": "client"}, ("client", None)),
        (COPY, {"confirm": "recorded"}, ("recorded", None)),
        (COPY, {"confirm": "executor"}, ("executor", None)),
        ((Route(event="message.*", copy_to=("audit",)),), {"confirm": "copied"}, ("copied", None)),
        (
            (Route(event="message.*", copy_to=("audit",)),),
            {"confirm": "copied", "confirm_by": "audit"},
            ("copied", "audit"),
        ),
    ],
)
def test_the_confirmer_is_the_configured_one_or_the_one_that_the_routes_name(
    routes: tuple[Route, ...], options: dict[str, Any], confirmer: tuple[str, str | None]
) -> None:
    harness = Harness(routes=routes, given=options)
    rule = harness.runtime.options.confirmation
    found = confirmations.find_confirmer(rule, harness.runtime.policy.routes, runtime="finn", labels={})
    assert found == confirmer


@pytest.mark.requirement("N76", "N79")
def test_a_client_confirms_a_message_that_waits_for_it() -> None:
    harness = Harness(given={"confirm": "client"})
    harness.send()
    assert (harness.kinds[-1], harness.effects) == ("message.posted", ())
    harness.recover()
    assert harness.kinds == []
    harness.post(MessageConfirmed(native_call_id="burst-1", index=0, context={"seen": 1}))
    assert harness.sent[0]["data"] == {"messageIndex": 0, "success": True, "context": {"seen": 1}}


@pytest.mark.requirement("N51", "N76")
@pytest.mark.parametrize("options", [{"confirm": "client"}, {"confirm": "copied"}])
def test_a_message_that_nothing_confirms_in_time_has_no_known_delivery(options: dict[str, str]) -> None:
    harness = Harness(routes=COPY, given=options)
    harness.send()
    harness.wait(19)
    assert "message.confirmed" not in harness.kinds
    harness.recover()
    assert harness.kinds == []
    harness.wait(1)
    assert harness.sent[0]["data"]["error"] == "delivery not known: nothing confirmed it within 20 s"
    with pytest.raises(Conflict):
        harness.post(MessageConfirmed(native_call_id="burst-1", index=0))


@pytest.mark.requirement("N76")
def test_a_message_is_confirmed_by_the_fate_of_its_copy_also_after_a_restart() -> None:
    harness = Harness(routes=COPY)
    harness.send()
    (first,) = harness.effects
    assert isinstance(first, AwaitCopy)
    assert first.destination == "chat-log"
    assert harness.sent == []
    harness.recover()
    assert harness.effects == (first,)
    harness.decide(lambda builder: confirmations.replied(builder, first.sequence, Replied({"delivered": True})))
    assert harness.sent[0]["data"]["success"] is True


@pytest.mark.parametrize("options", [{"confirm": "executor"}, {"confirm": "copied"}])
def test_a_message_that_no_route_leads_to_its_confirmer_is_not_delivered(options: dict[str, str]) -> None:
    harness = Harness(routes=(), given=options)
    harness.send()
    assert harness.sent[0]["data"]["success"] is False
    assert f"`confirm: {options['confirm']}`" in harness.sent[0]["data"]["error"]


@pytest.mark.requirement("N74")
@pytest.mark.parametrize(
    "abort",
    [
        {"type": "messaging", "event": "typing_end", "toolCallId": "burst-1", "reason": "canceled"},
        {"type": "messaging", "event": "typing_end", "reason": "canceled"},
        {"type": "cancel-tool-call", "toolCallId": "burst-1"},
    ],
)
def test_a_message_of_an_aborted_burst_waits_for_no_confirmation(abort: dict[str, str]) -> None:
    harness = Harness(given={"confirm": "client"})
    harness.send()
    other = {"type": "messaging", "event": "typing_end", "toolCallId": "burst-2", "reason": "canceled"}
    assert live.only_live(harness.runtime, harness.view, Frame("event", other), now=harness.now) is not None
    ended = {"type": "messaging", "event": "typing_end", "toolCallId": "burst-1"}
    assert live.only_live(harness.runtime, harness.view, Frame("event", ended), now=harness.now) is not None
    assert live.only_live(harness.runtime, harness.view, Frame("event", abort), now=harness.now) is None
    harness.receive(abort)
    assert harness.kinds[-1] == "message.confirmed"
    assert harness.sent == []
    assert harness.view.memory.confirmations == ()
    with pytest.raises(Conflict):
        harness.post(MessageConfirmed(native_call_id="burst-1", index=0))


def test_the_executor_of_an_aborted_burst_still_reports_its_delivery() -> None:
    harness = Harness(routes=CHAT)
    harness.send()
    harness.receive({"type": "messaging", "event": "typing_end", "toolCallId": "burst-1", "reason": "canceled"})
    (waiting,) = harness.view.memory.confirmations
    harness.decide(lambda builder: confirmations.replied(builder, waiting.sequence, Replied({})))
    assert harness.sent[0]["data"]["success"] is True


def test_a_client_cannot_confirm_if_something_else_does() -> None:
    harness = Harness()
    harness.send()
    with pytest.raises(Conflict, match="`confirm: recorded`, not `client`"):
        harness.post(MessageConfirmed(native_call_id="burst-1", index=0))


@pytest.mark.requirement("N76")
def test_a_message_that_comes_again_after_its_confirmation_is_confirmed_again_and_not_delivered_again():
    harness = Harness(routes=CHAT)
    harness.post(ContextUpdated(name="start", context={"group": "Movie Night"}, description=""))
    harness.send()
    harness.post(MessageConfirmed(native_call_id="burst-1", index=0))
    harness.send()
    assert harness.kinds == ["message.confirmed"]
    assert harness.sent[0]["data"]["success"] is True
    assert harness.sent[0]["data"]["context"]["group"] == "Movie Night"
    (again,) = [effect for effect in harness.effects if isinstance(effect, Transmit)]
    assert again.leave_before == harness.now + timedelta(seconds=30)
    assert not [effect for effect in harness.effects if isinstance(effect, Ask)]


def test_a_message_that_comes_again_after_a_failure_gets_the_same_error_also_after_a_restart():
    harness = Harness(routes=CHAT)
    harness.send()
    harness.wait(20)
    (first,) = harness.sent
    kept = from_snapshot(to_snapshot(harness.view.last_sequence, harness.view.memory))
    assert kept.memory == harness.view.memory
    harness.send()
    assert harness.sent == [first]


@pytest.mark.requirement("N79", "N45", "A20")
def test_a_routed_message_is_delivered_first_and_confirmed_by_the_backend():
    harness = Harness(routes=CHAT)
    harness.send("Hi")
    (ask,) = harness.effects
    assert isinstance(ask, Ask)
    assert (ask.executor, ask.kind) == ("chat", "message.posted")
    assert harness.sent == []
    harness.decide(lambda builder: confirmations.replied(builder, ask.sequence, Replied({"delivered": True})))
    assert harness.sent[0]["type"] == "addon-tool-event"
    assert harness.sent[0]["data"]["success"] is True
    assert not harness.view.calls


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Replied({"delivered": False, "error": "rate limited"}), "rate limited"),
        (Replied({"delivered": "yes"}), "true or false"),
        (Accepted(), "did not confirm"),
    ],
)
def test_anything_but_a_clear_yes_is_confirmed_as_failed_with_words(answer: Replied | Accepted, words: str):
    harness = Harness(routes=CHAT)
    harness.send()
    sequence = harness.view.memory.confirmations[0].sequence
    harness.decide(lambda builder: confirmations.replied(builder, sequence, answer))
    assert harness.sent[0]["data"]["success"] is False
    assert words in harness.sent[0]["data"]["error"]


def test_a_confirmation_that_cannot_be_expressed_is_sent_with_the_beginning_of_its_error():
    harness = Harness(routes=CHAT)
    harness.send()
    sequence = harness.view.memory.confirmations[0].sequence
    answer = Replied({"delivered": False, "error": "no" * 250 + "\udc80"})
    harness.decide(lambda builder: confirmations.replied(builder, sequence, answer))
    assert harness.sent[0]["data"] == {"messageIndex": 0, "success": False, "error": "no" * 250}
    (confirmed,) = harness.step.events
    assert [(loss.how, loss.path) for loss in confirmed.losses] == [("dropped", "/context")]


@pytest.mark.requirement("N51", "A14", "N87")
def test_a_message_not_delivered_in_our_own_shorter_time_is_confirmed_as_failed():
    assert RuntimeOptions(adapter="a", url="u").confirm_timeout < timedelta(seconds=30)
    harness = Harness(routes=CHAT)
    harness.send()
    harness.wait(20)
    assert harness.sent[0]["data"]["success"] is False
    assert harness.view.memory.confirmations == ()


@pytest.mark.requirement("N52", "A14")
def test_after_thirty_seconds_only_a_correction_is_sent_that_does_not_wake():
    harness = Harness(routes=CHAT).with_options(confirm_timeout=timedelta(seconds=60))
    harness.post(ContextUpdated(name="start", context={"a": 1}, description=""))
    harness.send()
    sequence = harness.view.memory.confirmations[0].sequence
    harness.now += timedelta(seconds=30)
    harness.decide(lambda builder: confirmations.replied(builder, sequence, Replied({})))
    assert [payload["type"] for payload in harness.sent] == ["context-update"]
    assert harness.sent[0]["triggering"] is False
    assert "message.confirmed" in harness.kinds


@pytest.mark.requirement("A16")
def test_a_delivered_message_of_an_aborted_burst_is_still_confirmed():
    harness = Harness(routes=CHAT)
    harness.send(count=3)
    sequence = harness.view.memory.confirmations[0].sequence
    harness.receive({"type": "messaging", "event": "typing_end", "reason": "canceled", "toolCallId": "burst-1"})
    harness.decide(lambda builder: confirmations.replied(builder, sequence, Replied({})))
    assert harness.sent[0]["data"]["success"] is True


@pytest.mark.requirement("A17")
def test_after_a_failed_confirmation_the_next_message_is_handled_like_any_other():
    harness = Harness(routes=CHAT)
    harness.send(count=2)
    sequence = harness.view.memory.confirmations[0].sequence
    harness.decide(lambda builder: confirmations.replied(builder, sequence, Replied({"delivered": False})))
    harness.send(index=1, count=2)
    assert isinstance(harness.effects[0], Ask)


def test_a_client_may_confirm_a_message_itself_but_only_one_that_waits():
    harness = Harness(routes=CHAT)
    harness.send()
    harness.post(MessageConfirmed(native_call_id="burst-1", index=0))
    assert harness.sent[0]["data"]["success"] is True
    with pytest.raises(Conflict, match="waits for a confirmation"):
        harness.post(MessageConfirmed(native_call_id="burst-1", index=0))


def test_a_message_under_way_when_the_process_died_is_confirmed_as_failed():
    harness = Harness(routes=CHAT)
    harness.send()
    harness.recover()
    assert harness.sent[0]["data"]["success"] is False


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_message_under_way_is_delivered_again_after_a_restart_only_if_a_repeat_is_harmless(idempotent: bool) -> None:
    harness = Harness(routes=CHAT, executors={"chat": RetryPolicy(idempotent=idempotent)})
    harness.send()
    (message,) = [event for event in harness.step.events if isinstance(event.event, MessagePosted)]
    (waiting,) = harness.view.memory.confirmations
    harness.decide(lambda builder: confirmations.recover(builder, waiting, message))
    assert [isinstance(effect, Ask) for effect in harness.effects] == [idempotent]
    if not idempotent:
        assert "unknown" in harness.sent[0]["data"]["error"]


def test_the_messages_that_wait_for_a_confirmation_are_bounded_and_the_next_one_is_told_so() -> None:
    harness = Harness(routes=CHAT)
    for number in range(MOST_CONFIRMATIONS):
        assert not harness.sent
        harness.send(index=number, count=MOST_CONFIRMATIONS)
    assert harness.sent[0]["data"]["success"] is False
    assert len(harness.view.memory.confirmations) == MOST_CONFIRMATIONS - 1


# Contexts ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("L9", "A29")
def test_a_context_is_sent_as_given_and_a_missing_conversation_is_added():
    harness = Harness()
    harness.post(_user("What movie?"))
    harness.post(ContextUpdated(name="joined", context={"group": 1}, description="Bob joined", wakes_agent=True))
    assert harness.sent[0]["context"] == {"group": 1, "conversationHistory": "[12:00] Alice: What movie?"}
    assert [loss.how for loss in harness.step.events[-1].losses] == ["invented"]
    harness.post(ContextUpdated(name="mine", context={"conversationHistory": "mine"}, description=""))
    assert harness.sent[0]["context"] == {"conversationHistory": "mine"}


@pytest.mark.parametrize(
    ("adapter", "given", "key"),
    [
        (HUMA_0_1, {}, None),
        (HUMA_0_1, {"history": "chat"}, "chat"),
        (HUMA_0_2, {}, "conversationHistory"),
        (HUMA_0_2, {"history": "chat"}, "chat"),
        (HUMA_0_2, {"history": "off"}, None),
    ],
)
def test_the_history_option_names_the_key_of_the_conversation(adapter: Adapter, given: dict[str, Any], key: str | None):
    harness = Harness(adapter, given=given)
    harness.post(_user("What movie?"))
    harness.post(ContextUpdated(name="joined", context={"group": 1}, description="Bob joined", wakes_agent=True))
    (payload,) = harness.sent
    added = {} if key is None else {key: "[12:00] Alice: What movie?"}
    assert payload.get("content", payload)["context"] == {"group": 1, **added}
    invented = [loss.path for loss in harness.step.events[-1].losses if loss.how == "invented"]
    assert invented == [f"/context/{name}" for name in added]
    # The gateway's own addition is no part of the state that the backend gave.
    assert harness.view.memory.context == {"group": 1}


def test_without_a_history_no_message_adds_to_the_context():
    harness = Harness(given={"history": "off"})
    harness.post(ContextUpdated(name="start", context={"group": 1}, description=""))
    harness.post(_user("What movie?"))
    assert set(harness.sent[-1]["context"]) == {"group", "message"}
    harness.send("How about Inception?", index=0, count=1)
    assert harness.sent[0]["data"]["context"] == {"group": 1}


@pytest.mark.requirement("A7", "A29", "N22")
def test_a_message_to_a_0_2_agent_travels_inside_a_full_context_update():
    harness = Harness()
    harness.post(ContextUpdated(name="start", context={"group": 1}, description=""))
    harness.post(MessagePosted(content=(Text(text="Look"), Image(url="data:image/png;base64,QQ==")), message_id="m9"))
    assert harness.kinds == ["session.moved", "message.posted", "context.updated"]
    (payload,) = harness.sent
    assert payload["triggering"] is True
    assert payload["name"] == "new-message"
    assert payload["context"]["group"] == 1
    assert payload["context"]["message"]["content"] == "Look"
    assert payload["context"]["message"]["images"][0]["url"].startswith("data:image/png")
    assert payload["context"]["conversationHistory"] == "[12:00] user: Look"


def test_a_message_to_a_0_1_agent_has_an_envelope_of_its_own():
    harness = Harness(HUMA_0_1)
    harness.post(_user("Hello!"))
    assert harness.sent[0]["type"] == "new-message"
    assert harness.sent[0]["content"]["participant"] == {"id": "u1", "nickname": "Alice"}


@pytest.mark.requirement("N22")
def test_the_conversation_is_bounded_in_lines_and_bytes():
    harness = Harness()
    for number in range(250):
        harness.post(_user(f"message {number} " + "x" * 300))
    history = harness.view.memory.history
    assert len(history) <= 200
    assert sum(len(line.encode()) + 1 for line in history) <= 32 * 1024
    assert history[-1].startswith("[12:00] Alice: message 249")


@pytest.mark.requirement("N23", "N20")
def test_a_fresh_link_is_told_the_last_context_without_being_woken():
    harness = Harness()
    harness.decide(lambda builder: lifecycle.link(builder, LinkChanged(state="up")))
    assert harness.sent == []
    harness.post(ContextUpdated(name="start", context={"group": 1}, description="", wakes_agent=True))
    harness.decide(lambda builder: lifecycle.link(builder, LinkChanged(state="up")))
    assert (harness.sent[0]["name"], harness.sent[0]["triggering"]) == ("hydration", False)
    assert harness.sent[0]["context"] == {"group": 1}


def test_a_0_1_link_is_hydrated_only_by_option():
    harness = Harness(HUMA_0_1)
    harness.post(ContextUpdated(name="start", context={"group": 1}, description=""))
    harness.decide(lambda builder: lifecycle.link(builder, LinkChanged(state="up")))
    assert harness.sent == []
    harness.with_options(hydrate=True)
    harness.decide(lambda builder: lifecycle.link(builder, LinkChanged(state="up")))
    assert harness.sent[0]["content"]["name"] == "hydration"


def test_a_steer_becomes_a_message_with_a_loss_if_the_protocol_has_none():
    harness = Harness()
    harness.post(TurnSteered(text="Keep it short."))
    assert harness.sent[0]["description"] == "Keep it short."
    assert [loss.how for loss in harness.step.events[-1].losses] == ["narrowed"]


def test_an_event_that_the_protocol_cannot_express_is_refused_and_not_recorded():
    harness = Harness()
    with pytest.raises(Inexpressible, match=r"action\.ordered"):
        harness.post(ActionOrdered(action="run", arguments={"command": "ls"}))
    with pytest.raises(Inexpressible):
        harness.post(ContextUpdated(name="n" * 129, context={}, description=""))
    with pytest.raises(Inexpressible):
        harness.post(ContextUpdated(name="x", context={"a": [{"constructor": 1}]}, description=""))
    assert harness.view.last_sequence == 0


def test_a_closed_session_takes_no_posts():
    harness = Harness()
    harness.decide(lambda builder: lifecycle.close(builder, reason=None))
    with pytest.raises(Conflict, match="closed"):
        harness.post(_user("too late"))


# Turns ---------------------------------------------------------------------------------------------------


def test_an_inferred_turn_begins_with_work_and_ends_after_quiet():
    harness = Harness()
    harness.post(_user("Hi"))
    assert harness.kinds[0] == "session.moved"
    harness.send()
    harness.wait(1.9)
    assert harness.step.events == ()
    harness.wait(0.2)
    assert harness.kinds == ["session.moved"]
    assert not harness.view.memory.running


def test_no_turn_is_inferred_to_end_while_a_call_is_open():
    harness = Harness()
    harness.call()
    harness.wait(60)
    assert harness.step.events == ()
    assert harness.view.memory.running


def test_without_a_burst_a_turn_ends_after_fifteen_seconds_of_silence():
    harness = Harness()
    harness.post(_user("Hi"))
    assert lifecycle.next_due(harness.runtime, harness.view) == harness.now + timedelta(seconds=15)
    harness.wait(15)
    assert not harness.view.memory.running


def test_an_agent_that_types_is_at_work():
    harness = Harness()
    harness.post(_user("Hi"))
    harness.wait(10)
    harness.receive({"type": "messaging", "event": "typing_start"})
    harness.wait(10)
    assert harness.view.memory.running
    harness.wait(5)
    assert not harness.view.memory.running


def test_typing_is_shown_live_and_not_recorded():
    harness = Harness()
    harness.receive({"type": "messaging", "event": "typing_start"})
    assert harness.step.events == ()
    assert isinstance(harness.effects[0], Tell)


def test_unknown_types_are_kept_and_malformed_frames_are_evidence():
    harness = Harness()
    harness.receive({"type": "voice-status", "x": 1})
    assert harness.kinds == ["opaque"]
    harness.receive({"type": "tool-call", "toolName": "x"})
    assert harness.kinds == ["frame.rejected"]
    harness.receive("not an object")
    assert harness.kinds == ["frame.rejected"]

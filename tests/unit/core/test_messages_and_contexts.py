"""Bursts and their confirmations, full contexts, hydration, turns, and what clients post."""

from datetime import timedelta

import pytest

from gateway.core import messages, session
from gateway.core.effects import Ask, Tell
from gateway.core.routing import Route
from gateway.envelope import (
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
from gateway.errors import Conflict, Inexpressible
from gateway.ports.adapter import RuntimeOptions
from gateway.ports.executor import Accepted, Replied
from tests.unit.core.table import HUMA_0_1, Table

CHAT = (Route(event="message.posted", to="chat"),)


def _user(text: str) -> MessagePosted:
    return MessagePosted(author=Author(name="Alice", id="u1"), content=(Text(text=text),), message_id="m1")


# Confirmations -------------------------------------------------------------------------------------------


@pytest.mark.requirement("N76", "N79", "A29", "N22")
def test_a_message_nobody_routes_is_confirmed_once_with_the_full_context():
    table = Table()
    table.post(ContextUpdated(name="start", context={"group": "Movie Night"}, description=""))
    table.say("How about Inception?", index=0, count=2)
    (payload,) = table.sent
    assert payload["toolCallId"] == "burst-1"
    assert payload["data"]["messageIndex"] == 0
    assert payload["data"]["success"] is True
    assert payload["data"]["context"] == {
        "group": "Movie Night",
        "conversationHistory": "[12:00] Agent: How about Inception?",
    }
    table.say("Or Heat?", index=1, count=2)
    assert table.sent[0]["data"]["messageIndex"] == 1


@pytest.mark.requirement("N76")
def test_a_message_repeated_while_it_waits_is_not_delivered_twice():
    table = Table(routes=CHAT)
    table.say()
    table.say()
    assert table.effects == ()


@pytest.mark.requirement("N76")
def test_a_message_that_comes_again_after_its_confirmation_is_confirmed_again_and_not_delivered_again():
    table = Table(routes=CHAT)
    table.say()
    table.post(MessageConfirmed(native_call_id="burst-1", index=0))
    table.say()
    assert table.kinds == ["message.confirmed"]
    assert table.sent[0]["data"]["success"] is True
    assert not [effect for effect in table.effects if isinstance(effect, Ask)]


@pytest.mark.requirement("N79", "N45", "A20")
def test_a_routed_message_is_delivered_first_and_confirmed_by_the_backend():
    table = Table(routes=CHAT)
    table.say("Hi")
    (ask,) = table.effects
    assert isinstance(ask, Ask)
    assert (ask.executor, ask.kind) == ("chat", "message.posted")
    assert table.sent == []
    table.decide(lambda build: messages.replied(table.council, build, ask.sequence, Replied({"delivered": True})))
    assert table.sent[0]["type"] == "addon-tool-event"
    assert table.sent[0]["data"]["success"] is True
    assert not table.view.calls


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Replied({"delivered": False, "error": "rate limited"}), "rate limited"),
        (Replied({"delivered": "yes"}), "true or false"),
        (Accepted(), "did not confirm"),
    ],
)
def test_anything_but_a_clear_yes_is_confirmed_as_failed_with_words(answer: Replied | Accepted, words: str):
    table = Table(routes=CHAT)
    table.say()
    sequence = table.view.memory.confirmations[0].sequence
    table.decide(lambda build: messages.replied(table.council, build, sequence, answer))
    assert table.sent[0]["data"]["success"] is False
    assert words in table.sent[0]["data"]["error"]


@pytest.mark.requirement("N51", "A14", "N87")
def test_a_message_not_delivered_in_our_own_shorter_time_is_confirmed_as_failed():
    assert RuntimeOptions(adapter="a", url="u").confirm_timeout < timedelta(seconds=30)
    table = Table(routes=CHAT)
    table.say()
    table.wait(20)
    assert table.sent[0]["data"]["success"] is False
    assert table.view.memory.confirmations == ()


@pytest.mark.requirement("N52", "A14")
def test_after_thirty_seconds_only_a_correction_is_sent_that_does_not_wake():
    table = Table(routes=CHAT).with_options(confirm_timeout=timedelta(seconds=60))
    table.post(ContextUpdated(name="start", context={"a": 1}, description=""))
    table.say()
    sequence = table.view.memory.confirmations[0].sequence
    table.now += timedelta(seconds=30)
    table.decide(lambda build: messages.replied(table.council, build, sequence, Replied({})))
    assert [payload["type"] for payload in table.sent] == ["context-update"]
    assert table.sent[0]["triggering"] is False
    assert "message.confirmed" in table.kinds


@pytest.mark.requirement("A16")
def test_a_delivered_message_of_an_aborted_burst_is_still_confirmed():
    table = Table(routes=CHAT)
    table.say(count=3)
    sequence = table.view.memory.confirmations[0].sequence
    table.receive({"type": "messaging", "event": "typing_end", "reason": "canceled", "toolCallId": "burst-1"})
    table.decide(lambda build: messages.replied(table.council, build, sequence, Replied({})))
    assert table.sent[0]["data"]["success"] is True


@pytest.mark.requirement("A17")
def test_after_a_failed_confirmation_the_next_message_is_handled_like_any_other():
    table = Table(routes=CHAT)
    table.say(count=2)
    sequence = table.view.memory.confirmations[0].sequence
    table.decide(lambda build: messages.replied(table.council, build, sequence, Replied({"delivered": False})))
    table.say(index=1, count=2)
    assert isinstance(table.effects[0], Ask)


def test_a_client_may_confirm_a_message_itself_but_only_one_that_waits():
    table = Table(routes=CHAT)
    table.say()
    table.post(MessageConfirmed(native_call_id="burst-1", index=0))
    assert table.sent[0]["data"]["success"] is True
    with pytest.raises(Conflict, match="waits for a confirmation"):
        table.post(MessageConfirmed(native_call_id="burst-1", index=0))


def test_a_message_under_way_when_the_process_died_is_confirmed_as_failed():
    table = Table(routes=CHAT)
    table.say()
    table.recover()
    assert table.sent[0]["data"]["success"] is False


# Contexts ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("L9", "A29")
def test_a_context_is_sent_as_given_with_the_conversation_added_where_it_is_missing():
    table = Table()
    table.post(_user("What movie?"))
    table.post(ContextUpdated(name="joined", context={"group": 1}, description="Bob joined", wakes_agent=True))
    assert table.sent[0]["context"] == {"group": 1, "conversationHistory": "[12:00] Alice: What movie?"}
    assert [loss.how for loss in table.step.events[-1].losses] == ["invented"]
    table.post(ContextUpdated(name="mine", context={"conversationHistory": "mine"}, description=""))
    assert table.sent[0]["context"] == {"conversationHistory": "mine"}


@pytest.mark.requirement("A7", "A29", "N22")
def test_a_message_to_a_0_2_agent_travels_inside_a_full_context_update():
    table = Table()
    table.post(ContextUpdated(name="start", context={"group": 1}, description=""))
    table.post(MessagePosted(content=(Text(text="Look"), Image(url="data:image/png;base64,QQ==")), message_id="m9"))
    assert table.kinds == ["session.moved", "message.posted", "context.updated"]
    (payload,) = table.sent
    assert payload["triggering"] is True
    assert payload["name"] == "new-message"
    assert payload["context"]["group"] == 1
    assert payload["context"]["message"]["content"] == "Look"
    assert payload["context"]["message"]["images"][0]["url"].startswith("data:image/png")
    assert payload["context"]["conversationHistory"] == "[12:00] user: Look"


def test_a_message_to_a_0_1_agent_has_an_envelope_of_its_own():
    table = Table(HUMA_0_1)
    table.post(_user("Hello!"))
    assert table.sent[0]["type"] == "new-message"
    assert table.sent[0]["content"]["participant"] == {"id": "u1", "nickname": "Alice"}


@pytest.mark.requirement("N22")
def test_the_conversation_is_bounded_in_lines_and_bytes():
    table = Table()
    for number in range(250):
        table.post(_user(f"message {number} " + "x" * 300))
    history = table.view.memory.history
    assert len(history) <= 200
    assert sum(len(line.encode()) + 1 for line in history) <= 32 * 1024
    assert history[-1].startswith("[12:00] Alice: message 249")


@pytest.mark.requirement("N23", "N20")
def test_a_fresh_link_is_told_the_last_context_without_being_woken():
    table = Table()
    table.decide(lambda build: session.link(table.council, build, LinkChanged(state="up")))
    assert table.sent == []
    table.post(ContextUpdated(name="start", context={"group": 1}, description="", wakes_agent=True))
    table.decide(lambda build: session.link(table.council, build, LinkChanged(state="up")))
    assert (table.sent[0]["name"], table.sent[0]["triggering"]) == ("hydration", False)
    assert table.sent[0]["context"] == {"group": 1}


def test_a_0_1_link_is_hydrated_only_by_option():
    table = Table(HUMA_0_1)
    table.post(ContextUpdated(name="start", context={"group": 1}, description=""))
    table.decide(lambda build: session.link(table.council, build, LinkChanged(state="up")))
    assert table.sent == []
    table.with_options(hydrate=True)
    table.decide(lambda build: session.link(table.council, build, LinkChanged(state="up")))
    assert table.sent[0]["content"]["name"] == "hydration"


def test_a_steer_is_said_in_words_with_a_loss_where_there_is_no_steer():
    table = Table()
    table.post(TurnSteered(text="Keep it short."))
    assert table.sent[0]["description"] == "Keep it short."
    assert [loss.how for loss in table.step.events[-1].losses] == ["narrowed"]


def test_what_no_words_exist_for_is_refused_and_nothing_recorded():
    table = Table()
    with pytest.raises(Inexpressible, match=r"action\.ordered"):
        table.post(ActionOrdered(action="run", arguments={"command": "ls"}))
    with pytest.raises(Inexpressible):
        table.post(ContextUpdated(name="n" * 129, context={}, description=""))
    with pytest.raises(Inexpressible):
        table.post(ContextUpdated(name="x", context={"a": [{"constructor": 1}]}, description=""))
    assert table.view.last_sequence == 0


def test_a_closed_session_takes_no_posts():
    table = Table()
    table.decide(lambda build: session.close(table.council, build, reason=None))
    with pytest.raises(Conflict, match="closed"):
        table.post(_user("too late"))


# Turns ---------------------------------------------------------------------------------------------------


def test_an_inferred_turn_begins_with_work_and_ends_after_quiet():
    table = Table()
    table.post(_user("Hi"))
    assert table.kinds[0] == "session.moved"
    table.say()
    table.wait(1.9)
    assert table.step.events == ()
    table.wait(0.2)
    assert table.kinds == ["session.moved"]
    assert not table.view.memory.running


def test_no_turn_is_inferred_to_end_while_a_call_is_open():
    table = Table()
    table.call()
    table.wait(60)
    assert table.step.events == ()
    assert table.view.memory.running


def test_without_a_burst_a_turn_ends_after_fifteen_seconds_of_silence():
    table = Table()
    table.post(_user("Hi"))
    assert session.next_due(table.council, table.view) == table.now + timedelta(seconds=15)
    table.wait(15)
    assert not table.view.memory.running


def test_an_agent_that_types_is_at_work():
    table = Table()
    table.post(_user("Hi"))
    table.wait(10)
    table.receive({"type": "messaging", "event": "typing_start"})
    table.wait(10)
    assert table.view.memory.running
    table.wait(5)
    assert not table.view.memory.running


def test_typing_is_shown_live_and_not_recorded():
    table = Table()
    table.receive({"type": "messaging", "event": "typing_start"})
    assert table.step.events == ()
    assert isinstance(table.effects[0], Tell)


def test_unknown_types_are_kept_and_malformed_frames_are_evidence():
    table = Table()
    table.receive({"type": "voice-status", "x": 1})
    assert table.kinds == ["opaque"]
    table.receive({"type": "tool-call", "toolName": "x"})
    assert table.kinds == ["frame.rejected"]
    table.receive("not an object")
    assert table.kinds == ["frame.rejected"]

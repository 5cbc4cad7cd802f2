"""Cancels of calls: by the agent, a client or an operator, and the messages to the others."""

import pytest

from gateway.core import calls, lifecycle
from gateway.core.effects import Queue, Release
from gateway.events import Outcome, TurnInterrupted
from gateway.executors.port import Accepted, Answered
from gateway.store.call import Call, MarkCanceling
from tests.unit.core.harness import HUMA_0_1, START, Harness

DONE = Answered(Outcome(outcome="success", result="Go fish!"))


@pytest.mark.requirement("L61", "L71", "N35", "N67", "N37", "A22", "N66")
def test_a_withdrawn_call_is_answered_canceled_at_once_and_its_executor_told():
    harness = Harness()
    harness.call()
    harness.cancel(toolName="ask_for_cards", reason="interrupted")
    assert harness.sent == [
        {
            "type": "tool-result",
            "triggering": False,
            "toolCallId": "tc-1",
            "toolName": "ask_for_cards",
            "outcome": "canceled",
            "error": "interrupted",
        }
    ]
    (release,) = harness.released
    assert release.stop
    assert release.tell is not None
    assert release.tell["reason"] == "interrupted"


@pytest.mark.requirement("L71", "L72")
def test_a_0_1_cancel_without_a_reason_gets_a_text_of_ours():
    harness = Harness(HUMA_0_1)
    harness.call()
    harness.cancel()
    content = harness.sent[0]["content"]
    assert (content["status"], content["success"], content["error"]) == ("canceled", False, "Canceled by the agent.")


@pytest.mark.requirement("L72")
def test_a_withdrawn_call_that_has_not_left_is_answered_and_no_executor_told():
    harness = Harness(slots=0)
    harness.call()
    harness.cancel()
    assert harness.sent[0]["outcome"] == "canceled"
    assert [release.tell for release in harness.released] == [None]


@pytest.mark.requirement("A2")
def test_a_cancel_is_matched_by_its_id_and_not_by_its_name():
    harness = Harness()
    harness.call()
    harness.cancel(toolName="another")
    assert harness.sent[0]["toolName"] == "ask_for_cards"


@pytest.mark.requirement("L73", "A21")
def test_a_cancel_for_an_ended_or_unknown_call_is_recorded_and_answers_nothing():
    harness = Harness()
    harness.call()
    harness.answer(DONE)
    harness.cancel()
    assert harness.kinds == ["tool.canceled"]
    assert harness.sent == []
    harness.cancel("never-seen")
    assert harness.sent == []


@pytest.mark.requirement("A21", "A22")
def test_an_outcome_after_the_cancel_is_recorded_as_late_and_not_sent():
    harness = Harness()
    harness.call()
    harness.cancel()
    harness.answer(DONE)
    assert harness.step.events == ()
    assert not harness.decide(lambda builder: calls.outcome(builder, harness.id_of("tc-1"), DONE))
    row = Call(
        call_id=harness.id_of("tc-1"),
        session_id=harness.view.session_id,
        runtime="finn",
        native_call_id="tc-1",
        n=0,
        tool="ask_for_cards",
        args_sha="",
        state="canceled",
        attempt=1,
        created_at=START,
        deadline_at=START,
        request_sequence=2,
    )
    harness.decide(lambda builder: calls.late_outcome(builder, row, DONE))
    assert harness.kinds == ["outcome.ignored"]
    assert harness.sent == []


@pytest.mark.requirement("A20")
def test_a_cancel_that_names_a_burst_gets_no_result():
    harness = Harness()
    harness.send(count=2)
    harness.cancel("burst-1")
    assert harness.sent == []


def test_an_operator_gives_the_executor_a_grace_and_the_first_answer_wins():
    harness = Harness()
    harness.call()
    assert harness.decide(lambda builder: calls.cancel(builder, harness.id_of("tc-1"), reason="stuck"))
    assert isinstance(harness.step.calls[0], MarkCanceling)
    (release,) = harness.effects
    assert isinstance(release, Release)
    assert not release.stop
    harness.answer(DONE)
    assert harness.sent[0]["outcome"] == "success"


def test_an_operators_cancel_ends_the_call_after_the_grace():
    harness = Harness()
    harness.call()
    harness.decide(lambda builder: calls.cancel(builder, harness.id_of("tc-1"), reason="stuck"))
    harness.wait(10)
    assert harness.sent[0]["outcome"] == "canceled"


def test_a_restart_ends_a_canceled_call_instead_of_trying_it_again():
    harness = Harness()
    harness.call()
    harness.decide(lambda builder: calls.cancel(builder, harness.id_of("tc-1"), reason="stuck"))
    harness.recover()
    assert (harness.sent[0]["outcome"], harness.sent[0]["error"]) == ("canceled", "stuck")
    assert [settled.state for settled in harness.settled] == ["canceled"]


def test_a_silent_call_that_is_canceled_while_it_waits_for_a_slot_is_not_sent_again():
    harness = Harness()
    harness.call()
    harness.answer(Accepted())
    harness.slots = 0
    harness.wait(120)
    assert [type(effect) for effect in harness.effects] == [Queue]
    harness.decide(lambda builder: calls.cancel(builder, harness.id_of("tc-1"), reason="stuck"))
    assert not harness.decide(lambda builder: calls.claim(builder, harness.id_of("tc-1")))
    assert (harness.step.calls, harness.effects) == ((), ())


def test_an_operators_cancel_of_a_queued_call_is_immediate():
    harness = Harness(slots=0)
    harness.call()
    harness.decide(lambda builder: calls.cancel(builder, harness.id_of("tc-1"), reason="stuck"))
    assert (harness.sent[0]["outcome"], harness.sent[0]["error"]) == ("canceled", "stuck")


def test_an_interrupt_ends_open_calls_and_tells_a_runtime_without_interrupts_in_words():
    harness = Harness()
    harness.call()
    harness.post(TurnInterrupted(reason="The user left."))
    assert [payload["type"] for payload in harness.sent] == ["context-update", "tool-result"]
    assert harness.sent[0]["triggering"] is True
    assert "The user left." in harness.sent[0]["description"]
    assert harness.sent[1]["outcome"] == "canceled"


def test_closing_a_session_settles_its_calls_and_sends_nothing():
    harness = Harness()
    harness.call()
    harness.decide(lambda builder: lifecycle.close(builder, reason=None))
    assert harness.kinds[-1] == "session.closed"
    assert harness.settled[0].state == "canceled"
    assert harness.sent == []
    assert harness.view.memory.closed

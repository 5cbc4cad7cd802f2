"""Who may give a call up, and what everybody is told then."""

import pytest

from gateway.core import outcomes, session
from gateway.core.effects import Release
from gateway.envelope import Outcome, TurnInterrupted
from gateway.ports.executor import Answered
from gateway.ports.rows import CallRow
from gateway.ports.step import MarkCanceling
from tests.unit.core.table import HUMA_0_1, START, Table

DONE = Answered(Outcome(outcome="success", result="Go fish!"))


@pytest.mark.requirement("L61", "L71", "N35", "N67", "N37", "A22", "N66")
def test_a_withdrawn_call_is_answered_canceled_at_once_and_its_executor_told():
    table = Table()
    table.call()
    table.cancel(toolName="ask_for_cards", reason="interrupted")
    assert table.sent == [
        {
            "type": "tool-result",
            "triggering": False,
            "toolCallId": "tc-1",
            "toolName": "ask_for_cards",
            "outcome": "canceled",
            "error": "interrupted",
        }
    ]
    (release,) = table.released
    assert release.stop
    assert release.tell is not None
    assert release.tell["reason"] == "interrupted"


@pytest.mark.requirement("L71", "L72")
def test_a_0_1_cancel_without_a_reason_gets_a_text_of_ours():
    table = Table(HUMA_0_1)
    table.call()
    table.cancel()
    content = table.sent[0]["content"]
    assert (content["status"], content["success"], content["error"]) == ("canceled", False, "Canceled by the agent.")


@pytest.mark.requirement("L72")
def test_a_withdrawn_call_that_has_not_left_is_answered_and_no_executor_told():
    table = Table(slots=0)
    table.call()
    table.cancel()
    assert table.sent[0]["outcome"] == "canceled"
    assert [release.tell for release in table.released] == [None]


@pytest.mark.requirement("A2")
def test_a_cancel_is_matched_by_its_id_whatever_name_it_carries():
    table = Table()
    table.call()
    table.cancel(toolName="another")
    assert table.sent[0]["toolName"] == "ask_for_cards"


@pytest.mark.requirement("L73", "A21")
def test_a_cancel_for_an_ended_or_unknown_call_is_recorded_and_answers_nothing():
    table = Table()
    table.call()
    table.answer(DONE)
    table.cancel()
    assert table.kinds == ["tool.canceled"]
    assert table.sent == []
    table.cancel("never-seen")
    assert table.sent == []


@pytest.mark.requirement("A21", "A22")
def test_an_outcome_after_the_cancel_is_recorded_as_late_and_not_sent():
    table = Table()
    table.call()
    table.cancel()
    table.answer(DONE)
    assert table.step.events == ()
    assert not table.decide(lambda build: outcomes.outcome(table.council, build, table.id_of("tc-1"), DONE))
    row = CallRow(
        call_id=table.id_of("tc-1"),
        session_id=table.view.session_id,
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
    table.decide(lambda build: outcomes.late_outcome(build, row, DONE))
    assert table.kinds == ["outcome.ignored"]
    assert table.sent == []


@pytest.mark.requirement("A20")
def test_a_cancel_that_names_a_burst_gets_no_result():
    table = Table()
    table.say(count=2)
    table.cancel("burst-1")
    assert table.sent == []


def test_an_operator_gives_the_executor_a_grace_and_the_first_answer_wins():
    table = Table()
    table.call()
    assert table.decide(lambda build: outcomes.cancel(table.council, build, table.id_of("tc-1"), reason="stuck"))
    assert isinstance(table.step.calls[0], MarkCanceling)
    (release,) = table.effects
    assert isinstance(release, Release)
    assert not release.stop
    table.answer(DONE)
    assert table.sent[0]["outcome"] == "success"


def test_an_operators_cancel_ends_the_call_when_the_grace_is_over():
    table = Table()
    table.call()
    table.decide(lambda build: outcomes.cancel(table.council, build, table.id_of("tc-1"), reason="stuck"))
    table.wait(10)
    assert table.sent[0]["outcome"] == "canceled"


def test_an_operators_cancel_of_a_queued_call_is_immediate():
    table = Table(slots=0)
    table.call()
    table.decide(lambda build: outcomes.cancel(table.council, build, table.id_of("tc-1"), reason="stuck"))
    assert (table.sent[0]["outcome"], table.sent[0]["error"]) == ("canceled", "stuck")


def test_an_interrupt_ends_open_calls_and_tells_a_runtime_without_interrupts_in_words():
    table = Table()
    table.call()
    table.post(TurnInterrupted(reason="The user left."))
    assert [payload["type"] for payload in table.sent] == ["context-update", "tool-result"]
    assert table.sent[0]["triggering"] is True
    assert "The user left." in table.sent[0]["description"]
    assert table.sent[1]["outcome"] == "canceled"


def test_closing_a_session_settles_its_calls_and_sends_nothing():
    table = Table()
    table.call()
    table.decide(lambda build: session.close(table.council, build, reason=None))
    assert table.kinds[-1] == "session.closed"
    assert table.settled[0].state == "canceled"
    assert table.sent == []
    assert table.view.memory.closed

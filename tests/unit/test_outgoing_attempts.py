"""The attempts that a step commits for the events that leave right after it, and those that it resets."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from gateway.adapter.port import Receipt
from gateway.core.state import Start
from gateway.errors import LinkLost
from gateway.runtime.session.outbox import MOST_QUEUED, Attempts
from tests.unit.core.harness import HUMA_0_1
from tests.unit.outgoing_session import Session, message, outcome, said


def marks(started: Collection[int] = (), unstarted: Collection[int] = ()) -> Attempts:
    return set(started), set(unstarted)


def test_a_message_that_can_be_sent_gets_its_attempt_in_the_step_that_records_it() -> None:
    session = Session(HUMA_0_1)
    session.up()
    assert session.step(message(1)) == marks([1])
    assert session.next().sequence == 1


@pytest.mark.parametrize("why", ["no link", "not read yet", "a send is under way", "ledger", "starts", "in the step"])
def test_a_message_that_must_wait_gets_no_attempt(why: str) -> None:
    session = Session()
    if why == "starts":
        session.view = replace(session.view, start=Start("starting"))
    if why in {"a send is under way", "ledger", "starts", "in the step"}:
        session.up()
    elif why == "not read yet":
        session.out.link_up()
    if why == "ledger":
        session.add(*range(10, 10 + MOST_QUEUED + 1))
    attempts = session.step(message(9_999), sending=why == "a send is under way", lost=why == "in the step")
    assert attempts is None


def test_a_message_that_waited_for_its_turn_gets_its_attempt_in_the_step_that_ends_the_turn() -> None:
    session = Session(one_message_per_turn=True, delivery="response")
    session.up()
    assert session.step(message(1)) == marks([1])
    assert session.leaves(Receipt("delivered")) == 1
    assert session.step(message(2), message(3)) is None
    assert session.next() == "idle"
    assert session.step(moved=True) == marks([2])
    assert session.leaves(Receipt("delivered")) == 2
    assert session.next() == "idle"


def test_messages_that_waited_for_a_link_get_their_attempts_in_one_step_before_the_first_leaves() -> None:
    session = Session(HUMA_0_1)
    session.up(said(1), said(2), said(3))
    assert session.next() == "attempt"
    assert session.next() == "attempt"
    assert session.step() == marks([1, 2, 3])
    assert [session.leaves() for _ in range(3)] == [1, 2, 3]


def test_a_protocol_with_answers_records_the_attempt_of_the_next_message_only() -> None:
    session = Session(HUMA_0_1, delivery="ack")
    session.up(said(1), said(2))
    for sequence in (1, 2):
        assert session.next() == "attempt"
        assert session.step() == marks([sequence])
        assert session.leaves(Receipt("delivered")) == sequence


def test_busy_takes_the_attempt_back_with_the_next_step() -> None:
    session = Session(HUMA_0_1, delivery="response")
    session.up()
    session.step(message(1))
    assert session.leaves(Receipt("busy")) == 1
    assert session.out.attempts_due
    assert session.step(fails=True) == marks([], [1])
    assert session.step() == marks([], [1])
    assert session.step() is None
    assert session.next() == "idle"
    assert session.step(moved=True) == marks([1])
    assert session.leaves(Receipt("delivered")) == 1


@pytest.mark.parametrize("how", ["in the step", "before the send", "refused by the link"])
def test_a_link_lost_before_the_first_byte_takes_the_attempt_back(how: str) -> None:
    session = Session(HUMA_0_1)
    session.up()
    session.step(message(1))
    if how == "in the step":
        assert session.step(lost=True) == marks([], [1])
        session.out.link_down()
    elif how == "before the send":
        session.out.link_down()
        assert session.step() == marks([], [1])
    else:
        session.leaves(LinkLost("not connected", unsent=True))
        assert session.step(lost=True) == marks([], [1])
        session.out.link_down()
    session.up(said(1))
    assert session.next() == "attempt"
    assert session.step() == marks([1])
    assert session.leaves() == 1


def test_an_attempt_that_is_being_taken_back_does_not_leave_meanwhile() -> None:
    session = Session(HUMA_0_1)
    session.up()
    session.step(message(1))
    session.step(lost=True, fails=True)
    assert session.next() == "attempt"


def test_a_message_with_an_interrupted_send_keeps_its_attempt_and_is_unknown() -> None:
    session = Session(HUMA_0_1, delivery="ack")
    session.up()
    session.step(message(1))
    session.leaves(LinkLost("no answer"))
    assert session.step(lost=True) is None
    session.out.link_down()
    session.up(replace(said(1), attempt=1))
    assert [signal.state for signal in session.posted] == ["unknown"]


def test_a_message_sent_on_a_lost_link_is_sent_again_by_the_same_process_without_another_step() -> None:
    session = Session(HUMA_0_1)
    session.up()
    session.step(message(1))
    session.leaves()
    session.step(lost=True)
    session.out.link_down()
    session.up(replace(said(1), attempt=1))
    assert session.next().repeats


def test_an_attempt_of_another_process_is_unknown_and_no_attempt_is_sent() -> None:
    session = Session(HUMA_0_1)
    session.up(replace(said(1), attempt=1), said(2))
    assert [(signal.sequences, signal.state) for signal in session.posted] == [((1,), "unknown")]
    assert session.leaves() == 2


def test_an_outcome_never_waits_for_an_attempt() -> None:
    session = Session(HUMA_0_1)
    session.up()
    assert session.step(outcome(1)) is None
    assert session.next().sequence == 1

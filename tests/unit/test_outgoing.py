"""The next send of a session, and the meaning of its result: the tables of `Outbox`, line by line."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from gateway.adapter.port import Receipt
from gateway.core.effects import Transmit
from gateway.core.resend import OVERDUE
from gateway.errors import CannotExpress, LinkLost
from gateway.events import ApprovalGiven, interaction_id
from gateway.runtime.session.outbox import (
    BATCH,
    CROWD,
    MOST_QUEUED,
    MOST_UNCONFIRMED,
    PAGE,
)
from gateway.runtime.session.row import BUSY, LOST, SENT, TABLE, UNSENT, Meaning, State, read_result
from gateway.runtime.signals import Delivered
from gateway.store.step import RUNTIME
from tests.unit.core.harness import HUMA_0_1, OPENHANDS, START
from tests.unit.outgoing_session import WINDOW, Session, message, outcome, row, said


def repeats(session: Session, count: int = 1) -> None:
    """Let so many leave that had left by an earlier link."""
    session.up()
    session.add(*range(1, count + 1))
    for _ in range(count):
        session.leaves()
    session.out.link_down()
    session.up(*(row(number) for number in range(1, count + 1)))
    for _ in range(count):
        session.leaves()


# The next step -----------------------------------------------------------------------------------------


def too_much(session: Session) -> None:
    session.up()
    for sequence in range(MOST_UNCONFIRMED):
        session.add(sequence)
        session.leaves()
    session.add(MOST_UNCONFIRMED)


def unread(session: Session) -> None:
    session.out.link_up()
    session.out.add(Transmit(1, "turn", "x", (), place="first"), now=0.0)


def outdated(session: Session) -> None:
    session.up()
    session.add(1)
    session.out.reread()


def late(session: Session) -> None:
    session.up()
    session.add(1, leave_before=START)


def portion(session: Session) -> None:
    repeats(session, BATCH)


def free(session: Session) -> None:
    session.up()
    session.add(7)


def unmarked(session: Session) -> None:
    session.up()
    session.add(7, needs_attempt=True)


def more(session: Session) -> None:
    session.up()
    session.add(*range(1, MOST_QUEUED + 2))
    for _ in range(MOST_QUEUED):
        session.leaves()


@pytest.mark.parametrize(
    ("before", "then"),
    [
        pytest.param(too_much, "idle", id="too many sends without a confirmation"),
        pytest.param(portion, "prove", id="a portion of repeats is on its way"),
        pytest.param(unread, "read", id="the pending rows were not read"),
        pytest.param(outdated, "read", id="the plan is outdated"),
        pytest.param(
            late, Delivered((1,), RUNTIME, "moot", OVERDUE, overdue=True), id="its runtime has stopped waiting"
        ),
        pytest.param(unmarked, "attempt", id="something without a recorded attempt may leave"),
        pytest.param(free, 7, id="something may leave"),
        pytest.param(more, "read", id="nothing here, and the ledger keeps more"),
        pytest.param(Session.up, "idle", id="nothing"),
        pytest.param(repeats, "prove", id="nothing but repeats on their way"),
    ],
)
def test_the_next_step_of_an_outbox(before: Callable[[Session], object], then: Any) -> None:
    session = Session()
    before(session)
    found = session.next()
    assert (found.sequence if isinstance(found, Transmit) else found) == then


def test_new_work_waits_for_a_word_on_the_turn_that_the_last_message_began() -> None:
    session = Session(one_message_per_turn=True)
    session.up()
    session.add(1, 2, lane="new_work")
    session.add(3, lane="urgent")
    assert (session.leaves(), session.leaves()) == (3, 1)
    assert session.next() == "idle"
    session.out.awaits_turn = False
    assert session.leaves() == 2


@pytest.mark.parametrize("result", [Receipt("refused", "no"), Receipt("moot"), CannotExpress("no words")])
def test_a_message_that_began_no_turn_holds_up_nothing(result: Any) -> None:
    session = Session(one_message_per_turn=True)
    session.up()
    session.add(1, 2, lane="new_work")
    assert (session.leaves(result), session.leaves()) == (1, 2)


# The results -----------------------------------------------------------------------------------------

UNKNOWN = Meaning("answered", "unknown", "the runtime did not confirm it")


@pytest.mark.parametrize(
    ("result", "silence", "answer"),
    [
        (Receipt("sent"), SENT, UNKNOWN),
        (Receipt("sent", "no answer"), SENT, replace(UNKNOWN, reason="the runtime did not confirm it: no answer")),
        (Receipt("delivered"), Meaning("answered", "delivered"), None),
        (Receipt("refused", "no"), Meaning("answered", "refused", "no"), None),
        (Receipt("moot", "over"), Meaning("answered", "moot", "over"), None),
        (Receipt("busy"), BUSY, None),
        (CannotExpress("no words"), Meaning("answered", "dead", "no words"), None),
        (LinkLost("gone"), LOST, None),
        (LinkLost("gone", unsent=True), UNSENT, None),
        (KeyError("ours"), LOST, None),
    ],
    ids=lambda one: repr(one) if isinstance(one, Exception) else getattr(one, "state", None) or "",
)
def test_the_meaning_of_each_send_result(result: Any, silence: Meaning, answer: Meaning | None) -> None:
    assert (read_result(result, silent=True), read_result(result, silent=False)) == (silence, answer or silence)


def test_a_busy_send_is_offered_again_and_a_settled_one_is_not() -> None:
    session = Session(delivery="answer")
    session.up()
    session.add(1, 2)
    assert [session.leaves(Receipt("busy")), session.leaves(Receipt("delivered")), session.leaves()] == [1, 1, 2]
    assert session.next() == "idle"
    assert session.posted == [
        Delivered((1,), RUNTIME, "delivered"),
        Delivered((2,), RUNTIME, "unknown", "the runtime did not confirm it"),
    ]


def test_a_send_without_its_answer_is_unknown_unless_it_is_requested_again() -> None:
    session = Session(OPENHANDS, delivery="answer")
    session.up()
    session.add(1, lane="new_work")
    session.leaves(LinkLost("gone"))
    session.out.link_down()
    session.up(said(1))
    assert (session.next(), [(one.sequences, one.state) for one in session.posted]) == ("idle", [((1,), "unknown")])
    session.out.done([1])
    assert session.out.resend(1)
    session.read(said(1))
    assert session.leaves() == 1


@pytest.mark.parametrize(
    ("delivery", "fates"), [("response", [((1,), "unknown")]), ("ack", [((1,), "unknown")]), ("silence", [])]
)
def test_an_interrupted_send_of_a_message_is_unknown_unless_silence_means_delivery(
    delivery: Any, fates: list[Any]
) -> None:
    session = Session(HUMA_0_1, delivery=delivery)
    session.up()
    session.step(message(1))
    assert session.next().sequence == 1
    session.out.link_down()
    session.up(replace(said(1), attempt=1))
    assert [(one.sequences, one.state) for one in session.posted] == fates
    assert (session.next() == "idle") == bool(fates)


def refused(session: Session) -> None:
    session.add(1)
    session.leaves(Receipt("refused", "no"))


def reported(session: Session) -> None:
    session.add(1)
    session.leaves()
    [code] = list(session.runtime.capabilities.rejects_with)[:1]
    session.tell(session.out.fault(code, "no", now=0.0))


def too_late(session: Session) -> None:
    session.add(1, leave_before=START)
    session.tell([session.next()])


def planned(session: Session) -> None:
    session.out.reread()
    session.read(row(1, kind="weather.changed"))


def quarantined(session: Session) -> None:
    for _ in range(3):
        session.tell(session.out.link_failed([1], "it failed"))


@pytest.mark.parametrize("settle", [refused, reported, too_late, planned, quarantined])
def test_until_a_fate_is_committed_no_page_of_another_link_has_its_event(settle: Callable[[Session], object]) -> None:
    session = Session()
    session.up()
    settle(session)
    [fate] = session.posted
    session.out.link_down()
    session.out.link_up()
    reading = session.out.begin_reading()
    assert reading == {1}
    # It is committed during the query, which still found it pending.
    session.out.done(fate.sequences)
    session.view = replace(session.view, last_sequence=1)
    assert session.out.take(reading, [row(1)], {}, session.view, more=False, now=START) == []
    assert session.next() == "idle"


def test_an_event_that_fails_three_links_is_quarantined() -> None:
    session = Session()
    for _ in range(2):
        assert session.out.link_failed([4], "it failed") == []
    assert session.out.link_failed([4, 5], "it failed") == [Delivered((4,), RUNTIME, "dead", "it failed", fault=True)]
    session.out.done([4])
    assert session.out.link_failed([4], "it failed") == []


def test_the_page_has_the_table_of_the_states_of_a_row() -> None:
    page = (Path(__file__).parents[2] / "gateway/core/README.md").read_text(encoding="utf-8")
    lines = page.partition("\n### States of a row\n")[2].partition("\n\n-")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    assert head[2:] == list(get_args(State))
    shown = {(state, row[0]): cell for row in rows for state, cell in zip(head[2:], row[2:], strict=True) if cell}
    assert shown == {
        place: ", ".join([move.to, *([move.attempt] if move.attempt else []), *(["doubt"] if move.doubt else [])])
        for place, move in TABLE.items()
    }


# Silence --------------------------------------------------------------------------------------


def test_a_send_without_an_objection_is_delivered_after_its_window() -> None:
    session = Session()
    session.up()
    session.add(1)
    session.leaves()
    session.now = 1.0
    session.add(2)
    session.leaves()
    assert session.out.confirm(asked_at=WINDOW) == [Delivered((1,), RUNTIME, "delivered")]
    assert session.out.sent
    assert session.out.confirm(asked_at=1.0 + WINDOW) == [Delivered((2,), RUNTIME, "delivered")]
    assert not session.out.sent


def test_the_older_half_of_a_crowd_is_delivered_at_the_first_proof() -> None:
    session = Session()
    session.up()
    for number in range(CROWD - 1):
        session.out.add(Transmit(number, "turn", "x", ()), now=0.0)
        session.now = number / CROWD
        session.leaves()
    asked_at = session.now
    assert (session.out.is_crowded, session.out.confirm(asked_at=asked_at)) == (
        False,
        [],
    )
    session.add(CROWD)
    session.now = 1.0
    session.leaves()
    # The answer of the link does not prove sends after the query, however many follow.
    [early] = session.out.confirm(asked_at=10 / CROWD)
    assert early == Delivered(tuple(range(11)), RUNTIME, "delivered")
    assert not session.out.is_crowded
    for number in range(CROWD + 1, CROWD + 12):
        session.add(number)
        session.leaves()
    assert session.out.is_crowded
    proven = [row.sequence for row in session.out.list_proven(asked_at=session.now)]
    assert proven == [*range(11, CROWD // 2 + 12)]
    assert session.out.confirm(asked_at=session.now) == [Delivered(tuple(proven), RUNTIME, "delivered")]
    assert not session.out.is_crowded


def test_that_an_outcome_is_delivered_is_a_mark_and_until_it_is_on_record_no_page_brings_it_again() -> None:
    session = Session()
    session.up()
    for number in (1, 2):
        session.out.add(outcome(number), now=0.0)
        session.leaves()
    assert session.out.confirm(asked_at=WINDOW) == []
    assert session.out.marks == [1, 2]
    session.out.link_down()
    session.up(row(1), row(2))
    assert session.next() == "idle"
    assert session.out.take_marks() == (Delivered((1, 2), RUNTIME, "delivered"),)
    assert (session.out.take_marks(), session.next()) == ((), "idle")
    # Its row is pending again, because it was requested.
    session.out.done([1, 2])
    session.out.reread()
    session.read(row(2))
    assert session.leaves() == 2


def test_a_requested_outcome_is_sent_again_even_after_its_delivery() -> None:
    session = Session()
    session.up()
    session.out.add(outcome(1), now=0.0)
    session.leaves()
    assert session.out.confirm(asked_at=WINDOW) == []
    assert session.out.resend(1)
    assert session.out.take_marks() == ()
    session.out.reread()
    session.read(row(1))
    assert session.leaves() == 1


def test_repeats_are_recorded_at_once_so_a_crash_loop_does_not_send_them_forever() -> None:
    session = Session()
    session.up(row(1))
    session.out.link_down()
    session.up()
    session.out.add(replace(outcome(1), repeats=True), now=0.0)
    session.leaves()
    assert session.out.confirm(asked_at=0.0) == [Delivered((1,), RUNTIME, "delivered")]


def test_a_fault_is_about_the_newest_that_is_on_its_way_or_was_just_believed() -> None:
    [code] = list(Session().runtime.capabilities.rejects_with)[:1]
    session = Session()
    repeats(session, 1)
    assert session.out.fault("another", "", now=0.0) == ()
    assert session.out.confirm(asked_at=0.0) == [Delivered((1,), RUNTIME, "delivered")]
    assert session.out.fault(code, "no", now=1.0) == (Delivered((1,), RUNTIME, "refused", f"{code}: no"),)
    assert session.out.fault(code, "no", now=1.0) == ()


def test_repeats_leave_in_portions_each_of_them_believed_as_soon_as_it_has_come() -> None:
    session = Session()
    repeats(session, BATCH)
    session.add(BATCH + 1)
    assert (session.next(), session.out.repeats) == ("prove", True)
    [delivered] = session.out.confirm(asked_at=session.now)
    assert isinstance(delivered, Delivered)
    # After a crash the next process repeats all sends without a record.
    assert session.next() == "prove"
    assert session.out.done(delivered.sequences)
    assert session.leaves() == BATCH + 1


# The ledger ----------------------------------------------------------------------------------------------


def test_without_a_link_only_the_ledger_keeps_events_and_a_page_brings_each_once() -> None:
    session = Session()
    session.add(1, 2, lane="new_work")
    assert (session.out.waiting, session.out.new_work, session.out.lanes.count) == (2, 2, 0)
    session.up(row(1, "new_work"), row(2, "new_work"))
    session.add(2, lane="new_work")
    assert [session.leaves(), session.leaves(), session.next()] == [1, 2, "idle"]
    assert (session.out.waiting, session.out.new_work) == (2, 0)


def test_a_full_page_is_followed_by_another() -> None:
    session = Session()
    session.up(*(row(number) for number in range(1, PAGE + 1)), more=True)
    for _ in range(PAGE):
        session.leaves()
    assert session.next() == "read"


def test_a_page_brings_nothing_of_a_step_that_is_not_applied_yet() -> None:
    session = Session()
    session.up()
    session.out.reread()
    reading = session.out.begin_reading()
    found = [row(session.view.last_sequence + 1)]
    assert session.out.take(reading, found, {}, session.view, more=False, now=START) == []
    assert session.next() == "idle"
    session.add(session.view.last_sequence + 1)
    assert (session.leaves(), session.next()) == (session.view.last_sequence + 1, "idle")


def test_an_unreadable_page_is_read_again_and_keeps_the_requests() -> None:
    session = Session()
    session.up()
    session.add(1)
    session.leaves()
    assert session.out.resend(1)
    session.out.reread()
    session.out.begin_reading()
    session.out.reread()
    assert session.next() == "read"
    session.read(row(1))
    assert session.leaves() == 1


def test_an_event_that_is_asked_for_again_is_sent_although_the_link_of_its_query_is_lost() -> None:
    session = Session(OPENHANDS, delivery="response")
    session.up()
    session.add(1, lane="new_work")
    session.leaves(LinkLost("gone"))
    session.out.done([1])
    assert session.out.resend(1)
    session.out.begin_reading()
    session.out.link_down()
    session.up(said(1))
    assert (session.leaves(Receipt("delivered")), session.next()) == (1, "idle")


def test_an_event_of_an_unknown_kind_is_never_sent_and_holds_up_nothing() -> None:
    session = Session()
    session.up(row(1, "turn", kind="weather.changed"), row(2, "turn"))
    reason = "this release cannot read the event (weather.changed)"
    assert session.posted == [Delivered((1,), RUNTIME, "dead", reason)]
    assert [session.leaves(), session.next()] == [2, "idle"]


@pytest.mark.parametrize("synthetic", [False, True])
def test_a_decision_that_the_runtime_waits_for_no_more_names_the_question_that_it_answers(*, synthetic: bool) -> None:
    session = Session(OPENHANDS)
    given = ApprovalGiven(id="a-1", decision="allow", native_call_id="c-1")
    told = replace(row(7).envelope, event=given, caused_by=5, synthetic=synthetic)
    session.up(replace(row(7), envelope=told))
    question = interaction_id(session="s", native_id="a-1", n=5)
    reason = "the runtime no longer waits for this decision"
    assert session.posted == [Delivered((7,), RUNTIME, "moot", reason, answers=None if synthetic else question)]

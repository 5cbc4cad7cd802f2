"""An outcome that may have been sent already: the replay shows if the runtime still waits for it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.core import inbound
from gateway.core.inbound import HAS_ANSWER
from gateway.core.resend import NOT_AWAITED, TURN_OVER, Plan, RuntimeNeeds, SendHistory, plan_resend
from gateway.core.snapshots import from_snapshot, to_snapshot
from gateway.events import Envelope, Outcome, SessionId, ToolFinished
from gateway.executors.port import Answered
from gateway.store.rows import Send
from gateway.store.step import RUNTIME, SendChange
from tests.unit.core.harness import HERM
from tests.unit.core.test_herm import Herm

Move = Callable[[Herm], None]


def asks(native: str) -> Move:
    return lambda herm: herm.wants(native)


def waits(*natives: str) -> Move:
    """The turn waits for these calls, or has ended without any."""
    return lambda herm: herm.idle(*natives)


def runs(herm: Herm) -> None:
    herm.hear("session.status_running")


def answers(native: str) -> Move:
    """Our backend answers; the outcome may or may not reach the runtime."""
    return lambda herm: herm.harness.answer(Answered(Outcome(outcome="success", result="ok")), native=native)


def echoes(native: str) -> Move:
    content = [{"type": "text", "text": "ok"}]
    return lambda herm: herm.hear("user.custom_tool_result", tool_use_id=native, content=content)


def restarts(herm: Herm) -> None:
    """Continue in another process, on a link that replays the missed events."""
    view = herm.harness.view
    memory = from_snapshot(to_snapshot(view.last_sequence, view.memory)).memory
    herm.harness.view = replace(herm.harness.view, memory=memory)
    herm.harness.decide(inbound.connecting)


def play(*moves: Move) -> tuple[Herm, list[SendChange]]:
    """Make these moves, then catch up; return the sends that the replay has shown."""
    herm, told = Herm(), list[SendChange]()
    for move in moves:
        move(herm)
        told += herm.harness.step.send_changes
    herm.harness.catch_up()
    return herm, told


def plan(herm: Herm, native: str, *, asked_again: bool = False, capabilities: Any = HERM.capabilities) -> Plan:
    """Plan the pending outcome of a call, as the first link of a new process does."""
    view = herm.harness.view
    new, sequence = next(
        (new, sequence)
        for new, sequence in herm.harness.journal
        if isinstance(new.event, ToolFinished) and new.event.native_call_id == native
    )
    envelope = Envelope(
        new.event_id, SessionId("s"), sequence, new.recorded_at, "to_runtime", new.event, caused_by=new.caused_by
    )
    row = Send(SessionId("s"), sequence, RUNTIME, "turn", "pending", 0, None, None, envelope, envelope.recorded_at)
    [planned] = plan_resend(
        [row],
        SendHistory(unsure_up_to=view.last_sequence),
        RuntimeNeeds(memory=view.memory, asked_again=frozenset({sequence}) if asked_again else frozenset()),
        capabilities=capabilities,
        now=herm.harness.now,
    )
    return planned


@pytest.mark.requirement("H-u")
@pytest.mark.parametrize(
    ("moves", "reason"),
    [
        # It waits still, or has not shown that it does not.
        ((asks("a"), waits("a"), answers("a"), restarts), None),
        ((asks("a"), answers("a"), restarts), None),
        ((asks("a"), answers("a"), restarts, waits("a")), None),
        ((asks("a"), answers("a"), restarts, runs), None),
        ((asks("a"), answers("a"), restarts, waits("b")), None),
        ((asks("a"), asks("b"), waits("a", "b"), answers("a"), restarts), None),
        ((asks("a"), asks("b"), waits("a", "b"), answers("a"), restarts, waits("a")), None),
        ((asks("a"), asks("b"), waits("a", "b"), answers("a"), restarts, runs), None),
        ((waits("a"), runs, waits(), asks("a"), answers("a"), restarts), None),
        ((asks("a"), waits("a"), answers("a"), restarts, runs, waits("a")), None),
        # It got its outcome, from us or from another client.
        ((asks("a"), waits("a"), answers("a"), restarts, runs), NOT_AWAITED),
        ((asks("a"), waits("a"), answers("a"), restarts, runs, waits("b")), NOT_AWAITED),
        ((asks("a"), waits("a"), answers("a"), runs, restarts), NOT_AWAITED),
        ((asks("a"), asks("b"), waits("a", "b"), answers("a"), restarts, waits("b")), NOT_AWAITED),
        ((asks("a"), answers("a"), restarts, waits("a"), runs), NOT_AWAITED),
        # Its turn has ended, with or without call ids.
        ((asks("a"), answers("a"), restarts, waits()), TURN_OVER),
        ((asks("a"), waits("a"), answers("a"), restarts, runs, waits(), runs, waits("b")), TURN_OVER),
    ],
)
def test_an_outcome_is_sent_again_unless_the_replay_shows_that_the_runtime_has_it(
    moves: tuple[Move, ...], reason: str | None
):
    herm, _ = play(*moves)
    planned = plan(herm, "a")
    assert (planned.fate, planned.reason) == ("send" if reason is None else "moot", reason)


@pytest.mark.requirement("H-u")
@pytest.mark.parametrize(
    ("moves", "reason"), [((restarts, echoes("a"), runs), HAS_ANSWER), ((echoes("a"), runs, restarts), None)]
)
def test_an_answer_that_the_runtime_shows_settles_ours(moves: tuple[Move, ...], reason: str | None):
    herm, told = play(asks("a"), waits("a"), answers("a"), *moves)
    sequence = next(sequence for new, sequence in herm.harness.journal if isinstance(new.event, ToolFinished))
    assert told == [SendChange(sequence, RUNTIME, "delivered", reason=reason)]


def test_an_answer_of_another_client_settles_no_outcome_of_ours():
    _, told = play(asks("a"), waits("a"), restarts, echoes("a"), echoes("a"))
    assert told == []


def test_an_outcome_that_the_runtime_has_just_asked_for_again_is_sent():
    herm, _ = play(asks("a"), waits("a"), answers("a"), restarts, runs)
    assert plan(herm, "a", asked_again=True).fate == "send"


def test_an_outcome_is_sent_again_after_a_turn_whose_end_was_only_inferred():
    herm, _ = play(asks("a"), waits("a"), answers("a"), restarts, runs, waits())
    assert plan(herm, "a", capabilities=replace(HERM.capabilities, turns="inferred")).fate == "send"


def test_an_id_that_is_used_again_is_waited_for_anew():
    herm, _ = play(asks("a"), waits("a"), answers("a"), runs, restarts, asks("a"))
    assert plan(herm, "a").fate == "send"


def test_the_memory_of_calls_ends_with_their_turn():
    herm, _ = play(asks("a"), waits("a"), answers("a"), runs)
    assert set(herm.harness.view.memory.hosted) == {"a"}
    herm.idle()
    assert herm.harness.view.memory.hosted == {}

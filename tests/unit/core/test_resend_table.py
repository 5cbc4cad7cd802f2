"""Repeated sends, for each kind that each protocol accepts (gateway/core/README.md#replays)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from gateway.adapter.port import Adapter
from gateway.core import inbound
from gateway.core.adapt import needs_attempt
from gateway.core.resend import OVERDUE, Plan, RuntimeNeeds, SendHistory, plan_resend
from gateway.core.state import Action, Remembered
from gateway.events import (
    ActionOrdered,
    AddonAnswered,
    ApprovalGiven,
    ContextUpdated,
    Envelope,
    Event,
    EventId,
    MessageConfirmed,
    MessagePosted,
    Opaque,
    QuestionAnswered,
    SecretSupplied,
    SessionId,
    Text,
    ToolFinished,
    TurnInterrupted,
    TurnSteered,
)
from gateway.store.rows import Send
from gateway.store.step import RUNTIME, SendChange
from tests.unit.core.harness import HERM, HUMA_0_1, HUMA_0_2, OPENHANDS, START, Harness

Fate = Literal["send", "moot", "unknown", "dead"]
Circumstance = Literal["crash", "cut", "silence", "waited"]
"""The process of a possible send died; the send was interrupted before its response; the link was lost before silence
had confirmed the send; the send has certainly not started."""

PAGE = Path(__file__).parents[3] / "gateway/core/README.md"

AGAIN = "sent again, byte for byte"
LOOK_ELSE_UNKNOWN = "unknown and listed, unless the runtime replays its history (OpenHands, Herm) and an echo proves"
NEWEST_WAKING = "the newest waking context"
NEWEST = "the newest silent context"
STILL_RUNS = "sent again while their turn runs; otherwise moot, or unknown if the turn is unknown"
STILL_ASKED = "sent again; if approvals depend on the state (OpenHands), only while still asked"
CONFIRMS = "sent again while the runtime waits for them (30 s), otherwise moot"
NOT_KEPT = "unknown, because no value was stored"
IDENTICAL = "If the link is lost earlier, the same frame is sent again"
NO_ACK = "OpenHands: an acknowledgement. Without one the delivery is unknown"
SETTLED = "404, 409 and 410 mean that the call is already settled"

PLACE = 7
"""The sequence of the planned event; newer contexts follow it."""
ALLOW = ApprovalGiven(id="a", decision="allow", native_call_id="a")
WAITS = Remembered(state="awaiting_approval", actions=(Action("a", None, "run", {}, 1, gated=True, decided=True),))
MOVED_ON = replace(WAITS, state="running")
RUNS = Remembered(state="running", running=True, ended_at=PLACE - 1)
ENDED = Remembered(state="idle", ended_at=PLACE + 1)
RUNS_ANEW = Remembered(state="running", running=True, ended_at=PLACE + 1)
RESTS = Remembered(state="idle", ended_at=PLACE - 1)


def _context(name: str = "x", *, wakes: bool = False, call_id: str | None = None) -> ContextUpdated:
    return ContextUpdated(name=name, context={}, wakes_agent=wakes, call_id=call_id)


OUTCOME = ToolFinished(native_call_id="c", tool="t", outcome="success", result="ok")
MESSAGE = MessagePosted(content=(Text(text="hi"),))
PLAIN, WAKING, OF_OUTCOME = _context(), _context(wakes=True), _context(call_id="c")
CONFIRMED = MessageConfirmed(native_call_id="b", index=0)
SECRET = SecretSupplied.model_validate({"id": "s", "purpose": "secret", "value": "x"})


@dataclass(frozen=True)
class Row:
    """A kind of outbound row on one protocol, its fate under each circumstance, and the sentences that say so."""

    adapter: Adapter
    name: str
    event: Event
    fates: Mapping[Circumstance, Fate]
    says: tuple[str, ...]
    newer: tuple[Event, ...] = ()
    """Other rows that wait behind it."""
    after: timedelta = timedelta(0)
    """How long ago it was put on record."""
    memory: Remembered | None = None


def _silent(crash: Fate, silence: Fate = "send", waited: Fate = "send") -> dict[Circumstance, Fate]:
    """List fates if silence means delivery: such a send ends at once, so none is interrupted."""
    return {"crash": crash, "silence": silence, "waited": waited}


def _answered(crash: Fate, cut: Fate, waited: Fate = "send") -> dict[Circumstance, Fate]:
    """List fates if each send has a response."""
    return {"crash": crash, "cut": cut, "waited": waited}


ALWAYS, MOOT = _silent("send"), _silent("moot", "moot", "moot")
OFFERED, DROPPED = _answered("send", "send"), _answered("moot", "moot", "moot")
UNSURE, UNANSWERED = _silent("unknown"), _answered("unknown", "unknown")
POINTLESS = _answered("moot", "moot")


def _interrupts(adapter: Adapter, *more: str) -> tuple[Row, ...]:
    says = (STILL_RUNS, *more)
    return (
        Row(adapter, "interrupt, nothing known", TurnInterrupted(), UNANSWERED, says),
        Row(adapter, "interrupt, its turn runs", TurnInterrupted(), OFFERED, says, memory=RUNS),
        Row(adapter, "interrupt, its turn ended", TurnInterrupted(), DROPPED, says, memory=ENDED),
        Row(adapter, "interrupt, another turn runs", TurnInterrupted(), DROPPED, says, memory=RUNS_ANEW),
        Row(adapter, "interrupt, no turn ran", TurnInterrupted(), POINTLESS, says, memory=RESTS),
    )


def _huma(adapter: Adapter) -> tuple[Row, ...]:
    return (
        Row(adapter, "outcome", OUTCOME, ALWAYS, (AGAIN, IDENTICAL)),
        Row(adapter, "update of an outcome", OF_OUTCOME, ALWAYS, (AGAIN,), newer=(OUTCOME, PLAIN)),
        Row(adapter, "waking context, newest", WAKING, ALWAYS, (NEWEST_WAKING, IDENTICAL)),
        Row(adapter, "waking context before a plain one", WAKING, ALWAYS, (NEWEST_WAKING,), newer=(PLAIN,)),
        Row(adapter, "waking context, older", WAKING, MOOT, (NEWEST_WAKING,), newer=(WAKING,)),
        Row(adapter, "plain context, newest", PLAIN, ALWAYS, (NEWEST, IDENTICAL)),
        Row(adapter, "plain context, older", PLAIN, MOOT, (NEWEST,), newer=(PLAIN,)),
        Row(adapter, "plain context before a waking one", PLAIN, ALWAYS, (NEWEST,), newer=(WAKING,)),
        Row(adapter, "plain context before an update", PLAIN, ALWAYS, (NEWEST,), newer=(OF_OUTCOME,)),
        Row(adapter, "opaque", Opaque(channel="event", payload={"type": "x"}), UNSURE, (LOOK_ELSE_UNKNOWN, IDENTICAL)),
    )


TABLE = (
    *_huma(HUMA_0_1),
    Row(HUMA_0_1, "message", MESSAGE, UNSURE, (LOOK_ELSE_UNKNOWN, IDENTICAL)),
    *_huma(HUMA_0_2),
    Row(HUMA_0_2, "confirmation", CONFIRMED, ALWAYS, (CONFIRMS, IDENTICAL)),
    Row(HUMA_0_2, "confirmation, too late", CONFIRMED, MOOT, (CONFIRMS,), after=timedelta(seconds=30)),
    Row(HUMA_0_2, "answer of an addon", AddonAnswered(native_call_id="c", data={}), UNSURE, (LOOK_ELSE_UNKNOWN,)),
    Row(OPENHANDS, "message", MESSAGE, UNANSWERED, (LOOK_ELSE_UNKNOWN, NO_ACK)),
    Row(OPENHANDS, "action", ActionOrdered(action="run", arguments={}), UNANSWERED, (LOOK_ELSE_UNKNOWN, NO_ACK)),
    *_interrupts(OPENHANDS, NO_ACK),
    Row(OPENHANDS, "approval, waited for", ALLOW, OFFERED, (STILL_ASKED,), memory=WAITS),
    Row(OPENHANDS, "approval, no longer waited for", ALLOW, DROPPED, (STILL_ASKED,), memory=MOVED_ON),
    Row(OPENHANDS, "opaque", Opaque(channel="oh_action", payload={}), UNANSWERED, (LOOK_ELSE_UNKNOWN, NO_ACK)),
    Row(HERM, "outcome", OUTCOME, OFFERED, (AGAIN, SETTLED)),
    Row(HERM, "message", MESSAGE, UNANSWERED, (LOOK_ELSE_UNKNOWN,)),
    Row(HERM, "steer", TurnSteered(text="left"), UNANSWERED, (LOOK_ELSE_UNKNOWN,)),
    *_interrupts(HERM),
    Row(HERM, "approval", ALLOW, OFFERED, (STILL_ASKED, SETTLED)),
    Row(HERM, "answer", QuestionAnswered(id="q", answer="7"), OFFERED, (STILL_ASKED, SETTLED)),
    Row(HERM, "secret", SECRET, _answered("unknown", "unknown", "dead"), (NOT_KEPT,)),
    Row(HERM, "opaque", Opaque(channel="x", payload={}), UNANSWERED, (LOOK_ELSE_UNKNOWN,)),
)
CASES = [
    pytest.param(row, when, fate, id=f"{row.adapter.name}-{row.name}-{when}")
    for row in TABLE
    for when, fate in row.fates.items()
]


def _row(sequence: int, event: Event, attempt: int = 0) -> Send:
    envelope = Envelope(EventId(str(sequence)), SessionId("s"), sequence, START, "to_runtime", event)
    return Send(
        SessionId("s"), sequence, RUNTIME, "turn", "pending", attempt, None, None, envelope, envelope.recorded_at
    )


def _plan(row: Row, when: Circumstance, *, working: bool = False, attempt: int | None = None) -> Plan:
    if attempt is None:
        attempt = 0 if when == "waited" else 1
    rows = [_row(PLACE + place, event, attempt) for place, event in enumerate((row.event, *row.newer))]
    one = frozenset({PLACE})
    plans = plan_resend(
        rows[::-1],
        SendHistory(
            unsure_up_to=PLACE if when == "crash" else 0,
            started=frozenset() if when == "crash" else one,
            doubted=one if when in {"cut", "silence"} else frozenset(),
        ),
        RuntimeNeeds(working=working, memory=row.memory, confirm_within=timedelta(seconds=30)),
        capabilities=row.adapter.capabilities,
        now=START + row.after,
    )
    return next(plan for plan in plans if plan.row.sequence == PLACE)


@pytest.mark.parametrize(("row", "when", "fate"), CASES)
def test_each_row_meets_the_fate_that_the_page_gives_it(row: Row, when: Circumstance, fate: Fate) -> None:
    plan = _plan(row, when)
    assert plan.fate == fate, row.says
    # A repeated send is equal in each member; the others have a reason.
    assert plan.row.envelope.event == row.event
    assert (plan.reason is None) == (fate == "send")
    assert plan.overdue == (plan.reason == OVERDUE)


MARKED = [row for row in TABLE if needs_attempt(row.event, row.adapter.capabilities)]


@pytest.mark.parametrize("row", MARKED, ids=[f"{row.adapter.name}-{row.name}" for row in MARKED])
def test_an_event_without_a_started_send_is_sent_after_a_restart(row: Row) -> None:
    plan = _plan(row, "crash", working=True, attempt=0)
    assert (plan.fate, plan.repeats) == (row.fates["waited"], False)
    assert plan.row.envelope.event == row.event


def test_the_page_contains_the_rows() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").partition("\n## Deliveries\n")[2].split())
    assert {said for row in TABLE for said in row.says if said not in page} == set()


@pytest.mark.parametrize("adapter", [HUMA_0_1, HUMA_0_2, OPENHANDS, HERM], ids=lambda adapter: adapter.name)
def test_the_table_has_a_row_for_all_that_a_protocol_accepts(adapter: Adapter) -> None:
    rows = [row for row in TABLE if row.adapter is adapter]
    assert {row.event.kind for row in rows} == adapter.capabilities.accepts
    answered = adapter.capabilities.delivery != "silence"
    assert {tuple(row.fates) for row in rows} == {("crash", "cut" if answered else "silence", "waited")}
    assert all(row.says for row in rows)


@pytest.mark.parametrize("adapter", [HUMA_0_1, HUMA_0_2], ids=lambda adapter: adapter.name)
@pytest.mark.parametrize("when", ["crash", "silence", "waited"])
def test_a_wake_that_may_have_come_is_said_softly_to_an_agent_that_waits_for_calls(
    adapter: Adapter, when: Circumstance
) -> None:
    plan = _plan(Row(adapter, "", WAKING, {}, (NEWEST_WAKING,)), when, working=True)
    assert plan.fate == "send"
    assert plan.row.envelope.event == WAKING.model_copy(update={"wakes_agent": when == "waited"})


# Runtimes with a replay, which comes before the plan -------------------------------------------


def _openhands(harness: Harness, payload: Any) -> None:
    heard = {"id": 3, "timestamp": "2026-11-20T20:00:03.000000", "source": "user", "message": "", **payload}
    harness.receive(heard, channel="oh_event")


def _herm(harness: Harness, payload: Any) -> None:
    heard = {"id": "evt_3", "type": payload["type"], "sessionId": "s", "sequence": 3, "status": "complete"}
    harness.receive({**heard, "payload": payload, "createdAt": "2026-11-20T20:00:00.000Z"}, channel="stream")


@pytest.mark.parametrize(
    ("adapter", "echo", "event"),
    [
        pytest.param(OPENHANDS, _openhands, MESSAGE, id="openhands-message"),
        pytest.param(
            OPENHANDS, _openhands, ActionOrdered(action="run", arguments={"command": "ls"}), id="openhands-action"
        ),
        pytest.param(OPENHANDS, _openhands, TurnInterrupted(), id="openhands-interrupt"),
        pytest.param(HERM, _herm, MESSAGE, id="herm-message"),
        pytest.param(HERM, _herm, TurnSteered(text="left"), id="herm-steer"),
        pytest.param(HERM, _herm, TurnInterrupted(), id="herm-interrupt"),
    ],
)
def test_an_echo_in_the_replay_after_a_crash_settles_an_unknown_send(adapter: Adapter, echo: Any, event: Event) -> None:
    harness = Harness(adapter)
    sequence = harness.post(event)
    [payload] = harness.sent
    harness.recover()
    harness.decide(inbound.connecting)
    echo(harness, payload)
    assert harness.step.send_changes == (SendChange(sequence=sequence, target=RUNTIME, state="delivered"),)
    # The same words once more are another client's.
    echo(harness, {**payload, "id": 4} if adapter is OPENHANDS else payload)
    assert harness.step.send_changes == ()

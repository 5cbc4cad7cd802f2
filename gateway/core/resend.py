"""Decides which pending events are sent to a runtime again, in which order, and which are moot. Pure."""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, get_args

from gateway.adapter.port import Capabilities
from gateway.core.adapt import REPLACED, needs_attempt, place_of, replaced
from gateway.core.effects import Place, Transmit
from gateway.core.session import RuntimeContext
from gateway.core.state import Remembered, SessionView, Start
from gateway.events import (
    ApprovalAsked,
    ApprovalGiven,
    ContextUpdated,
    MessageConfirmed,
    QuestionAnswered,
    SecretSupplied,
    ToolFinished,
    TurnInterrupted,
)
from gateway.events.frozen import frozen, replace
from gateway.store.rows import Send
from gateway.store.step import Lane

OVERDUE = "the runtime no longer waits for this confirmation"
TURN_OVER = "the turn that asked for it has ended at the runtime"
STOPPED = "the turn that it was to stop has ended"
NOT_AWAITED = "the runtime no longer waits for it"
_WORK = frozenset({"message.posted", "turn.steered", "action.ordered"})


@frozen
class Plan:
    """The fate of one pending row."""

    row: Send
    fate: Literal["send", "later", "moot", "unknown", "dead"]
    """`later` is planned again with the next page."""
    reason: str | None = None
    leave_before: datetime | None = None
    """When the runtime stops waiting for it."""
    overdue: bool = False
    """Whether it is moot because the runtime stopped waiting and made its own assumption."""
    place: Place = "in_order"
    repeats: bool = False
    """Whether an earlier process may have sent it."""


def is_held(item: Transmit, start: Start) -> bool:
    """Return whether an event starts or feeds work and might be lost because the runtime is still starting."""
    return start.waits and _is_work(item)


def waits_for_approval(item: Transmit, lanes: Iterable[Transmit], view: SessionView, runtime: RuntimeContext) -> bool:
    """Return whether a message that wakes the agent waits, because the agent would cancel a call over it.

    That is a call that waits for a person, or that one has allowed and no executor has accepted yet. The outcomes in
    the `lanes` leave first.
    """
    if item.lane != "new_work" or runtime.while_held != "queue":
        return False
    if any(one.kind == "tool.finished" for one in lanes):
        return True
    return any(call.rule and call.state != "accepted" and call.is_the_runtimes for call in view.calls.values())


def _is_work(item: Transmit) -> bool:
    """Return whether an event starts or feeds work."""
    return item.lane == "new_work" or item.kind in _WORK


def may_leave(item: Transmit, memory: Remembered, capabilities: Capabilities) -> bool:
    """Return whether an event may be sent now.

    New work may wait for the turn, and all work for the approval of a group; approvals follow their questions.
    """
    if capabilities.approvals == "by_group" and memory.state == "awaiting_approval" and _is_work(item):
        return False
    if item.lane == "new_work" and capabilities.one_message_per_turn:
        return not memory.running
    if item.kind == "approval.given" and capabilities.approvals == "by_id" and item.caused_by is not None:
        earlier = (a for a in memory.asked if isinstance(a.event, ApprovalAsked) and a.sequence < item.caused_by)
        return next(earlier, None) is None
    return True


@frozen
class SendHistory:
    """The earlier sends of pending rows."""

    unsure_up_to: int = 0
    """The last sequence of an earlier process.

    Whether these rows were sent is unknown, except for events that need an attempt on record: those were not sent if
    their attempt is 0.
    """
    started: frozenset[int] = frozenset()
    """Rows whose attempt this process recorded itself; `doubted` decides about them."""
    doubted: frozenset[int] = frozenset()
    """Rows that this process may have sent: a link was lost before a response or silence had confirmed them."""
    fresh: bool = True
    """Whether the link has sent nothing yet except earlier pages of the same plan."""


@frozen
class RuntimeNeeds:
    """The events that the runtime still waits for."""

    memory: Remembered | None = None
    """Keeps an approval from answering a later question, and an interrupt from stopping a later turn."""
    working: bool = False
    """Whether the runtime waits for outcomes.

    A waking context that it may have received is then repeated without waking it: a second wake would cancel the
    calls that the first one led to.
    """
    posted: Mapping[int, datetime] = dataclasses.field(default_factory=dict[int, datetime])
    """When the confirmed messages were posted, by the sequence of the confirmation."""
    confirm_within: timedelta | None = None
    """Time that the runtime waits for a confirmation; None: without a limit."""
    asked_again: frozenset[int] = frozenset()
    """Outcomes that the runtime has just requested again."""


def plan_resend(
    rows: Sequence[Send],
    history: SendHistory,
    needs: RuntimeNeeds,
    *,
    capabilities: Capabilities,
    now: datetime,
    more: bool = False,
) -> tuple[Plan, ...]:
    """Decide the fate of pending rows, in order of sequence; `more` means that further pages follow.

    Outcomes are sent again, unless the runtime has shown that it no longer waits for them. Confirmations that the
    runtime no longer waits for are moot. An event that an earlier process may have sent is not repeated if the repeat
    would count as new. If contexts replace each other, a fresh link gets only the newest silent one and the newest
    waking one without a message; wakes are sent last.
    """
    memory, asked_again = needs.memory, needs.asked_again
    # Where silence means delivery, they are sent again.
    tried = history.doubted if capabilities.delivery != "silence" else frozenset[int]()
    ordered = capabilities.replaces_context and history.fresh
    repeats = frozenset(
        [
            row.sequence
            for row in rows
            if (
                row.attempt > 0 and row.sequence not in history.started
                if needs_attempt(row.envelope.event, capabilities)
                else row.sequence <= history.unsure_up_to
            )
        ]
    )
    if capabilities.replaces_context and needs.working:
        rows = [_softly(row) if row.sequence in repeats or row.sequence in history.doubted else row for row in rows]
    over = replaced(rows, asked_again=asked_again) if ordered else frozenset[int]()
    plans: list[Plan] = []
    for row in sorted(rows, key=lambda row: row.sequence):
        event = row.envelope.event
        match event:
            case _ if row.envelope.stored_kind is not None:
                plans.append(Plan(row, "dead", f"this release cannot read the event ({row.envelope.stored_kind})"))
            case ToolFinished():
                why = None if row.sequence in asked_again else _why_over(row, event, memory, capabilities)
                plans.append(Plan(row, "moot", why) if why else Plan(row, "send"))
            case ContextUpdated():
                plans.append(Plan(row, "moot", REPLACED) if row.sequence in over else Plan(row, "send"))
            case MessageConfirmed():
                plans.append(_plan_confirmation(row, needs, now))
            case ApprovalGiven() if memory is not None and not _is_awaited(event, memory, capabilities):
                plans.append(Plan(row, "moot", "the runtime no longer waits for this decision"))
            case ApprovalGiven() | QuestionAnswered():
                plans.append(Plan(row, "send"))
            case TurnInterrupted() if memory is not None and capabilities.turns == "signalled":
                perhaps_sent = row.sequence in repeats or row.sequence in tried
                ended = memory.ended_at > row.sequence or (perhaps_sent and not memory.running)
                plans.append(Plan(row, "moot", STOPPED) if ended else Plan(row, "send"))
            case _ if row.sequence in tried:
                plans.append(Plan(row, "unknown", "the connection broke before the delivery was known"))
            case _ if row.sequence in repeats:
                plans.append(Plan(row, "unknown", "the gateway restarted before the delivery was known"))
            case SecretSupplied():
                plans.append(Plan(row, "dead", "the value of the secret was not kept"))
            case _:
                plans.append(Plan(row, "send"))
    plans = [replace(plan, repeats=plan.row.sequence in repeats) for plan in plans] if repeats else plans
    return tuple(_placed(plan, more=more) if ordered else plan for plan in plans)


def _placed(plan: Plan, *, more: bool) -> Plan:
    """Set the place of an event for a fresh link; wakes wait until all earlier events are known."""
    place = place_of(plan.row.envelope.event)
    waits = more and place == "wakes" and plan.fate == "send"
    return replace(plan, place=place, fate="later" if waits else plan.fate)


def _why_over(row: Send, event: ToolFinished, memory: Remembered | None, capabilities: Capabilities) -> str | None:
    """Return why the runtime no longer waits for an outcome; None if it waits, or has not shown otherwise."""
    if memory is None:
        return None
    asked_at = row.envelope.caused_by
    if capabilities.turns == "signalled" and asked_at is not None and memory.ended_at > asked_at:
        return TURN_OVER
    call = memory.hosted.get(event.native_call_id)
    if call is not None and call.answer == row.sequence and call.awaited == "over":
        return NOT_AWAITED
    return None


def _is_awaited(event: ApprovalGiven, memory: Remembered, capabilities: Capabilities) -> bool:
    waits = memory.state == "awaiting_approval"
    if capabilities.approvals == "by_group":
        return waits and memory.gate is not None and event.native_call_id in memory.gate.actions
    if capabilities.approvals != "by_state":
        return True
    pending = memory.gated_action(decided=True)
    return waits and pending is not None and pending.native_call_id == event.native_call_id


def _softly(row: Send) -> Send:
    event = row.envelope.event
    if not isinstance(event, ContextUpdated) or not event.wakes_agent:
        return row
    return replace(row, envelope=replace(row.envelope, event=event.model_copy(update={"wakes_agent": False})))


def _plan_confirmation(row: Send, needs: RuntimeNeeds, now: datetime) -> Plan:
    if needs.confirm_within is None:
        return Plan(row, "send")
    until = needs.posted.get(row.sequence, row.envelope.recorded_at) + needs.confirm_within
    return Plan(row, "moot", OVERDUE, overdue=True) if now >= until else Plan(row, "send", leave_before=until)


LANES: tuple[Lane, ...] = ("urgent", "turn", "new_work")
_PLACES: tuple[Place, ...] = get_args(Place)


class Lanes:
    """Sort outbound events by lane, or all in one order if each may replace the context of another.

    Within a lane the older event is sent first. An event that must wait blocks no earlier lane, and no later event that
    may be sent.
    """

    __slots__ = ("_in_order", "_waiting", "count")

    def __init__(self, *, in_order: bool) -> None:
        self.count = 0
        """The number of waiting events."""
        self._in_order = in_order
        # Created on demand, because most sessions are usually idle.
        self._waiting: dict[int, deque[Transmit]] = {}

    def add(self, item: Transmit) -> None:
        """Queue an event in its place."""
        lane = self.line_of(item)
        line = self._waiting.get(lane)
        if line is None:
            line = self._waiting[lane] = deque()
        self.count += 1
        if line and item.sequence < line[-1].sequence:
            self._waiting[lane] = deque(sorted((*line, item), key=_sequence))
        else:
            line.append(item)

    def line_of(self, item: Transmit) -> int:
        """Return the number of an event's line; lines with smaller numbers are sent first."""
        return _PLACES.index(item.place) if self._in_order else LANES.index(item.lane)

    def take(self, may_leave: Callable[[Transmit], bool]) -> Transmit | None:
        """Remove and return the next event to send; None if none may be sent."""
        for lane in sorted(self._waiting):
            line = self._waiting[lane]
            for item in line:
                if may_leave(item):
                    first = _asked_first(line, item) if item.kind == "approval.given" else item
                    line.remove(first)
                    self.count -= 1
                    if not line:
                        del self._waiting[lane]
                    return first
        return None

    def __iter__(self) -> Iterator[Transmit]:
        return (item for lane in sorted(self._waiting) for item in self._waiting[lane])


def _sequence(item: Transmit) -> int:
    return item.sequence


def _asked_first(line: deque[Transmit], item: Transmit) -> Transmit:
    """Return the approval whose question was asked first, regardless of the order of the decisions."""
    if item.caused_by is None:
        return item
    given = [one for one in line if one.kind == item.kind and one.caused_by is not None]
    return min(given, key=lambda one: one.caused_by or 0)

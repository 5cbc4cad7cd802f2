"""The outbound queue of one session: ordering, in-flight tracking and delivery results. Pure.

The ledger holds the truth: every outbound row is `pending` until its fate is known. `Outgoing` is a state machine that
knows only whether a link is up. `Outbox` queries it, sends, and reports the results. `Outgoing` returns signals for the
session's inbox.

The first matching row decides the next step:

| state | next |
|---|---|
| too many unconfirmed sends | idle, until the oldest is confirmed by silence |
| a window of retransmits is in flight | idle, and confirm their arrival |
| the pending rows are not loaded, or outdated | load them |
| an event may leave, but its runtime no longer waits for it | make it moot |
| an event may leave, but its attempt is not committed | commit it |
| an event may leave | send it |
| no queued event may leave, and the ledger has more | load them |
| no event may leave | idle, and confirm retransmits if there are any |

An event that must not be sent twice (`Transmit.needs_attempt`) leaves only after attempt 1 of its row is committed.
`plan_attempts` adds to each step the attempts of all events that leave right after it, so an event that need not wait
costs no extra commit. After `busy`, or if the link was lost before the send started, attempt 0 is committed.

The table in `results` interprets each receipt; `InFlightSends` interprets silence.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from gateway.adapter.port import Frame
from gateway.clock import Clock
from gateway.core.adapt import carries_state, needs_attempt, renew
from gateway.core.effects import Transmit, answered_by
from gateway.core.resend import (
    OVERDUE,
    Lanes,
    Plan,
    RuntimeNeeds,
    SendHistory,
    is_held,
    is_overdue,
    may_leave,
    plan_resend,
)
from gateway.core.session import RuntimeContext, StepBuilder
from gateway.core.state import SessionView
from gateway.errors import CannotExpress
from gateway.events import InteractionId
from gateway.events.frozen import frozen
from gateway.events.weight import weight
from gateway.runtime.session.in_flight import BATCH, NOTHING, InFlightSends
from gateway.runtime.session.results import Meaning
from gateway.runtime.session.signals import Delivered, Signal
from gateway.store.rows import PAGE_BYTES, Send
from gateway.store.step import RUNTIME, SendState

PAGE = 200
MOST_QUEUED = 500
"""Events queued in memory for a slow link; further events stay only in the ledger."""
FAULTS_AN_EVENT = 3
"""Unexpected link failures caused by one event before it is quarantined."""
MOST_UNCONFIRMED = 10_000
"""Unconfirmed events in flight; further events wait."""


@frozen
class Idle:
    """Send nothing until the next change."""

    prove: bool = False
    """Whether to query the link meanwhile for the arrival of the retransmits."""


@frozen
class Read:
    """Load the pending rows first."""


@frozen
class Attempt:
    """Commit the attempt of the next event first."""


Next = Idle | Read | Attempt | Transmit | Delivered
"""`Delivered` makes an event moot, because its runtime no longer waits for it."""

IDLE, PROVE, READ, ATTEMPT = Idle(), Idle(prove=True), Read(), Attempt()


@frozen
class Attempts:
    """The attempts that a step commits or resets."""

    started: frozenset[int] = NOTHING
    unstarted: frozenset[int] = NOTHING


NO_ATTEMPTS = Attempts()


@dataclass(frozen=True, slots=True)
class Reading:
    """The state when a query of the ledger started; the page may be older than the state at its end."""

    known: frozenset[int]
    again: frozenset[int]
    stored: int


def _has_capacity(item: Transmit, waiting: int) -> bool:
    """Return whether an event is queued in memory behind `waiting` others, or stays only in the ledger."""
    if not waiting:
        return True
    return waiting < MOST_QUEUED and sum(map(_size, item.frames)) * (waiting + 1) <= PAGE_BYTES


def _size(frame: Frame) -> int:
    return weight(frame.payload) if frame.written is None else len(frame.written)


class Outgoing:
    """The outbound events of one session, ordered by `Lanes`; methods get the time or the clock."""

    def __init__(self, view: SessionView, runtime: RuntimeContext) -> None:
        self.reconfigure(runtime)
        self.linked = False
        self.refused = False
        """Whether the runtime is recorded as refusing the link."""
        self.state_waits = False
        """Whether a queued event tells a new link the state."""
        self.waiting_since: float | None = None
        self.awaits_turn = False
        """Whether new work waits for news of the turn that the last message started."""
        self.in_flight = InFlightSends()
        self.lanes = Lanes(in_order=runtime.capabilities.replaces_context)
        self._first: Transmit | None = None
        """The event that the next link gets first."""
        self._deferred: tuple[Send, ...] = ()
        """The hydration of a new link, sent after all earlier rows are loaded."""
        self._fresh, self._loaded, self._more = True, False, False
        self._stored = self._stored_work = 0
        """Events, and messages among them, that only the ledger holds."""
        self._queued: dict[int, None] = {}
        self._again: frozenset[int] = NOTHING
        self._unsure_up_to = self._state_sent_up_to = view.last_sequence
        """The newest event that an earlier process may have sent, with the state up to it."""
        self._tried: frozenset[int] = NOTHING
        self._lost: frozenset[int] = NOTHING
        """Events with an unknown delivery: a response is missing, or the link was lost too early."""
        self._marked: frozenset[int] = NOTHING
        """Attempt 1 is committed, and the send has not started."""
        self._departed: frozenset[int] = NOTHING
        """Attempt 1 is committed, and the send has started."""
        self._returned: frozenset[int] = NOTHING
        """Attempt 1 is committed and must be reset, because nothing was sent."""
        self._faults: dict[int, int] = {}
        """Link failures by the event that caused them."""

    def reconfigure(self, runtime: RuntimeContext) -> None:
        """Replace the configuration."""
        self.runtime = runtime
        self.window = runtime.options.delivery_window.total_seconds()
        """Seconds of silence that count as delivered."""

    # Queued events ------------------------------------------------------------------------------------------

    @property
    def new_work(self) -> int:
        """The number of waiting messages, including those that only the ledger holds without a link."""
        here = sum(item.lane == "new_work" for item in self.lanes)
        return here + self._stored_work

    @property
    def waiting(self) -> int:
        """The number of undelivered events, including those that only the ledger holds."""
        return self.lanes.count + len(self._deferred) + len(self.in_flight.sent) + self._stored

    def is_held_up(self, view: SessionView) -> bool:
        """Whether nothing can leave now: there is no link, or every event waits for its turn."""
        return not self.linked or not any(self._leaves_now(view, item, waits=self.awaits_turn) for item in self.lanes)

    def add(self, item: Transmit, *, now: float) -> None:
        """Queue a committed event; without a link only the ledger holds it."""
        if self.waiting_since is None:
            self.waiting_since = now
        if item.sequence in self._queued:
            return
        if not self.linked and item.place == "first":
            self._first = item
        elif self.linked and not self._more and _has_capacity(item, self.lanes.count):
            self._queued[item.sequence] = None
            self.lanes.add(item)
        else:
            self._more = self._more or self.linked
            self._stored += 1
            self._stored_work += item.lane == "new_work"

    # Attempts --------------------------------------------------------------------------------------------

    def plan_attempts(self, builder: StepBuilder, *, sending: bool) -> Attempts:
        """Return the attempts that a step commits or resets; `sending` is whether a send is in progress."""
        new = [effect for effect in builder.effects if isinstance(effect, Transmit)]
        if not (self._marked or self._returned or self.lanes.count or [one for one in new if one.needs_attempt]):
            return NO_ATTEMPTS
        kinds = {envelope.event.kind for envelope in builder.events}
        if lost := "link.changed" in kinds and not builder.memory.linked:
            self._reset_attempts(self._marked)
        leaving = NOTHING if lost or sending else self._leaving(builder, new, moved="session.moved" in kinds)
        unstarted = self._returned - leaving
        if unstarted:
            unstarted -= {change.sequence for change in builder.send_changes if change.target == RUNTIME}
        started = leaving - self._marked - self._departed
        return Attempts(started, unstarted) if started or unstarted else NO_ATTEMPTS

    def _leaving(self, builder: StepBuilder, new: Sequence[Transmit], *, moved: bool) -> frozenset[int]:
        """Return the events that need an attempt and leave right after the step's commit."""
        if not self.linked or not self._loaded or self._is_full:
            return NOTHING
        able, view, waits = self.runtime.capabilities, builder.view, self.awaits_turn and not moved
        items, more = [*self.lanes], self._more
        for item in new:
            more = more or not _has_capacity(item, len(items))
            if not more and item.sequence not in self._queued:
                items.append(item)
        found: list[int] = []
        for item in sorted(items, key=self._turn_of):
            if not self._leaves_now(view, item, waits=waits):
                continue
            waits = waits or (item.lane == "new_work" and able.one_message_per_turn)
            if item.needs_attempt:
                found.append(item.sequence)
            if able.delivery != "silence":
                # The next event waits for its response.
                break
        return frozenset(found) or NOTHING

    def _turn_of(self, item: Transmit) -> tuple[int, int]:
        return self.lanes.line_of(item), item.sequence

    def note_attempts(self, attempts: Attempts) -> None:
        """Note committed attempts."""
        self._marked = self._marked.union(attempts.started).difference(attempts.unstarted) or NOTHING
        self._returned = self._returned.difference(attempts.started, attempts.unstarted) or NOTHING

    def _reset_attempts(self, sequences: Collection[int]) -> None:
        """Reset the attempts of unsent events with the next step."""
        self._returned = self._returned.union(sequences) or NOTHING
        self._marked = self._marked.difference(sequences) or NOTHING
        self._departed = self._departed.difference(sequences) or NOTHING

    @property
    def attempts_due(self) -> bool:
        """Whether attempts must be reset."""
        return bool(self._returned)

    def resend(self, sequence: int) -> bool:
        """Offer a recorded event again; return whether the ledger must be loaded for it."""
        # Sent events are sent again; queued events are sent anyway.
        if self.in_flight.resend(sequence):
            self._queued.pop(sequence, None)
        if sequence in self._queued:
            return False
        self._again |= {sequence}
        return True

    def reread(self) -> None:
        """Discard the plan, because it no longer matches the ledger."""
        self._loaded = False

    def turn_moved(self) -> None:
        """Release new work: the runtime reported on its turn, or was silent for too long."""
        self.awaits_turn = False

    # The link --------------------------------------------------------------------------------------------

    def link_up(self) -> None:
        """Start on a new link: pending rows first, then new events."""
        self.linked, self.refused = True, False
        self._loaded, self._fresh = False, True
        if self._first is not None:
            self._queued[self._first.sequence] = None
            self.lanes.add(self._first)
            self._first = None

    def link_down(self, *, refused: bool = False, interrupted: int | None = None) -> None:
        """Stop without a link; undelivered events stay pending. The result of the `interrupted` send is never known."""
        if interrupted is not None and self.runtime.capabilities.delivery != "silence":
            self._tried |= {interrupted}
        self.refused = self.refused or refused
        self.linked = False
        self._stored_work, self._stored = self.new_work, self.waiting
        self.lanes = Lanes(in_order=self.runtime.capabilities.replaces_context)
        self._deferred = ()
        self._queued.clear()
        self._lost = self._lost.union(self.in_flight.clear()) or NOTHING
        self._reset_attempts(self._marked)
        self._more = self.awaits_turn = False

    def link_failed(self, sequences: Iterable[int], reason: str) -> Sequence[Signal]:
        """Note events that made a link fail unexpectedly; quarantine them the third time."""
        signals: list[Signal] = []
        for sequence in sequences:
            self._faults[sequence] = self._faults.get(sequence, 0) + 1
            if self._faults[sequence] >= FAULTS_AN_EVENT:
                signals.append(self._settle(sequence, "dead", reason, fault=True))
        self.linked = False
        return signals

    # Sending -----------------------------------------------------------------------------------------

    def next(self, view: SessionView, clock: Clock) -> Next:
        """Return the next step of the table above; an event in it leaves the queue."""
        if len(self.in_flight.sent) >= MOST_UNCONFIRMED:
            return IDLE
        if len(self.in_flight.retransmits) >= BATCH:
            return PROVE
        if not self._loaded:
            return READ
        item = self.lanes.take(partial(self._leaves_now, view, waits=self.awaits_turn)) if self.lanes.count else None
        if item is None and self._more:
            return READ
        if item is None:
            self.waiting_since = None
            return PROVE if self.in_flight.retransmits else IDLE
        if item.leave_before is not None and is_overdue(item, clock.now()):
            return self._settle(item.sequence, "moot", OVERDUE, overdue=True)
        if item.needs_attempt and item.sequence not in self._departed:
            if item.sequence not in self._marked:
                self.lanes.add(item)
                return ATTEMPT
            self._marked = self._marked.difference((item.sequence,)) or NOTHING
            self._departed |= {item.sequence}
        # Set before the send: events of the turn may arrive before the response.
        if item.lane == "new_work":
            self.awaits_turn = self.awaits_turn or self.runtime.capabilities.one_message_per_turn
        return item

    @property
    def _is_full(self) -> bool:
        """Whether too many sends are unconfirmed for another event to leave."""
        return len(self.in_flight.sent) >= MOST_UNCONFIRMED or len(self.in_flight.retransmits) >= BATCH

    def _leaves_now(self, view: SessionView, item: Transmit, *, waits: bool) -> bool:
        able = self.runtime.capabilities
        if item.lane == "turn" and item.kind == "tool.finished" and not able.starts_deaf:
            return True  # The usual case: nothing delays the event.
        if waits and item.lane == "new_work":
            return False
        return may_leave(item, view.memory, able) and not (able.starts_deaf and is_held(item, view.start, able))

    def in_newest_form(self, item: Transmit, view: SessionView) -> Transmit:
        """Update the state in an event if the runtime already has a newer one.

        Raises:
            CannotExpress: the protocol does not accept the newest state.
        """
        if item.renew or item.sequence < self._state_sent_up_to:
            item = renew(item, view.memory, self.runtime.codec, self.runtime.options.history_key)
            self._state_sent_up_to = view.last_sequence
        self._state_sent_up_to = max(self._state_sent_up_to, item.sequence)
        return item

    def note_result(self, item: Transmit, meaning: Meaning, *, now: float) -> Sequence[Signal]:
        """Note the result of a send."""
        if meaning.tried:
            self._tried |= {item.sequence}
        if meaning.unsent and item.sequence in self._departed:
            self._reset_attempts((item.sequence,))
        if meaning.state is None:
            if meaning.then == "next":
                self.in_flight.add(item, now=now)
            elif meaning.then == "again":
                self.lanes.add(item)
                # Without a turn to wait for, the event would be offered again at once while the runtime is busy.
                self.awaits_turn = self.awaits_turn or (
                    item.lane == "new_work" and not self.runtime.capabilities.one_message_per_turn
                )
            # If the link was lost, the row stays pending, and the next link loads it again.
            return ()
        if item.lane == "new_work" and meaning.state in {"refused", "moot", "dead"}:
            self.awaits_turn = False
        return (self._settle(item.sequence, meaning.state, meaning.reason, answers=item.answers),)

    def _settle(
        self,
        sequence: int,
        state: SendState,
        reason: str | None,
        *,
        overdue: bool = False,
        fault: bool = False,
        answers: InteractionId | None = None,
    ) -> Delivered:
        """Return the signal for the fate of an event; its row stays pending in the ledger until the commit."""
        self.in_flight.settling[sequence] = None
        return Delivered((sequence,), RUNTIME, state, reason, overdue, fault, answers)

    @property
    def has_more(self) -> bool:
        """Whether more can happen after the sends in flight are confirmed."""
        return self._more or self.lanes.count > 0 or (bool(self.in_flight.retransmits) and self.in_flight.repeats)

    def fault(self, code: str | None, message: str, *, now: float) -> Sequence[Signal]:
        """Apply a reported error: if silence means delivery, it concerns the newest send in the window."""
        capabilities = self.runtime.capabilities
        if capabilities.delivery != "silence" or code not in capabilities.rejects_with:
            return ()
        newest = self.in_flight.take_refused(now=now, window=self.window)
        if newest is None:
            return ()
        self._queued.pop(newest, None)
        return (self._settle(newest, "refused", f"{code}: {message}"[:500]),)

    def done(self, sequences: Collection[int]) -> bool:
        """Note rows with a recorded fate; return whether others may leave now."""
        for sequence in sequences:
            self._queued.pop(sequence, None)
            self._faults.pop(sequence, None)
        if any(rare := (self._tried, self._lost, self._marked, self._departed, self._returned)):
            known = [one.difference(sequences) or NOTHING for one in rare]
            self._tried, self._lost, self._marked, self._departed, self._returned = known
        return self.in_flight.done(sequences)

    # The ledger ------------------------------------------------------------------------------------------

    def begin_reading(self) -> Reading:
        """Start a query of the ledger; `reread` discards it if it fails."""
        self._loaded = True
        # Sent rows stay pending until their fate is committed, perhaps during the query, so the page has them again.
        known = self._queued.keys() | (self.in_flight.settling.keys() - self._again)
        return Reading(frozenset(known), self._again, self._stored)

    def take(
        self,
        reading: Reading,
        page: Sequence[Send],
        posted: Mapping[int, datetime],
        view: SessionView,
        *,
        more: bool,
        now: datetime,
    ) -> Sequence[Signal]:
        """Queue pending rows that are not queued yet; `posted` has the times of messages, `more` rows may follow."""
        signals: list[Signal] = []
        # Events that went only to the ledger meanwhile may be missing on this page.
        self._more = more or self._stored != reading.stored
        self._stored_work = 0
        # Kept until a page has them, also if the link of a query is lost.
        answered = reading.again.intersection(row.sequence for row in page) if self._more else reading.again
        self._again = self._again.difference(answered) or NOTHING
        sent = (self.in_flight.sequences | self.in_flight.settling.keys()) - reading.again
        known = reading.known | self._queued.keys() | sent
        # The rows of a committed step that is not applied yet are added with it: their state is newer than `view`.
        found = [row for row in page if row.sequence not in known and row.sequence <= view.last_sequence]
        self._stored = max(0, self._stored - len(found)) if self._more else 0
        plans = plan_resend(
            [*self._deferred, *found],
            SendHistory(
                unsure_up_to=self._unsure_up_to,
                started=self._marked | self._departed | self._returned,
                tried=self._tried,
                lost=self._lost,
                fresh=self._fresh,
            ),
            RuntimeNeeds(
                memory=view.memory,
                working=any(call.deliver for call in view.calls.values()),
                posted=posted,
                asked_again=reading.again,
            ),
            capabilities=self.runtime.capabilities,
            now=now,
            more=self._more,
        )
        self._deferred = tuple(plan.row for plan in plans if plan.fate == "later")
        for plan in plans:
            self._queued[plan.row.sequence] = None
            self._place(plan, signals, redelivered=plan.row.sequence in reading.again)
        self._fresh = self._fresh and self._more
        return signals

    def _place(self, plan: Plan, signals: list[Signal], *, redelivered: bool) -> None:
        """Queue a planned event, or add the signal for its planned fate."""
        envelope, sequence = plan.row.envelope, plan.row.sequence
        if plan.fate == "later":
            return
        answers = answered_by(envelope.session_id, envelope.event, envelope.caused_by, synthetic=envelope.synthetic)
        # An operator who redelivers an event with an unknown delivery accepts that it may arrive twice.
        if plan.fate != "send" and not (plan.fate == "unknown" and redelivered):
            signals.append(self._settle(sequence, plan.fate, plan.reason, overdue=plan.overdue, answers=answers))
            return
        try:
            frames = self.runtime.codec.encode(envelope).frames
        except CannotExpress as exc:
            signals.append(self._settle(sequence, "dead", exc.reason))
            return
        needs = needs_attempt(envelope.event, self.runtime.capabilities)
        if plan.repeats and needs:
            # An earlier process may have sent it, so its attempt stays committed.
            self._departed |= {sequence}
        self.lanes.add(
            Transmit(
                sequence,
                plan.row.lane,
                envelope.event.kind,
                frames,
                envelope.caused_by,
                plan.leave_before,
                state=envelope if carries_state(envelope.event, self.runtime.capabilities) else None,
                renew=self._fresh,
                repeats=plan.repeats or sequence in self._lost or sequence in self._tried,
                place=plan.place,
                answers=answers,
                needs_attempt=needs,
            )
        )

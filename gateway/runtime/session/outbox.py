"""The outbound rows of one session: their order, the next send, and the sends in flight. Pure.

The ledger decides: each outbound row is `pending` until its fate is known. `Outbox` knows only whether a link is up.
`Sender` asks it for the next step, sends, and reports the results; `Outbox` returns signals for the session's inbox.
`TABLE` in `row` says what each event does to a row.

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

`plan_attempts` adds to each step the attempts of all events that leave right after it, so an event that need not wait
costs no extra commit. The mark of an outcome that silence has confirmed joins the session's next step.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal

from gateway.adapter.port import Frame
from gateway.clock import Clock
from gateway.core.adapt import RENEWED, carries_state, needs_attempt, renew
from gateway.core.effects import Transmit, answered_by
from gateway.core.resend import (
    OVERDUE,
    Lanes,
    Plan,
    RuntimeNeeds,
    SendHistory,
    is_held,
    may_leave,
    plan_resend,
    waits_for_approval,
)
from gateway.core.session import RuntimeContext, StepBuilder
from gateway.core.state import SessionView
from gateway.errors import CannotExpress
from gateway.events.weight import weight
from gateway.runtime.session.row import TABLE, Happening, Meaning, Row
from gateway.runtime.signals import Delivered, Signal
from gateway.store.rows import PAGE_BYTES, Send
from gateway.store.step import RUNTIME, SendState

PAGE = 200
MOST_QUEUED = 500
"""Events queued in memory for a slow link; further events stay only in the ledger."""
FAULTS_AN_EVENT = 3
"""Unexpected link failures caused by one event before it is quarantined."""
MOST_UNCONFIRMED = 10_000
"""Unconfirmed events in flight; further events wait."""
BATCH = 32
"""The retransmit window: the most retransmitted events in flight, which a crash may repeat."""
CROWD = 8_000
"""With this many sends in flight the link is queried before the window ends, so that further events need not wait.

The answer alone confirms the older half, because a fault concerns the newest send."""

Next = Transmit | Delivered | Literal["idle", "prove", "read", "attempt"]
"""An event to send, the fate of a moot event, or a step of the table above; `prove`: idle, and confirm retransmits."""


Attempts = tuple[Collection[int], Collection[int]]
"""Two sets of rows: a step commits the attempts of the first, and resets those of the second."""


def _has_capacity(item: Transmit, waiting: int) -> bool:
    """Return whether an event is queued in memory behind `waiting` others, or stays only in the ledger."""
    if not waiting:
        return True
    return waiting < MOST_QUEUED and sum(map(_size, item.frames)) * (waiting + 1) <= PAGE_BYTES


def _size(frame: Frame) -> int:
    return weight(frame.payload) if frame.written is None else len(frame.written)


class Outbox:
    """The outbound rows of one session; methods get the time or the clock."""

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
        self.attempts_due = False
        """Whether attempts must be reset."""
        self.lanes = Lanes(in_order=runtime.capabilities.replaces_context)
        self.sent: list[Row] = []
        """The rows in flight in the order of their sends; a fault may still concern them."""
        self.marks: list[int] = []
        """Confirmed outcomes to mark in the session's next step."""
        self.retransmits = 0
        """Retransmits without a committed mark."""
        self._rows: dict[int, Row] = {}
        self._confirmed: tuple[Row, ...] = ()
        """The last confirmed retransmits; a fault may still concern them."""
        self._deferred: tuple[Send, ...] = ()
        """The queued rows that are planned after all earlier rows are loaded: the hydration of a new link."""
        self._fresh, self._loaded, self._more = True, False, False
        self._stored: int = 0
        self._stored_work: int = 0
        """Events, and messages among them, that only the ledger holds."""
        self._stored_before: int = 0
        """The first number when the last query of the ledger started."""
        self._unsure_up_to = self._state_sent_up_to = view.last_sequence
        """The newest event that an earlier process may have sent, with the state up to it."""

    def reconfigure(self, runtime: RuntimeContext) -> None:
        """Replace the configuration."""
        self.runtime = runtime
        self.window = runtime.options.delivery_window.total_seconds()
        """Seconds of silence that count as delivered."""
        self.silent = runtime.capabilities.delivery == "silence"
        """Whether silence means delivery."""

    # Rows ----------------------------------------------------------------------------------------------------

    def _move(self, row: Row, what: Happening) -> None:
        """Apply an event to a row, as the table says."""
        move = TABLE[row.state, what]
        row.state = move.to
        if move.doubt:
            row.doubt = True
        elif move.attempt == "forget":
            row.attempt = "none"
        elif move.attempt == "reset" and row.attempt == "written" and not row.doubt:
            row.attempt, self.attempts_due = "to_reset", True

    def _settle(self, row: Row, what: Happening, state: SendState, reason: str | None, **about: Any) -> Delivered:
        """Return the signal for the fate of a row, which stays pending in the ledger until the commit."""
        self._move(row, what)
        row.again = False
        return Delivered((row.sequence,), RUNTIME, state, reason, **about)

    def _row(self, sequence: int) -> Row:
        row = self._rows.get(sequence)
        if row is None:
            row = self._rows[sequence] = Row(sequence)
        return row

    def _tidy(self) -> None:
        self._rows = {sequence: row for sequence, row in self._rows.items() if not row.is_blank}
        self.attempts_due = self.attempts_due and any(row.attempt == "to_reset" for row in self._rows.values())

    # Queued events ------------------------------------------------------------------------------------------

    @property
    def new_work(self) -> int:
        """The number of waiting messages, including those that only the ledger holds without a link."""
        return self._stored_work + sum(item.lane == "new_work" for item in self.lanes)

    @property
    def waiting(self) -> int:
        """The number of undelivered events, including those that only the ledger holds."""
        return self.lanes.count + len(self._deferred) + len(self.sent) + self._stored

    def is_held_up(self, view: SessionView) -> bool:
        """Whether nothing can leave now: there is no link, or every event waits for its turn."""
        return not self.linked or not any(self._leaves_now(view, item, waits=self.awaits_turn) for item in self.lanes)

    def add(self, item: Transmit, *, now: float) -> None:
        """Queue a committed event; without a link only the ledger holds it, unless the next link gets it first."""
        if self.waiting_since is None:
            self.waiting_since = now
        row = self._row(item.sequence)
        if row.state != "stored":
            return
        if (not self._more and _has_capacity(item, self.lanes.count)) if self.linked else item.place == "first":
            self._move(row, "planned")
            self.lanes.add(item)
            return
        self._more = self._more or self.linked
        self._stored += 1
        self._stored_work += item.lane == "new_work"
        if row.is_blank:
            del self._rows[item.sequence]

    # Attempts --------------------------------------------------------------------------------------------

    def plan_attempts(self, builder: StepBuilder, *, sending: bool) -> Attempts | None:
        """Return the attempts of a step, None if it has none; `sending` is whether a send is in progress."""
        new = [effect for effect in builder.effects if isinstance(effect, Transmit)]
        if not (self.attempts_due or self.lanes.count or [one for one in new if one.needs_attempt]):
            return None
        kinds = {envelope.event.kind for envelope in builder.events}
        if lost := "link.changed" in kinds and not builder.memory.linked:
            for row in self._rows.values():
                if row.state in {"stored", "queued"}:
                    self._move(row, "lost_in_step")
        leaving: Sequence[int] = () if lost or sending else self._leaving(builder, new, moved="session.moved" in kinds)
        unstarted = frozenset[int]()
        if self.attempts_due:
            changed = {change.sequence for change in builder.send_changes if change.target == RUNTIME}
            to_reset = [row.sequence for row in self._rows.values() if row.attempt == "to_reset"]
            unstarted = frozenset(to_reset).difference(leaving, changed)
        return (leaving, unstarted) if leaving or unstarted else None

    def _needs_attempt(self, item: Transmit) -> bool:
        """Return whether the attempt of an event must be committed; that of a repeat has been."""
        if not item.needs_attempt or item.repeats:
            return False
        row = self._rows.get(item.sequence)
        return row is None or row.attempt != "written"

    def _leaving(self, builder: StepBuilder, new: Sequence[Transmit], *, moved: bool) -> Sequence[int]:
        """Return the events that need an attempt and leave right after the step's commit."""
        if not self.linked or not self._loaded or self._is_full:
            return ()
        able, view, waits = self.runtime.capabilities, builder.view, self.awaits_turn and not moved
        items, more = [*self.lanes], self._more
        for item in new:
            more = more or not _has_capacity(item, len(items))
            if not more and item.sequence not in self._rows:
                items.append(item)
        found: list[int] = []
        for item in sorted(items, key=lambda one: (self.lanes.line_of(one), one.sequence)):
            if not self._leaves_now(view, item, waits=waits):
                continue
            waits = waits or (item.lane == "new_work" and able.one_message_per_turn)
            if self._needs_attempt(item):
                found.append(item.sequence)
            if not self.silent:
                # The next event waits for its response.
                break
        return found

    def note_attempts(self, attempts: Attempts) -> None:
        """Note committed attempts."""
        started, unstarted = attempts
        for sequence in unstarted:
            self._row(sequence).attempt = "none"
        for sequence in started:
            self._row(sequence).attempt = "written"
        if self.attempts_due:
            self._tidy()

    def resend(self, sequence: int) -> bool:
        """Offer a recorded event again; return whether the ledger must be loaded for it."""
        row = self._row(sequence)
        if row.state in {"in_flight", "settling"}:
            if row.state == "in_flight":
                self.sent.remove(row)
            elif sequence in self.marks:
                self.marks.remove(sequence)
            self._uncount(row)
            self._move(row, "requested")
        elif row.state != "stored":
            return False  # It is sent anyway.
        row.again = True
        return True

    def reread(self) -> None:
        """Discard the plan, because it no longer matches the ledger."""
        self._loaded = False

    # The link --------------------------------------------------------------------------------------------

    def link_up(self) -> None:
        """Start on a new link: pending rows first, then new events."""
        self.linked, self.refused = True, False
        self._loaded, self._fresh = False, True

    def link_down(self, *, refused: bool = False) -> None:
        """Stop without a link; undelivered events stay pending. The result of a send in progress is never known."""
        self.refused = self.refused or refused
        if not self.linked:
            return
        self.linked = False
        self._stored_work, self._stored = self.new_work, self.waiting
        self.lanes = Lanes(in_order=self.runtime.capabilities.replaces_context)
        self.sent, self._deferred, self._confirmed, self.retransmits = [], (), (), 0
        self._more = self.awaits_turn = False
        for row in self._rows.values():
            self._move(row, "lost")
            row.repeats = False
        self._tidy()

    def link_failed(self, sequences: Iterable[int], reason: str) -> Sequence[Signal]:
        """Note events that made a link fail unexpectedly; quarantine them the third time."""
        signals: list[Signal] = []
        for sequence in sequences:
            row = self._row(sequence)
            row.faults += 1
            if row.faults >= FAULTS_AN_EVENT:
                signals.append(self._settle(row, "failed", "dead", reason, fault=True))
        self.sent = [row for row in self.sent if row.state == "in_flight"]
        return signals

    # Sending -----------------------------------------------------------------------------------------

    def next(self, view: SessionView, clock: Clock) -> Next:
        """Return the next step of the table above; an event in it leaves the queue."""
        if len(self.sent) >= MOST_UNCONFIRMED:
            return "idle"
        if self.retransmits >= BATCH:
            return "prove"
        if not self._loaded:
            return "read"
        item = self.lanes.take(partial(self._leaves_now, view, waits=self.awaits_turn)) if self.lanes.count else None
        if item is None and self._more:
            return "read"
        if item is None:
            self.waiting_since = None
            return "prove" if self.retransmits else "idle"
        row = self._rows[item.sequence]
        if item.leave_before is not None and clock.now() >= item.leave_before:
            return self._settle(row, "dropped", "moot", OVERDUE, overdue=True)
        if self._needs_attempt(item):
            self.lanes.add(item)
            return "attempt"
        self._move(row, "taken")
        row.again = False
        # Set before the send: events of the turn may arrive before the response.
        if item.lane == "new_work":
            self.awaits_turn = self.awaits_turn or self.runtime.capabilities.one_message_per_turn
        return item

    def take_interrupt(self, view: SessionView) -> Transmit | None:
        """Return the interrupt of a running turn that leaves beside a send that waits; it leaves the queue."""
        if self._is_full or not (self._loaded and self.lanes.count and view.memory.running):
            return None
        item = self.lanes.take(lambda one: one.kind == "turn.interrupted" and not one.needs_attempt)
        if item is not None:
            row = self._rows[item.sequence]
            self._move(row, "taken")
            row.again = False
        return item

    @property
    def _is_full(self) -> bool:
        """Whether too many sends are unconfirmed for another event to leave."""
        return len(self.sent) >= MOST_UNCONFIRMED or self.retransmits >= BATCH

    def _leaves_now(self, view: SessionView, item: Transmit, *, waits: bool) -> bool:
        if item.lane == "turn" and item.kind == "tool.finished":
            return True  # The usual case: nothing delays the event.
        if waits and item.lane == "new_work":
            return False
        if is_held(item, view.start) or waits_for_approval(item, self.lanes, view, self.runtime):
            return False
        return may_leave(item, view.memory, self.runtime.capabilities)

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
        """Note the result of a send; after a lost link the row stays pending, and the next link loads it again."""
        row = self._rows[item.sequence]
        if meaning.fate is not None:
            if item.lane == "new_work" and meaning.fate in {"refused", "moot", "dead"}:
                self.awaits_turn = False
            return (self._settle(row, meaning.what, meaning.fate, meaning.reason, answers=item.answers),)
        self._move(row, meaning.what)
        if meaning.what == "sent":
            row.kind, row.since, row.repeats = item.kind, now, item.repeats
            row.note = RENEWED if item.renewed else None
            self.retransmits += item.repeats
            self.sent.append(row)
        elif meaning.what == "busy":
            self.lanes.add(item)
            # Without a turn to wait for, the event would be offered again at once while the runtime is busy.
            self.awaits_turn = self.awaits_turn or (
                item.lane == "new_work" and not self.runtime.capabilities.one_message_per_turn
            )
        return ()

    def done(self, sequences: Collection[int]) -> bool:
        """Note rows with a recorded fate; return whether others may leave now."""
        before = self.retransmits
        for sequence in sequences:
            row = self._rows.get(sequence)
            if row is not None and row.state in {"settling", "stored"}:
                self._uncount(row)
                del self._rows[sequence]
                if row.again:
                    self._rows[sequence] = Row(sequence, again=True)
        if not self._rows:
            self._rows = {}  # An emptied dict keeps its size.
        if self.attempts_due:
            self._tidy()
        return self.retransmits < before

    def _uncount(self, row: Row) -> None:
        self.retransmits -= row.repeats
        row.repeats = False

    # Silence ---------------------------------------------------------------------------------------------

    @property
    def repeats(self) -> bool:
        """Whether retransmits are in flight.

        Retransmitted events are confirmed by the ping, so a crash loop does not retransmit them forever. A fault within
        the window still concerns them.
        """
        return self.retransmits > 0 and any(row.repeats for row in self.sent)

    @property
    def is_crowded(self) -> bool:
        """Whether the link must be queried at once."""
        return len(self.sent) >= CROWD

    def list_proven(self, *, asked_at: float) -> Sequence[Row]:
        """List the sends that the link's answer to a query at `asked_at` confirms.

        It confirms all earlier retransmits. Of other sends it confirms those with a window of silence before the
        query and, of a crowd, the older half.
        """
        until = asked_at - self.window
        if self.is_crowded:
            until = max(until, min(asked_at, self.sent[-CROWD // 2].since))
        return [row for row in self.sent if row.since <= (asked_at if row.repeats else until)]

    def confirm(self, *, asked_at: float) -> Sequence[Signal]:
        """Confirm the sends that `list_proven` lists."""
        ripe: dict[str | None, list[int]] = {}
        for row in self.list_proven(asked_at=asked_at):
            self._move(row, "proven")
            if row.kind == "tool.finished" and not row.repeats:
                self.marks.append(row.sequence)
            else:
                ripe.setdefault(row.note, []).append(row.sequence)
            if row.repeats:
                self._confirmed = (*self._confirmed[-BATCH:], row)
        self.sent = [row for row in self.sent if row.state == "in_flight"]
        return [Delivered(tuple(sequences), RUNTIME, "delivered", note) for note, sequences in ripe.items()]

    def take_marks(self) -> Sequence[Signal]:
        """Take the marks for the session's next step."""
        if not self.marks:
            return ()
        marks, self.marks = self.marks, []
        return (Delivered(tuple(marks), RUNTIME, "delivered"),)

    def fault(self, code: str | None, message: str, *, now: float) -> Sequence[Signal]:
        """Apply a reported error: if silence means delivery, it concerns the newest send in the window."""
        if not self.silent or code not in self.runtime.capabilities.rejects_with:
            return ()
        if self.sent:
            row = self.sent.pop()
        elif self._confirmed and self._confirmed[-1].since > now - self.window:
            row, self._confirmed = self._confirmed[-1], self._confirmed[:-1]
            if self._rows.setdefault(row.sequence, row) is not row:
                return ()  # It was sent again since.
        else:
            return ()
        return (self._settle(row, "rejected", "refused", f"{code}: {message}"[:500]),)

    # The ledger ------------------------------------------------------------------------------------------

    def begin_reading(self) -> Collection[int]:
        """Start a query of the ledger and return the rows that its page omits; `reread` discards it if it fails."""
        self._loaded = True
        self._stored_before = self._stored
        # Sent rows stay pending until their fate is committed, perhaps during the query, so the page has them again.
        return frozenset(row.sequence for row in self._rows.values() if row.state != "stored")

    def take(
        self,
        known: Collection[int],
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
        self._more = more or self._stored != self._stored_before
        self._stored_work = 0
        # The rows of a committed step that is not applied yet are added with it: their state is newer than `view`.
        new = [row for row in page if row.sequence not in known and row.sequence <= view.last_sequence]
        found = [row for row in new if self._row(row.sequence).state == "stored"]
        self._stored = max(0, self._stored - len(found)) if self._more else 0
        rows = [self._rows[row.sequence] for row in (*self._deferred, *found)]
        rule = self.runtime.options.confirmation
        plans = plan_resend(
            [*self._deferred, *found],
            SendHistory(
                unsure_up_to=self._unsure_up_to,
                started=frozenset(row.sequence for row in rows if row.attempt != "none"),
                doubted=frozenset(row.sequence for row in rows if row.doubt),
                fresh=self._fresh,
            ),
            RuntimeNeeds(
                memory=view.memory,
                working=any(call.deliver for call in view.calls.values()),
                posted=posted,
                confirm_within=None if rule is None else rule.within,
                asked_again=frozenset(row.sequence for row in rows if row.again),
            ),
            capabilities=self.runtime.capabilities,
            now=now,
            more=self._more,
        )
        for row in found:
            self._move(self._rows[row.sequence], "planned")
        self._deferred = tuple(plan.row for plan in plans if plan.fate == "later")
        for plan in plans:
            self._place(plan, self._rows[plan.row.sequence], signals)
        if self._loaded and not self._more:
            # Requested rows that no page has are no longer pending.
            for row in self._rows.values():
                row.again = row.again and row.state != "stored"
            self._tidy()
        self._fresh = self._fresh and self._more
        return signals

    def _place(self, plan: Plan, row: Row, signals: list[Signal]) -> None:
        """Queue a planned event, or add the signal for its planned fate."""
        envelope, sequence = plan.row.envelope, plan.row.sequence
        if plan.fate == "later":
            return
        answers = answered_by(envelope.session_id, envelope.event, envelope.caused_by, synthetic=envelope.synthetic)
        # An operator who redelivers an event with an unknown delivery accepts that it may arrive twice.
        if plan.fate != "send" and not (plan.fate == "unknown" and row.again):
            signals.append(self._settle(row, "dropped", plan.fate, plan.reason, overdue=plan.overdue, answers=answers))
            return
        try:
            frames = self.runtime.codec.encode(envelope).frames
        except CannotExpress as exc:
            signals.append(self._settle(row, "dropped", "dead", exc.reason))
            return
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
                repeats=plan.repeats or row.doubt,
                place=plan.place,
                answers=answers,
                needs_attempt=needs_attempt(envelope.event, self.runtime.capabilities),
            )
        )

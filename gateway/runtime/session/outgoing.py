"""What waits to leave for one runtime session, what of it leaves next, and what it means how that went. Pure.

The ledger holds the truth: every outbound row is `pending` until its fate is known. `Outgoing` is a state machine that
knows of no link but whether one stands; `Outbox` asks it, sends, and tells it what came of that. It answers with
signals, which are put into the session's inbox.

What comes next, by the first line that fits:

| state | next |
|---|---|
| too much is on its way without a word | idle, until the oldest has ripened |
| a portion of repeats is on its way | idle, and prove that they have come |
| what is pending was not read, or no longer fits what is known | read it |
| something may leave, and its runtime waits no longer for it | let it be moot |
| something may leave whose attempt is not on record yet | put it on record |
| something may leave | send it |
| nothing here may leave, and the ledger keeps more | read it |
| nothing may leave | idle, and prove repeats if there are any |

An event that must not be sent twice (`Transmit.needs_attempt`) leaves only once its row has attempt 1 on record.
`plan_attempts` adds to each step the attempts of all events that leave right after it, so that an event that need not
wait costs no commit of its own. After `busy`, and if the link was lost before the send began, attempt 0 is written.

What came of a send is read from the table of `results`, and what silence means is kept by `InFlightSends`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from gateway.adapter.port import Frame
from gateway.clock import Clock
from gateway.core.adapt import carries_state, needs_attempt, renew
from gateway.core.effects import Transmit, answered_by
from gateway.core.resend import Lanes, Plan, RuntimeNeeds, SendHistory, is_held, is_overdue, may_leave, plan_resend
from gateway.core.session import RuntimeContext, StepBuilder
from gateway.core.state import SessionView
from gateway.errors import CannotExpress
from gateway.events.frozen import frozen
from gateway.events.weight import weight
from gateway.runtime.session.in_flight import NOTHING, PORTION, InFlightSends
from gateway.runtime.session.results import Meaning
from gateway.runtime.session.signals import Delivered, Signal
from gateway.store.rows import Send
from gateway.store.step import RUNTIME

PAGE = 200
FEW, MOST_QUEUED = 16, 500
"""Events that wait here for a link that is slow; the ledger alone keeps the next ones."""
_LARGE = 64 * 1024
"""Larger events are left to the ledger already where a few wait."""
FAULTS_AN_EVENT = 3
"""How often an event may make a link fail in ways that nobody foresaw, until it is put aside."""
MOST_UNCONFIRMED = 10_000
"""Events that may be on their way without a word on their delivery; the next ones wait."""


@frozen
class Idle:
    """Nothing leaves until something else happens."""

    prove: bool = False
    """Whether the link is to be asked meanwhile if what was said again has come."""


@frozen
class Read:
    """The ledger is to be read first."""


@frozen
class Overdue:
    """Its runtime waits for it no longer."""

    sequence: int


@frozen
class Attempt:
    """The attempt of what leaves next is to be put on record first."""


Next = Idle | Read | Overdue | Attempt | Transmit

IDLE, PROVE, READ, ATTEMPT = Idle(), Idle(prove=True), Read(), Attempt()


@frozen
class Attempts:
    """What a step puts on record of attempts."""

    started: frozenset[int] = NOTHING
    unstarted: frozenset[int] = NOTHING


NO_ATTEMPTS = Attempts()


@dataclass(frozen=True, slots=True)
class Reading:
    """What was known when a reading of the ledger began; the page may be older than what is known by its end."""

    limit: int
    known: frozenset[int]
    again: frozenset[int]
    stored: int


def _has_capacity(item: Transmit, waiting: int) -> bool:
    """Whether an event is kept here beside so many others, and not in the ledger alone."""
    return waiting < FEW or (waiting < MOST_QUEUED and all(_size(frame) <= _LARGE for frame in item.frames))


def _size(frame: Frame) -> int:
    return weight(frame.payload) if frame.written is None else len(frame.written)


class Outgoing:
    """One session's outbound events, as `Lanes` sorts them; every method is told the time, or by which clock it is."""

    def __init__(self, view: SessionView, runtime: RuntimeContext) -> None:
        self.reconfigure(runtime)
        self.linked = False
        self.refused = False
        """Whether it is on record that the runtime refuses the link."""
        self.state_waits = False
        """Whether a fresh link will be told the state by something that waits for it."""
        self.waiting_since: float | None = None
        self.begun = False
        """Whether new work waits for a word on the turn that the last message began."""
        self.way = InFlightSends()
        self.lanes = Lanes(in_order=runtime.capabilities.replaces_context)
        self._first: Transmit | None = None
        """What the next link is told before everything else."""
        self._owed: tuple[Send, ...] = ()
        """What a fresh link is told once all that goes before it has been read."""
        self._fresh, self._loaded, self._more = True, False, False
        self._stored = self._stored_work = 0
        """Events, and messages among them, that the ledger alone keeps."""
        self._queued: dict[int, None] = {}
        self._again: frozenset[int] = NOTHING
        self._unsure_up_to = self._told_up_to = view.last_sequence
        """The newest that an earlier process may have sent, and of which the runtime may have been told the state."""
        self._tried: frozenset[int] = NOTHING
        self._lost: frozenset[int] = NOTHING
        """What may have left where nobody knows whether it came: an answer is missing, or a link broke too soon."""
        self._marked: frozenset[int] = NOTHING
        """Attempt 1 is on record, and the send has not begun."""
        self._departed: frozenset[int] = NOTHING
        """Attempt 1 is on record, and the send has begun."""
        self._returned: frozenset[int] = NOTHING
        """Attempt 1 is on record and is to be taken back: nothing was sent."""
        self._faults: dict[int, int] = {}
        """How often the events that made a link fail have done so."""

    def reconfigure(self, runtime: RuntimeContext) -> None:
        """Use another configuration from now on."""
        self.runtime = runtime
        self.window = runtime.options.delivery_window.total_seconds()
        """Seconds of silence that count as delivered."""

    # What waits ------------------------------------------------------------------------------------------

    @property
    def new_work(self) -> int:
        """How many messages wait, those included that the ledger alone keeps while there is no link."""
        here = sum(item.lane == "new_work" for item in self.lanes)
        return here + self._stored_work

    @property
    def waiting(self) -> int:
        """How many events are not known to be delivered, those included that the ledger alone keeps."""
        return self.lanes.count + len(self._owed) + len(self.way.sent) + self._stored

    def all_held(self, view: SessionView) -> bool:
        """Whether nothing can leave right now: no link stands, or each event waits for its turn."""
        return not self.linked or not any(self._leaves_now(view, item, begun=self.begun) for item in self.lanes)

    def add(self, item: Transmit, *, now: float) -> None:
        """Take an event that is now on record; kept by the ledger alone while no link stands."""
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
        """Say which attempts a step puts on record or takes back; `sending` is whether a send is under way."""
        new = [effect for effect in builder.effects if isinstance(effect, Transmit)]
        if not (self._marked or self._returned or self.lanes.count or [one for one in new if one.needs_attempt]):
            return NO_ATTEMPTS
        kinds = {envelope.event.kind for envelope in builder.events}
        if lost := "link.changed" in kinds and not builder.memory.linked:
            self._take_back(self._marked)
        leaving = NOTHING if lost or sending else self._leaving(builder, new, moved="session.moved" in kinds)
        unstarted = self._returned - leaving
        if unstarted:
            unstarted -= {change.sequence for change in builder.send_changes if change.target == RUNTIME}
        started = leaving - self._marked - self._departed
        return Attempts(started, unstarted) if started or unstarted else NO_ATTEMPTS

    def _leaving(self, builder: StepBuilder, new: Sequence[Transmit], *, moved: bool) -> frozenset[int]:
        """Find the events that leave as soon as the step is on record, of those that need an attempt."""
        if not self.linked or not self._loaded or self._is_full:
            return NOTHING
        able, view, begun = self.runtime.capabilities, builder.view, self.begun and not moved
        items, more = [*self.lanes], self._more
        for item in new:
            more = more or not _has_capacity(item, len(items))
            if not more and item.sequence not in self._queued:
                items.append(item)
        found: list[int] = []
        for item in sorted(items, key=self._turn_of):
            if not self._leaves_now(view, item, begun=begun):
                continue
            begun = begun or (item.lane == "new_work" and able.one_message_per_turn)
            if item.needs_attempt:
                found.append(item.sequence)
            if able.delivery != "silence":
                # The next one waits for its answer.
                break
        return frozenset(found) or NOTHING

    def _turn_of(self, item: Transmit) -> tuple[int, int]:
        return self.lanes.line_of(item), item.sequence

    def attempted(self, attempts: Attempts) -> None:
        """These attempts are on record."""
        self._marked = self._marked.union(attempts.started).difference(attempts.unstarted) or NOTHING
        self._returned = self._returned.difference(attempts.started, attempts.unstarted) or NOTHING

    def _take_back(self, sequences: Collection[int]) -> None:
        """Nothing was sent of these: their attempts are taken back with the next step."""
        self._returned = self._returned.union(sequences) or NOTHING
        self._marked = self._marked.difference(sequences) or NOTHING
        self._departed = self._departed.difference(sequences) or NOTHING

    @property
    def attempts_due(self) -> bool:
        """Whether attempts are to be taken back."""
        return bool(self._returned)

    def again(self, sequence: int) -> bool:
        """Offer a recorded event again to whoever has asked for it; says whether the ledger is to be read for it."""
        # What has left already is said again; what still waits to leave will be said anyhow.
        if self.way.again(sequence):
            self._queued.pop(sequence, None)
        if sequence in self._queued:
            return False
        self._again |= {sequence}
        return True

    def reread(self) -> None:
        """What was planned here no longer fits the ledger."""
        self._loaded = False

    def turn_moved(self) -> None:
        """The runtime has said how its turn goes, or nothing for too long: new work is held up no longer."""
        self.begun = False

    # The link --------------------------------------------------------------------------------------------

    def link_up(self) -> None:
        """A fresh link stands: first comes what the ledger says is pending, then what comes."""
        self.linked, self.refused = True, False
        self._loaded, self._fresh = False, True
        if self._first is not None:
            self._queued[self._first.sequence] = None
            self.lanes.add(self._first)
            self._first = None

    def link_down(self, *, refused: bool = False) -> None:
        """No link stands; whatever is not known to be delivered stays pending."""
        self.refused = self.refused or refused
        self.linked = False
        self._stored_work, self._stored = self.new_work, self.waiting
        self.lanes = Lanes(in_order=self.runtime.capabilities.replaces_context)
        self._owed = ()
        self._queued.clear()
        self._lost = self._lost.union(self.way.lose()) or NOTHING
        self._take_back(self._marked)
        self._more = self.begun = False

    def link_failed(self, sequences: Iterable[int], reason: str) -> Sequence[Signal]:
        """Take note that these made a link fail in a way that nobody foresaw; the third time they are put aside."""
        signals: list[Signal] = []
        for sequence in sequences:
            self._faults[sequence] = self._faults.get(sequence, 0) + 1
            if self._faults[sequence] >= FAULTS_AN_EVENT:
                signals.append(Delivered((sequence,), RUNTIME, "dead", reason, fault=True))
        self.linked = False
        return signals

    # What leaves -----------------------------------------------------------------------------------------

    def next(self, view: SessionView, clock: Clock) -> Next:
        """Say what comes next (the first table above); an event is taken out by that."""
        if len(self.way.sent) >= MOST_UNCONFIRMED:
            return IDLE
        if len(self.way.portion) >= PORTION:
            return PROVE
        if not self._loaded:
            return READ
        item = self.lanes.take(partial(self._leaves_now, view, begun=self.begun)) if self.lanes.count else None
        if item is None and self._more:
            return READ
        if item is None:
            self.waiting_since = None
            return PROVE if self.way.portion else IDLE
        if item.leave_before is not None and is_overdue(item, clock.now()):
            return Overdue(item.sequence)
        if item.needs_attempt and item.sequence not in self._departed:
            if item.sequence not in self._marked:
                self.lanes.add(item)
                return ATTEMPT
            self._marked = self._marked.difference((item.sequence,)) or NOTHING
            self._departed |= {item.sequence}
        # Known before it leaves: the events of its turn may come before the answer to it.
        if item.lane == "new_work":
            self.begun = self.begun or self.runtime.capabilities.one_message_per_turn
        return item

    @property
    def _is_full(self) -> bool:
        """Whether too much is on its way for another event to leave."""
        return len(self.way.sent) >= MOST_UNCONFIRMED or len(self.way.portion) >= PORTION

    def _leaves_now(self, view: SessionView, item: Transmit, *, begun: bool) -> bool:
        able = self.runtime.capabilities
        if item.lane == "turn" and item.kind == "tool.finished" and not able.starts_deaf:
            return True  # nearly all that leaves, and nothing holds it up
        if begun and item.lane == "new_work":
            return False
        return may_leave(item, view.memory, able) and not (able.starts_deaf and is_held(item, view.start, able))

    def in_newest_form(self, item: Transmit, view: SessionView) -> Transmit:
        """Write what an event says of a state anew where that is older than what the runtime was last told.

        Raises:
            CannotExpress: the protocol does not take the newest state.
        """
        if item.renew or item.sequence < self._told_up_to:
            item = renew(item, view.memory, self.runtime.codec, self.runtime.options.history_key)
            self._told_up_to = view.last_sequence
        self._told_up_to = max(self._told_up_to, item.sequence)
        return item

    def sent(self, item: Transmit, meaning: Meaning, *, now: float) -> Sequence[Signal]:
        """Take note of what came of a send."""
        if meaning.tried:
            self._tried |= {item.sequence}
        if meaning.unsent and item.sequence in self._departed:
            self._take_back((item.sequence,))
        if meaning.state is None:
            if meaning.then == "next":
                self.way.add(item, now=now)
            elif meaning.then == "again":
                self.lanes.add(item)
                # Where no turn is waited for, it would be offered again at once, for as long as the runtime is busy.
                self.begun = self.begun or (
                    item.lane == "new_work" and not self.runtime.capabilities.one_message_per_turn
                )
            # Where the link was cut, the row stays pending, and the next link reads it again.
            return ()
        if item.lane == "new_work" and meaning.state in {"refused", "moot", "dead"}:
            self.begun = False
        return (Delivered((item.sequence,), RUNTIME, meaning.state, meaning.reason, answers=item.answers),)

    @property
    def goes_on(self) -> bool:
        """Whether there is something to look at once what was on its way is believed."""
        return self._more or self.lanes.count > 0 or (bool(self.way.portion) and self.way.repeats)

    def fault(self, code: str | None, message: str, *, now: float) -> Sequence[Signal]:
        """The runtime reports an error; where silence means delivery it is about the newest send in the window."""
        capabilities = self.runtime.capabilities
        if capabilities.delivery != "silence" or code not in capabilities.rejects_with:
            return ()
        newest = self.way.refused(now=now, window=self.window)
        if newest is None:
            return ()
        self._queued.pop(newest, None)
        return (Delivered((newest,), RUNTIME, "refused", f"{code}: {message}"[:500]),)

    def done(self, sequences: Collection[int]) -> bool:
        """The fate of these rows is on record; says whether that may let others leave."""
        for sequence in sequences:
            self._queued.pop(sequence, None)
            self._faults.pop(sequence, None)
        if any(rare := (self._tried, self._lost, self._marked, self._departed, self._returned)):
            known = [one.difference(sequences) or NOTHING for one in rare]
            self._tried, self._lost, self._marked, self._departed, self._returned = known
        return self.way.done(sequences)

    # The ledger ------------------------------------------------------------------------------------------

    def begin_reading(self) -> Reading:
        """The ledger is about to be read."""
        self._loaded = True
        # What was sent stays pending until it is known to be delivered, and is read again each time.
        limit = PAGE + len(self._queued)
        # The fate of some is put on record while the page is read, which may still show them as pending.
        reading = Reading(limit, frozenset(self._queued), self._again, self._stored)
        self._again = NOTHING
        return reading

    def reading_failed(self, reading: Reading) -> None:
        """The ledger could not be read."""
        self._loaded, self._again = False, self._again | reading.again

    def take(
        self,
        reading: Reading,
        page: Sequence[Send],
        posted: Mapping[int, datetime],
        view: SessionView,
        *,
        now: datetime,
    ) -> Sequence[Signal]:
        """Put what is pending in its place, without what is queued already; `posted` is when messages were."""
        signals: list[Signal] = []
        # What was left to the ledger meanwhile may have come too late for this page.
        self._more = len(page) >= reading.limit or self._stored != reading.stored
        self._stored_work = 0
        if self._more:
            self._again |= reading.again - {row.sequence for row in page}
        left = (self.way.sequences | self.way.settling.keys()) - reading.again
        known = reading.known | self._queued.keys() | left
        found = [row for row in page if row.sequence not in known]
        self._stored = max(0, self._stored - len(found)) if self._more else 0
        plans = plan_resend(
            [*self._owed, *found],
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
        self._owed = tuple(plan.row for plan in plans if plan.fate == "later")
        for plan in plans:
            self._queued[plan.row.sequence] = None
            self._place(plan, signals, wanted=plan.row.sequence in reading.again)
        self._fresh = self._fresh and self._more
        return signals

    def _place(self, plan: Plan, signals: list[Signal], *, wanted: bool) -> None:
        """Let a planned event wait for the link, or meet the fate that was planned for it."""
        envelope, sequence = plan.row.envelope, plan.row.sequence
        if plan.fate == "later":
            return
        answers = answered_by(envelope.session_id, envelope.event, envelope.caused_by, synthetic=envelope.synthetic)
        # Where nobody knows whether it has left, whoever wants it again has looked.
        if plan.fate != "send" and not (plan.fate == "unknown" and wanted):
            signals.append(Delivered((sequence,), RUNTIME, plan.fate, plan.reason, plan.overdue, answers=answers))
            return
        try:
            frames = self.runtime.codec.encode(envelope).frames
        except CannotExpress as exc:
            signals.append(Delivered((sequence,), RUNTIME, "dead", exc.reason))
            return
        needs = needs_attempt(envelope.event, self.runtime.capabilities)
        if plan.repeats and needs:
            # An earlier process may have sent it, so its attempt stays on record.
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

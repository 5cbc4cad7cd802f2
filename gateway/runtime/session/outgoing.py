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
| something may leave | send it |
| nothing here may leave, and the ledger keeps more | read it |
| nothing may leave | idle, and prove repeats if there are any |

What a send means, where silence counts as delivery and where it does not (`read_result` below):

| the link said | silence delivers | an answer is awaited |
|---|---|---|
| sent | on its way, believed to be delivered when nothing is said against it | unknown |
| delivered, refused, moot | that | that |
| busy | waits here again | waits here again |
| it cannot be expressed | dead | dead |
| the link broke | pending, the next link begins with it | pending; tried, unless it surely has not left |
| anything that nobody foresaw | pending; dead the third time | pending and tried; dead the third time |

That an outcome is believed to be delivered is a mark, which waits for the session's next step to be put on record with:
until then a crash says the outcome again, in the same words. What a repeat would count as new is put on record at once.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gateway.adapter.port import Receipt
from gateway.core.adapt import RENEWED, carries_state, renew
from gateway.core.effects import Transmit
from gateway.core.resend import LANES, SURELY_UNSENT, Lanes, Plan, is_held, is_overdue, may_leave, plan_resend
from gateway.core.session import RuntimeContext
from gateway.core.state import SessionView
from gateway.errors import CannotExpress, LinkLost
from gateway.events.frozen import frozen
from gateway.events.weight import weight
from gateway.runtime.session.signals import Delivered, Held, Signal
from gateway.store.rows import Send
from gateway.store.step import BEHIND, NEWER, RUNTIME, Lane, SendState

PAGE = 200
MOST_QUEUED = 500
"""Events that wait here for a link that is slow; the ledger alone keeps the next ones."""
FEW = 16
_LARGE = 64 * 1024
"""Larger events are left to the ledger already where a few wait."""
FAULTS_AN_EVENT = 3
"""How often an event may make a link fail in ways that nobody foresaw, until it is put aside."""
MOST_UNCONFIRMED = 10_000
"""Events that may be on their way without a word on their delivery; the next ones wait."""
PORTION = 32
"""Events said again that may be on their way while no record says that they came; a crash repeats no more of them."""


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


Next = Idle | Read | Overdue | Transmit

IDLE, PROVE, READ = Idle(), Idle(prove=True), Read()


@frozen
class Meaning:
    """What a send's result means for its event."""

    state: SendState | None = None
    """Its fate; None while that is open."""
    reason: str | None = None
    then: Literal["next", "again", "cut"] = "next"
    """Whether the next one leaves, this one waits again, or nothing more leaves by this link."""
    tried: bool = False
    """Whether it may have left although an answer is missing that would say so."""


SENT, AGAIN = Meaning(), Meaning(then="again")
UNCONFIRMED = Meaning("unknown", "the runtime did not confirm it")


def read_result(result: Receipt | Exception, *, silent: bool) -> Meaning:
    """Say what a send's result means (the table above)."""
    match result:
        case Receipt(state="sent"):
            return SENT if silent else UNCONFIRMED
        case Receipt(state="busy"):
            return AGAIN
        case Receipt(state="delivered" | "refused" | "moot" as state, reason=reason):
            return Meaning(state, reason)
        case CannotExpress():
            return Meaning("dead", result.reason)
        case LinkLost(unsent=unsent):
            return Meaning(then="cut", tried=not silent and not unsent)
        case _:
            return Meaning(then="cut", tried=not silent)


@dataclass(frozen=True, slots=True)
class _Sent:
    sequence: int
    at: float
    note: str | None = None
    """What its row says once it is delivered."""
    repeats: bool = False
    rides: bool = False
    """Whether its delivery may wait for the session's next step."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was known when a reading of the ledger began; the page may be older than what is known by its end."""

    limit: int
    known: frozenset[int]
    again: frozenset[int]
    stored: int


class Outgoing:
    """One session's outbound events, as `Lanes` sorts them; every method is told the time."""

    def __init__(self, view: SessionView, runtime: RuntimeContext) -> None:
        self.runtime = runtime
        self.linked = False
        self.refused = False
        """Whether it is on record that the runtime refuses the link."""
        self.state_waits = False
        """Whether a fresh link will be told the state by something that waits for it."""
        self.waiting_since: float | None = None
        self.begun = False
        """Whether new work waits for a word on the turn that the last message began."""
        self.marks: list[int] = []
        """Outcomes that are believed to be delivered, which the session's next step puts on record."""
        self._lanes = Lanes(in_order=runtime.capabilities.replaces_context)
        self._first: Transmit | None = None
        """What the next link is told before everything else."""
        self._owed: tuple[Send, ...] = ()
        """What a fresh link is told once all that goes before it has been read."""
        self._fresh, self._loaded, self._more = True, False, False
        self._stored = self._stored_work = 0
        """Events, and messages among them, that the ledger alone keeps."""
        self._queued: set[int] = set()
        self._again: set[int] = set()
        self._aside: dict[Lane, set[int]] = {}
        """Lanes that wait for a newer release, and the events in them that do."""
        self._unsure_up_to = self._told_up_to = view.last_sequence
        """The newest that an earlier process may have sent, and of which the runtime may have been told the state."""
        self._tried: set[int] = set()
        self._lost: set[int] = set()
        """What may have left where nobody knows whether it came: an answer is missing, or a link broke too soon."""
        self._unsent: set[int] = set()
        """What is known to be on record, or about to be, as never sent."""
        self._unconfirmed: deque[_Sent] | None = None
        self._settling: set[int] = set()
        """What is believed to be delivered, and not on record as that."""
        self._portion: set[int] = set()
        """What was said again, and is not on record as delivered."""
        self._believed: list[_Sent] = []
        """What was said again last, and believed; a fault may still be about it."""
        self._faults: dict[int, int] = {}
        """How often the events that made a link fail have done so."""

    # What waits ------------------------------------------------------------------------------------------

    @property
    def new_work(self) -> int:
        """How many messages wait, those included that the ledger alone keeps while there is no link."""
        here = sum(item.lane == "new_work" for item in self._lanes)
        return here + self._stored_work + len(self._aside.get("new_work", ()))

    @property
    def waiting(self) -> int:
        """How many events are not known to be delivered, those included that the ledger alone keeps."""
        left = self._stored + sum(map(len, self._aside.values()))
        return len(self._lanes) + len(self._owed) + len(self._unconfirmed or ()) + left

    @property
    def queued(self) -> int:
        """How many events wait here for the link."""
        return len(self._lanes)

    @property
    def has_aside(self) -> bool:
        """Whether some wait for a newer release."""
        return bool(self._aside)

    def all_held(self, view: SessionView) -> bool:
        """Whether nothing can leave right now."""
        able = self.runtime.capabilities
        return not self.linked or all(is_held(item, view.start, able) for item in self._lanes)

    def add(self, item: Transmit, view: SessionView, *, now: float) -> Sequence[Signal]:
        """Take an event that is now on record; kept by the ledger alone while no link stands."""
        if self.waiting_since is None:
            self.waiting_since = now
        if item.sequence in self._queued:
            return ()
        if not self.linked and item.place == "first":
            self._first = item
            return ()
        signals: list[Signal] = []
        able = self.runtime.capabilities
        if able.starts_deaf and (not self.linked or is_held(item, view.start, able)):
            signals += self._mark_unsent([item])
        if self.linked and not self._more and item.lane not in self._aside and self._has_room_for(item):
            self._queued.add(item.sequence)
            self._lanes.add(item)
        elif item.lane in self._aside:
            self._aside[item.lane].add(item.sequence)
            signals.append(Delivered((item.sequence,), RUNTIME, "pending", BEHIND))
        else:
            self._more = self._more or self.linked
            self._stored += 1
            self._stored_work += item.lane == "new_work"
        return signals

    def _has_room_for(self, item: Transmit) -> bool:
        here = len(self._lanes)
        if here < FEW:
            return True
        return here < MOST_QUEUED and all(weight(frame.payload) <= _LARGE for frame in item.frames)

    def _mark_unsent(self, items: Iterable[Transmit]) -> Sequence[Signal]:
        """Put on record that these were never sent; whoever takes the session up later may then send them."""
        fresh = tuple(item.sequence for item in items if item.sequence not in self._unsent)
        self._unsent.update(fresh)
        return (Held(fresh),) if fresh else ()

    def again(self, sequence: int) -> bool:
        """Offer a recorded event again to whoever has asked for it; says whether the ledger is to be read for it."""
        # What has left already is said again; what still waits to leave will be said anyhow.
        if sequence in self._settling or any(sent.sequence == sequence for sent in self._unconfirmed or ()):
            self._queued.discard(sequence)
        self._settling.discard(sequence)
        self.marks = [mark for mark in self.marks if mark != sequence]
        if sequence in self._queued:
            return False
        self._again.add(sequence)
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
            self._queued.add(self._first.sequence)
            self._lanes.add(self._first)
            self._first = None

    def link_down(self, *, refused: bool = False) -> None:
        """No link stands; whatever is not known to be delivered stays pending."""
        self.refused = self.refused or refused
        self.linked = False
        self._stored_work, self._stored = self.new_work, self.waiting
        self._aside = {}
        self._lanes = Lanes(in_order=self.runtime.capabilities.replaces_context)
        self._owed = ()
        self._queued.clear()
        self._lost.update(sent.sequence for sent in self._unconfirmed or ())
        self._unconfirmed = None
        self._portion.clear()
        self._believed.clear()
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

    def next(self, view: SessionView, *, now: datetime) -> Next:
        """Say what comes next (the first table above); an event is taken out by that."""
        if self._unconfirmed is not None and len(self._unconfirmed) >= MOST_UNCONFIRMED:
            return IDLE
        if len(self._portion) >= PORTION:
            return PROVE
        if not self._loaded:
            return READ
        item = self._lanes.take(lambda one: self._leaves_now(one, view))
        if item is None and self._more:
            return READ
        if item is None:
            self.waiting_since = None
            return PROVE if self._portion else IDLE
        if is_overdue(item, now):
            return Overdue(item.sequence)
        # Known before it leaves: the events of its turn may come before the answer to it.
        if item.lane == "new_work":
            self.begun = self.begun or self.runtime.capabilities.one_message_per_turn
        return item

    def _leaves_now(self, item: Transmit, view: SessionView) -> bool:
        if self.begun and item.lane == "new_work":
            return False
        able = self.runtime.capabilities
        return may_leave(item, view.memory, able) and not (able.starts_deaf and is_held(item, view.start, able))

    def in_newest_form(self, item: Transmit, view: SessionView) -> Transmit:
        """Write what an event says of a state anew where that is older than what the runtime was last told.

        Raises:
            CannotExpress: the protocol does not take the newest state.
        """
        if item.renew or item.sequence < self._told_up_to:
            item = renew(item, view.memory, self.runtime.codec)
            self._told_up_to = view.last_sequence
        self._told_up_to = max(self._told_up_to, item.sequence)
        return item

    def sent(self, item: Transmit, meaning: Meaning, *, now: float) -> Sequence[Signal]:
        """Take note of what came of a send."""
        if meaning.tried:
            self._tried.add(item.sequence)
        if meaning.then == "cut":
            # The row stays pending, and the next link reads it again.
            return ()
        if meaning.then == "again":
            self._lanes.add(item)
            return ()
        if meaning.state is None:
            # It is on its way, until nothing was said against it for long enough.
            if self._unconfirmed is None:
                self._unconfirmed = deque()
            note = RENEWED if item.renewed else None
            rides = item.kind == "tool.finished" and not item.repeats
            self._unconfirmed.append(_Sent(item.sequence, now, note, item.repeats, rides))
            if item.repeats:
                self._portion.add(item.sequence)
            return ()
        if item.lane == "new_work" and meaning.state in {"refused", "moot", "dead"}:
            self.begun = False
        return (Delivered((item.sequence,), RUNTIME, meaning.state, meaning.reason),)

    # What silence means ----------------------------------------------------------------------------------

    @property
    def window(self) -> float:
        """Seconds of silence that count as delivered."""
        return self.runtime.options.delivery_window.total_seconds()

    @property
    def awaits_silence(self) -> bool:
        """Whether something is on its way against which something may still be said."""
        return self._unconfirmed is not None

    @property
    def awaits_proof(self) -> bool:
        """Whether repeats are on their way of which no record says that they came.

        They are believed as soon as they have surely come, lest a gateway that keeps dying says them for ever. The
        silence is still listened to: a fault within the window is about them.
        """
        return bool(self._portion) and any(sent.repeats for sent in self._unconfirmed or ())

    def proven(self, *, asked_at: float) -> Sequence[int]:
        """List what an answer of the link to a question asked at this moment proves to have come."""
        return [sent.sequence for sent in self._unconfirmed or () if self._is_proven(sent, asked_at)]

    def _is_proven(self, sent: _Sent, asked_at: float) -> bool:
        return sent.at <= (asked_at if sent.repeats else asked_at - self.window)

    def believe(self, *, asked_at: float) -> Sequence[Signal]:
        """The link has answered a question that was asked at this moment: what it proves is delivered."""
        ripe: dict[str | None, list[int]] = {}
        kept: deque[_Sent] = deque()
        for sent in self._unconfirmed or ():
            if self._is_proven(sent, asked_at):
                self._settling.add(sent.sequence)
                if sent.rides:
                    self.marks.append(sent.sequence)
                else:
                    ripe.setdefault(sent.note, []).append(sent.sequence)
                if sent.repeats:
                    self._believed = [*self._believed[-PORTION:], sent]
            else:
                kept.append(sent)
        self._unconfirmed = kept or None
        return [Delivered(tuple(sequences), RUNTIME, "delivered", note) for note, sequences in ripe.items()]

    def take_marks(self) -> Sequence[Signal]:
        """Take what the session's next step puts on record; for whoever makes it."""
        marks, self.marks = self.marks, []
        return (Delivered(tuple(marks), RUNTIME, "delivered"),) if marks else ()

    @property
    def goes_on(self) -> bool:
        """Whether there is something to look at once what was on its way is believed."""
        return self._more or bool(len(self._lanes)) or any(sent.repeats for sent in self._unconfirmed or ())

    def fault(self, code: str | None, message: str, *, now: float) -> Sequence[Signal]:
        """The runtime reports an error; where silence means delivery it is about the newest send in the window."""
        capabilities = self.runtime.capabilities
        if capabilities.delivery != "silence" or code not in capabilities.rejects_with:
            return ()
        if self._unconfirmed:
            newest = self._unconfirmed.pop()
        elif self._believed and self._believed[-1].at > now - self.window:
            newest = self._believed.pop()
        else:
            return ()
        self._queued.discard(newest.sequence)
        return (Delivered((newest.sequence,), RUNTIME, "refused", f"{code}: {message}"[:500]),)

    def done(self, sequences: Collection[int]) -> bool:
        """The fate of these rows is on record; says whether that may let others leave."""
        for known in (self._queued, self._settling, self._tried, self._unsent, self._lost):
            known.difference_update(sequences)
        for sequence in sequences if self._faults else ():
            self._faults.pop(sequence, None)
        if not self._portion:
            return False
        self._portion.difference_update(sequences)
        return True

    # The ledger ------------------------------------------------------------------------------------------

    def begin_reading(self) -> Reading:
        """The ledger is about to be read."""
        self._loaded = True
        # What was sent stays pending until it is known to be delivered, and is read again each time.
        limit = PAGE + len(self._queued) + sum(map(len, self._aside.values()))
        # The fate of some is put on record while the page is read, which may still show them as pending.
        reading = Reading(limit, frozenset(self._queued), frozenset(self._again), self._stored)
        self._again = set()
        return reading

    def reading_failed(self, reading: Reading) -> None:
        """The ledger could not be read."""
        self._loaded = False
        self._again |= reading.again

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
        rows = self._set_aside(page, signals)
        # What was left to the ledger meanwhile may have come too late for this page.
        self._more = len(page) >= reading.limit or self._stored != reading.stored
        self._stored_work = 0
        if self._more:
            self._again |= reading.again - {row.sequence for row in rows}
        unconfirmed = {sent.sequence for sent in self._unconfirmed or ()} - reading.again
        known = reading.known | self._queued | unconfirmed | (self._settling - reading.again)
        found = [row for row in rows if row.sequence not in known]
        self._stored = max(0, self._stored - len(found)) if self._more else 0
        plans = plan_resend(
            [*self._owed, *found],
            capabilities=self.runtime.capabilities,
            now=now,
            unsure_up_to=self._unsure_up_to,
            tried=frozenset(self._tried),
            lost=frozenset(self._lost),
            working=any(call.deliver for call in view.calls.values()),
            posted=posted,
            memory=view.memory,
            asked_again=reading.again,
            fresh=self._fresh,
            more=self._more,
        )
        self._owed = tuple(plan.row for plan in plans if plan.fate == "later")
        for plan in plans:
            self._queued.add(plan.row.sequence)
            self._place(plan, signals, wanted=plan.row.sequence in reading.again)
        able = self.runtime.capabilities
        signals += self._mark_unsent(item for item in self._lanes if is_held(item, view.start, able))
        self._fresh = self._fresh and self._more
        return signals

    def _set_aside(self, page: Sequence[Send], signals: list[Signal]) -> list[Send]:
        """Leave out what this release cannot say, and what must not overtake it; what is left may be sent.

        The release that wrote it says it: a mark in its row lists it, and lets that release know that it waited.
        """
        self._aside = {}
        left: list[Send] = []
        marked: list[int] = []
        for row in page:
            unknown = row.envelope.stored_kind is not None or row.lane not in LANES
            if not unknown and row.lane not in self._aside:
                left.append(row)
                continue
            self._aside.setdefault(row.lane, set()).add(row.sequence)
            if unknown and not row.waits:
                marked.append(row.sequence)
        # They came while the ledger was read.
        late = self._lanes.remove(lambda item: item.lane in self._aside and item.sequence > min(self._aside[item.lane]))
        for item in late:
            self._queued.discard(item.sequence)
            self._aside[item.lane].add(item.sequence)
        if late:
            signals.append(Delivered(tuple([item.sequence for item in late]), RUNTIME, "pending", BEHIND))
        if marked:
            signals.append(Delivered(tuple(marked), RUNTIME, "pending", NEWER))
        return left

    def _place(self, plan: Plan, signals: list[Signal], *, wanted: bool) -> None:
        """Let a planned event wait for the link, or meet the fate that was planned for it."""
        envelope, sequence = plan.row.envelope, plan.row.sequence
        if plan.fate == "later":
            return
        # Where nobody knows whether it has left, whoever wants it again has looked.
        if plan.fate != "send" and not (plan.fate == "unknown" and wanted):
            signals.append(Delivered((sequence,), RUNTIME, plan.fate, plan.reason, plan.overdue))
            return
        unsure = sequence <= self._unsure_up_to and plan.row.reason not in SURELY_UNSENT
        try:
            frames = self.runtime.codec.encode(envelope).frames
        except CannotExpress as exc:
            signals.append(Delivered((sequence,), RUNTIME, "dead", exc.reason))
            return
        self._lanes.add(
            Transmit(
                sequence,
                plan.row.lane,
                envelope.event.kind,
                frames,
                envelope.caused_by,
                plan.leave_before,
                state=envelope if carries_state(envelope.event, self.runtime.capabilities) else None,
                renew=self._fresh,
                repeats=unsure or sequence in self._lost or sequence in self._tried,
                place=plan.place,
            )
        )

"""The memory engine's tables: plain dictionaries, and the few ways in which they change."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateway.clock import Clock
from gateway.events import CallId, InteractionId, SessionId
from gateway.store.apply import CLOSED, DedupeKey, Writes
from gateway.store.call import OPEN_STATES, Call
from gateway.store.encoding import NOTHING_LEFT, decode_envelope, strip_about
from gateway.store.records import (
    EventRecord,
    Head,
    InteractionMove,
    InteractionRecord,
    micros,
    moment,
    send_after,
    send_from,
)
from gateway.store.retention import Item, RemovedRows, Shelf
from gateway.store.roster import Roster
from gateway.store.rows import Send, SessionRow, StoredAnswer
from gateway.store.step import RUNTIME


@dataclass(slots=True)
class Shelved:
    """One session with its events; the first of them is number `head.min_seq`."""

    head: Head
    number: int
    protocol: str
    native_id: str
    labels: Mapping[str, str]
    opened_at: int
    updated_at: int
    cursor: str | None = None
    snapshot: bytes | None = None
    owner: str | None = None
    events: list[EventRecord] = field(default_factory=list[EventRecord])

    def event(self, seq: int) -> EventRecord:
        """Find one of the events that are left."""
        return self.events[seq - self.head.min_seq]

    def row(self) -> SessionRow:
        """Show the session as the port does."""
        return SessionRow(
            session_id=self.head.session_id,
            runtime=self.head.runtime,
            protocol=self.protocol,
            native_id=self.native_id,
            state=self.head.state,
            labels=dict(self.labels),
            last_sequence=self.head.last_seq,
            first_sequence=self.head.min_seq,
            opened_at=moment(self.opened_at),
            updated_at=moment(self.updated_at),
            fence=self.head.fence,
            owner=self.owner,
            cursor=self.cursor,
            snapshot=self.snapshot,
        )


@dataclass(slots=True)
class Tables:
    """Everything there is; `decide` reads it as its `Known`."""

    sessions: dict[SessionId, Shelved] = field(default_factory=dict[SessionId, Shelved])
    natives: dict[tuple[str, str], SessionId] = field(default_factory=dict[tuple[str, str], SessionId])
    keys: set[DedupeKey] = field(default_factory=set[DedupeKey])
    calls: dict[CallId, Call] = field(default_factory=dict[CallId, Call])
    sends: dict[tuple[SessionId, int, str], Send] = field(default_factory=dict[tuple[SessionId, int, str], Send])
    interactions: dict[InteractionId, InteractionRecord] = field(default_factory=dict[InteractionId, InteractionRecord])
    answers: dict[tuple[str, str], StoredAnswer] = field(default_factory=dict[tuple[str, str], StoredAnswer])
    notes: dict[str, str] = field(default_factory=dict[str, str])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    """The order in which calls and interactions came, by id."""
    counted: int = 0

    def count(self) -> int:
        """Give the next number of arrival."""
        self.counted += 1
        return self.counted

    def head(self, session_id: SessionId) -> Head | None:
        session = self.sessions.get(session_id)
        return None if session is None else session.head

    def call(self, call_id: CallId) -> Call | None:
        return self.calls.get(call_id)

    def seen(self, key: DedupeKey) -> bool:
        return key in self.keys

    def apply(self, writes: Writes) -> None:
        """Take over what a step writes."""
        for session_id, head in writes.heads.items():
            session = self.sessions[session_id]
            session.head = head
            session.updated_at = writes.now
            session.cursor = writes.cursors.get(session_id, session.cursor)
            if snapshot := writes.snapshots.get(session_id):
                session.snapshot = snapshot.snapshot
        for record in writes.events:
            self.sessions[record.session_id].events.append(record)
        self.keys |= writes.keys
        for call_id in writes.opened:
            self.numbers[call_id] = self.count()
        self.calls.update(writes.calls)
        said = {(record.session_id, record.seq): record for record in writes.events}
        for row in writes.sends:
            self.sends[row[:3]] = send_from(row, decode_envelope(said[row[:2]]))
        for change in writes.send_changes:
            place = change[-3:]
            if place in self.sends:
                self.sends[place] = send_after(self.sends[place], change)
        for change in writes.interactions:
            self._change_interaction(change)
        for answer in writes.answers:
            kept = self.answers.get((answer.scope, answer.key))
            if kept is None or micros(kept.expires_at) <= writes.now:
                fresh = StoredAnswer(answer.request_sha, answer.response, moment(answer.expires_at))
                self.answers[answer.scope, answer.key] = fresh

    def _change_interaction(self, change: InteractionRecord | InteractionMove) -> None:
        old = self.interactions.get(change.interaction_id)
        if old is None:
            if isinstance(change, InteractionRecord):
                self.numbers[change.interaction_id] = self.count()
                self.interactions[change.interaction_id] = change
        elif old.session_id == change.session_id:
            self.interactions[change.interaction_id] = old._replace(
                state=change.state,
                expires_at=old.expires_at if change.expires_at is None else change.expires_at,
                answered_by=old.answered_by if change.answered_by is None else change.answered_by,
            )

    def erase(self, session_id: SessionId) -> None:
        """Take the bodies out of a session's events, and what was copied from them; what is left of it is not sent."""
        session = self.sessions[session_id]
        session.events = [record._replace(body=None, about=strip_about(record.about)) for record in session.events]
        session.snapshot = None
        size = sum(record.size for record in session.events)
        session.head = session.head._replace(size=size)
        for call in self.calls.values():
            if call.session_id == session_id:
                self.calls[call.call_id] = replace(call, error=None)
        for place, send in self.sends.items():
            if (send.session_id, send.target, send.state) == (session_id, RUNTIME, "pending"):
                self.sends[place] = replace(send, state="moot", due_at=None, reason=NOTHING_LEFT)

    # For leases

    def owned(self) -> Counter[str | None]:
        """Count the open sessions of each owner; those of nobody under None."""
        return Counter(session.owner for session in self.sessions.values() if session.head.state != CLOSED)

    def give(self, session: Shelved, owner: str) -> SessionRow:
        """Let an owner have a session, under its next fence."""
        session.owner = owner
        session.head = session.head._replace(fence=session.head.fence + 1)
        return session.row()

    # For the sweep

    def shelves(self, copies_from: int) -> list[Shelf]:
        """List the sessions that have events left, with what must stay; older copies are waited for no more."""
        floors: dict[SessionId, int] = {}
        needed = [(call.session_id, call.request_sequence) for call in self.calls.values() if call.state in OPEN_STATES]
        needed += [
            (send.session_id, send.sequence)
            for send in self.sends.values()
            if send.state == "pending" and (send.target == RUNTIME or micros(send.created_at) >= copies_from)
        ]
        needed += [(one.session_id, one.request_seq) for one in self.interactions.values() if one.state == "waiting"]
        for session_id, seq in needed:
            floors[session_id] = min(seq, floors.get(session_id, seq))
        return [
            Shelf(
                session_id,
                session.head.state == CLOSED,
                session.head.min_seq,
                session.head.last_seq,
                floors.get(session_id, session.head.last_seq + 1),
                session.events[0].recorded_at,
            )
            for session_id, session in self.sessions.items()
            if session.events
        ]

    def peek(self, session_id: SessionId, seq: int, n: int) -> Sequence[Item]:
        """Read up to n events of a session from a sequence on, for the sweep's eyes."""
        session = self.sessions[session_id]
        start = seq - session.head.min_seq
        return [_item(record) for record in session.events[start : start + n]]

    def cut(self, session_id: SessionId, first: int) -> RemovedRows:
        """Remove the events before `first`, and what belongs to them; say what went."""
        session = self.sessions[session_id]
        gone = session.events[: first - session.head.min_seq]
        session.events = session.events[len(gone) :]
        size = sum(record.size for record in gone)
        session.head = session.head._replace(min_seq=first, size=session.head.size - size)
        self.keys -= {
            (session_id, record.direction, record.dedupe_key) for record in gone if record.dedupe_key is not None
        }
        copies = Counter[str]()
        for place in [place for place in self.sends if place[0] == session_id and place[1] < first]:
            copies[place[2]] += self.sends.pop(place).state == "pending"
        for one in [one for one in self.interactions.values() if one.session_id == session_id]:
            if one.request_seq < first:
                del self.interactions[one.interaction_id]
        return RemovedRows(len(gone), +copies)

    def drop_calls(self, before: int, budget: int) -> int:
        """Remove calls that ended before a time and whose outcome waits for no one; say how many."""
        waiting = {(send.session_id, send.sequence) for send in self.sends.values() if send.state == "pending"}
        gone = [
            call.call_id
            for call in self.calls.values()
            if call.finished_at is not None
            and micros(call.finished_at) < before
            and (call.session_id, call.outcome_sequence) not in waiting
        ][:budget]
        for call_id in gone:
            del self.calls[call_id]
        return len(gone)


Listeners = dict[object, tuple[object, Callable[[str | None], None]]]
"""Who listens, and through which engine."""


class SharedMemory:
    """What several memory engines of one process have in common; it lives as long as somebody refers to it."""

    def __init__(self, clock: Clock) -> None:
        self.tables = Tables()
        self.roster = Roster(clock)
        self.listeners: Listeners = {}


def _item(record: EventRecord) -> Item:
    return Item(record.seq, record.recorded_at, record.size)

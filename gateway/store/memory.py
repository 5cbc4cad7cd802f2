"""The reference engine: the whole store in memory, gone when the engine is left.

Several engines of one process may have one `SharedMemory` in common, which then outlives each of them.
It keeps encoded bodies like any other engine, so that what comes out is what a database would give back.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Self, TypeVar

from gateway.clock import Clock
from gateway.errors import Conflict, EngineUnavailable, NotFound, Truncated
from gateway.events import CallId, Envelope, InteractionId, SessionId
from gateway.guard import guard_call
from gateway.store.apply import CLOSED, DEAD_STATES, Writes, begin, decide
from gateway.store.call import Call
from gateway.store.encoding import ListName, decode_envelope, encode_event, read_cursor, write_cursor
from gateway.store.memory_tables import Listeners, SharedMemory, Shelved, Tables
from gateway.store.records import Head, interaction_row, micros, whole_micros
from gateway.store.retention import add_up, choose
from gateway.store.roster import room_for
from gateway.store.rows import (
    ANY_DEAD,
    ANY_SESSION,
    NO_NOTES,
    CallFilter,
    DeadFilter,
    EngineHealth,
    Instance,
    InteractionRow,
    Page,
    Regained,
    RetentionPolicy,
    Send,
    SessionFilter,
    SessionRow,
    StoredAnswer,
    Swept,
)
from gateway.store.step import Committed, InteractionState, Step

T = TypeVar("T")


class MemoryEngine:
    """Keep everything in memory, of this engine alone or shared with others."""

    def __init__(self, clock: Clock, shared: SharedMemory | None = None) -> None:
        self._clock = clock
        self._shared = shared
        self._opened: SharedMemory | None = None

    async def __aenter__(self) -> Self:
        self._opened = self._shared or SharedMemory(self._clock)
        return self

    async def __aexit__(self, *exc: object) -> None:
        listeners = self._open.listeners
        for place in [place for place, (engine, _) in listeners.items() if engine is self]:
            del listeners[place]
        self._opened = None

    @property
    def _open(self) -> SharedMemory:
        if self._opened is None:
            raise EngineUnavailable("the memory engine is not open")
        return self._opened

    @property
    def _tables(self) -> Tables:
        return self._open.tables

    def _session(self, session_id: SessionId) -> Shelved:
        session = self._tables.sessions.get(session_id)
        if session is None:
            raise NotFound(f"no session {session_id!r}")
        return session

    def _now(self) -> int:
        return micros(self._clock.now())

    def _write(self, step: Step) -> Committed:
        tables = self._tables
        writes = Writes(self._now())
        committed = decide(step, [encode_event(new) for new in step.events], known=tables, writes=writes)
        tables.apply(writes)
        return committed

    # Journal

    async def commit(self, step: Step) -> Committed:
        committed = self._write(step)
        # A caller that commits in a loop must not keep everybody else from running.
        await asyncio.sleep(0)
        return committed

    async def read(self, session_id: SessionId, *, after: int = 0, limit: int = 500) -> Sequence[Envelope]:
        session = self._session(session_id)
        if after + 1 < session.head.min_seq:
            raise Truncated(session.head.min_seq)
        start = max(after, 0) + 1 - session.head.min_seq
        return [decode_envelope(record) for record in session.events[start : start + max(limit, 0)]]

    # Registry

    async def open_session(
        self,
        *,
        session_id: SessionId,
        runtime: str,
        protocol: str,
        native_id: str,
        labels: Mapping[str, str],
        first: Envelope,
        state: str = "starting",
        notes: Mapping[str, str] = NO_NOTES,
    ) -> tuple[SessionRow, bool]:
        tables = self._tables
        known = tables.natives.get((runtime, native_id))
        if known is not None:
            session = tables.sessions[known]
            if session.head.state == CLOSED:
                self._write(begin(first, known, state))
                session.labels, session.protocol = dict(labels), protocol
            tables.notes.update(notes)
            return session.row(), False
        if session_id in tables.sessions:
            raise Conflict(f"session {session_id!r} is another one of runtime {runtime!r}")
        encode_event(first)
        now = self._now()
        head = Head(session_id, runtime, state, 0, 1, 0, 0)
        session = Shelved(head, tables.count(), protocol, native_id, dict(labels), now, now)
        tables.sessions[session_id] = session
        tables.natives[runtime, native_id] = session_id
        self._write(begin(first, session_id, state))
        tables.notes.update(notes)
        return session.row(), True

    async def session(self, session_id: SessionId) -> SessionRow | None:
        session = self._tables.sessions.get(session_id)
        return None if session is None else session.row()

    async def sessions(
        self, page: Page, which: SessionFilter = ANY_SESSION, *, newest_first: bool = False
    ) -> tuple[Sequence[SessionRow], str | None]:
        after = read_cursor(page.after, "sessions", int)[0] if page.after else None
        found = [
            session
            for session in self._tables.sessions.values()
            if (after is None or (session.number < after if newest_first else session.number > after))
            and which.runtime in {None, session.head.runtime}
            and which.native_id in {None, session.native_id}
            and not (which.open_only and session.head.state == CLOSED)
        ]
        if newest_first:
            found.reverse()
        rows, cursor = _cut("sessions", found, page, lambda session: (session.number,))
        return [session.row() for session in rows], cursor

    async def erase(self, session_id: SessionId) -> None:
        if self._session(session_id).head.state != CLOSED:
            raise Conflict(f"session {session_id!r} is open; close it before erasing")
        self._tables.erase(session_id)

    # Ledger

    async def call(self, call_id: CallId) -> Call | None:
        return self._tables.calls.get(call_id)

    async def latest_call(self, session_id: SessionId, native_call_id: str) -> Call | None:
        found = [
            record
            for record in self._tables.calls.values()
            if record.session_id == session_id and record.native_call_id == native_call_id and record.redrive_of is None
        ]
        return max(found, key=lambda record: record.n) if found else None

    async def ended_for(self, call_id: CallId) -> timedelta | None:
        row = await self.call(call_id)
        return None if row is None or row.finished_at is None else self._clock.now() - row.finished_at

    async def calls(self, which: CallFilter, page: Page) -> tuple[Sequence[Call], str | None]:
        tables = self._tables
        before = read_cursor(page.after, "calls", int)[0] if page.after else tables.counted + 1
        found = [
            record
            for record in reversed(tables.calls.values())
            if tables.numbers[record.call_id] < before and _matches(record, which)
        ]
        rows, cursor = _cut("calls", found, page, lambda record: (tables.numbers[record.call_id],))
        return rows, cursor

    async def open_calls(self, session_id: SessionId) -> Sequence[Call]:
        return [record for record in self._tables.calls.values() if record.session_id == session_id and record.is_open]

    async def count_open_calls(self) -> Mapping[str, int]:
        return Counter(record.runtime for record in self._tables.calls.values() if record.is_open)

    async def pending_sends(
        self,
        *,
        session_id: SessionId | None = None,
        target: str,
        due_before: datetime | None = None,
        limit: int = 500,
    ) -> Sequence[Send]:
        due = None if due_before is None else micros(due_before)
        found: list[Send] = []
        held: set[str] = set()
        for record in self._pending(target):
            if due is not None and record.due_at is not None and micros(record.due_at) > due:
                held.add(record.session_id)
            if record.session_id not in held and session_id in {None, record.session_id}:
                found.append(record)
        return [self._show(record) for record in found[: max(limit, 0)]]

    async def next_send_due(self, target: str) -> datetime | None:
        # A row that is not due yet holds back the later ones of its session, so the first of each says when.
        first = {record.session_id: record for record in reversed(self._pending(target))}
        return min((record.due_at or record.created_at for record in first.values()), default=None)

    def _pending(self, target: str) -> list[Send]:
        found = [one for one in self._tables.sends.values() if one.state == "pending" and one.target == target]
        return sorted(found, key=lambda one: (one.session_id, one.sequence))

    async def sends_of(self, session_id: SessionId, sequence: int) -> Sequence[Send]:
        found = [
            record
            for record in self._tables.sends.values()
            if record.session_id == session_id and record.sequence == sequence
        ]
        return [self._show(record) for record in sorted(found, key=lambda one: one.target)]

    async def revive(self, session_id: SessionId, sequence: int, target: str, *, due_at: datetime) -> bool:
        place = (session_id, sequence, target)
        send = self._tables.sends.get(place)
        if send is None or send.state not in DEAD_STATES:
            return False
        fresh = replace(send, state="pending", attempt=0, due_at=due_at, reason=None)
        self._tables.sends[place] = fresh
        return True

    async def dismiss(self, session_id: SessionId, sequence: int, target: str, *, reason: str) -> bool:
        place = (session_id, sequence, target)
        send = self._tables.sends.get(place)
        if send is None or send.state not in DEAD_STATES:
            return False
        self._tables.sends[place] = replace(send, state="moot", due_at=None, reason=reason)
        return True

    async def dead_sends(self, page: Page, which: DeadFilter = ANY_DEAD) -> tuple[Sequence[Send], str | None]:
        after = read_cursor(page.after, "sends", int, str, int, str) if page.after else None
        found = [
            record
            for record in self._tables.sends.values()
            if record.state in DEAD_STATES and (after is None or _age(record) < after) and self._wanted(record, which)
        ]
        rows, cursor = _cut("sends", sorted(found, key=_age, reverse=True), page, _age)
        return [self._show(record) for record in rows], cursor

    def _wanted(self, record: Send, which: DeadFilter) -> bool:
        runtime = self._tables.sessions[record.session_id].head.runtime
        return (
            which.runtime in {None, runtime}
            and which.target in {None, record.target}
            and (which.since is None or record.created_at >= which.since)
        )

    def _show(self, record: Send) -> Send:
        event = self._tables.sessions[record.session_id].event(record.sequence)
        return replace(record, envelope=decode_envelope(event))

    async def interactions(
        self, page: Page, *, session_id: SessionId | None = None, state: InteractionState | None = None
    ) -> tuple[Sequence[InteractionRow], str | None]:
        tables = self._tables
        after = read_cursor(page.after, "interactions", int)[0] if page.after else 0
        found = [
            record
            for record in tables.interactions.values()
            if tables.numbers[record.interaction_id] > after
            and (session_id is None or record.session_id == session_id)
            and (state is None or record.state == state)
        ]
        rows, cursor = _cut("interactions", found, page, lambda record: (tables.numbers[record.interaction_id],))
        return [interaction_row(record) for record in rows], cursor

    async def interaction(self, interaction_id: InteractionId) -> InteractionRow | None:
        record = self._tables.interactions.get(interaction_id)
        return None if record is None else interaction_row(record)

    # Memory

    async def recall(self, *, key: str, scope: str) -> StoredAnswer | None:
        answer = self._tables.answers.get((scope, key))
        return None if answer is None or answer.expires_at <= self._clock.now() else answer

    async def remember(self, *, key: str, scope: str, answer: StoredAnswer) -> bool:
        if await self.recall(key=key, scope=scope) is not None:
            return False
        self._tables.answers[scope, key] = answer
        return True

    async def note(self, name: str) -> str | None:
        return self._tables.notes.get(name)

    async def set_note(self, name: str, value: str | None) -> None:
        if value is None:
            self._tables.notes.pop(name, None)
        else:
            self._tables.notes[name] = value

    # Leases

    async def beat(self, instance: str, *, url: str, ttl: timedelta) -> bool:
        return self._open.roster.beat(instance, url, ttl)

    async def take(self, instance: str, session_id: SessionId) -> SessionRow | None:
        living = self._open.roster.living()
        session = self._tables.sessions.get(session_id)
        if session is None or session.head.state == CLOSED or instance not in living:
            return None
        if session.owner == instance:
            return session.row()
        return None if session.owner in living else self._tables.give(session, instance)

    async def take_over(self, instance: str, *, runtimes: Collection[str], limit: int) -> Sequence[SessionRow]:
        tables, living = self._tables, self._open.roster.living()
        if instance not in living:
            return []
        owned = tables.owned()
        room = room_for(limit, owned=owned[instance], total=owned.total(), living=len(living))
        orphans = (
            session
            for session in tables.sessions.values()
            if session.head.state != CLOSED and session.head.runtime in runtimes and session.owner not in living
        )
        return [tables.give(session, instance) for session in islice(orphans, room)]

    async def regain(self, instance: str, *, former: Collection[str]) -> Sequence[Regained]:
        tables, roster = self._tables, self._open.roster
        if instance not in roster.living():
            return []
        for one in former:
            roster.end(one)
        mine: list[Regained] = []
        for session in [one for one in tables.sessions.values() if one.head.state != CLOSED]:
            if session.owner in former:
                tables.give(session, instance)
            if session.owner == instance:
                mine.append(Regained(session.head.session_id, session.head.fence, session.head.last_seq))
        return mine

    async def release(self, instance: str, session_ids: Collection[SessionId] | None = None) -> None:
        if session_ids is None:
            self._open.roster.end(instance)
        sessions = self._tables.sessions
        for session_id in sessions if session_ids is None else sessions.keys() & session_ids:
            if sessions[session_id].owner == instance:
                sessions[session_id].owner = None

    async def owner(self, session_id: SessionId) -> Instance | None:
        session = self._tables.sessions.get(session_id)
        owner = None if session is None else session.owner
        return next((one for one in await self.instances() if one.alive and one.instance_id == owner), None)

    async def instances(self) -> Sequence[Instance]:
        return self._open.roster.show(self._tables.owned())

    async def hold(self, instance: str, name: str) -> bool:
        return self._open.roster.hold(instance, name)

    async def let_go(self, instance: str, name: str) -> None:
        self._open.roster.let_go(instance, name)

    # Notifier

    def notify(self, topic: str) -> None:
        if self._opened is None:
            return
        listeners = self._opened.listeners
        for place, (engine, _) in listeners.items():
            if engine is not self:
                asyncio.get_running_loop().call_soon(guard_call("notifications", _wake), listeners, place, topic)

    def listen(self, heard: Callable[[str | None], None]) -> Callable[[], None]:
        listeners, place = self._open.listeners, object()
        listeners[place] = self, heard
        return lambda: _leave(listeners, place)

    # Upkeep

    async def sweep(self, policy: RetentionPolicy, *, budget: int = 2_000) -> Swept:
        tables = self._tables
        now = self._now()
        total = sum(session.head.size for session in tables.sessions.values())
        shelves = tables.shelves(now - whole_micros(policy.copy_age))
        cuts, more = choose(shelves, tables.peek, policy, now=now, total=total, budget=budget)
        events, copies = add_up(tables.cut(session_id, cut.until) for session_id, cut in cuts.items())
        calls = tables.drop_calls(now - whole_micros(policy.call_age), budget - events)
        expired = [place for place, answer in tables.answers.items() if answer.expires_at <= self._clock.now()]
        for place in expired:
            del tables.answers[place]
        return Swept(events=events, calls=calls, more=more or events + calls >= budget, copies=copies)

    async def health(self) -> EngineHealth:
        if self._opened is None:
            return EngineHealth(writable=False, detail="the memory engine is not open")
        size = sum(session.head.size for session in self._opened.tables.sessions.values())
        return EngineHealth(writable=True, detail="nothing survives the process", bytes_used=size)


def _wake(listeners: Listeners, place: object, topic: str) -> None:
    # Who has stopped listening in the meantime hears nothing.
    if place in listeners:
        listeners[place][1](topic)


def _leave(listeners: Listeners, place: object) -> None:
    listeners.pop(place, None)


def _matches(record: Call, which: CallFilter) -> bool:
    return (
        (which.session_id is None or record.session_id == which.session_id)
        and (which.runtime is None or record.runtime == which.runtime)
        and (which.tool is None or record.tool == which.tool)
        and (not which.states or record.state in which.states)
        and (which.unknown is None or record.unknown == which.unknown)
        and (which.dead is None or record.dead == which.dead)
        and (which.executor is None or record.executor == which.executor)
        and (which.since is None or record.created_at >= which.since)
    )


def _age(record: Send) -> tuple[int, str, int, str]:
    return micros(record.created_at), record.session_id, record.sequence, record.target


def _cut(
    of: ListName, found: Sequence[T], page: Page, place: Callable[[T], tuple[int | str, ...]]
) -> tuple[list[T], str | None]:
    rows = list(found[: max(page.limit, 1)])
    return rows, write_cursor(of, *place(rows[-1])) if len(found) > len(rows) else None

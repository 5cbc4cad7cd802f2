"""Rows that are on disk as steps and not in their tables yet: made once, merged, written down and read back. Pure.

A commit appends its rows to one table, `steps`, and touches no other. They are held here as well, later ones going
into earlier ones, so that what begins and ends meanwhile is put into its table once, in its last state.
"""

from collections.abc import Mapping, Sequence, Set as AbstractSet
from operator import itemgetter
from typing import Any, NamedTuple
from zlib import compress, decompress

import orjson

from gateway.events import CallId, SessionId
from gateway.store.apply import DedupeKey, Writes
from gateway.store.call import Call
from gateway.store.records import (
    CALL_COLUMNS,
    CALL_MOVE_COLUMNS,
    SEND_COLUMNS,
    EventRecord,
    Head,
    InteractionMove,
    InteractionRecord,
    SnapshotRecord,
    call_from,
    call_move_row,
    call_row,
    send_row_after,
)

PLAIN, PACKED_APART, PACKED = 1, 2, 3
"""How an entry is written: as it is, or compressed, which was in two pieces before."""
_SMALL = 1_024
"""Bytes that a step or event has apart up to which an entry is compressed: rows repeat each other, while long bodies
cost much CPU."""

Row = Sequence[Any]
Place = tuple[SessionId, int]
"""Session and sequence of an event, or of a send whose target is said beside."""

_COLUMNS = len(CALL_COLUMNS)
_MOVED = itemgetter(
    *[
        _COLUMNS + CALL_MOVE_COLUMNS.index(name) if name in CALL_MOVE_COLUMNS else CALL_COLUMNS.index(name)
        for name in CALL_COLUMNS
    ]
)
_TARGET = SEND_COLUMNS.index("target")
_BODY = EventRecord._fields.index("body")


class BatchRows(NamedTuple):
    """The rows of one batch, as they are appended to the log."""

    sessions: Sequence[Row]
    """last_seq, size, updated_at, cursor and session_id of every session touched."""
    states: Mapping[SessionId, str]
    """The new ones."""
    events: Sequence[EventRecord]
    keys: AbstractSet[DedupeKey]
    """Of these events. Not written down: what is read back is spread before anything is asked."""
    opened: Sequence[Row]
    moved: Sequence[Row]
    """`CALL_MOVE_COLUMNS` of calls that were there before."""
    sends: Sequence[Row]
    changes: Sequence[Row]
    interactions: Sequence[InteractionRecord | InteractionMove]
    answers: Sequence[Row]
    """`AnswerRecord`, and the time it was kept at."""
    snapshots: Sequence[SnapshotRecord]


def rows_of(writes: Writes, before: Mapping[SessionId, Head]) -> BatchRows:
    """Make the rows of a batch; `before` says how its sessions were."""
    now, cursors, heads, calls = writes.now, writes.cursors, writes.heads, dict(writes.calls)
    return BatchRows(
        [(head.last_seq, head.size, now, cursors.get(name), name) for name, head in heads.items()],
        {name: head.state for name, head in heads.items() if name not in before or before[name].state != head.state},
        writes.events,
        writes.keys,
        [call_row(calls.pop(call_id)) for call_id in writes.opened],
        [call_move_row(call) for call in calls.values()],
        writes.sends,
        writes.send_changes,
        writes.interactions,
        [(*answer, now) for answer in writes.answers],
        [*writes.snapshots.values()],
    )


class HeldRows:
    """What steps write, each row once; empty to begin with."""

    __slots__ = (
        "answers", "changes", "events", "interactions", "keys", "moved", "opened", "sends", "sessions", "snapshots",
        "states",
    )  # fmt: skip

    def __init__(self) -> None:
        self.events: dict[Place, EventRecord] = {}
        self.keys: set[DedupeKey] = set()
        self.opened: dict[CallId, Row] = {}
        self.moved: dict[CallId, Row] = {}
        """Of calls that are in their table already."""
        self.sends: dict[str, dict[Place, Row]] = {}
        self.changes: dict[str, dict[Place, Row]] = {}
        """Of sends that are in their table already. Both by target."""
        self.interactions: list[InteractionRecord | InteractionMove] = []
        self.answers: list[Row] = []
        self.snapshots: dict[SessionId, SnapshotRecord] = {}
        self.sessions: dict[SessionId, Row] = {}
        self.states: dict[SessionId, str] = {}

    def add(self, rows: BatchRows) -> None:
        """Merge what a later batch writes."""
        for event in rows.events:
            self.events[event.session_id, event.seq] = event
        self.keys |= rows.keys
        for row in rows.opened:
            self.opened[row[0]] = row
        for row in rows.moved:
            call_id = row[-1]
            if call_id in self.opened:
                self.opened[call_id] = after_move(self.opened[call_id], row)
            else:
                self.moved[call_id] = row
        for row in rows.sends:
            self.sends.setdefault(row[_TARGET], {})[row[0], row[1]] = row
        for row in rows.changes:
            *_, session_id, seq, target = row
            place, sends = (session_id, seq), self.sends.get(target)
            if sends is not None and place in sends:
                sends[place] = send_row_after(sends[place], row)
            else:
                self.changes.setdefault(target, {})[place] = row
        self.interactions += rows.interactions
        self.answers += rows.answers
        for snapshot in rows.snapshots:
            self.snapshots[snapshot.session_id] = snapshot
        for row in rows.sessions:
            *rest, cursor, session_id = row
            known = self.sessions.get(session_id, row)[3]
            self.sessions[session_id] = row if cursor is not None or known is None else (*rest, known, session_id)
        self.states |= rows.states

    def head(self, head: Head) -> Head:
        """Say what is true of a session, given what its table says."""
        row = self.sessions.get(head.session_id)
        if row is None:
            return head
        return head._replace(last_seq=row[0], size=row[1], state=self.states.get(head.session_id, head.state))

    def call(self, call_id: CallId, kept: Row | None) -> Call | None:
        """Say what is true of a call, given its row in the table."""
        row = self.opened.get(call_id)
        if row is None and kept is not None:
            moved = self.moved.get(call_id)
            row = kept if moved is None else after_move(kept, moved)
        return None if row is None else call_from(row)


def after_move(row: Row, move: Row) -> Row:
    """Say what a move makes of a call's row."""
    return _MOVED((*row[:_COLUMNS], *move))


def encode(rows: BatchRows, steps: int) -> tuple[bytes, bytes]:
    """Write down the rows of so many steps: as JSON, and apart from it what is bytes already."""
    events: list[Row] = []
    apart: list[bytes] = []
    for event in rows.events:
        body, about = event.body, event.about
        events.append((*event[:_BODY], None if body is None else len(body), None if about is None else len(about)))
        apart += (body or b"", about or b"")
    apart += [answer[3] for answer in rows.answers]
    apart += [one.snapshot for one in rows.snapshots]
    told = (
        steps,
        rows.sessions,
        rows.states,
        events,
        rows.opened,
        rows.moved,
        rows.sends,
        rows.changes,
        [tuple(change) for change in rows.interactions],
        [(*answer[:3], len(answer[3]), *answer[4:]) for answer in rows.answers],
        [(one.session_id, len(one.snapshot)) for one in rows.snapshots],
    )
    return orjson.dumps(told), b"".join(apart)


def pack(said: bytes, apart: bytes, *, count: int) -> tuple[int, bytes, bytes]:
    """Compress what `encode` has written of so many steps and events, where they are small; says the format too."""
    if len(apart) > _SMALL * count:
        return PLAIN, said, apart
    # Together, since they repeat each other too. JSON has no line break of its own.
    return PACKED, compress(said + b"\n" + apart, 1), b""


def decode(number: int, said: bytes, apart: bytes) -> tuple[BatchRows, int]:
    """Read the rows of some steps, and how many steps they are of."""
    if number == PACKED:
        said, _, apart = decompress(said).partition(b"\n")
    elif number == PACKED_APART:
        said, apart = decompress(said), decompress(apart)
    told: Sequence[Any] = orjson.loads(said)
    steps, sessions, states, events, opened, moved, sends, changes, interactions, answers, snapshots = told
    at = 0

    def blob(size: int | None) -> bytes | None:
        nonlocal at
        if size is None:
            return None
        at += size
        return apart[at - size : at]

    rows = BatchRows(
        sessions,
        states,
        [EventRecord._make((*row[:_BODY], blob(row[_BODY]), blob(row[_BODY + 1]))) for row in events],
        frozenset(),
        opened,
        moved,
        sends,
        [tuple(change) for change in changes],
        [
            (InteractionMove if len(row) == len(InteractionMove._fields) else InteractionRecord)(*row)
            for row in interactions
        ],
        [(*row[:3], blob(row[3]), *row[4:]) for row in answers],
        # Steps of release 0.2.0 have a third member here, which nothing reads any more.
        [SnapshotRecord(session_id, blob(size) or b"") for session_id, size, *_ in snapshots],
    )
    return rows, steps

"""Rows that are on disk as steps and not in their tables yet: made once, merged, written down and read back. Pure.

A commit appends its rows to one table, `steps`, and touches no other. They are held here as well, later ones going
into earlier ones, so that what begins and ends meanwhile is put into its table once, in its last state.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import orjson

from gateway.errors import EngineUnusable
from gateway.events import CallId, SessionId
from gateway.store.apply import DedupeKey, Writes
from gateway.store.call import Call
from gateway.store.records import (
    CALL_COLUMNS,
    SEND_COLUMNS,
    EventRecord,
    Head,
    InteractionMove,
    InteractionRecord,
    SnapshotRecord,
    call_from,
    call_row,
    send_change_row,
    send_row,
)

T = TypeVar("T")

FORMAT = 1
"""How `encode` writes. A release reads every format up to its own; a new one raises the number."""

Row = tuple[Any, ...]
Place = tuple[SessionId, int]
"""Session and sequence of an event, or of a send whose target is said beside."""

CHANGING = (
    "state", "attempt", "deadline_at", "due_at", "canceling_until", "outcome_seq", "outcome_sha", "unknown", "error",
    "finished_at", "dead", "late", "progressed",
)  # fmt: skip
"""The columns of a call that change; a row that moves one is these, and its id."""
_CHANGING = [CALL_COLUMNS.index(name) for name in CHANGING]
_STATE, _CREATED = SEND_COLUMNS.index("state"), SEND_COLUMNS.index("created_at")
_BODY = EventRecord._fields.index("body")


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
        """`AnswerRecord`, and the time it was kept at."""
        self.snapshots: dict[SessionId, SnapshotRecord] = {}
        self.sessions: dict[SessionId, Row] = {}
        """last_seq, size, updated_at, cursor and session_id of every session touched."""
        self.states: dict[SessionId, str] = {}

    def take(self, writes: Writes, now: int, before: Callable[[SessionId], Head | None]) -> None:
        """Make the rows of a batch; `before` says how its sessions were."""
        for event in writes.events:
            self.events[event.session_id, event.seq] = event
        self.keys |= writes.keys
        for call_id in writes.opened:
            self.opened[call_id] = call_row(writes.calls[call_id])
        for call_id, call in writes.calls.items():
            if call_id not in self.opened:
                row = call_row(call)
                self.moved[call_id] = (*[row[column] for column in _CHANGING], call_id)
        for send in writes.sends:
            self.sends.setdefault(send.target, {})[send.session_id, send.sequence] = send_row(send)
        for session_id, change in writes.send_changes:
            self._change(change.target, (session_id, change.sequence), send_change_row(session_id, change))
        self.interactions += writes.interactions
        self.answers += [(*answer, now) for answer in writes.answers]
        self.snapshots |= writes.snapshots
        cursors = writes.cursors
        for session_id, head in writes.heads.items():
            self.sessions[session_id] = (head.last_seq, head.size, now, cursors.get(session_id), session_id)
            known = before(session_id)
            if known is None or known.state != head.state:
                self.states[session_id] = head.state

    def add(self, later: "HeldRows") -> None:
        """Merge what a later batch writes."""
        self.events |= later.events
        self.keys |= later.keys
        self.opened |= later.opened
        for call_id, row in later.moved.items():
            opened = self.opened.get(call_id)
            if opened is None:
                self.moved[call_id] = row
            else:
                self.opened[call_id] = after_move(opened, row)
        for target, sends in later.sends.items():
            self.sends.setdefault(target, {}).update(sends)
        for target, changes in later.changes.items():
            for place, row in changes.items():
                self._change(target, place, row)
        self.interactions += later.interactions
        self.answers += later.answers
        self.snapshots |= later.snapshots
        for session_id, row in later.sessions.items():
            known = self.sessions.get(session_id)
            kept = row if known is None or row[3] is not None else (*row[:3], known[3], session_id)
            self.sessions[session_id] = kept
        self.states |= later.states

    def _change(self, target: str, place: Place, row: Row) -> None:
        sends = self.sends.get(target)
        if sends is not None and place in sends:
            sends[place] = after_change(sends[place], row)
        else:
            self.changes.setdefault(target, {})[place] = row

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
    members = list(row)
    for column, value in zip(_CHANGING, move, strict=False):
        members[column] = value
    return tuple(members)


def after_change(row: Row, change: Row) -> Row:
    """Say what a change makes of a send's row."""
    return (*row[:_STATE], *change[:4], *row[_CREATED:])


def encode(rows: HeldRows, steps: int) -> tuple[bytes, bytes]:
    """Write down the rows of so many steps: as JSON, and apart from it what is bytes already."""
    blobs: list[bytes] = []

    def apart(blob: bytes | None) -> int | None:
        if blob is None:
            return None
        blobs.append(blob)
        return len(blob)

    told: dict[str, Any] = {
        "steps": steps,
        "events": [(*event[:_BODY], apart(event.body), apart(event.about)) for event in rows.events.values()],
        "opened": [*rows.opened.values()],
        "moved": [*rows.moved.values()],
        "sends": [row for sends in rows.sends.values() for row in sends.values()],
        "changes": [row for changes in rows.changes.values() for row in changes.values()],
        "interactions": [tuple(change) for change in rows.interactions],
        "answers": [(*answer[:3], apart(answer[3]), *answer[4:]) for answer in rows.answers],
        "snapshots": [(one.session_id, apart(one.snapshot), one.keep_from) for one in rows.snapshots.values()],
        "sessions": [*rows.sessions.values()],
        "states": rows.states,
    }
    return orjson.dumps({name: value for name, value in told.items() if value}), b"".join(blobs)


def decode(number: int, said: bytes, apart: bytes) -> tuple[HeldRows, int]:
    """Read the rows of some steps, and how many steps they are of.

    Raises:
        EngineUnusable: a newer release has written them, in a way that this one does not know.
    """
    if number != FORMAT:
        raise EngineUnusable(
            f"steps of format {number} wait in the database, and this release knows {FORMAT}: "
            "run the release that was killed over it, and stop that in order"
        )
    told: Mapping[str, Any] = orjson.loads(said)
    at = 0

    def blob(size: int | None) -> bytes | None:
        nonlocal at
        if size is None:
            return None
        at += size
        return apart[at - size : at]

    rows = HeldRows()
    for event in told.get("events", ()):
        record = EventRecord._make((*event[:_BODY], blob(event[_BODY]), blob(event[_BODY + 1])))
        rows.events[record.session_id, record.seq] = record
        if record.dedupe_key is not None:
            rows.keys.add((record.session_id, record.direction, record.dedupe_key))
    rows.opened = {row[0]: tuple(row) for row in told.get("opened", ())}
    rows.moved = {row[-1]: tuple(row) for row in told.get("moved", ())}
    for row in told.get("sends", ()):
        rows.sends.setdefault(row[2], {})[row[0], row[1]] = tuple(row)
    for row in told.get("changes", ()):
        rows.changes.setdefault(row[6], {})[row[4], row[5]] = tuple(row)
    for row in told.get("interactions", ()):
        kind = InteractionMove if len(row) == len(InteractionMove._fields) else InteractionRecord
        rows.interactions.append(kind(*row))
    rows.answers = [(*row[:3], blob(row[3]), *row[4:]) for row in told.get("answers", ())]
    for session_id, size, keep_from in told.get("snapshots", ()):
        rows.snapshots[session_id] = SnapshotRecord(session_id, blob(size) or b"", keep_from)
    rows.sessions = {row[-1]: tuple(row) for row in told.get("sessions", ())}
    rows.states = told.get("states", {})
    return rows, told["steps"]

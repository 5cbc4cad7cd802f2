"""Migrates a database of release 0.2.0 or earlier: a copy is kept, then one transaction rebuilds every table.

This file is frozen: it reads the tables and steps of those releases, and uses nothing that later releases change.
Release 0.2.0 appended each commit to the table `steps` and wrote the other tables later; the steps that a killed
process left there go into the tables first. `steps` is a row of slots. A slot begins with the number of its round; slot
0 holds the last round that the tables have. Entries follow each other over the slots of later rounds.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any
from zlib import decompress

import orjson

from gateway.errors import EngineUnusable

LAST = 6
"""The schema of release 0.2.0."""
COPY = ".before-0.3"

_APPLICATION = 0x4472676D
_PACKED = 3
_HEADER = ("application_id", "user_version")
_BYTES_PER_SECOND = 8_000_000
"""The speed of a migration on two busy cores."""
_ENTRY, _SLOT = Struct(">HII"), Struct(">Q")
"""An entry begins with its format and the sizes of its JSON and its bytes; a slot begins with its round."""

_EVENT = ("session_id", "seq", "event_id", "kind", "direction", "dedupe_key", "recorded_at", "body", "about")
_CALL = (
    "call_id", "session_id", "runtime", "native_call_id", "n", "tool", "args_sha", "state", "attempt", "created_at",
    "deadline_at", "request_seq", "executor", "key", "due_at", "canceling_until", "outcome_seq", "outcome_sha",
    "unknown", "error", "redrive_of", "deliver", "finished_at", "dead", "late", "progressed",
)  # fmt: skip
_SEND = ("session_id", "seq", "target", "lane", "state", "attempt", "due_at", "reason", "created_at")
_INTERACTION = ("interaction_id", "session_id", "kind", "state", "request_seq", "expires_at", "answered_by")
_SESSION = (
    "id", "session_id", "runtime", "protocol", "native_id", "state", "labels", "last_seq", "min_seq", "fence", "owner",
    "size", "cursor", "opened_at", "updated_at",
)  # fmt: skip
_TABLES = {
    "sessions": _SESSION,
    "snapshots": ("session_id", "snapshot"),
    "events": _EVENT,
    "calls": ("id", *_CALL),
    "outbound": _SEND,
    "interactions": ("id", *_INTERACTION),
    "idempotency": ("scope", "key", "request_sha", "response", "expires_at"),
    "notes": ("name", "value"),
}
_ABSENT = {"owner": "NULL", "dead": "unknown", "late": "0", "progressed": "0"}
"""Columns that releases before 0.2.0 did not have."""
_BODY = _EVENT.index("body")

_MOVE_CALL = """
UPDATE calls SET state = ?, attempt = ?, deadline_at = ?, due_at = ?, canceling_until = ?, outcome_seq = ?,
    outcome_sha = ?, unknown = ?, error = ?, finished_at = ?, dead = ?, late = ?, progressed = ?
WHERE call_id = ?
"""
_MOVE_SEND = """
UPDATE outbound SET state = ?, attempt = ?, due_at = ?, reason = ? WHERE session_id = ? AND seq = ? AND target = ?
"""
_MOVE_INTERACTION = """
UPDATE interactions SET state = ?, expires_at = coalesce(?, expires_at), answered_by = coalesce(?, answered_by)
WHERE interaction_id = ? AND session_id = ?
"""
_ASK = """
ON CONFLICT (interaction_id) DO UPDATE SET state = excluded.state,
    expires_at = coalesce(excluded.expires_at, expires_at), answered_by = coalesce(excluded.answered_by, answered_by)
WHERE session_id = excluded.session_id
"""
_KEEP_ANSWER = """
INSERT INTO idempotency (scope, key, request_sha, response, expires_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (scope, key) DO UPDATE SET
    request_sha = excluded.request_sha, response = excluded.response, expires_at = excluded.expires_at
WHERE idempotency.expires_at <= ?
"""
_KEEP_SNAPSHOT = """
INSERT INTO snapshots (session_id, snapshot) VALUES (?, ?)
ON CONFLICT (session_id) DO UPDATE SET snapshot = excluded.snapshot
"""
_MOVE_SESSION = """
UPDATE sessions SET last_seq = ?, size = ?, updated_at = ?, cursor = coalesce(?, cursor) WHERE session_id = ?
"""
_SENDS = (
    # A row that waited for a newer release becomes a dead letter.
    """
    UPDATE outbound SET state = 'dead', due_at = NULL
    WHERE state = 'pending' AND reason = 'written by a newer release'
    """,
    # A pending event to the runtime may have been sent, except one that 0.2.0 marked as not sent.
    """
    UPDATE outbound SET attempt = 1
    WHERE target = 'runtime' AND state = 'pending' AND reason IS NOT 'held: the runtime has not started yet'
    """,
    "UPDATE outbound SET reason = NULL WHERE target = 'runtime' AND state = 'pending'",
)


@dataclass(frozen=True, slots=True)
class MigrationCost:
    """The bytes of free disk and the seconds that a migration takes, about."""

    size: int
    seconds: float


def is_old(path: Path) -> bool:
    """Say whether a file is a database of release 0.2.0 or earlier."""
    if not path.is_file() or not path.stat().st_size:
        return False
    try:
        ((application,),), ((version,),) = (_execute(path, f"PRAGMA {name}") for name in _HEADER)
    except sqlite3.Error:
        # Opening the database reports the error.
        return False
    return application == _APPLICATION and 0 < version <= LAST


def estimate(path: Path) -> MigrationCost:
    """Estimate the migration of an old database: the copy, the new tables, and both in the write-ahead log."""
    log = path.with_name(path.name + "-wal")
    size = path.stat().st_size + (log.stat().st_size if log.exists() else 0)
    return MigrationCost(4 * size, size / _BYTES_PER_SECOND)


def keep_copy(path: Path) -> Path | None:
    """Write a complete, checked and synced copy of an old database as `PATH.before-0.3`; None if it is not old.

    Raises:
        EngineUnusable: the copy cannot be written, or the database is damaged.
    """
    if not is_old(path):
        return None
    copy = path.with_name(path.name + COPY)
    partial = path.with_name(path.name + COPY + ".partial")
    try:
        partial.unlink(missing_ok=True)
        # VACUUM INTO fills an empty file, which keeps its mode.
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, path.stat().st_mode & 0o777))
        _execute(path, "VACUUM INTO ?", str(partial))
        found = _execute(partial, "PRAGMA integrity_check(1)")
        if found != [("ok",)]:
            raise EngineUnusable(f"{str(path)!r} is damaged ({found[0][0]}): restore a backup")
        _sync(partial)
        partial.replace(copy)
        _sync(path.parent)
    except (OSError, sqlite3.Error) as exc:
        raise EngineUnusable(
            f"cannot keep a copy of {str(path)!r} before the migration ({exc}): make room on its disk"
        ) from exc
    return copy


def _execute(path: Path, statement: str, *values: object) -> list[Any]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def _sync(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rebuild(connection: sqlite3.Connection, tables: Sequence[str], number: int) -> None:
    """Replace the tables of a database of schema 1 to `LAST` by `tables`, in one transaction, as schema `number`."""
    execute = connection.execute
    execute("BEGIN IMMEDIATE")
    try:
        if execute("SELECT 1 FROM sqlite_master WHERE name = 'steps'").fetchone():
            _replay(connection)
        for statement in _SENDS:
            execute(statement)
        for (name,) in execute("SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL").fetchall():
            execute(f'DROP INDEX "{name}"')
        own = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        old = [name for (name,) in execute(own).fetchall()]
        for name in old:
            execute(f'ALTER TABLE "{name}" RENAME TO "old_{name}"')
        for statement in tables:
            execute(statement)
        for name, columns in _TABLES.items():
            execute(_copy(connection, name, columns))
        for name in old:
            execute(f'DROP TABLE "old_{name}"')
        execute(f"PRAGMA user_version = {number}")
        execute("COMMIT")
    finally:
        if connection.in_transaction:
            execute("ROLLBACK")


def _copy(connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> str:
    there = {row[1] for row in connection.execute(f"PRAGMA table_info(old_{table})")}
    selected = [f"o.{name}" if name in there else _ABSENT[name] for name in columns]
    source = f"old_{table} o"
    if table != "sessions" and "session_id" in columns:
        # The new tables refer to the integer key of a session.
        selected[columns.index("session_id")] = "s.id"
        source += " CROSS JOIN sessions s ON s.session_id = o.session_id"
    # All names are from above.
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(selected)} FROM {source}"  # noqa: S608


def _replay(connection: sqlite3.Connection) -> None:
    found = connection.execute("SELECT part FROM steps WHERE id = 0").fetchone()
    if found is None:
        return
    slots = connection.execute("SELECT part FROM steps WHERE id > 0 ORDER BY id")
    waiting = [part[_SLOT.size :] for (part,) in slots if part[: _SLOT.size] > found[0]]
    for form, written, apart in _entries(b"".join(waiting), len(waiting[0]) if waiting else 0):
        _apply(connection, form, written, apart)


def _entries(log: bytes, room: int) -> Iterator[tuple[int, bytes, bytes]]:
    at = 0
    while at < len(log):
        left = room - at % room
        form, written, apart = _ENTRY.unpack_from(log, at) if left >= _ENTRY.size else (0, 0, 0)
        if form:
            middle = at + _ENTRY.size + written
            yield form, log[at + _ENTRY.size : middle], log[middle : middle + apart]
            at = middle + apart
        else:
            # The rest of this slot is empty.
            at += left


def _apply(connection: sqlite3.Connection, form: int, written: bytes, apart: bytes) -> None:
    """Write the rows of one entry into the tables."""
    if form == _PACKED:
        written, _, apart = decompress(written).partition(b"\n")
    told: Sequence[Any] = orjson.loads(written)
    _, sessions, states, events, opened, moved, sends, changes, interactions, answers, snapshots = told
    at = 0

    def take(size: int | None) -> bytes | None:
        nonlocal at
        if size is None:
            return None
        at += size
        return apart[at - size : at]

    many = connection.executemany
    many(_insert("events", _EVENT), [(*row[:_BODY], take(row[_BODY]), take(row[_BODY + 1])) for row in events])
    many(_insert("calls", _CALL), opened)
    many(_MOVE_CALL, moved)
    many(_insert("outbound", _SEND), sends)
    many(_MOVE_SEND, changes)
    for row in interactions:
        connection.execute(
            _insert("interactions", _INTERACTION) + _ASK if len(row) == len(_INTERACTION) else _MOVE_INTERACTION, row
        )
    many(_KEEP_ANSWER, [(*row[:3], take(row[3]), *row[4:]) for row in answers])
    many(_KEEP_SNAPSHOT, [(session_id, take(size)) for session_id, size, *_ in snapshots])
    many(_MOVE_SESSION, sessions)
    many("UPDATE sessions SET state = ? WHERE session_id = ?", [(state, name) for name, state in states.items()])


def _insert(table: str, columns: Sequence[str]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 - names from above

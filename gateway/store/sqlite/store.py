"""The writer's side of the SQLite tables: what a batch must know before it decides, and where its rows go.

The file belongs to this process alone, so heads of sessions and open calls are kept in memory; everything
else a batch asks about is fetched with one statement per table, and what is held is laid over it.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gateway.events import CallId, SessionId
from gateway.store.apply import DedupeKey, Writes
from gateway.store.call import Call
from gateway.store.records import CALL_COLUMNS, Head
from gateway.store.sqlite.held import HeldRows, rows_of
from gateway.store.sqlite.log import Behind, Log
from gateway.store.sqlite.statements import select, write
from gateway.store.step import Step

_HEADS_KEPT = 20_000
_SIZES = tuple(2**power for power in range(9))


def _wanted(columns: Sequence[str], table: str, *keys: str) -> dict[int, str]:
    # A join in this order, since for IN SQLite sorts the values first, and for `(…) IN` looks through the whole index.
    marks = f"({', '.join('?' * len(keys))})"
    alike = " AND ".join([f"{key} = wanted.column{number}" for number, key in enumerate(keys, 1)])
    rest = f"FROM wanted CROSS JOIN {table} ON {alike}"
    # A few fixed lengths, so that sqlite3's statement cache holds them all.
    return {size: f"WITH wanted AS (VALUES {', '.join([marks] * size)}) {select(columns, rest)}" for size in _SIZES}


_HEADS = _wanted(Head._fields, "sessions", "session_id")
_CALLS = _wanted(CALL_COLUMNS, "calls", "call_id")
_KEYS = _wanted(("session_id", "direction", "dedupe_key"), "events", "session_id", "direction", "dedupe_key")


class Store:
    """What the writer knows of the tables; `decide` reads it as its `Known`."""

    def __init__(self, connection: sqlite3.Connection, behind: Behind) -> None:
        self.connection = connection
        self.log = Log(connection, behind)
        self._behind = behind
        self._held = behind.rows
        """What is held while the transaction lasts; nothing once it was spread."""
        self._heads: dict[SessionId, Head] = {}
        self._calls: dict[CallId, Call] = {}
        """The open ones, and those that the batch asks about."""
        self._ended: list[CallId] = []
        """What is to be forgotten of them with the next batch."""
        self._seen: set[DedupeKey] = set()
        self.head = self._heads.get
        self.call = self._calls.get

    def seen(self, key: DedupeKey) -> bool:
        return key in self._seen or key in self._held.keys

    def begin(self) -> None:
        """Start a batch: its transaction, and a fresh look at what memory does not hold."""
        self._held = self._behind.rows
        for call_id in self._ended:
            self._calls.pop(call_id, None)
        self._ended = []
        self._seen = set()
        if len(self._heads) > _HEADS_KEPT:
            self._heads.clear()
        self.connection.execute("BEGIN IMMEDIATE")

    def spread(self) -> None:
        """Write what is held into the tables, in the batch's own transaction."""
        self.log.spread()
        self._held = HeldRows()

    def fetch(self, steps: Iterable[Step]) -> None:
        """Read what deciding these steps needs and memory does not hold."""
        sessions: set[SessionId] = set()
        calls: set[CallId] = set()
        keys: set[DedupeKey] = set()
        for step in steps:
            session_id = step.session_id
            if session_id not in self._heads:
                sessions.add(session_id)
            for change in step.calls:
                call_id = change.call_id
                if call_id not in self._calls:
                    calls.add(call_id)
            for new in step.events:
                if new.dedupe_key is not None:
                    keys.add((session_id, new.direction, new.dedupe_key))
        if sessions:
            for row in self._find(_HEADS, sessions):
                self._heads[row[0]] = self._held.head(Head._make(row))
        if calls:
            kept = {row[0]: row for row in self._find(_CALLS, calls)}
            for call_id in calls:
                call = self._held.call(call_id, kept.get(call_id))
                if call is not None:
                    self._calls[call_id] = call
                    if not call.is_open:
                        self._ended.append(call_id)
        if keys:
            self._seen.update(self._find(_KEYS, keys))

    def fetch_head(self, session_id: SessionId) -> None:
        """Read one session's head, where memory does not hold it."""
        if session_id not in self._heads:
            for row in self._find(_HEADS, (session_id,)):
                self._heads[session_id] = self._held.head(Head._make(row))

    def _find(self, statements: dict[int, str], wanted: Iterable[str | DedupeKey]) -> Iterator[Any]:
        waiting = list(wanted)
        for start in range(0, len(waiting), _SIZES[-1]):
            part = waiting[start : start + _SIZES[-1]]
            size = next(size for size in _SIZES if size >= len(part))
            part += [part[-1]] * (size - len(part))
            values = part if isinstance(part[0], str) else [value for key in part for value in key]
            yield from self.connection.execute(statements[size], values)

    def keep(self, writes: Writes, *, steps: int, lazily: bool) -> None:
        """Commit what a batch writes: as an entry of the log, or into the tables where what was held is there too."""
        rows = rows_of(writes, self._heads)
        if lazily:
            # Where every step was refused there is nothing to append.
            entry = self.log.append(rows, steps) if writes.heads else None
            self.connection.execute("COMMIT")
            if entry is not None:
                self._behind.append(entry)
        else:
            held = HeldRows()
            held.add(rows)
            write(self.connection, held)
            self.connection.execute("COMMIT")
            self._behind.clear()
        self._heads.update(writes.heads)
        for call_id, call in writes.calls.items():
            if call.is_open:
                self._calls[call_id] = call
            else:
                self._calls.pop(call_id, None)

    def forget_head(self, session_id: SessionId) -> None:
        """Trust memory no more about one session."""
        self._heads.pop(session_id, None)

    def forget(self) -> None:
        """Trust memory no more; the tables are asked again, and what is held."""
        self._heads.clear()
        self._calls.clear()

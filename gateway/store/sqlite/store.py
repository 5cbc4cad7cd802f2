"""The writer's view of the SQLite tables: reads what a batch needs before it decides, and writes its rows.

The file belongs to this process alone, so heads of sessions and open calls stay in memory. A batch reads everything
else with one statement per table.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

from gateway.events import CallId, Direction, SessionId
from gateway.store.apply import DedupeKey, Writes
from gateway.store.call import Call
from gateway.store.questions.listed import LIST
from gateway.store.questions.question import columns
from gateway.store.records import CALL_COLUMNS, Head, call_from
from gateway.store.sqlite.dialect import in_sqlite
from gateway.store.sqlite.statements import write
from gateway.store.step import Step

_HEADS_KEPT = 20_000
_SIZES = tuple(2**power for power in range(9))


def _queries_by_size(selected: str, table: str, *keys: str) -> dict[int, str]:
    # A join in this order: for IN SQLite sorts the values first, and for `(…) IN` it reads the whole index.
    marks = f"({', '.join('?' * len(keys))})"
    alike = " AND ".join([f"{key} = wanted.column{number}" for number, key in enumerate(keys, 1)])
    rest = in_sqlite(f"SELECT {selected} FROM wanted CROSS JOIN {table} ON {alike}")  # noqa: S608 - names of the schema
    # A few fixed lengths, so that sqlite3's statement cache holds them all.
    return {size: f"WITH wanted AS (VALUES {', '.join([marks] * size)}) {rest}" for size in _SIZES}


_HEADS = _queries_by_size(f"id, {', '.join(Head._fields)}", "@sessions", "session_id")
_CALLS = _queries_by_size(columns(CALL_COLUMNS, "calls"), "calls", "call_id")
_SEEN = _queries_by_size("session_id, direction, dedupe_key", "events", "session_id", "direction", "dedupe_key")


class Store:
    """The writer's connection and its memory; `decide` reads it as its `Known`."""

    def __init__(self, connection: sqlite3.Connection, *, young: int) -> None:
        """List open rows after `young` events and calls."""
        self.connection = connection
        self._heads: dict[SessionId, Head] = {}
        self._keys: dict[SessionId, int] = {}
        """The integers by which other tables refer to the sessions in `_heads`."""
        self._calls: dict[CallId, Call] = {}
        """The open calls, and the ended ones that the batch asks about."""
        self._ended: list[CallId] = []
        """Calls to forget with the next batch."""
        self._seen: set[tuple[int, Direction, str]] = set()
        self._list_after = self._young = young
        """The first commit lists the open rows of earlier processes."""
        self.head = self._heads.get
        self.call = self._calls.get

    def seen(self, key: DedupeKey) -> bool:
        session_id, direction, dedupe_key = key
        return (self._keys[session_id], direction, dedupe_key) in self._seen

    def begin(self) -> None:
        """Start the transaction of a batch."""
        for call_id in self._ended:
            self._calls.pop(call_id, None)
        self._ended = []
        self._seen = set()
        if len(self._heads) > _HEADS_KEPT:
            self._heads.clear()
            self._keys.clear()
        self.connection.execute("BEGIN IMMEDIATE")

    def fetch(self, steps: Iterable[Step]) -> None:
        """Read the rows that deciding these steps needs and memory lacks."""
        sessions: set[SessionId] = set()
        calls: set[CallId] = set()
        keyed: set[DedupeKey] = set()
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
                    keyed.add((session_id, new.direction, new.dedupe_key))
        if sessions:
            self._fetch_heads(sessions)
        if calls:
            for row in self._find(_CALLS, [(call_id,) for call_id in calls]):
                call = call_from(row)
                self._calls[call.call_id] = call
                if not call.is_open:
                    self._ended.append(call.call_id)
        if keyed:
            known = [(self._keys[name], *rest) for name, *rest in keyed if name in self._keys]
            self._seen.update(self._find(_SEEN, known))

    def fetch_head(self, session_id: SessionId) -> None:
        """Read one session's head, if memory does not hold it."""
        if session_id not in self._heads:
            self._fetch_heads((session_id,))

    def key(self, session_id: SessionId) -> int | None:
        """Return the integer by which other tables refer to a session; None if it does not exist."""
        self.fetch_head(session_id)
        return self._keys.get(session_id)

    def _fetch_heads(self, sessions: Iterable[SessionId]) -> None:
        for key, *row in self._find(_HEADS, [(session_id,) for session_id in sessions]):
            head = Head(*row)
            self._heads[head.session_id], self._keys[head.session_id] = head, key

    def _find(self, statements: dict[int, str], wanted: list[Any]) -> Iterator[Any]:
        for start in range(0, len(wanted), _SIZES[-1]):
            part = wanted[start : start + _SIZES[-1]]
            size = next(size for size in _SIZES if size >= len(part))
            part += [part[-1]] * (size - len(part))
            yield from self.connection.execute(statements[size], [value for key in part for value in key])

    def commit(self, writes: Writes) -> None:
        """Write the rows of a batch, and commit its transaction."""
        write(self.connection, writes, self._heads, self._keys)
        young = self._young + len(writes.events) + len(writes.opened)
        if young >= self._list_after:
            for statement in LIST:
                self.connection.execute(statement)
            young = 0
        self.connection.execute("COMMIT")
        self._young = young
        self._heads.update(writes.heads)
        for call_id, call in writes.calls.items():
            if call.is_open:
                self._calls[call_id] = call
            else:
                self._calls.pop(call_id, None)

    def forget_head(self, session_id: SessionId) -> None:
        """Read one session's head again before it is used."""
        self._heads.pop(session_id, None)

    def forget(self) -> None:
        """Read everything again before it is used."""
        self._heads.clear()
        self._keys.clear()
        self._calls.clear()

"""The table `steps`: what commits append to, and what is spread over the other tables later, in one transaction.

It is a row of slots, each as large as a page holds, and each begins with the number of its round. An entry goes behind
the one before it into the same slot where it fits in there whole, and into as many of the next as it needs otherwise;
once all entries are spread, the next round writes the slots over from the first on. So a commit writes whole pages,
most often one, and touches no other table. Many small steps and events at once are compressed. Slot 0 says which round
was spread last; what is of a later one waits.
"""

import sqlite3
from collections.abc import Callable, Iterator
from math import inf
from struct import Struct
from threading import Lock
from time import monotonic
from typing import NamedTuple, TypeVar

from gateway.store.sqlite.held import PLAIN, BatchRows, HeldRows, decode, encode, pack
from gateway.store.sqlite.statements import write
from gateway.store.sqlite.tuning import SqliteTuning

T = TypeVar("T")

_ENTRY = Struct(">HII")
"""What an entry begins with: its format, which is never 0, and the sizes of its JSON and of what is apart from it."""
_SLOT = Struct(">Q")
"""What a slot begins with: the number of its round."""
_FRAME = 39
"""What SQLite itself needs of a page that holds one slot and nothing else."""

_PUT = "INSERT OR REPLACE INTO steps (id, part) VALUES (?, ?)"
_SPREAD = "SELECT part FROM steps WHERE id = 0"
_ALL = "SELECT part FROM steps WHERE id > 0 ORDER BY id"
_BLANK = "UPDATE steps SET part = zeroblob(length(part)) WHERE id > 0"


class Entry(NamedTuple):
    """One commit as it was appended."""

    rows: BatchRows
    size: int
    """What it takes in memory, about."""
    slot: int
    """The last slot that it takes."""
    end: bytes
    """What that slot holds then."""


class Behind:
    """What the tables do not have yet: changed by the writer's thread alone, between two transactions."""

    def __init__(self, tuning: SqliteTuning) -> None:
        self._tuning = tuning
        self.rows = HeldRows()
        self.spread_to = 0
        """The number of the last round that the tables have; grows for as long as the engine is open."""
        self.due_at = inf
        """When it is to be spread, by the monotonic clock."""
        self.entries = 0
        self.begun = False
        """Whether slot 0 is there."""
        self.slot, self.end = 1, b""
        """Where the last entry ends, and what that slot holds."""
        self._size = 0
        self._since = 0.0
        self._lock = Lock()

    def append(self, entry: Entry) -> None:
        """Take over what was committed."""
        self.begun = True
        tuning = self._tuning
        with self._lock:
            if not self.entries:
                self._since = monotonic()
                self.due_at = self._since + tuning.spread_after
            if self._size < tuning.spread_bytes <= self._size + entry.size:
                self.due_at = self._since
            self.entries += 1
            self._size += entry.size
            self.slot, self.end = entry.slot, entry.end
            self.rows.add(entry.rows)

    def clear(self) -> None:
        """Let go of all of it: the tables have it."""
        with self._lock:
            self.spread_to += bool(self.entries)
            self.rows, self.entries, self._size, self.due_at = HeldRows(), 0, 0, inf
            self.slot, self.end = 1, b""

    @property
    def is_full(self) -> bool:
        """Whether the tables are too far behind for another step."""
        tuning = self._tuning
        return bool(self.entries) and (self._size >= tuning.behind_bytes or monotonic() - self._since >= tuning.behind)

    def look(self, connection: sqlite3.Connection, extract: Callable[[HeldRows], T]) -> tuple[T | None, bool]:
        """Copy what is held that the tables of an open transaction do not have; False where it has to begin anew.

        None where they have all of it.
        """
        found = connection.execute(_SPREAD).fetchone()
        if found is None:
            return None, True
        (spread_to,) = _SLOT.unpack(found[0])
        with self._lock:
            if spread_to == self.spread_to:
                return extract(self.rows), True
            # The writer has just spread all of it, and has written nothing since.
            return None, spread_to > self.spread_to


class Log:
    """The table as the writer's connection knows it."""

    def __init__(self, connection: sqlite3.Connection, behind: Behind) -> None:
        self._connection = connection
        self._behind = behind
        self._room: int = connection.execute("PRAGMA page_size").fetchone()[0] - _FRAME - _SLOT.size
        behind.begun = False

    def append(self, rows: BatchRows, steps: int) -> Entry:
        """Write down the rows of so many steps; the transaction is the caller's."""
        behind, room = self._behind, self._room
        if not behind.begun:
            self._connection.execute(_PUT, (0, _SLOT.pack(behind.spread_to)))
        form, (said, apart) = PLAIN, encode(rows, steps)
        size = len(said) + len(apart)
        if size > room:
            # Less than a page is not written anyhow.
            form, said, apart = pack(said, apart, count=steps + len(rows.events))
        entry = b"".join((_ENTRY.pack(form, len(said), len(apart)), said, apart))
        slot, round_ = behind.slot, _SLOT.pack(behind.spread_to + 1)
        if len(behind.end) + len(entry) <= room:
            entry = behind.end + entry
        elif behind.end:
            slot += 1
        parts = [entry[at : at + room] for at in range(0, len(entry), room)]
        last = slot + len(parts) - 1
        slots = [(at, round_ + part.ljust(room, b"\0")) for at, part in enumerate(parts, slot)]
        self._connection.executemany(_PUT, slots)
        return Entry(rows, size, last, parts[-1])

    def spread(self) -> None:
        """Write what is held into the tables; the transaction is the caller's.

        Nothing is asked again: all of it was accepted.
        """
        behind = self._behind
        if behind.entries:
            write(self._connection, behind.rows)
            self._connection.execute(_PUT, (0, _SLOT.pack(behind.spread_to + 1)))

    def spread_and_close(self) -> None:
        """Write what is held into the tables and leave an empty log."""
        _finish(self._connection, self._behind.rows)
        self._behind.begun = False
        self._behind.clear()


def blank(connection: sqlite3.Connection) -> None:
    """Overwrite what slots still say of entries that are spread; nothing may wait in them."""
    connection.execute(_BLANK)


def replay(connection: sqlite3.Connection) -> int:
    """Spread what a process has left when it ended; answers how many steps it was."""
    found = connection.execute(_SPREAD).fetchone()
    if found is None:
        return 0
    waiting = [part[_SLOT.size :] for (part,) in connection.execute(_ALL) if part[: _SLOT.size] > found[0]]
    rows, steps = HeldRows(), 0
    for form, said, apart in _entries(b"".join(waiting), len(waiting[0]) if waiting else 0):
        later, count = decode(form, said, apart)
        rows.add(later)
        steps += count
    _finish(connection, rows)
    return steps


def _entries(log: bytes, room: int) -> Iterator[tuple[int, bytes, bytes]]:
    at = 0
    while at < len(log):
        left = room - at % room
        form, said, apart = _ENTRY.unpack_from(log, at) if left >= _ENTRY.size else (0, 0, 0)
        if form:
            middle = at + _ENTRY.size + said
            yield form, log[at + _ENTRY.size : middle], log[middle : middle + apart]
            at = middle + apart
        else:
            # Nothing more is in this slot.
            at += left


def _finish(connection: sqlite3.Connection, rows: HeldRows) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        write(connection, rows)
        connection.execute("DELETE FROM steps")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

"""The table `steps`: what commits append to, and what is spread over the other tables later, in one transaction.

It is a row of slots, each as large as a page holds; an entry takes as many as it needs, and once all entries are
spread they are written over from the first on. So a commit writes whole pages and touches no other. Slot 0 says
which entry was spread last; those with a higher number wait.
"""

import sqlite3
from collections.abc import Callable
from itertools import groupby
from struct import Struct
from threading import Lock
from time import monotonic
from typing import NamedTuple, TypeVar

from gateway.store.sqlite.held import FORMAT, HeldRows, decode, encode
from gateway.store.sqlite.statements import write

T = TypeVar("T")

SPREAD_AFTER = 1.0
"""Seconds after which what was appended is spread."""
SPREAD_BYTES = 2 * 1024 * 1024
"""How much is spread at once, so that no commit waits long behind it."""
MOST_SECONDS, MOST_BYTES = 10.0, 64 * 1024 * 1024
"""How far the tables may fall behind where they cannot be written; then nothing is appended any more."""

_ENTRY = Struct(">HII")
"""What an entry begins with: its format, and the sizes of its JSON and of what is apart from it."""
_SLOT = Struct(">Q")
"""What a slot begins with: the number of the entry."""
_FRAME = 39
"""What SQLite itself needs of a page that holds one slot and nothing else."""

_PUT, _PUT_AGAIN = "INSERT INTO steps (part, id) VALUES (?, ?)", "UPDATE steps SET part = ? WHERE id = ?"
_CLOSE = """
UPDATE schema_version SET settled = readable_from, readable_from = max(readable_from, ?)
WHERE settled IS NULL AND n = (SELECT max(n) FROM schema_version)
"""
_OPEN = "UPDATE schema_version SET readable_from = settled, settled = NULL WHERE settled IS NOT NULL"
_SPREAD = "SELECT part FROM steps WHERE id = 0"
_ALL = "SELECT part FROM steps WHERE id > 0 ORDER BY id"
_BLANK = "UPDATE steps SET part = zeroblob(length(part)) WHERE id > 0"


class Entry(NamedTuple):
    """One commit as it was appended."""

    rows: HeldRows
    size: int
    slots: int


class Behind:
    """What the tables do not have yet: changed by the writer's thread alone, between two transactions."""

    def __init__(self) -> None:
        self.rows = HeldRows()
        self.spread_to = 0
        """The number of the last entry that the tables have; grows for as long as the engine is open."""
        self.entries = 0
        self.slots_taken = 0
        self._size = 0
        self._since = 0.0
        self._lock = Lock()

    def append(self, entry: Entry) -> None:
        """Take over what was committed."""
        with self._lock:
            if not self.entries:
                self._since = monotonic()
            self.entries += 1
            self.slots_taken += entry.slots
            self._size += entry.size
            self.rows.add(entry.rows)

    def clear(self) -> None:
        """Let go of all of it: the tables have it."""
        with self._lock:
            self.spread_to += self.entries
            self.rows, self.entries, self.slots_taken, self._size = HeldRows(), 0, 0, 0

    @property
    def due_in(self) -> float | None:
        """In how many seconds it is to be spread; None where there is nothing."""
        if not self.entries:
            return None
        return 0.0 if self._size >= SPREAD_BYTES else max(0.0, self._since + SPREAD_AFTER - monotonic())

    @property
    def is_full(self) -> bool:
        """Whether the tables are too far behind for another step."""
        return bool(self.entries) and (self._size >= MOST_BYTES or monotonic() - self._since >= MOST_SECONDS)

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

    def __init__(self, connection: sqlite3.Connection, behind: Behind, schema: int) -> None:
        self._connection = connection
        self._behind = behind
        self._schema = schema
        self._room: int = connection.execute("PRAGMA page_size").fetchone()[0] - _FRAME - _SLOT.size
        self._slots = 0
        """How many there are; none where nothing was appended yet."""

    def append(self, rows: HeldRows, steps: int) -> Entry:
        """Write down the rows of so many steps; the transaction is the caller's."""
        behind, many = self._behind, self._connection.executemany
        if not self._slots:
            # No release may read the database now that does not know the log.
            self._connection.execute(_CLOSE, (self._schema,))
            self._connection.execute("INSERT OR REPLACE INTO steps VALUES (0, ?)", (_SLOT.pack(behind.spread_to),))
        said, apart = encode(rows, steps)
        entry = b"".join((_ENTRY.pack(FORMAT, len(said), len(apart)), said, apart))
        number, room = _SLOT.pack(behind.spread_to + behind.entries + 1), self._room
        parts = [
            (number + entry[at : at + room].ljust(room, b"\0"), slot)
            for slot, at in enumerate(range(0, len(entry), room), start=behind.slots_taken + 1)
        ]
        old = max(0, min(self._slots - behind.slots_taken, len(parts)))
        many(_PUT_AGAIN, parts[:old])
        many(_PUT, parts[old:])
        return Entry(rows, len(entry), len(parts))

    def appended(self, entry: Entry) -> None:
        """Take over what was committed."""
        self._slots = max(self._slots, self._behind.slots_taken + entry.slots)
        self._behind.append(entry)

    def spread(self) -> None:
        """Write what is held into the tables; the transaction is the caller's.

        Nothing is asked again: all of it was accepted.
        """
        behind = self._behind
        if behind.entries:
            write(self._connection, behind.rows)
            self._connection.execute(_PUT_AGAIN, (_SLOT.pack(behind.spread_to + behind.entries), 0))

    def spread_and_close(self) -> None:
        """Write what is held into the tables and leave a database that every release reads that could before."""
        _finish(self._connection, self._behind.rows)
        self._slots = 0
        self._behind.clear()


def blank(connection: sqlite3.Connection) -> None:
    """Overwrite what slots still say of entries that are spread; nothing may wait in them."""
    connection.execute(_BLANK)


def replay(connection: sqlite3.Connection) -> int:
    """Spread what a process has left when it ended; answers how many steps it was.

    Raises:
        EngineUnusable: a newer release has written them in a way that this one does not know.
    """
    found = connection.execute(_SPREAD).fetchone()
    if found is None:
        return 0
    rows, steps = HeldRows(), 0
    parts = (row[0] for row in connection.execute(_ALL))
    for number, slots in groupby(parts, key=lambda part: part[: _SLOT.size]):
        if number > found[0]:
            entry = b"".join(slot[_SLOT.size :] for slot in slots)
            form, said, apart = _ENTRY.unpack_from(entry)
            middle = _ENTRY.size + said
            later, count = decode(form, entry[_ENTRY.size : middle], entry[middle : middle + apart])
            rows.add(later)
            steps += count
    _finish(connection, rows)
    return steps


def _finish(connection: sqlite3.Connection, rows: HeldRows) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        write(connection, rows)
        connection.execute("DELETE FROM steps")
        connection.execute(_OPEN)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

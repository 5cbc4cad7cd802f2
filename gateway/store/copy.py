"""Copies all rows of one store to an empty one of another kind, in one transaction, and compares them there."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from gateway.errors import EngineUnusable
from gateway.store.records import (
    CALL_COLUMNS,
    SEND_COLUMNS,
    AnswerRecord,
    EventRecord,
    InteractionRecord,
    SnapshotRecord,
)

PAGE = 200
"""Rows in memory at once; each is at most one event large."""

Value = int | str | bytes | None
Row = Sequence[Value]


@dataclass(frozen=True, slots=True)
class Table:
    """A table that both stores have."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    """What its rows are read in order of."""


SESSIONS = (
    "id", "session_id", "runtime", "protocol", "native_id", "state", "labels", "last_seq", "min_seq", "fence", "size",
    "cursor", "opened_at", "updated_at",
)  # fmt: skip

TABLES = (
    Table("sessions", SESSIONS, ("id",)),
    Table("snapshots", SnapshotRecord._fields, ("session_id",)),
    Table("events", EventRecord._fields, ("session_id", "seq")),
    Table("calls", ("id", *CALL_COLUMNS), ("id",)),
    Table("outbound", SEND_COLUMNS, ("session_id", "seq", "target")),
    Table("interactions", ("id", *InteractionRecord._fields), ("id",)),
    Table("idempotency", AnswerRecord._fields, ("scope", "key")),
    Table("notes", ("name", "value"), ("name",)),
)
"""What is moved. Leases and owners are not: whoever had one is no more."""


class TransferSide(Protocol):
    """One of the two stores, its gateways stopped, inside one transaction."""

    @property
    def place(self) -> str:
        """Say which store it is, for people."""
        ...

    async def count(self, table: Table) -> int: ...
    def pages(self, table: Table) -> AsyncIterator[Sequence[Row]]:
        """Read all rows in order of the key, at most `PAGE` at once."""
        ...

    async def put(self, table: Table, rows: Sequence[Row]) -> None:
        """Write rows as they are, ids included."""
        ...

    async def keep(self) -> None:
        """Make what was put permanent; without this it never was."""
        ...


@dataclass(frozen=True, slots=True)
class Sum:
    """How many rows a table has, and what they say."""

    rows: int = 0
    total: int = 0
    """The sum of the rows' SHA-256, so that it does not matter in which order a store sorts its texts."""

    def plus(self, rows: Sequence[Row]) -> "Sum":
        total = sum((_number(row) for row in rows), self.total)
        return Sum(self.rows + len(rows), total % 2**256)

    @property
    def digest(self) -> str:
        return f"{self.total:064x}"


@dataclass(frozen=True, slots=True)
class Moved:
    """One table as it was read at the source, and as it was read again at the target."""

    table: str
    source: Sum
    target: Sum


def _number(row: Row) -> int:
    return int.from_bytes(sha256(b"".join(map(_describe, row))).digest())


def _describe(value: Value) -> bytes:
    """Say a value in a way that no other value is said in."""
    match value:
        case None:
            return b"n"
        case int():
            return b"i%d;" % value
        case str():
            said = value.encode()
            return b"s%d:%b" % (len(said), said)
        case bytes():
            return b"b%d:%b" % (len(value), value)


async def move(source: TransferSide, target: TransferSide) -> list[Moved]:
    """Copy every table; nothing is kept at the target unless all of it arrived.

    Raises:
        EngineUnusable: the target is not empty, or does not give back what was written.
    """
    for table in TABLES:
        if await target.count(table):
            raise EngineUnusable(f"{target.place} is not empty (table {table.name}): name an empty one")
    moved = [await _move(table, source, target) for table in TABLES]
    wrong = [one.table for one in moved if one.source != one.target]
    if wrong:
        raise EngineUnusable(
            f"{target.place} does not give back what was written to {', '.join(wrong)}: nothing was kept"
        )
    await target.keep()
    return moved


async def _move(table: Table, source: TransferSide, target: TransferSide) -> Moved:
    read, back = Sum(), Sum()
    async for rows in source.pages(table):
        await target.put(table, rows)
        read = read.plus(rows)
        await _breathe()
    async for rows in target.pages(table):
        back = back.plus(rows)
        await _breathe()
    return Moved(table.name, read, back)


async def _breathe() -> None:
    # A side that never waits would let nobody cancel the move, and Ctrl-C come after its end.
    await asyncio.sleep(0)

"""Copies all rows of one store to an empty one of another kind in one transaction, and verifies the copy."""

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
"""The most rows in memory at once."""

Value = int | str | bytes | None
Row = Sequence[Value]


@dataclass(frozen=True, slots=True)
class Table:
    """A table that both stores have."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    """The columns that sort its rows."""
    sized: tuple[str, ...] = ()
    """The columns of any length, whose sum ends a page."""


SESSIONS = (
    "id", "session_id", "runtime", "protocol", "native_id", "state", "labels", "last_seq", "min_seq", "fence", "size",
    "cursor", "opened_at", "updated_at",
)  # fmt: skip

TABLES = (
    Table("sessions", SESSIONS, ("id",)),
    Table("snapshots", SnapshotRecord._fields, ("session_id",), ("snapshot",)),
    Table("events", EventRecord._fields, ("session_id", "seq"), ("body", "about")),
    Table("calls", ("id", *CALL_COLUMNS), ("id",), ("attempts", "error")),
    Table("outbound", SEND_COLUMNS, ("session_id", "seq", "target")),
    Table("interactions", ("id", *InteractionRecord._fields), ("id",)),
    Table("idempotency", AnswerRecord._fields, ("scope", "key"), ("response",)),
    Table("notes", ("name", "value"), ("name",), ("value",)),
)
"""The copied tables. Leases and owners are omitted, because their instances have stopped."""


class TransferSide(Protocol):
    """One of the two stores in one transaction; its gateways are stopped."""

    @property
    def place(self) -> str:
        """The name of the store in messages."""
        ...

    async def count(self, table: Table) -> int: ...
    def pages(self, table: Table) -> AsyncIterator[Sequence[Row]]:
        """Read all rows in order of the key, at most `PAGE` and about 1 MiB per page."""
        ...

    async def put(self, table: Table, rows: Sequence[Row]) -> None:
        """Write rows unchanged, including their ids."""
        ...

    async def generation(self) -> str: ...
    async def keep(self, generation: str) -> None:
        """Commit all rows as a continuation of the other store's generation; otherwise they are rolled back."""
        ...


@dataclass(frozen=True, slots=True)
class Sum:
    """The number of rows of a table, and a checksum of their contents."""

    rows: int = 0
    total: int = 0
    """The sum of the rows' SHA-256, which does not depend on the order in which a store sorts texts."""

    def plus(self, rows: Sequence[Row]) -> "Sum":
        total = sum((_number(row) for row in rows), self.total)
        return Sum(self.rows + len(rows), total % 2**256)

    @property
    def digest(self) -> str:
        return f"{self.total:064x}"


@dataclass(frozen=True, slots=True)
class Moved:
    """The sums of one table at the source and at the target."""

    table: str
    source: Sum
    target: Sum


def _number(row: Row) -> int:
    return int.from_bytes(sha256(b"".join(map(_encode_value, row))).digest())


def _encode_value(value: Value) -> bytes:
    """Encode a value unambiguously."""
    match value:
        case None:
            return b"n"
        case int():
            return b"i%d;" % value
        case str():
            encoded = value.encode()
            return b"s%d:%b" % (len(encoded), encoded)
        case bytes():
            return b"b%d:%b" % (len(value), value)


async def move(source: TransferSide, target: TransferSide) -> list[Moved]:
    """Copy every table; the target keeps all rows or none.

    Raises:
        EngineUnusable: the target is not empty, or its rows differ from the written ones.
    """
    for table in TABLES:
        if await target.count(table):
            raise EngineUnusable(f"{target.place} is not empty (table {table.name}): use an empty database")
    moved = [await _move(table, source, target) for table in TABLES]
    wrong = [one.table for one in moved if one.source != one.target]
    if wrong:
        raise EngineUnusable(f"{target.place} returns other rows than were written ({', '.join(wrong)}): rolled back")
    await target.keep(await source.generation())
    return moved


async def _move(table: Table, source: TransferSide, target: TransferSide) -> Moved:
    read, back = Sum(), Sum()
    async for rows in source.pages(table):
        await target.put(table, rows)
        read = read.plus(rows)
        await _yield_to_loop()
    async for rows in target.pages(table):
        back = back.plus(rows)
        await _yield_to_loop()
    return Moved(table.name, read, back)


async def _yield_to_loop() -> None:
    # Allows cancellation and Ctrl-C, even if neither side ever waits.
    await asyncio.sleep(0)

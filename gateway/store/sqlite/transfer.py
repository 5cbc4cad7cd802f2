"""A SQLite database as source or target of a transfer."""

import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.errors import EngineUnavailable, EngineUnusable
from gateway.store.copy import PAGE, Row, Table
from gateway.store.questions.listed import LIST
from gateway.store.questions.question import columns
from gateway.store.rows import PAGE_BYTES
from gateway.store.sqlite.backup import hold_alone, schema_of
from gateway.store.sqlite.dialect import KEY, in_sqlite
from gateway.store.sqlite.schema import NEWEST, RENEW, open_writer


class SqliteSide:
    """A database that no other process uses."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.place = f"the database {str(path)!r}"

    async def count(self, table: Table) -> int:
        # A name of the schema, never a caller's.
        return self._connection.execute(f"SELECT count(*) FROM {table.name}").fetchone()[0]  # noqa: S608

    async def pages(self, table: Table) -> AsyncIterator[Sequence[Row]]:
        selected = ", ".join(table.columns) if table.name == "sessions" else columns(table.columns, table.name)
        text = f"SELECT {selected} FROM @{table.name} ORDER BY {', '.join(table.key)}"  # noqa: S608
        page, filled = list[Row](), 0
        for row in self._connection.execute(in_sqlite(text)):
            size = sum(len(value) for value in row if isinstance(value, bytes | str))
            if len(page) == PAGE or (page and filled + size > PAGE_BYTES):
                yield page
                page, filled = [], 0
            page.append(row)
            filled += size
        if page:
            yield page

    async def put(self, table: Table, rows: Sequence[Row]) -> None:
        refers = "" if table.name == "sessions" else "session_id"
        marks = ", ".join(KEY.format("?") if name == refers else "?" for name in table.columns)
        text = f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({marks})"  # noqa: S608
        self._connection.executemany(text, rows)

    async def generation(self) -> str:
        return self._connection.execute("SELECT name FROM generation").fetchone()[0]

    async def keep(self, generation: str) -> None:
        for statement in (*LIST, *RENEW):
            self._connection.execute(statement)
        self._connection.execute("UPDATE generation SET previous = ?, backup_at = NULL", (generation,))
        self._connection.execute("COMMIT")


@asynccontextmanager
async def sqlite_source(path: Path) -> AsyncGenerator[SqliteSide]:
    """Open a database to read all of it.

    Raises:
        EngineLocked: a gateway uses it.
        EngineUnusable: there is none, or it has the schema of an earlier release.
    """
    with hold_alone(path):
        schema = schema_of(path)
        if not schema:
            raise EngineUnusable(f"there is no database at {str(path)!r}")
        if schema != NEWEST:
            raise EngineUnusable(
                f"{str(path)!r} has schema {schema}, not {NEWEST}: run `dragoman migrate` with its configuration"
            )
        async with _in_one_transaction(path) as side:
            yield side


@asynccontextmanager
async def sqlite_target(path: Path) -> AsyncGenerator[SqliteSide]:
    """Open a database to fill it; create it if there is none.

    Raises:
        EngineLocked: a gateway uses it.
        EngineUnusable: it cannot be used.
    """
    with hold_alone(path):
        async with _in_one_transaction(path) as side:
            yield side


@asynccontextmanager
async def _in_one_transaction(path: Path) -> AsyncGenerator[SqliteSide]:
    connection = open_writer(path)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield SqliteSide(connection, path)
    except sqlite3.Error as exc:
        raise EngineUnavailable(f"the database {str(path)!r} cannot be read or written: {exc}") from exc
    finally:
        # Rows without `keep` are rolled back.
        connection.close()

"""The stores that gateways are tried on, and how a test looks into them behind the gateway's back."""

import shutil
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import asyncpg
import pytest

from gateway.runtime.system_clock import SystemClock
from gateway.store.port import Engine
from gateway.store.postgres import PostgresEngine
from gateway.store.sqlite import SqliteEngine
from tests.engines import postgres_server
from tests.engines.sqlite_looker import all_of
from tests.faults.proxy import Proxy

_STARTED = "target = 'runtime' AND state = 'pending' AND attempt = 1"


class Store(Protocol):
    """One empty store for one scene."""

    @property
    def settings(self) -> dict[str, Any]:
        """The `engine` section of a configuration."""
        ...

    async def pending(self) -> int:
        """How many outbound rows wait, asked of the live store without a write."""
        ...

    async def started(self) -> int:
        """How many sends to a runtime have started and are pending, asked of the live store without a write."""
        ...

    async def committed(self) -> set[str]:
        """The native ids of the calls that a dead gateway has left; what it left stays untouched."""
        ...

    async def has(self, native_call_id: str) -> bool:
        """Whether a call is on record, asked of the live store without a write."""
        ...

    def engine(self) -> Engine:
        """Open it as a gateway does, once no gateway runs."""
        ...


class SqliteFile:
    """A database file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "dragoman.db"
        self._folder = folder

    @property
    def settings(self) -> dict[str, Any]:
        return {"type": "sqlite", "path": str(self.path)}

    async def pending(self) -> int:
        with all_of(self.path) as copy:
            return int(copy.execute("SELECT count(*) FROM outbound WHERE state = 'pending'").fetchone()[0])

    async def started(self) -> int:
        with all_of(self.path) as copy:
            return int(copy.execute(f"SELECT count(*) FROM outbound WHERE {_STARTED}").fetchone()[0])  # noqa: S608

    async def has(self, native_call_id: str) -> bool:
        with all_of(self.path) as copy:
            query = "SELECT count(*) FROM calls WHERE native_call_id = ?"
            return bool(copy.execute(query, (native_call_id,)).fetchone()[0])

    async def committed(self) -> set[str]:
        copy = self._folder / "copy"
        copy.mkdir(exist_ok=True)
        for suffix in ("", "-wal"):
            source = self.path.with_name(self.path.name + suffix)
            if source.exists():
                shutil.copy(source, copy / source.name)
        connection = sqlite3.connect(copy / self.path.name, isolation_level=None)
        try:
            return {row[0] for row in connection.execute("SELECT native_call_id FROM calls")}
        finally:
            connection.close()
            shutil.rmtree(copy)

    def engine(self) -> Engine:
        return SqliteEngine(self.path, SystemClock())


class PostgresSchema:
    """A schema of its own on a server, which a gateway may reach by another way than the test."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.reached = dsn
        """The dsn in the configuration."""
        self.schema = postgres_server.new_schema()

    @property
    def settings(self) -> dict[str, Any]:
        return {"type": "postgres", "dsn": self.reached, "schema": self.schema}

    def named(self, query: str) -> str:
        """Fill in the schema: tables are written as `@calls`."""
        return query.replace("@", f'"{self.schema}".')

    async def fetch(self, query: str, *values: object) -> list[Any]:
        """Ask the server itself."""
        connection = await postgres_server.reach(self.dsn)
        try:
            return await connection.fetch(self.named(query), *values, timeout=10)
        finally:
            await connection.close(timeout=5)

    async def pending(self) -> int:
        return int((await self.fetch("SELECT count(*) FROM @outbound WHERE state = 'pending'"))[0][0])

    async def started(self) -> int:
        return int((await self.fetch(f"SELECT count(*) FROM @outbound WHERE {_STARTED}"))[0][0])  # noqa: S608

    async def has(self, native_call_id: str) -> bool:
        found = await self.fetch("SELECT count(*) FROM @calls WHERE native_call_id = $1", native_call_id)
        return bool(found[0][0])

    async def committed(self) -> set[str]:
        return {row[0] for row in await self.fetch("SELECT native_call_id FROM @calls")}

    def engine(self) -> Engine:
        return PostgresEngine(self.dsn, SystemClock(), schema=self.schema)


def store_of(kind: str, folder: Path) -> AbstractAsyncContextManager[Store]:
    """Make an empty store of a kind; what it left is removed in the end."""
    return _sqlite(folder) if kind == "sqlite" else postgres(postgres_server.dsn())


@asynccontextmanager
async def _sqlite(folder: Path) -> AsyncGenerator[Store]:
    yield SqliteFile(folder)


@asynccontextmanager
async def postgres(dsn: str) -> AsyncGenerator[PostgresSchema]:
    """Make an empty schema on a server, and remove it in the end."""
    store = PostgresSchema(dsn)
    try:
        yield store
    finally:
        await postgres_server.drop_schema(store.schema, server=dsn)


@asynccontextmanager
async def given(store: Store) -> AsyncGenerator[Store]:
    """A store that somebody else makes and removes."""
    yield store


@asynccontextmanager
async def proxied() -> AsyncGenerator[tuple[PostgresSchema, Proxy]]:
    """A schema on the shared server that gateways reach through a proxy."""
    async with proxy_to(postgres_server.dsn()) as wire, postgres(postgres_server.dsn()) as store:
        store.reached = f"postgresql://postgres@127.0.0.1:{wire.port}/postgres?sslmode=disable"
        yield store, wire


@asynccontextmanager
async def proxy_to(dsn: str) -> AsyncGenerator[Proxy]:
    connection = await asyncpg.connect(dsn)
    try:
        place = await connection.fetchrow("SELECT host(inet_server_addr()), inet_server_port()")
    finally:
        await connection.close()
    assert place is not None
    if place[0] is None:
        pytest.skip("the server is reached through a socket file, where no proxy fits")
    async with Proxy((place[0], place[1])) as wire:
        yield wire

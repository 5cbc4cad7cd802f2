"""The stores that gateways are tried on, and how a test looks into them behind the gateway's back."""

import shutil
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from gateway.engines.sqlite import SqliteEngine
from gateway.ports.engine import Engine
from gateway.runtime.clock import SystemClock


class Store(Protocol):
    """One empty store for one scene."""

    @property
    def settings(self) -> dict[str, Any]:
        """The `engine` section of a configuration."""
        ...

    async def pending(self) -> int:
        """How many outbound rows wait, asked of the live store without a write."""
        ...

    async def committed(self) -> set[str]:
        """The native ids of the calls that a dead gateway has left; what it left stays untouched."""
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
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=5)
        try:
            return int(connection.execute("SELECT count(*) FROM outbound WHERE state = 'pending'").fetchone()[0])
        finally:
            connection.close()

    async def committed(self) -> set[str]:
        copy = self._folder / "copy"
        copy.mkdir(exist_ok=True)
        for suffix in ("", "-wal"):
            source = self.path.with_name(self.path.name + suffix)
            if source.exists():
                shutil.copy(source, copy / source.name)
        connection = sqlite3.connect(copy / self.path.name)
        try:
            return {row[0] for row in connection.execute("SELECT native_call_id FROM calls")}
        finally:
            connection.close()
            shutil.rmtree(copy)

    def engine(self) -> Engine:
        return SqliteEngine(self.path, SystemClock())


def store_of(kind: str, folder: Path) -> AbstractAsyncContextManager[Store]:
    """Make an empty store of a kind; what it left is removed in the end."""
    assert kind == "sqlite", kind
    return _sqlite(folder)


@asynccontextmanager
async def _sqlite(folder: Path) -> AsyncGenerator[Store]:
    yield SqliteFile(folder)

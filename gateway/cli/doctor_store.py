"""The store checks of `dragoman doctor`; they change nothing."""

import asyncio
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.probes import free_bytes, write_bytes
from gateway.cli.terminal import Check
from gateway.errors import DragomanError, OperatorError
from gateway.settings.model import PostgresStore, SqliteStore, Store
from gateway.store.sqlite.backup import schema_of
from gateway.store.sqlite.lock import check_place
from gateway.store.sqlite.schema import NEWEST

if TYPE_CHECKING:
    from gateway.store.postgres.operations import Examined
    from gateway.store.postgres.tuning import PostgresTuning

_LITTLE_SPACE = 1024**3
_SQLITE_HEADER = b"SQLite format 3\x00"
_PATIENCE = 15.0
"""Seconds for all questions to a PostgreSQL server."""
_WARNING = "warning "


def check_store(engine: Store) -> Iterator[Check]:
    """Check the engine of a configuration."""
    if isinstance(engine, PostgresStore):
        yield from check_postgres(engine)
    elif isinstance(engine, SqliteStore):
        yield from _check_sqlite(engine.path.absolute())
    else:
        yield Check("warning", "memory: all data is lost at exit", "use engine: {type: sqlite, path: …}")


def _check_sqlite(path: Path) -> Iterator[Check]:
    try:
        check_place(path)
    except OperatorError as exc:
        yield Check("broken", f"sqlite {path}", str(exc))
        return
    file = _check_file(path)
    yield file
    if file.state == "ok":
        yield _check_number(path)
    yield _check_lock(path.with_name(path.name + ".lock"))
    free = free_bytes(path.parent)
    if free is None:
        yield Check("warning", f"the free space of {path.parent} is unknown")
    elif free < _LITTLE_SPACE:
        yield Check(
            "warning",
            f"only {write_bytes(free)} free in {path.parent}",
            "free some space, or lower retention.max_bytes",
        )
    else:
        yield Check("ok", f"{write_bytes(free)} free in {path.parent}")


def _check_file(path: Path) -> Check:
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return Check("broken", f"{path.parent} is not writable", "make it writable for the gateway's user")
    if not path.exists():
        return Check("ok", f"sqlite {path}: will be created on first start")
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE_HEADER))
        size = path.stat().st_size
    except OSError as exc:
        return Check("broken", f"{path} is not readable ({exc.strerror})", "check its owner and permissions")
    if start and start != _SQLITE_HEADER:
        return Check("broken", f"{path} is not a SQLite database", "move it away, or change engine.path")
    if not os.access(path, os.W_OK):
        return Check("broken", f"{path} is not writable", "check its owner and permissions")
    return Check("ok", f"sqlite {path}: {write_bytes(size)}")


def _check_number(path: Path) -> Check:
    try:
        return _check_schema("schema", schema_of(path), NEWEST)
    except OperatorError as exc:
        return Check("broken", f"sqlite {path} cannot be opened by this release", str(exc))


def _check_lock(path: Path) -> Check:
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = file.read(20).strip()
                return Check("note", f"in use by {f'process {holder}' if holder.isdigit() else 'a running gateway'}")
    except FileNotFoundError:
        pass
    except OSError as exc:
        return Check("warning", f"the lock {path} is not readable ({exc.strerror})")
    return Check("ok", "no other process uses it")


def check_postgres(store: PostgresStore, tuning: "PostgresTuning | None" = None) -> Iterator[Check]:
    """Check the server's settings, the schema and the instances; connect as a gateway does."""
    from gateway.store.postgres.connection import Address
    from gateway.store.postgres.operations import examine
    from gateway.store.postgres.tables import NEWEST as POSTGRES_NEWEST
    from gateway.store.postgres.tuning import PRODUCTION

    address = Address(store.dsn.get_secret_value(), store.schema_name, tuning or PRODUCTION)

    async def ask() -> "Examined":
        async with asyncio.timeout(_PATIENCE):
            return await examine(address)

    try:
        seen = asyncio.run(ask())
    except DragomanError as exc:
        yield Check("broken", f"postgres {address.place}", str(exc))
        return
    except TimeoutError:
        yield Check("broken", f"postgres {address.place} did not answer in {_PATIENCE:g} s", "check engine.dsn")
        return
    facts = ", ".join(f"{name} {value}" for name, value in seen.found.items() if not name.startswith(_WARNING))
    yield Check("ok", f"postgres {address.place}: {facts}")
    for name, doubt in seen.found.items():
        if name.startswith(_WARNING):
            yield Check("warning", name.removeprefix(_WARNING), doubt)
    yield _check_schema(f"schema {address.schema}", seen.number, POSTGRES_NEWEST)
    yield from _check_instances(seen)


def _check_schema(name: str, number: int, newest: int) -> Check:
    if not number:
        return Check("ok", f"{name}: will be created on first start")
    if number < newest:
        text = f"{name} is at {number}, this release requires {newest}"
        return Check("note", text, "run `dragoman migrate`, or let the first start migrate it")
    return Check("ok", f"{name} is at {number}")


def _check_instances(seen: "Examined") -> Iterator[Check]:
    for one in seen.instances:
        name = f"instance {one.instance_id} at {one.url}, sessions: {one.sessions}"
        if one.alive:
            yield Check("ok", name)
        else:
            yield Check("warning", f"{name}: dead", "the others take over its sessions when its lease expires")
    if not any(one.alive for one in seen.instances):
        yield Check("note", "no gateway is using it now")

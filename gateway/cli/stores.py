"""Migrates, backs up, restores and copies the database of a configuration."""

import asyncio
import os
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from gateway.cli.config_file import choose
from gateway.cli.errors import Misused
from gateway.cli.probes import write_bytes
from gateway.cli.progress import Progress
from gateway.cli.terminal import complain, plural, say_json
from gateway.errors import OperatorError
from gateway.plugins import load_configuration
from gateway.settings.model import MemoryStore, PostgresStore, SqliteStore, Store
from gateway.store.copy import Moved, Sum, TransferSide, move
from gateway.store.sqlite import backup as sqlite
from gateway.store.sqlite.lock import locate
from gateway.store.sqlite.schema import NEWEST
from gateway.store.sqlite.transfer import sqlite_source, sqlite_target

if TYPE_CHECKING:
    from gateway.store.postgres.connection import Address


def migrate(config: Path | None, *, check: bool, as_json: bool) -> bool:
    """Migrate the database, or only report its schema; return whether migrations are needed."""
    store = _store(config)
    place, before, after = _migrate(store, check=check)
    waits = check and before != after
    note = f"Stop every gateway and make a copy first: {_copy_command(store)}" if waits and before else ""
    if as_json:
        say_json({"database": place, "before": before, "after": after, "waits": waits, "note": note})
    else:
        typer.echo(f"{place}: {_moved(before, after, check=check)}")
        if note:
            typer.echo(note)
    return waits


def _copy_command(store: Store) -> str:
    if isinstance(store, PostgresStore):
        from gateway.store.postgres import operations as postgres

        return postgres.dump_command(_address(store), Path("before-migration.dump"))
    return "dragoman backup before-migration.db"


def _migrate(store: Store, *, check: bool) -> tuple[str, int, int]:
    """Migrate or check; return the database's name, and its schema before and after (or after a migration)."""
    match store:
        case SqliteStore(path=path):
            place, newest = str(locate(path)), NEWEST
            if check:
                before, after = sqlite.schema_of(locate(path)), newest
            else:
                before, after = sqlite.migrate(locate(path))
        case PostgresStore() as store:
            from gateway.store.postgres import operations as postgres
            from gateway.store.postgres.tables import NEWEST as POSTGRES_NEWEST

            address = _address(store)
            place, newest = _name(address), POSTGRES_NEWEST
            if check:
                before, after = asyncio.run(postgres.schema_of(address)), newest
            else:
                before, after = asyncio.run(postgres.bring_up_to_date(address))
        case MemoryStore():
            raise _nothing_to("migrate")
    return place, before, after


def backup(file: Path, *, config: Path | None, as_json: bool) -> None:
    """Copy the database to a new file."""
    match _store(config):
        case SqliteStore(path=path):
            path = locate(path)
            with Progress(f"copying {path}"):
                made = sqlite.back_up(path, file)
            if as_json:
                say_json({"file": str(file), "database": str(path), **asdict(made)})
            else:
                typer.echo(f"{file}: {_describe(made)}, copied from {path} and checked")
        case PostgresStore() as store:
            from gateway.store.postgres import operations as postgres

            _leave_to("pg_dump", postgres.dump_command(_address(store), file))
        case MemoryStore():
            raise _nothing_to("back up")


def restore(file: Path | None, *, bump_fences: bool, config: Path | None, as_json: bool) -> None:
    """Replace the database with a backup, or only bump the fencing tokens."""
    if (file is None) != bump_fences:
        raise Misused("pass either FILE or --bump-fences")
    match _store(config):
        case SqliteStore(path=path):
            path = locate(path)
            if file is None:
                _show_bumped(str(path), sqlite.bump_fences(path), as_json=as_json)
            else:
                _restore(path, file, as_json=as_json)
        case PostgresStore() as store:
            from gateway.store.postgres import operations as postgres

            address = _address(store)
            if file is None:
                _show_bumped(_name(address), asyncio.run(postgres.bump_fences(address)), as_json=as_json)
            else:
                _leave_to("pg_restore", postgres.restore_command(address, file))
        case MemoryStore():
            raise _nothing_to("restore")


def copy(old: Path, new: Path, *, as_json: bool) -> None:
    """Copy all data into another, empty database."""
    source, target = _store(old), _store(new)
    if source == target:
        raise Misused("OLD and NEW name the same database")
    moved = asyncio.run(_copy(_side(source, filled=True), _side(target, filled=False)))
    if as_json:
        for one in moved:
            both = {place: {"rows": found.rows, "sha256": found.digest} for place, found in _both(one)}
            say_json({"table": one.table, **both})
        return
    width = max(len(one.table) for one in moved)
    for one in moved:
        for place, found in _both(one):
            typer.echo(f"{one.table:<{width}}  {place}  {found.rows:>10} rows  sha256 {found.digest}")
    typer.echo(f"ok: copied everything from {old} to {new}")


def _both(one: Moved) -> tuple[tuple[str, Sum], tuple[str, Sum]]:
    return ("old", one.source), ("new", one.target)


def _restore(path: Path, file: Path, *, as_json: bool) -> None:
    with Progress(f"restoring {file}"):
        made, old = sqlite.restore(path, file)
    if as_json:
        before = None if old is None else str(old)
        say_json({"database": str(path), "file": str(file), "before_restore": before, **asdict(made)})
        return
    typer.echo(f"{path}: {_describe(made)}, restored from {file}, with new fencing tokens")
    if old is not None:
        typer.echo(f"{old}: the previous database")


def _show_bumped(place: str, sessions: int, *, as_json: bool) -> None:
    if as_json:
        say_json({"database": place, "sessions": sessions})
        return
    typer.echo(f"{place}: {plural(sessions, 'session') or 'no session'} with new fencing tokens and no owner")


async def _copy(
    source: AbstractAsyncContextManager[TransferSide], target: AbstractAsyncContextManager[TransferSide]
) -> list[Moved]:
    with Progress("copying and comparing all tables"):
        async with source as old, target as new:
            return await move(old, new)


def _side(store: Store, *, filled: bool) -> AbstractAsyncContextManager[TransferSide]:
    match store:
        case SqliteStore(path=path):
            return sqlite_source(locate(path)) if filled else sqlite_target(locate(path))
        case PostgresStore():
            from gateway.store.postgres import operations as postgres

            return postgres.postgres_side(_address(store), filled=filled)
        case MemoryStore():
            raise _nothing_to("copy")


def _store(config: Path | None) -> Store:
    return load_configuration(choose(config), os.environ).settings.engine


def _address(store: PostgresStore) -> "Address":
    from gateway.store.postgres.connection import Address

    # Bypass a pooler if possible: these commands hold one connection for a long time.
    return Address((store.direct_dsn or store.dsn).get_secret_value(), store.schema_name)


def _name(address: "Address") -> str:
    return f"{address.place}, schema {address.schema}"


def _nothing_to(verb: str) -> OperatorError:
    return OperatorError(f"nothing to {verb}: the memory engine of this configuration keeps no data")


def _leave_to(program: str, command: str) -> NoReturn:
    complain(
        f"for PostgreSQL, use {program} or your provider's backups",
        f"{command}\nPut the password into PGPASSWORD or ~/.pgpass.",
    )
    raise typer.Exit(2)


def _moved(before: int, after: int, *, check: bool) -> str:
    if before == after:
        return f"schema {after}, up to date"
    return f"schema {before or 'none'} -> {after}{', not applied yet' if check else ''}"


def _describe(made: sqlite.Contents) -> str:
    counts = (plural(made.sessions, "session"), plural(made.events, "event"))
    return f"{', '.join(filter(None, counts)) or 'empty'}, {write_bytes(made.size)}, schema {made.schema}"

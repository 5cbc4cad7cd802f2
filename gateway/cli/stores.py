"""Works on the database that a configuration names: brings its tables up to date, copies it, puts it back."""

import asyncio
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from gateway.cli.config_file import choose
from gateway.cli.faults import Misused
from gateway.cli.probes import write_bytes
from gateway.cli.terminal import complain, plural
from gateway.errors import OperatorError
from gateway.plugins import installed_adapters
from gateway.settings.load import load
from gateway.settings.model import MemoryStore, PostgresStore, SqliteStore, Store
from gateway.store.copy import Moved, TransferSide, move
from gateway.store.sqlite import backup as sqlite
from gateway.store.sqlite.lock import locate
from gateway.store.sqlite.schema import MIGRATIONS as SQLITE_MIGRATIONS
from gateway.store.sqlite.transfer import sqlite_source, sqlite_target

if TYPE_CHECKING:
    from gateway.store.postgres.connection import Address


def migrate(config: Path | None, *, check: bool) -> bool:
    """Bring the tables up to date, or only say how they stand; returns whether migrations wait."""
    match _store(config):
        case SqliteStore(path=path):
            place, newest = str(locate(path)), len(SQLITE_MIGRATIONS)
            if check:
                before = sqlite.schema_of(locate(path))
                after = max(before, newest)
            else:
                before, after = sqlite.migrate(locate(path))
        case PostgresStore() as store:
            from gateway.store.postgres import operations as postgres
            from gateway.store.postgres.tables import MIGRATIONS as POSTGRES_MIGRATIONS

            address = _address(store)
            place, newest = _name(address), len(POSTGRES_MIGRATIONS)
            if check:
                before = asyncio.run(postgres.schema_of(address))
                after = max(before, newest)
            else:
                before, after = asyncio.run(postgres.bring_up_to_date(address))
        case MemoryStore():
            raise _nothing_to("migrate")
    typer.echo(f"{place}: {_moved(before, after, check=check)}")
    return check and before != after


def backup(file: Path, *, force: bool, config: Path | None) -> None:
    """Copy the database to a file."""
    match _store(config):
        case SqliteStore(path=path):
            path = locate(path)
            with _patience(f"copying {path}"):
                made = sqlite.back_up(path, file, force=force)
            typer.echo(f"{file}: {_describe(made)}, copied from {path} and checked")
        case PostgresStore() as store:
            from gateway.store.postgres import operations as postgres

            _leave_to("pg_dump", postgres.dump_command(_address(store), file))
        case MemoryStore():
            raise _nothing_to("back up")


def restore(file: Path | None, *, bump_fences: bool, config: Path | None) -> None:
    """Put a backup in the place of the database, or only make the fences new."""
    if (file is None) != bump_fences:
        raise Misused("give either FILE or --bump-fences")
    match _store(config):
        case SqliteStore(path=path):
            path = locate(path)
            if file is None:
                _show_bumped(str(path), sqlite.bump_fences(path))
            else:
                _restore(path, file)
        case PostgresStore() as store:
            from gateway.store.postgres import operations as postgres

            address = _address(store)
            if file is None:
                _show_bumped(_name(address), asyncio.run(postgres.bump_fences(address)))
            else:
                _leave_to("pg_restore", postgres.restore_command(address, file))
        case MemoryStore():
            raise _nothing_to("restore")


def copy(old: Path, new: Path) -> None:
    """Copy everything into another, empty database."""
    source, target = _store(old), _store(new)
    if source == target:
        raise Misused("OLD and NEW name the same database")
    moved = asyncio.run(_copy(_side(source, filled=True), _side(target, filled=False)))
    width = max(len(one.table) for one in moved)
    for one in moved:
        for place, found in (("old", one.source), ("new", one.target)):
            typer.echo(f"{one.table:<{width}}  {place}  {found.rows:>10} rows  sha256 {found.digest}")
    typer.echo(f"ok: {new} has everything that {old} has")


def _restore(path: Path, file: Path) -> None:
    with _patience(f"restoring {file}"):
        made, aside = sqlite.restore(path, file)
    typer.echo(f"{path}: {_describe(made)}, restored from {file}, under new fences")
    if aside is not None:
        typer.echo(f"{aside}: the database as it was before")


def _show_bumped(place: str, sessions: int) -> None:
    typer.echo(f"{place}: {plural(sessions, 'session') or 'no session'} under new fences, owned by nobody")


async def _copy(
    source: AbstractAsyncContextManager[TransferSide], target: AbstractAsyncContextManager[TransferSide]
) -> list[Moved]:
    status = _patience("opening both databases")

    def tell(what: str, done: int, total: int) -> None:
        status.update(f"{what}: {done} of {total} rows")

    with status:
        async with source as old, target as new:
            return await move(old, new, tell=tell)


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
    return load(choose(config), adapters=installed_adapters(), env=os.environ).settings.engine


def _address(store: PostgresStore) -> "Address":
    from gateway.store.postgres.connection import Address

    # Past a pooler where there is a way, since this keeps one connection for long.
    return Address((store.direct_dsn or store.dsn).get_secret_value(), store.schema_name)


def _name(address: "Address") -> str:
    return f"{address.place}, schema {address.schema}"


def _nothing_to(what: str) -> OperatorError:
    return OperatorError(f"the engine of this configuration keeps nothing, so there is nothing to {what}")


def _leave_to(program: str, command: str) -> NoReturn:
    complain(
        f"PostgreSQL has {program} for this, or the backups of whoever runs the server",
        f"{command}\nThe password goes into PGPASSWORD or ~/.pgpass.",
    )
    raise typer.Exit(2)


def _moved(before: int, after: int, *, check: bool) -> str:
    if before == after:
        return f"schema {after}, up to date"
    return f"schema {before or 'none'} -> {after}{', not applied yet' if check else ''}"


def _describe(made: sqlite.Contents) -> str:
    counts = (plural(made.sessions, "session"), plural(made.events, "event"))
    return f"{', '.join(filter(None, counts)) or 'empty'}, {write_bytes(made.size)}, schema {made.schema}"


def _patience(text: str) -> Status:
    # A terminal shows that something goes on; a log does not.
    return Console(stderr=True).status(Text(text))

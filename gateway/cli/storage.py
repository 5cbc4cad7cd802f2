"""The commands about the database: migrate, backup, restore, copy."""

import asyncio
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from gateway import bootstrap
from gateway.cli.config_file import ConfigOption, choose
from gateway.cli.explained import RAW, explained
from gateway.cli.probes import write_bytes
from gateway.cli.send import Misused
from gateway.cli.terminal import complain, plural
from gateway.engines.postgres import operations as postgres
from gateway.engines.postgres.link import Address
from gateway.engines.postgres.tables import MIGRATIONS as POSTGRES_MIGRATIONS
from gateway.engines.sqlite import backup as sqlite
from gateway.engines.sqlite.lock import locate
from gateway.engines.sqlite.schema import MIGRATIONS as SQLITE_MIGRATIONS
from gateway.engines.sqlite.transfer import sqlite_source, sqlite_target
from gateway.engines.transfer import Moved, Side, move
from gateway.errors import OperatorError
from gateway.settings.load import load
from gateway.settings.model import MemoryStore, PostgresStore, SqliteStore, Store


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman migrate\n  dragoman migrate --check && dragoman serve\n\n"
        "`dragoman serve` migrates too; this does it without starting, e.g. before the first of several replicas.\n"
        "Exit code of --check: 0 when the database is up to date, 1 when migrations wait."
    )(migrate)
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman backup /backups/dragoman-$(date +%F).db\n"
        "  dragoman backup /backups/latest.db --force\n\n"
        "The gateway goes on running. The file appears under its name once it is complete and checked."
    )(backup)
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman restore /backups/latest.db\n"
        "  dragoman restore --bump-fences      after the database was restored by other means\n\n"
        "Stop the gateway first. The database it had is kept beside the new one as FILE.before-restore.\n"
        "What was delivered after the backup was made may be delivered again, with the same idempotency keys."
    )(restore)
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman copy gateway.yaml gateway-postgres.yaml\n\n"
        "Stop the gateways of both first. Rows keep their ids, sequences, keys and fences; each table is read again\n"
        "at its new place and compared. Unless all of it arrived, nothing is kept there."
    )(copy)


def migrate(
    *,
    config: ConfigOption = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail where migrations wait.")] = False,
) -> None:
    """Bring the tables of the database up to date."""
    with explained():
        match _store(config):
            case SqliteStore(path=path):
                place, newest = str(locate(path)), len(SQLITE_MIGRATIONS)
                if check:
                    before = sqlite.schema_of(locate(path))
                    after = max(before, newest)
                else:
                    before, after = sqlite.migrate(locate(path))
            case PostgresStore() as store:
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
    if check and before != after:
        raise typer.Exit(1)


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to put the copy.", show_default=False)],
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE where it exists.")] = False,
    config: ConfigOption = None,
) -> None:
    """Copy the database to a file while the gateway runs."""
    with explained():
        match _store(config):
            case SqliteStore(path=path):
                path = locate(path)
                with _patience(f"copying {path}"):
                    made = sqlite.back_up(path, file, force=force)
                typer.echo(f"{file}: {_describe(made)}, copied from {path} and checked")
            case PostgresStore() as store:
                _leave_to("pg_dump", postgres.dump_command(_address(store), file))
            case MemoryStore():
                raise _nothing_to("back up")


def restore(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The backup to put in its place.", show_default=False)
    ] = None,
    *,
    bump_fences: Annotated[
        bool, typer.Option("--bump-fences", help="Only make the fences new, in a database restored by other means.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Put a backup in the place of the database."""
    with explained():
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
                address = _address(store)
                if file is None:
                    _show_bumped(_name(address), asyncio.run(postgres.bump_fences(address)))
                else:
                    _leave_to("pg_restore", postgres.restore_command(address, file))
            case MemoryStore():
                raise _nothing_to("restore")


def _restore(path: Path, file: Path) -> None:
    with _patience(f"restoring {file}"):
        made, aside = sqlite.restore(path, file)
    typer.echo(f"{path}: {_describe(made)}, restored from {file}, under new fences")
    if aside is not None:
        typer.echo(f"{aside}: the database as it was before")


def _show_bumped(place: str, sessions: int) -> None:
    typer.echo(f"{place}: {plural(sessions, 'session') or 'no session'} under new fences, owned by nobody")


def copy(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The configuration whose database is copied.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The configuration whose database is empty.")],
) -> None:
    """Copy everything into another, empty database."""
    with explained():
        source, target = _store(old), _store(new)
        if source == target:
            raise Misused("OLD and NEW name the same database")
        moved = asyncio.run(_copy(_side(source, filled=True), _side(target, filled=False)))
    width = max(len(one.table) for one in moved)
    for one in moved:
        for place, found in (("old", one.source), ("new", one.target)):
            typer.echo(f"{one.table:<{width}}  {place}  {found.rows:>10} rows  sha256 {found.digest}")
    typer.echo(f"ok: {new} has everything that {old} has")


async def _copy(source: AbstractAsyncContextManager[Side], target: AbstractAsyncContextManager[Side]) -> list[Moved]:
    status = _patience("opening both databases")

    def tell(what: str, done: int, total: int) -> None:
        status.update(f"{what}: {done} of {total} rows")

    with status:
        async with source as old, target as new:
            return await move(old, new, tell=tell)


def _side(store: Store, *, filled: bool) -> AbstractAsyncContextManager[Side]:
    match store:
        case SqliteStore(path=path):
            return sqlite_source(locate(path)) if filled else sqlite_target(locate(path))
        case PostgresStore():
            return postgres.postgres_side(_address(store), filled=filled)
        case MemoryStore():
            raise _nothing_to("copy")


def _store(config: Path | None) -> Store:
    return load(choose(config), adapters=bootstrap.installed_adapters(), env=os.environ).settings.engine


def _address(store: PostgresStore) -> Address:
    # Past a pooler where there is a way, since this keeps one connection for long.
    return Address((store.direct_dsn or store.dsn).get_secret_value(), store.schema_name)


def _name(address: Address) -> str:
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

"""The commands about the database: migrate, backup, restore, copy."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.config_file import ConfigOption
from gateway.cli.errors import report_errors
from gateway.cli.help import RAW
from gateway.cli.options import JsonOption, RowsOption


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman migrate\n  dragoman migrate --check && dragoman serve\n\n"
        "`dragoman serve` migrates too; this does it without starting, e.g. before the first of several replicas.\n"
        "Exit code of --check: 0 when the database is up to date, 1 when migrations wait."
    )(migrate)
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman backup /backups/dragoman-$(date +%F).db\n"
        "\n"
        "The gateway goes on running. The file appears under its name once it is complete and checked.\n"
        "An existing file is never replaced."
    )(backup)
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman restore /backups/latest.db\n"
        "  dragoman restore --bump-fences      after a restore by other means\n\n"
        "Stop the gateway first. The old database is kept beside the new one as PATH.before-restore.\n"
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
    as_json: JsonOption = False,
) -> None:
    """Bring the tables of the database up to date."""
    from gateway.cli import stores

    with report_errors():
        waits = stores.migrate(config, check=check, as_json=as_json)
    if waits:
        raise typer.Exit(1)


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The new file.", show_default=False)],
    *,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the database to a file while the gateway runs."""
    from gateway.cli import stores

    with report_errors():
        stores.backup(file, config=config, as_json=as_json)


def restore(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The backup to restore.", show_default=False)
    ] = None,
    *,
    bump_fences: Annotated[
        bool, typer.Option("--bump-fences", help="Only make the fences new, in a database restored by other means.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace the database by a backup."""
    from gateway.cli import stores

    with report_errors():
        stores.restore(file, bump_fences=bump_fences, config=config, as_json=as_json)


def copy(
    old: Annotated[
        Path, typer.Argument(metavar="OLD", help="The configuration whose database is copied.", readable=False)
    ],
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="The configuration whose database is empty.", readable=False)
    ],
    *,
    as_json: RowsOption = False,
) -> None:
    """Copy everything into another, empty database."""
    from gateway.cli import stores

    with report_errors():
        stores.copy(old, new, as_json=as_json)

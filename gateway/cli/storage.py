"""The database commands: migrate, backup, restore, copy."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.config_file import ConfigOption
from gateway.cli.errors import report_errors
from gateway.cli.help import RAW
from gateway.cli.options import JsonOption, RowsOption

commands = typer.Typer()


@commands.command(
    epilog=f"{RAW}Examples:\n  dragoman migrate\n  dragoman migrate --check && dragoman serve\n\n"
    "`dragoman serve` migrates too; run this before you start the first of several replicas.\n"
    "Exit code of --check: 0 if the database is up to date, 1 if it needs migrations."
)
def migrate(
    *,
    config: ConfigOption = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if migrations are needed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Migrate the database to the schema of this release."""
    from gateway.cli import stores

    with report_errors():
        waits = stores.migrate(config, check=check, as_json=as_json)
    if waits:
        raise typer.Exit(1)


@commands.command(
    epilog=f"{RAW}Examples:\n  dragoman backup /backups/dragoman-$(date +%F).db\n"
    "\n"
    "The gateway keeps running. The file appears under its name once it is complete and verified.\n"
    "Never replaces an existing file."
)
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


@commands.command(
    epilog=f"{RAW}Examples:\n  dragoman restore /backups/latest.db\n"
    "  dragoman restore --bump-fences      after a restore by other means\n\n"
    "Stop the gateway first. The old database is kept as PATH.before-restore.\n"
    "Deliveries that were made after the backup may be repeated, with the same idempotency keys."
)
def restore(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The backup to restore.", show_default=False)
    ] = None,
    *,
    bump_fences: Annotated[
        bool,
        typer.Option("--bump-fences", help="Only renew fencing tokens and generation, after a restore by other means."),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace the database with a backup."""
    from gateway.cli import stores

    with report_errors():
        stores.restore(file, bump_fences=bump_fences, config=config, as_json=as_json)


@commands.command(
    epilog=f"{RAW}Examples:\n  dragoman copy gateway.yaml gateway-postgres.yaml\n\n"
    "Stop the gateways on both databases first. Rows keep their ids, sequences, keys and fences. Each table is\n"
    "read back and compared; if any differs, the target stays empty."
)
def copy(
    old: Annotated[
        Path, typer.Argument(metavar="OLD", help="The configuration of the source database.", readable=False)
    ],
    new: Annotated[
        Path,
        typer.Argument(
            metavar="NEW", help="The configuration of the target database, which must be empty.", readable=False
        ),
    ],
    *,
    as_json: RowsOption = False,
) -> None:
    """Copy all data into another, empty database."""
    from gateway.cli import stores

    with report_errors():
        stores.copy(old, new, as_json=as_json)

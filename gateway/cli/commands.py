"""The command line: its entry point, and all commands."""

import gc
import os
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gateway.cli import (
    calls,
    completion,
    configuration,
    dead_letters,
    doctor,
    explain,
    inbox,
    init,
    ping,
    send,
    serve,
    sessions,
    storage,
    tail,
    tools,
    version,
)
from gateway.cli.help import examples
from gateway.cli.terminal import complain

ENV_FILE = Path(".env")
_MOST_BYTES = 64 * 1024


class _Commands(TyperGroup):
    """The commands; removes pydantic's prefix from usage errors."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as exc:
            exc.message = exc.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    name="dragoman",
    cls=_Commands,
    help="A durable gateway between agent runtimes and the backend that serves them.",
    epilog=examples(
        "dragoman demo",
        "dragoman init cards",
        "dragoman check",
        "dragoman serve",
        "dragoman sessions",
        "dragoman tail finn/agent-7",
        more="Exit code 0: done. 1: failed or refused; stderr gives the reason and a fix.\n"
        "2: wrong usage. 130: Ctrl-C.",
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; the console script enters here."""
    # With the default threshold, the collector takes an eighth of the CPU of a start, and more of a busy gateway's.
    gc.set_threshold(20_000, 20, 20)
    read_env_file()
    if completion.COMPLETE_VARIABLE in os.environ:
        completion.prepare()
    app(prog_name="dragoman")


def read_env_file() -> None:
    """Set the variables of `.env` in the working directory, as docker compose does; existing ones win."""
    if not ENV_FILE.is_file():
        return
    from dotenv import load_dotenv

    try:
        with ENV_FILE.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES:,} bytes")
        load_dotenv(stream=StringIO(raw.decode()))
    except OSError as exc:
        complain(f"{ENV_FILE} is ignored: {exc.strerror}")
    except ValueError as exc:
        complain(f"{ENV_FILE} is ignored: {exc}")


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(version.describe())
        raise typer.Exit


@app.callback()
def _top(  # pyright: ignore[reportUnusedFunction] -- Typer keeps it
    *,
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    pass


_stores = typer.Typer()
storage.register(_stores)
for _commands in (
    serve.commands,
    configuration.commands,
    tools.commands,
    doctor.commands,
    ping.commands,
    init.commands,
    version.commands,
    sessions.commands,
    calls.group,
    inbox.commands,
    tail.commands,
    send.commands,
    explain.commands,
    _stores,
    dead_letters.group,
    completion.commands,
):
    app.add_typer(_commands)

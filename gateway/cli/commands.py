"""The command line: its entry point, and all commands."""

import gc
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from gateway.cli.help import examples
from gateway.cli.terminal import complain

ENV_FILE = Path(".env")
_MOST_BYTES = 64 * 1024
COMPLETE_VARIABLE = "_DRAGOMAN_COMPLETE"
"""The environment variable with which a shell requests completions; Typer reads it."""


_MODULES: Mapping[str, str] = {
    command: module
    for module, commands in (
        ("serve", ("serve", "demo")),
        ("configuration", ("check", "reload", "schema", "openapi")),
        ("tools", ("tools",)),
        ("doctor", ("doctor",)),
        ("ping", ("ping",)),
        ("init", ("init",)),
        ("version", ("version",)),
        ("sessions", ("runtimes", "sessions")),
        ("calls", ("calls",)),
        ("inbox", ("inbox", "answer")),
        ("approvals", ("approvals",)),
        ("links", ("links",)),
        ("tail", ("tail",)),
        ("send", ("send",)),
        ("explain", ("explain",)),
        ("storage", ("migrate", "backup", "restore", "copy")),
        ("dead_letters", ("dead-letters",)),
        ("completion", ("completion",)),
    )
    for command in commands
}
"""The module of each command, in the order of the help."""


class _LazyCommands(Mapping[str, Any]):
    """The commands by name; each lookup imports the module of its command."""

    def __getitem__(self, name: str) -> Any:
        found = typer.Typer(rich_markup_mode=None)
        found.add_typer(import_module(f"gateway.cli.{_MODULES[name]}").commands)
        return typer.main.get_group(found).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


class _Commands(TyperGroup):
    """The group of all commands; removes pydantic's prefix from usage errors."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        # Typer only reads them.
        self.commands = cast(Any, _LazyCommands())

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
    # The middle generation is collected often and so is small: its collections stop the loop for 0.1 s while 3,000
    # sessions are opened, but for 0.3 s with a threshold of 20.
    gc.set_threshold(20_000, 4, 100)
    read_env_file()
    if COMPLETE_VARIABLE in os.environ:
        from gateway.cli import completion

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
        from gateway.cli import version

        typer.echo(version.describe())
        raise typer.Exit


@app.callback()
def _top(
    *,
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    pass

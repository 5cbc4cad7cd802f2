"""`dragoman init`: writes a gateway and a backend, or the package of an adapter, into a folder."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from gateway.cli.choices import BackendChoice, RuntimeChoice
from gateway.cli.errors import report_errors
from gateway.cli.help import examples
from gateway.cli.options import argument, option
from gateway.cli.terminal import Output
from gateway.errors import OperatorError, install_line

if TYPE_CHECKING:
    from gateway.cli.starter import StartCommand, StarterFile

DEMO_LIBRARIES = ("mcp", "standardwebhooks", "websockets")
"""The libraries of the extra `demo`."""


commands = typer.Typer()


@commands.command(
    epilog=examples(
        "dragoman init                     in the current folder",
        "dragoman init cards               in a new folder",
        "dragoman init cards --runtime herm --backend express",
        "dragoman init acme --adapter acme-1",
        more="Non-interactive; never overwrites files. Prints three commands that run a simulated agent\n"
        "against your backend.",
    )
)
def init(
    folder: Path = argument("FOLDER", "Target folder; created if missing.", default=Path(), show_default="here"),
    *,
    runtime: RuntimeChoice = typer.Option(RuntimeChoice.HUMA_0_2, help="Runtime of your agents."),
    backend: BackendChoice = typer.Option(BackendChoice.FASTAPI, help="Framework of your backend."),
    adapter: str | None = option("--adapter", "NAME", "Write the package of an adapter for your own protocol instead."),
) -> None:
    """Create a gateway configuration and a backend."""
    if adapter is not None:
        _init_adapter(folder, adapter)
        return
    from gateway.cli.starter import commands_of, files_of, gitignore

    with report_errors():
        made = dict(files_of(runtime, backend))
        _check_absent(folder, made, "dragoman init cards")
        if not os.path.lexists(folder / ".gitignore"):
            made[".gitignore"] = gitignore()
        write_new(folder, made)
        _show(folder, made, commands_of(runtime, backend))


def _init_adapter(folder: Path, name: str) -> None:
    """Write the package of an adapter, and print the commands that install and test it."""
    from gateway.cli.skeleton import commands_of_adapter, files_of_adapter

    with report_errors():
        made = dict(files_of_adapter(name))
        if os.path.lexists(folder / ".gitignore"):
            del made[".gitignore"]
        _check_absent(folder, made, f"dragoman init {name} --adapter {name}")
        write_new(folder, made)
        _show_files(folder, made)
        _print("\nIt speaks a small protocol over HTTP; replace it with yours, file by file. Run:", "bold")
        for line in _first_lines(folder):
            _print(f"  {line}")
        _show_commands(commands_of_adapter())


def _check_absent(folder: Path, made: "Mapping[str, StarterFile]", command: str) -> None:
    if taken := [name for name in made if os.path.lexists(folder / name)]:
        existing = f"{' and '.join(taken)} {'exists' if len(taken) == 1 else 'exist'} already"
        raise OperatorError(f"{existing}; nothing was written; use a new folder: {command}")


def write_new(folder: Path, made: "Mapping[str, StarterFile]") -> None:
    """Write all files or none; never touch existing ones.

    Raises:
        OSError: nothing was written.
    """
    written: list[Path] = []
    folders = [
        folder,
        *sorted({parent for name in made for parent in (folder / name).parents if folder in parent.parents}),
    ]
    fresh = [path for path in folders if not path.exists()]
    try:
        for path in folders:
            path.mkdir(parents=True, exist_ok=True)
        for name, one in made.items():
            opened = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if one.secret else 0o666)
            with os.fdopen(opened, "w", encoding="utf-8") as file:
                written.append(folder / name)
                file.write(one.text)
    except OSError:
        for path in written:
            path.unlink()
        for path in reversed(fresh):
            if path.exists():
                path.rmdir()
        raise


def _print(text: str = "", style: str = "") -> None:
    Output().say(Text(text, style))


def _show_files(folder: Path, made: "Mapping[str, StarterFile]") -> None:
    """List the written files with their purposes."""
    _print(f"Written {'here' if folder == Path() else f'in {folder}'}:\n", "bold")
    width = max(map(len, made))
    for name, one in made.items():
        Output().say(Text.assemble((f"  {name:{width}}", "green"), f"  {one.purpose}"))


def _show_commands(commands: "Sequence[StartCommand]") -> None:
    for command in commands:
        _print(f"\n  # {command.purpose}", "dim")
        for line in command.lines:
            _print(f"  {line}")


def _show(folder: Path, made: "Mapping[str, StarterFile]", commands: "Sequence[StartCommand]") -> None:
    """Print the written files and the commands to paste."""
    _show_files(folder, made)
    _print("\nRun these commands in this order, each in its own terminal:", "bold")
    if first := _first_lines(folder):
        _print("\n  # in each terminal", "dim")
        for line in first:
            _print(f"  {line}")
    _show_commands(commands)
    _print("\nThen inspect it: dragoman calls, dragoman sessions, dragoman tail.")
    _print("UI: http://127.0.0.1:8080/ui; sign in with the DRAGOMAN_KEY of .env.")
    if ".gitignore" not in made and not _ignores_secrets(folder / ".gitignore"):
        _print("Before you commit: add .env to your .gitignore.", "yellow")
    if all(map(find_spec, DEMO_LIBRARIES)):
        _print("The simulator's libraries (the extra `demo`) are installed.")
    else:
        _print(f"The simulator needs more libraries than a gateway:\n{install_line('demo')}", "yellow")


def _ignores_secrets(file: Path) -> bool:
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    return any(line.strip().lstrip("/") in {".env", ".env*", "*.env"} for line in lines)


def _first_lines(folder: Path) -> list[str]:
    """List the commands that a new terminal needs first: `cd`, and activation of this command's environment."""
    lines = [] if folder == Path() else [f"cd {shlex.quote(str(folder.absolute()))}"]
    programs = Path(sys.executable).parent
    found, activate = shutil.which("python"), programs / "activate"
    if (found is None or Path(found).parent != programs) and activate.is_file():
        lines.append(f". {shlex.quote(str(activate))}")
    return lines

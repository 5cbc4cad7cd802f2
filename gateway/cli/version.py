"""`dragoman version`."""

from platform import python_version

import typer

from gateway.cli.help import examples
from gateway.cli.options import JsonOption
from gateway.cli.terminal import say_json

commands = typer.Typer()


@commands.command(epilog=examples("dragoman version"))
def version(*, as_json: JsonOption = False) -> None:
    """Show the version."""
    if as_json:
        say_json({"dragoman": release(), "python": python_version()})
    else:
        typer.echo(describe())


def describe() -> str:
    """Name the release and its Python."""
    return f"dragoman {release()} on Python {python_version()}"


def release() -> str:
    """Return the installed release of Dragoman."""
    from importlib.metadata import PackageNotFoundError, version as installed_version

    try:
        return installed_version("dragoman")
    except PackageNotFoundError:
        return "(not installed; run `dragoman doctor` for a fix)"

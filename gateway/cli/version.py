"""`dragoman version`."""

from importlib.metadata import PackageNotFoundError, version as installed_version
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
    return version_of("dragoman") or "(not installed; run `dragoman doctor` for a fix)"


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return installed_version(distribution)
    except PackageNotFoundError:
        return None


def find_sdk_fault() -> tuple[str, str] | None:
    """Return the problem and the fix if the SDK is missing or of another release, whose models may differ."""
    own, sdk = version_of("dragoman"), version_of("dragoman-sdk")
    if own is None or sdk == own:
        return None
    found = "is not installed" if sdk is None else f"{sdk} is installed"
    fix = f"in a clone of Dragoman {own}, run pip install ./gateway/sdk ."
    return f"dragoman {own} requires dragoman-sdk {own}, but dragoman-sdk {found}", fix

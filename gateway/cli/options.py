"""Options and arguments that commands share."""

from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from gateway.addresses import find_url_fault
from gateway.cli.completion import complete_runtime, complete_session
from gateway.cli.help import DEFAULT_URL


def flag(name: str, text: str, *names: str) -> Any:
    """Make a boolean option."""
    return typer.Option(False, name, *names, help=text)


def option(name: str, metavar: str, text: str, **more: Any) -> Any:
    """Make an option with a value; None if it is not given."""
    return typer.Option(more.pop("default", None), name, metavar=metavar, help=text, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    """Make an argument; required unless it has a `default`."""
    return typer.Argument(more.pop("default", ...), metavar=metavar, help=text, **more)


def check_url(given: str) -> str:
    """Check and return the URL of a gateway.

    Raises:
        typer.BadParameter: it is not an HTTP URL.
    """
    given = given.strip()
    if find_url_fault(given) is not None or urlsplit(given).scheme not in ("http", "https"):
        raise typer.BadParameter("must be the URL of a gateway, e.g. http://127.0.0.1:8080")
    return given


def check_key(given: str | None) -> str | None:
    """Check and return an API key; the error does not quote it.

    Raises:
        typer.BadParameter: it is not printable ASCII.
    """
    given = given.strip() if given else given
    if given and not (given.isascii() and given.isprintable()):
        raise typer.BadParameter("a key must be printable ASCII on one line")
    return given


URL = option("--url", "URL", "Gateway URL.", default=DEFAULT_URL, envvar="DRAGOMAN_URL", callback=check_url)
KEY = option("--key", "KEY", "API key.", envvar="DRAGOMAN_KEY", callback=check_key)
SESSION_HELP = "Session ID, or RUNTIME/NATIVE_ID, e.g. finn/agent-7."
SESSION_FILTER = "Only this session: its ID, or RUNTIME/NATIVE_ID."
SESSION = option("--session", "SESSION", SESSION_FILTER, autocompletion=complete_session)
RUNTIME = option("--runtime", "NAME", "Only this runtime.", autocompletion=complete_runtime)
LIMIT = typer.Option(50, "--limit", "-n", metavar="N", min=1, max=100_000, help="Show at most N.")
YES = flag("--yes", "Do not ask for confirmation.", "-y")
RowsOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

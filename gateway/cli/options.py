"""Options and arguments that commands share."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from gateway.addresses import find_url_fault
from gateway.cli.completion import complete_runtime, complete_session
from gateway.cli.errors import Misused
from gateway.cli.help import DEFAULT_URL
from gateway.cli.lines import clean


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
        typer.BadParameter: it is not printable.
    """
    given = given.strip() if given else given
    if given and not given.isprintable():
        raise typer.BadParameter("a key must be printable text on one line")
    return given


def parse_labels(given: list[str] | None) -> dict[str, str]:
    """Read the values of `--label`.

    Raises:
        Misused: one is not NAME=VALUE.
    """
    if (wrong := next((one for one in given or () if "=" not in one), None)) is not None:
        raise Misused(f"--label {wrong!r}: write NAME=VALUE")
    return {name: value for name, _, value in (one.partition("=") for one in given or ())}


def time_of(given: str | None, name: str = "--since") -> datetime | None:
    """Read the value of `--since` or `--until`.

    Raises:
        Misused: it is neither a duration nor a time.
    """
    if given is None:
        return None
    from pydantic import TypeAdapter, ValidationError

    from gateway.adapter.duration import Duration

    span: TypeAdapter[timedelta] = TypeAdapter(Duration)
    try:
        return datetime.now(UTC) - span.validate_python(given)
    except ValidationError:
        pass
    try:
        # A time without a zone is in the zone of this machine.
        return datetime.fromisoformat(given).astimezone()
    except ValueError as exc:
        text = f"{name}: {clean(given, 50)!r} is neither a duration such as 2h nor a time such as 2026-11-20T12:00Z"
        raise Misused(text) from exc


URL = option("--url", "URL", "Gateway URL.", default=DEFAULT_URL, envvar="DRAGOMAN_URL", callback=check_url)
KEY = option("--key", "KEY", "API key.", envvar="DRAGOMAN_KEY", callback=check_key)
SESSION_HELP = "Session ID, or RUNTIME/NATIVE_ID, e.g. finn/agent-7."
SESSION_FILTER = "Only this session: its ID, or RUNTIME/NATIVE_ID."
SESSION = option("--session", "SESSION", SESSION_FILTER, autocompletion=complete_session)
EXECUTOR = option("--executor", "NAME", "Only calls to this executor.")
LABEL = option("--label", "NAME=VALUE", "Only sessions with this label; may be repeated.")
TOOL = option("--tool", "NAME", "Only calls of this tool.")
TEXT = option("--text", "TEXT", "Only those with this text: part of an ID, a label, an error or a request.")
SINCE = option("--since", "TIME", "Only those since TIME: a duration such as 2h, or a time such as 2026-11-20T12:00Z.")
UNTIL = option("--until", "TIME", "Only those before TIME.")
RUNTIME = option("--runtime", "NAME", "Only this runtime.", autocompletion=complete_runtime)
LIMIT = typer.Option(50, "--limit", "-n", metavar="N", min=1, max=100_000, help="Show at most N.")
YES = flag("--yes", "Do not ask for confirmation.", "-y")
RowsOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

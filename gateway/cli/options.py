"""Options and arguments that several commands share."""

from typing import Annotated
from urllib.parse import urlsplit

import typer

from gateway.addresses import find_url_fault
from gateway.cli.completion import complete_runtime, complete_session
from gateway.cli.help import DEFAULT_URL as DEFAULT_URL, SHORT_IDS as SHORT_IDS, examples as examples


def _is_url(given: str) -> str:
    given = given.strip()
    if find_url_fault(given) is not None or urlsplit(given).scheme not in ("http", "https"):
        raise typer.BadParameter("must be the address of a gateway, e.g. http://127.0.0.1:8080")
    return given


def _is_key(given: str | None) -> str | None:
    # The key itself is never shown, not even a wrong one.
    given = given.strip() if given else given
    if given and not (given.isascii() and given.isprintable()):
        raise typer.BadParameter("a key is printable ASCII on one line")
    return given


UrlOption = Annotated[
    str, typer.Option("--url", metavar="URL", envvar="DRAGOMAN_URL", help="Address of the gateway.", callback=_is_url)
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", envvar="DRAGOMAN_KEY", help="An API key of the gateway.", callback=_is_key),
]
SESSION_HELP = "A session's ID, or RUNTIME/NATIVE_ID, e.g. finn/agent-7."
SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help=SESSION_HELP, autocompletion=complete_session)]
SessionOption = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="SESSION",
        help="Only those of this session: its ID, or RUNTIME/NATIVE_ID.",
        autocompletion=complete_session,
    ),
]
RuntimeOption = Annotated[
    str | None,
    typer.Option("--runtime", metavar="NAME", help="Only those of this runtime.", autocompletion=complete_runtime),
]
LimitOption = Annotated[
    int, typer.Option("--limit", "-n", metavar="N", min=1, max=100_000, help="How many to show at most.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
RowsOption = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")]

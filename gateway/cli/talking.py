"""The commands that talk to a running gateway: tail, send, answer."""

from typing import Annotated
from urllib.parse import urlsplit

import typer

from gateway.cli.explained import RAW, explained
from gateway.cli.faults import Misused

DEFAULT_URL = "http://127.0.0.1:8080"
WORDED = ("message.posted", "turn.steered", "turn.interrupted", "context.updated")
"""Kinds that a text on the command line can say."""


def _is_url(given: str) -> str:
    try:
        parts = urlsplit(given)
        well = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        well = False
    if not well:
        raise typer.BadParameter("must be the address of a gateway, e.g. http://127.0.0.1:8080")
    return given


def _is_key(given: str | None) -> str | None:
    # The key itself is never shown, not even a wrong one.
    if given and not (given.isascii() and given.isprintable()):
        raise typer.BadParameter("a key is printable ASCII on one line")
    return given


UrlOption = Annotated[
    str, typer.Option("--url", metavar="URL", envvar="DRAGOMAN_URL", help="Where the gateway is.", callback=_is_url)
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", envvar="DRAGOMAN_KEY", help="An API key of it.", callback=_is_key),
]
SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", help="A session's id, or RUNTIME/NATIVE_ID, e.g. finn/agent-7.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman tail finn/agent-7\n  dragoman tail finn/agent-7 --after 0 | grep tool\n"
        "  dragoman tail 0b5e6f7a-… --json | jq .event.kind\n\n"
        "← is from the runtime, → to it, · the gateway's own; dim lines are live only, never on record.\n"
        "In a terminal each line is cut to its width; --json shows everything."
    )(tail)
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman send finn/agent-7 'Do you have any sevens?' --author Victoria\n"
        "  dragoman send finn/agent-7 'Be quick.' --kind turn.steered\n"
        "  dragoman send finn/agent-7 --kind turn.interrupted\n"
        "  dragoman send finn/agent-7 'Cards were dealt.' --kind context.updated --context '{\"hand\": [\"7\"]}'\n"
        "  dragoman send finn/agent-7 --json event.json\n\n"
        "Prints the sequence of each event that is now on record; `dragoman tail` shows what comes of it."
    )(send)
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman answer                          lists what waits\n"
        "  dragoman answer b1d5781e-… --allow --scope session\n  dragoman answer b1d5781e-… --text 'the blue one'\n"
        "  dragoman answer b1d5781e-… --secret      asks without showing it\n"
        "  pass show db | dragoman answer b1d5781e-… --secret"
    )(answer)


def tail(
    session: SessionArgument,
    *,
    after: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Begin behind sequence N; 0 begins at the beginning. Default: now."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON an event.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Follow a session, one line an event."""
    from gateway.cli import tail as tailing
    from gateway.cli.client import ApiClient

    with explained(), ApiClient(url, key) as api:
        try:
            tailing.tail(api, session, after=after, as_json=as_json)
        except KeyboardInterrupt:
            # The way to end it, so it is no failure.
            raise typer.Exit(0) from None


def send(
    session: SessionArgument,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="What to say; - reads it from stdin.", show_default=False)
    ] = None,
    *,
    kind: Annotated[
        str | None,
        typer.Option(metavar="KIND", help=f"One of {', '.join(WORDED)}. Default: message.posted."),
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Post the event, or list of events, in a file; - is stdin."),
    ] = None,
    author: Annotated[str | None, typer.Option(metavar="NAME", help="Who says the message.")] = None,
    context: Annotated[
        str | None, typer.Option(metavar="JSON", help="The complete state, for context.updated.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The update's name, for context.updated.")] = None,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Post a message, or another event, to a session."""
    from gateway.cli import send as sending
    from gateway.cli.client import ApiClient

    with explained():
        if json_file is None:
            said = sending.read_text(text)
            body = sending.event_of(kind or "message.posted", said, author=author, context=context, name=name)
        elif any(given is not None for given in (text, kind, author, context, name)):
            raise Misused("--json stands alone: the file says all of the event")
        else:
            body = sending.read_json(json_file)
        with ApiClient(url, key) as api:
            sending.send(api, session, body)


def answer(
    interaction: Annotated[
        str | None,
        typer.Argument(metavar="INTERACTION", help="Its id; without one, lists what waits.", show_default=False),
    ] = None,
    *,
    allow: Annotated[bool, typer.Option("--allow", help="Allow what approval is asked for.")] = False,
    deny: Annotated[bool, typer.Option("--deny", help="Deny it.")] = False,
    scope: Annotated[
        str | None, typer.Option(metavar="SCOPE", help="How far a decision goes: once, session, always; as offered.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Answer a question; '' skips it, - reads stdin.")
    ] = None,
    secret: Annotated[
        bool, typer.Option("--secret", help="Supply a secret: asked for in a terminal, else a line of stdin.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="List as lines of JSON.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Show the questions that wait for a person, or answer one."""
    from gateway.cli import answer as answering
    from gateway.cli.client import ApiClient

    with explained(), ApiClient(url, key) as api:
        if interaction is None:
            if allow or deny or secret or scope is not None or text is not None:
                raise Misused("name the interaction to answer; `dragoman answer` lists those that wait")
            answering.show_waiting(api, as_json=as_json)
        elif as_json:
            raise Misused("--json belongs to the list")
        else:
            body = answering.body_of(allow=allow, deny=deny, scope=scope, text=text, secret=secret)
            answering.give(api, interaction, body)

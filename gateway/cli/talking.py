"""The commands that talk to a running gateway: tail, send, answer."""

from typing import Annotated

import typer

from gateway.cli.completing import complete_interaction, complete_session
from gateway.cli.explained import RAW, explained
from gateway.cli.faults import Misused
from gateway.cli.options import (
    DEFAULT_URL,
    SESSION_HELP,
    JsonOption,
    KeyOption,
    SessionArgument,
    UrlOption,
)

WORDED = ("message.posted", "turn.steered", "turn.interrupted", "context.updated")
"""Kinds that a text on the command line can say."""
MOST_FOLLOWED = 200
"""How many sessions `tail --all` looks at."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman tail                            the session that was opened last\n"
        "  dragoman tail finn/agent-7 --after 0 | grep tool\n"
        "  dragoman tail --all                      what happens in any of them\n"
        "  dragoman tail 0b5e6f7a-… --json | jq .event.kind\n\n"
        "← is from the runtime, → to it, · the gateway's own; dim lines are live only, never on record.\n"
        "In a terminal of 60 columns or more each line is cut to its width; --json shows everything.\n"
        f"--all looks once a second at the {MOST_FOLLOWED} sessions that were opened last, and shows what is on "
        "record.\nCtrl-C ends it, with exit code 0."
    )(tail)
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman send finn/agent-7 'Do you have any sevens?' --author Victoria\n"
        "  dragoman send finn/agent-7 'Be quick.' --kind turn.steered\n"
        "  dragoman send finn/agent-7 --kind turn.interrupted\n"
        "  dragoman send finn/agent-7 'Cards were dealt.' --kind context.updated \\\n"
        '    --context \'{"hand": ["7"]}\'\n'
        "  dragoman send finn/agent-7 --event event.json\n\n"
        "Prints the sequence of each event that is now on record; `dragoman tail` shows what comes of it."
    )(send)
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman answer                          shows what waits, and asks\n"
        "  dragoman answer b1d5781e --allow --scope session\n  dragoman answer b1d5781e --text 'the blue one'\n"
        "  dragoman answer b1d5781e --secret        asks without showing it\n"
        "  pass show db | dragoman answer b1d5781e --secret\n\n"
        "`dragoman inbox` lists what waits. In a terminal what is not said is asked for.\n"
        "Of an id the first letters will do, at least four, where they fit one only."
    )(answer)


def tail(
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION",
            help=f"{SESSION_HELP} Default: the open one that was opened last.",
            autocompletion=complete_session,
            show_default=False,
        ),
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Follow all sessions, the newest and new ones.")] = False,
    after: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Begin behind sequence N; 0 begins at the beginning. Default: now."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON an event.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Follow a session, or all, one line an event."""
    from gateway.cli.client import ApiClient

    with explained(), ApiClient(url, key) as api:
        if everything and (session is not None or after is not None):
            raise Misused("--all stands alone: SESSION and --after are for one session")
        try:
            if everything:
                from gateway.cli.tail_all import tail_all

                tail_all(api, most=MOST_FOLLOWED, as_json=as_json)
            else:
                from gateway.cli.tail import tail

                tail(api, session, after=after, as_json=as_json)
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
    event_file: Annotated[
        str | None,
        typer.Option("--event", metavar="FILE", help="Post the event, or list of events, in a file; - is stdin."),
    ] = None,
    author: Annotated[str | None, typer.Option(metavar="NAME", help="Who says the message.")] = None,
    context: Annotated[
        str | None, typer.Option(metavar="JSON", help="The complete state, for context.updated.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The update's name, for context.updated.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what is on record, one line of JSON an event.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Post a message, or another event, to a session."""
    from gateway.cli import send as sending
    from gateway.cli.client import ApiClient

    with explained():
        if event_file is None:
            said = sending.read_text(text)
            if as_json:
                sending.check_is_text(text, said)
            body = sending.event_of(kind or "message.posted", said, author=author, context=context, name=name)
        elif any(given is not None for given in (text, kind, author, context, name)):
            raise Misused("--event stands alone: the file says all of the event")
        else:
            body = sending.read_json(event_file)
        with ApiClient(url, key) as api:
            sending.send(api, session, body, as_json=as_json)


def answer(
    interaction: Annotated[
        str | None,
        typer.Argument(
            metavar="INTERACTION",
            help="Its id, or the first letters of it; without one, asks which.",
            autocompletion=complete_interaction,
            show_default=False,
        ),
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
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Answer what an agent asks of a person."""
    from gateway.cli import answer as answering
    from gateway.cli.client import ApiClient

    with explained(), ApiClient(url, key) as api:
        if interaction is None and (allow or deny or secret or scope is not None or text is not None):
            raise Misused("name the interaction to answer; `dragoman inbox` lists those that wait")
        body = answering.body_of(allow=allow, deny=deny, scope=scope, text=text, secret=secret)
        answering.answer(api, interaction, body, as_json=as_json)

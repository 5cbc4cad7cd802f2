"""`dragoman send`: posts a message, a steer, or any event as JSON."""

from collections.abc import Iterable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
from rich.text import Text

from gateway.cli.completion import complete_session
from gateway.cli.errors import Misused, Refusal
from gateway.cli.help import examples
from gateway.cli.inputs import parse_object, read_source, read_text
from gateway.cli.lines import clean
from gateway.cli.options import KEY, SESSION_HELP, URL, argument, flag, option
from gateway.cli.terminal import Output, say_json, to_row
from gateway.errors import OperatorError

if TYPE_CHECKING:
    from dragoman.client import Client, Envelope, Session
    from gateway.events import Loss

WORDED = ("message.posted", "turn.steered", "turn.interrupted", "context.updated")
"""Kinds that a TEXT argument can express."""
_LONGEST_NAME = 255

commands = typer.Typer()


@commands.command(
    epilog=examples(
        "dragoman send finn/agent-7 'Do you have any sevens?' --author Victoria",
        "dragoman send finn/agent-7 'Be quick.' --kind turn.steered",
        "dragoman send finn/agent-7 --kind turn.interrupted",
        "dragoman send finn/agent-7 'Cards were dealt.' --kind context.updated \\",
        '  --context \'{"hand": ["7"]}\'',
        "dragoman send finn/agent-7 --event event.json",
        "dragoman send finn/agent-7 'Any sevens?' --wait 60",
        more="Prints the sequence of each recorded event. Follow the session with `dragoman tail`.",
    )
)
def send(
    session: str = argument("SESSION", SESSION_HELP, autocompletion=complete_session),
    text: str | None = argument("TEXT", "Text to send; - reads stdin.", default=None),
    *,
    kind: str | None = option("--kind", "KIND", f"One of {', '.join(WORDED)}. Default: message.posted."),
    event_file: str | None = option(
        "--event", "FILE", "Post an event, or a list of events, from a file; - reads stdin."
    ),
    author: str | None = option("--author", "NAME", "Author of the message."),
    context: str | None = option("--context", "JSON", "The complete state, for context.updated."),
    name: str | None = option("--name", "NAME", "The update's name, for context.updated."),
    wait: float | None = option("--wait", "SECONDS", "Also wait for the agent's next message and print it.", min=0),
    as_json: bool = flag("--json", "Print the recorded events, one JSON object per line."),
    url: str = URL,
    key: str | None = KEY,
) -> None:
    """Post a message or another event to a session."""
    from gateway.cli.connection import connect

    with connect(url, key) as gateway:
        if event_file is None:
            content = read_text(text)
            if as_json:
                _check_is_text(text, content)
            events = [_make_event(kind or "message.posted", content, author=author, context=context, name=name)]
        elif any(given is not None for given in (text, kind, author, context, name)):
            raise Misused("--event cannot be combined with TEXT or other options of the event")
        else:
            events = _read_events(event_file)
        found = gateway.find_session(session)
        last = "0"
        for envelope in gateway.run(gateway.client.post(found, *events)):
            last = envelope.position or str(envelope.sequence)
            if as_json:
                say_json(to_row(envelope))
            else:
                Output().say(f"{envelope.sequence} {clean(envelope.event.kind)}")
                show_losses(envelope.losses)
        if wait is not None:
            answer = gateway.run(_next_message(gateway.client, found, after=last, within=wait))
            if answer is None:
                fix = f"follow the session with `dragoman tail {session}`"
                raise Refusal(f"the agent has not answered within {wait:g} s", fix)
            _show_message(answer, as_json=as_json)


async def _next_message(client: "Client", session: "Session", *, after: str, within: float) -> "Envelope | None":
    """Return the agent's first message after a sequence; None if there is none in time."""
    import asyncio

    from dragoman.client import Envelope

    with suppress(TimeoutError):
        async with asyncio.timeout(within), aclosing(client.follow(session, after=after)) as items:
            async for item in items:
                if (
                    isinstance(item, Envelope)
                    and item.direction == "from_runtime"
                    and item.event.kind == "message.posted"
                ):
                    return item
    return None


def _show_message(envelope: "Envelope", *, as_json: bool) -> None:
    from gateway.events import MessagePosted, text_of

    if as_json:
        say_json(to_row(envelope))
    elif isinstance(envelope.event, MessagePosted):
        for line in text_of(envelope.event.content).splitlines():
            Output().say(clean(line))


def show_losses(losses: "Iterable[Loss]") -> None:
    """Print on stderr what a runtime's protocol lacks, with reasons, and what it requires in addition, in one line."""
    err, added = Output(stderr=True), list[str]()
    for loss in losses:
        if loss.how == "invented":
            added.append(clean(loss.path))
        else:
            err.say(Text(f"  {clean(loss.how)}: {clean(loss.note or loss.path)}", "yellow"))
    if added:
        err.say(Text(f"  added for the runtime: {', '.join(added)}", "dim"))


def _make_event(
    kind: str, text: str | None, *, author: str | None, context: str | None, name: str | None
) -> dict[str, Any]:
    """Make the event from a text and options."""
    if kind not in WORDED:
        from gateway.events import CLIENT_KINDS

        if kind in CLIENT_KINDS:
            raise Misused(f"{kind!r} takes structured data; pass it with --event")
        raise Misused(f"--kind {kind!r} is unknown; available: {', '.join(WORDED)}")
    if author is not None and kind != "message.posted":
        raise Misused(f"--author requires --kind message.posted, not {kind}")
    if (context is not None or name is not None) and kind != "context.updated":
        raise Misused(f"--context and --name require --kind context.updated, not {kind}")
    match kind:
        case "turn.interrupted":
            return {"kind": kind} | ({} if text is None else {"reason": text})
        case "context.updated":
            if context is None:
                raise Misused("context.updated requires --context JSON: the complete state, which replaces the last")
            description = {} if text is None else {"description": text}
            new_context = parse_object(context, "--context")
            return {"kind": kind, "name": name or "update", "context": new_context, **description}
        case _ if text is None:
            raise Misused(f"{kind} requires a TEXT (- reads stdin)")
        case "turn.steered":
            return {"kind": kind, "text": text}
        case _:
            named = {} if author is None else {"author": {"role": "user", "name": author}}
            return {"kind": kind, "content": text, **named}


def _read_events(given: str) -> list[Any]:
    """Read one event, or a list of events, from a file or stdin."""
    from gateway.http.body import parse_json
    from gateway.http.errors import Refused

    try:
        value = parse_json(read_source(given), unique=True)
    except Refused as exc:
        raise OperatorError(f"{'stdin' if given == '-' else given}: {exc}") from exc
    events: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    if not all(isinstance(event, dict) for event in events):
        raise OperatorError(f"{'stdin' if given == '-' else given}: an event must be a JSON object with a `kind`")
    return events


def _check_is_text(given: str | None, content: str | None) -> None:
    """Refuse a file name or an event in place of a text: up to release 0.2, `--json FILE` posted the file."""
    if given is not None and given != "-" and Path(given[:_LONGEST_NAME]).is_file():
        raise Misused(f"{given!r} is a file: to post the event in it, use --event; --json prints the recorded event")
    if given == "-" and (content or "").lstrip().startswith(("{", "[")):
        raise Misused("stdin holds JSON: to post it as an event, use --event -; --json prints the recorded event")

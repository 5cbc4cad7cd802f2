"""Posts events to a session: a message, a word for the turn under way, or any event as JSON."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from rich.text import Text

from gateway.cli.faults import Misused
from gateway.cli.lines import clean
from gateway.cli.talking import WORDED
from gateway.cli.terminal import Output, say_json
from gateway.errors import OperatorError
from gateway.events import CLIENT_KINDS
from gateway.http.body import parse_json
from gateway.http.errors import Refused

if TYPE_CHECKING:
    from gateway.cli.client import ApiClient

MOST_BYTES = 4 * 1024**2
_LONGEST_NAME = 255


def event_of(kind: str, text: str | None, *, author: str | None, context: str | None, name: str | None) -> Any:
    """Make the event that a text and options say.

    Raises:
        Misused: they do not fit the kind.
    """
    if kind not in WORDED:
        known = "give it with --event" if kind in CLIENT_KINDS else f"these can: {', '.join(WORDED)}"
        raise Misused(f"--kind {kind!r} cannot be said as a text; {known}")
    if author is not None and kind != "message.posted":
        raise Misused(f"--author belongs to a message, not to {kind}")
    if (context is not None or name is not None) and kind != "context.updated":
        raise Misused(f"--context and --name belong to context.updated, not to {kind}")
    match kind:
        case "turn.interrupted":
            return {"kind": kind} | ({} if text is None else {"reason": text})
        case "context.updated":
            if context is None:
                raise Misused("context.updated needs --context JSON: the complete state, which replaces the last one")
            said = {} if text is None else {"description": text}
            return {"kind": kind, "name": name or "update", "context": object_of(context, "--context"), **said}
        case _ if text is None:
            raise Misused(f"{kind} needs a TEXT (- reads it from stdin)")
        case "turn.steered":
            return {"kind": kind, "text": text}
        case _:
            said = {} if author is None else {"author": {"role": "user", "name": author}}
            return {"kind": kind, "content": text, **said}


def read_text(given: str | None) -> str | None:
    """Take a text as it is, or from stdin where it is `-`."""
    return read_source("-").decode(errors="replace").rstrip("\n") if given == "-" else given


def read_source(given: str) -> bytes:
    """Read a file, or stdin where it is `-`.

    Raises:
        OperatorError: it is too large; OSError: it cannot be read.
    """
    if given == "-":
        raw = sys.stdin.buffer.read(MOST_BYTES + 1)
    else:
        with Path(given).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise OperatorError(f"{given}: more than {MOST_BYTES:,} bytes")
    return raw


def read_json(given: str) -> Any:
    """Read JSON from a file or stdin; a list stands for several events.

    Raises:
        OperatorError: it is no JSON.
    """
    try:
        value = parse_json(read_source(given))
    except Refused as exc:
        raise OperatorError(f"{'stdin' if given == '-' else given}: {exc}") from exc
    return {"events": cast("list[Any]", value)} if isinstance(value, list) else value


def object_of(text: str, option: str) -> dict[str, Any]:
    """Read the JSON object that an option gives.

    Raises:
        Misused: it is none.
    """
    try:
        value = parse_json(text.encode(errors="surrogateescape"))
    except Refused as exc:
        raise Misused(f"{option}: {exc}") from exc
    if not isinstance(value, dict):
        raise Misused(f"{option} must be a JSON object")
    return cast("dict[str, Any]", value)


def check_is_text(given: str | None, said: str | None) -> None:
    """Refuse a file's name, or an event, where a text should stand: `--json FILE` posted that file until release 0.2.

    Raises:
        Misused: it is one.
    """
    if given is not None and given != "-" and Path(given[:_LONGEST_NAME]).is_file():
        raise Misused(f"{given!r} is a file: --event posts the event in it; --json prints what is on record")
    if given == "-" and (said or "").lstrip().startswith(("{", "[")):
        raise Misused("stdin holds JSON: --event - posts the event in it; --json prints what is on record")


def send(api: "ApiClient", session: str, body: Any, *, as_json: bool) -> None:
    """Post, and print the sequence and kind of each event that is now on record.

    Raises:
        Refusal: nothing was recorded.
    """
    found = api.session(session)
    posted = api.post(f"/v1/sessions/{quote(found['session_id'], safe='')}/events", body)["data"]
    out = Output()
    for envelope in posted:
        if as_json:
            say_json(envelope)
            continue
        out.say(f"{envelope['sequence']} {clean(envelope['event']['kind'])}")
        say_losses(envelope["losses"])


def say_losses(losses: Sequence[dict[str, Any]]) -> None:
    """Print losses on stderr, with the reason of each."""
    err = Output(stderr=True)
    for loss in losses:
        told = clean(loss.get("note") or loss.get("path"))
        err.say(Text(f"  {clean(loss['how'])}: {told}", "yellow"))

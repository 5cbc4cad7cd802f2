"""`dragoman tail`: follows one session or all sessions, one line per event, across restarts of the gateway."""

import logging
import math
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any
from zlib import crc32

import typer
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from gateway.cli.completion import complete_session
from gateway.cli.errors import Misused, Refusal
from gateway.cli.help import examples
from gateway.cli.lines import clean, event_line
from gateway.cli.options import KEY, SESSION_HELP, URL, argument, flag, option
from gateway.cli.terminal import Output, note, say_json, to_row

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from dragoman.client import Client, Envelope, Gap, Live, Missed, Session, SessionName
    from gateway.cli.connection import GatewayConnection

_NARROW = 60
"""Terminals with fewer columns wrap lines instead of truncating them."""
_LONGEST_NAME = 24
_COLORS = ("cyan", "green", "magenta", "blue", "yellow", "bright_cyan", "bright_green", "bright_magenta")

_SESSION = f"{SESSION_HELP} Default: the most recently opened session that is still open."

commands = typer.Typer()


@commands.command(
    epilog=examples(
        "dragoman tail                            the most recently opened session",
        "dragoman tail finn/agent-7 --after 0 | grep tool",
        "dragoman tail --all                      every session",
        "dragoman tail --all --kind 'tool.*'",
        "dragoman tail 0b5e6f7a-… --json | jq .event.kind",
        more="← from the runtime, → to the runtime, · from the gateway itself; dim lines are not recorded.\n"
        "A terminal of 60 columns or more truncates each line to its width; --json shows everything.\n"
        "Press Ctrl-C to stop, with exit code 0.",
    )
)
def tail(
    session: str | None = argument("SESSION", _SESSION, default=None, autocompletion=complete_session),
    *,
    everything: bool = flag("--all", "Follow all sessions, including new ones."),
    after: str | None = option(
        "--after", "POSITION", "Start after this `position`, or a sequence; 0 replays everything. Default: now."
    ),
    kind: list[str] | None = option("--kind", "GLOB", "With --all, only these kinds of events; may be repeated."),
    as_json: bool = flag("--json", "Print one JSON object per event."),
    url: str = URL,
    key: str | None = KEY,
) -> None:
    """Follow one session or all, one line per event."""
    from gateway.cli.connection import connect

    with connect(url, key) as gateway:
        if everything and (session is not None or after is not None):
            raise Misused("--all cannot be combined with SESSION or --after")
        if kind and not everything:
            raise Misused("--kind requires --all")
        printer = _Printer(as_json=as_json)
        try:
            if everything:
                with _noting_outages(once=True) as connected:
                    gateway.run(_tail_all(gateway.client, printer, kind or (), connected))
            else:
                _tail_one(gateway, session, after, printer)
        except KeyboardInterrupt:
            # Ctrl-C is the usual way to stop, not a failure.
            raise typer.Exit(0) from None


def _tail_one(gateway: "GatewayConnection", given: str | None, after: str | None, printer: "_Printer") -> None:
    from dragoman.models.stream import sequence_of
    from gateway.cli.connection import name_session

    found = _newest(gateway) if given is None else gateway.find_session(given)
    place = found.position or str(found.last_sequence) if after is None else after
    if printer.out.is_terminal and not printer.as_json:
        skipped = sequence_of(place)
        before = f"; skipped {skipped} earlier events (--after 0 shows them)" if skipped else ""
        note(f"following {clean(name_session(found))}, {clean(found.state)}{before}; Ctrl-C to stop")
    elif given is None:
        note(f"following {clean(name_session(found))}")

    async def follow() -> None:
        async with aclosing(gateway.client.follow(found, after=place, silence=90, patience=math.inf)) as items:
            async for item in items:
                printer.show(item)

    with _noting_outages():
        gateway.run(follow())


def _newest(gateway: "GatewayConnection") -> "Session":
    found, _ = gateway.take(gateway.client.sessions(open_only=True, newest_first=True), 1)
    if not found:
        raise Refusal("there is no open session", "create one with POST /v1/sessions; `dragoman sessions` lists all")
    return found[0]


@contextmanager
def _noting_outages(*, once: bool = False) -> "Generator[Callable[[], None]]":
    """Print the client's log lines about lost connections, or the first of each outage; yields what ends an outage."""
    is_away = False

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            nonlocal is_away
            if not (once and is_away):
                note(clean(record.getMessage()))
            is_away = True

    def connected() -> None:
        nonlocal is_away
        is_away = False

    log, handler = logging.getLogger("dragoman.client"), Notes()
    before, log.propagate = log.propagate, False
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield connected
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
        log.propagate = before


class _Printer:
    """Prints events as lines or JSON, each with the name of its session if several are followed."""

    def __init__(self, *, as_json: bool) -> None:
        self.out = Output()
        self.as_json = as_json
        self._narrow = self.out.is_terminal and self.out.width < _NARROW

    def show(self, item: "Envelope | Live | Gap | Missed", session: "SessionName | None" = None) -> None:
        """Print one event."""
        row = _item_row(item)
        if self.as_json:
            say_json(row if session is None else {"session_id": session.session_id, **row})
            return
        if "event" in row:
            line = event_line(row, plain=self.out.plain, narrow=self._narrow)
        elif "first_sequence" not in row:
            line = Text("some events are missing: they were removed by retention, or the store was restored", "yellow")
        else:
            line = Text(f"events before {row['first_sequence']} were removed, or the store was restored", "yellow")
        if session is not None:
            line = Text.assemble(self._name(session), line)
        if self.out.is_terminal and not self._narrow:
            self.out.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        else:
            self.out.say(line)

    def _name(self, session: "SessionName") -> Text:
        name = clean(f"{session.runtime}/{session.native_id}", 200)
        size = max(8, min(_LONGEST_NAME, self.out.width // 4)) if self.out.is_terminal else cell_len(name)
        cut = name if cell_len(name) <= size else set_cell_size(name, size - 1) + "…"
        return Text(f"{set_cell_size(cut, size)}  ", _COLORS[crc32(name.encode()) % len(_COLORS)])


def _item_row(item: "Envelope | Live | Gap | Missed") -> dict[str, Any]:
    """Convert an item of a stream to the JSON values of the stream."""
    from dragoman.client import Envelope, Gap, Missed
    from gateway.events import dump_event

    if isinstance(item, Envelope):
        return to_row(item)
    if isinstance(item, Missed):
        return {"gap": True}
    if isinstance(item, Gap):
        return {"first_sequence": item.first_sequence}
    return {"live": True, "after_sequence": item.after_sequence, "event": dump_event(item.event)}


async def _tail_all(
    client: "Client", printer: _Printer, kinds: "Sequence[str]", connected: "Callable[[], None]"
) -> None:
    """Print new events of all sessions; `connected` is called whenever the stream shows that it is open.

    Raises:
        ClientError: the gateway is unreachable at the start; later outages are waited out.
    """
    from dragoman.client import Followed, Missed

    has_begun = False
    async with aclosing(client.follow_all(kind=kinds, silence=90, patience=math.inf)) as items:
        async for item in items:
            connected()
            if not has_begun:
                has_begun = True
                note("following all sessions and any new ones; Ctrl-C to stop")
            if isinstance(item, Followed):
                printer.show(item.item, item.session)
            elif isinstance(item, Missed):
                printer.show(item)

"""`dragoman tail`: follows one session or all sessions, one line per event, across restarts of the gateway."""

import logging
import math
from collections.abc import Mapping
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
from gateway.cli.terminal import Output, note, plural, say_json, to_row

if TYPE_CHECKING:
    from collections.abc import Generator

    from dragoman.client import Client, Envelope, Gap, Live, Session
    from gateway.cli.connection import GatewayConnection

MOST_FOLLOWED = 200
"""The number of sessions that `tail --all` follows."""
LOOK = 1.0
"""Seconds between two polls of `tail --all`."""
_LONGEST_WAIT = 10.0
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
        "dragoman tail 0b5e6f7a-… --json | jq .event.kind",
        more="← from the runtime, → to the runtime, · from the gateway itself; dim lines are not recorded.\n"
        "A terminal of 60 columns or more truncates each line to its width; --json shows everything.\n"
        f"--all polls the {MOST_FOLLOWED} newest sessions once per second, and shows recorded events.\n"
        "Press Ctrl-C to stop, with exit code 0.",
    )
)
def tail(
    session: str | None = argument("SESSION", _SESSION, default=None, autocompletion=complete_session),
    *,
    everything: bool = flag("--all", "Follow all sessions, including new ones."),
    after: int | None = option("--after", "N", "Start after sequence N; 0 replays everything. Default: now.", min=0),
    as_json: bool = flag("--json", "Print one JSON object per event."),
    url: str = URL,
    key: str | None = KEY,
) -> None:
    """Follow one session or all, one line per event."""
    from gateway.cli.connection import connect

    with connect(url, key) as gateway:
        if everything and (session is not None or after is not None):
            raise Misused("--all cannot be combined with SESSION or --after")
        printer = _Printer(as_json=as_json)
        try:
            if everything:
                gateway.run(_tail_all(gateway.client, printer))
            else:
                _tail_one(gateway, session, after, printer)
        except KeyboardInterrupt:
            # Ctrl-C is the usual way to stop, not a failure.
            raise typer.Exit(0) from None


def _tail_one(gateway: "GatewayConnection", given: str | None, after: int | None, printer: "_Printer") -> None:
    from gateway.cli.connection import name_session

    found = _newest(gateway) if given is None else gateway.find_session(given)
    place = found.last_sequence if after is None else after
    if printer.out.is_terminal and not printer.as_json:
        before = f"; skipped {place} earlier events (--after 0 shows them)" if place else ""
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
def _noting_outages() -> "Generator[None]":
    """Print the client's log lines about lost connections."""

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note(clean(record.getMessage()))

    log, handler = logging.getLogger("dragoman.client"), Notes()
    before, log.propagate = log.propagate, False
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
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

    def show(self, item: "Envelope | Live | Gap", session: "Session | None" = None) -> None:
        """Print one event."""
        row = _item_row(item)
        if self.as_json:
            say_json(row if session is None or "event" in row else {"session_id": session.session_id, **row})
            return
        if "event" in row:
            line = event_line(row, plain=self.out.plain, narrow=self._narrow)
        else:
            line = Text(f"events before {row['first_sequence']} were removed by retention", "yellow")
        if session is not None:
            line = Text.assemble(self._name(session), line)
        if self.out.is_terminal and not self._narrow:
            self.out.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        else:
            self.out.say(line)

    def _name(self, session: "Session") -> Text:
        name = clean(f"{session.runtime}/{session.native_id}", 200)
        size = max(8, min(_LONGEST_NAME, self.out.width // 4)) if self.out.is_terminal else cell_len(name)
        cut = name if cell_len(name) <= size else set_cell_size(name, size - 1) + "…"
        return Text(f"{set_cell_size(cut, size)}  ", _COLORS[crc32(name.encode()) % len(_COLORS)])


def _item_row(item: "Envelope | Live | Gap") -> dict[str, Any]:
    """Convert an item of a stream to the JSON values of the stream."""
    from dragoman.client import Envelope, Gap
    from gateway.events import dump_event

    if isinstance(item, Envelope):
        return to_row(item)
    if isinstance(item, Gap):
        return {"first_sequence": item.first_sequence}
    return {"live": True, "after_sequence": item.after_sequence, "event": dump_event(item.event)}


async def _tail_all(client: "Client", printer: _Printer) -> None:
    """Print new events of all sessions.

    Raises:
        ClientError: the gateway is unreachable at the start; later outages are waited out.
    """
    import asyncio

    from dragoman.client import ClientError

    places = {row.session_id: row.last_sequence for row in await _newest_sessions(client)}
    note(f"following {plural(len(places), 'session') or 'no session'} and any new ones; Ctrl-C to stop")
    wait, away = LOOK, False
    while True:
        await asyncio.sleep(wait)
        try:
            places, news = await _read_news(client, places)
            for row, item in news:
                printer.show(item, row)
            wait, away = LOOK, False
        except ClientError as exc:
            if not exc.passing:
                raise
            if not away:
                note(f"{clean(exc)}; trying again")
            wait, away = min(2 * wait, _LONGEST_WAIT), True


async def _newest_sessions(client: "Client") -> "list[Session]":
    rows: list[Session] = []
    async with aclosing(client.sessions(newest_first=True)) as found:
        async for row in found:
            rows.append(row)
            if len(rows) == MOST_FOLLOWED:
                break
    return rows


async def _read_news(
    client: "Client", before: Mapping[str, int]
) -> "tuple[dict[str, int], list[tuple[Session, Envelope | Gap]]]":
    """Read the events after these sequences, ordered by time; return also the new sequences."""
    from dragoman.client import Gap

    places: dict[str, int] = {}
    news: list[tuple[Session, Envelope | Gap]] = []
    was_opened = True
    for row in await _newest_sessions(client):
        # An unknown session above all known ones was opened since the last poll; one below them has only moved up.
        was_opened = was_opened and row.session_id not in before
        place = before.get(row.session_id, 0 if was_opened else row.last_sequence)
        if row.last_sequence > place:
            async with aclosing(client.events(row, after=place)) as found:
                async for item in found:
                    news.append((row, item))
                    place = item.first_sequence - 1 if isinstance(item, Gap) else item.sequence
                    if place >= row.last_sequence:
                        break
        places[row.session_id] = place
    news.sort(key=lambda one: one[0].opened_at if isinstance(one[1], Gap) else one[1].recorded_at)
    return places, news

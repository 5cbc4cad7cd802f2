"""Follows a session in the terminal: one line an event, over lost connections and restarts of the gateway."""

import random
import time
from collections.abc import Iterator
from urllib.parse import quote

from rich.text import Text

from gateway.cli.client import ApiClient, StreamItem, name_of
from gateway.cli.faults import Refusal
from gateway.cli.lines import clean, event_line
from gateway.cli.terminal import Output, note, say_json

FIRST_WAIT = 0.5
LONGEST_WAIT = 10.0
_NARROW = 60
"""Columns below which a line that is cut would say little."""


def tail(api: ApiClient, session: str | None, *, after: int | None, as_json: bool) -> None:
    """Print what happens in one session, the newest where none is named, until it is closed or somebody presses Ctrl-C.

    Raises:
        Refusal: there is no such session or no gateway at first; later it is waited for.
    """
    found = api.newest() if session is None else api.session(session)
    place = found["last_sequence"] if after is None else after
    show = show_json if as_json else Lines(Output())
    if isinstance(show, Lines) and show.out.is_terminal:
        behind = f"; {place} events came before (--after 0 shows them)" if place else ""
        note(f"following {clean(name_of(found))}, {clean(found['state'])}{behind}; Ctrl-C ends")
    elif session is None:
        note(f"following {clean(name_of(found))}")
    for item in follow(api, str(found["session_id"]), place):
        show(item)


def follow(api: ApiClient, session_id: str, place: int) -> Iterator[StreamItem]:
    """Read what happens behind a sequence until the session is closed, over lost connections.

    Raises:
        Refusal: it cannot be followed, or not at first.
    """
    path = f"/v1/sessions/{quote(session_id, safe='')}"
    wait = FIRST_WAIT
    started = False
    while True:
        try:
            for item in api.follow(f"{path}/events/stream", after=place):
                started, wait = True, FIRST_WAIT
                place = place if item.sequence is None else item.sequence
                yield item
            if api.get(path)["state"] == "closed":
                return
        except Refusal as exc:
            if not exc.passing or not started:
                raise
            note(f"{exc}; trying again")
        time.sleep(jittered(wait))
        wait = min(2 * wait, LONGEST_WAIT)


def jittered(wait: float) -> float:
    """Spread a wait, so that many followers do not come back in the same moment."""
    return wait * (0.5 + random.random() / 2)  # noqa: S311


class Lines:
    """Shows events as lines for people, each behind the name of its session where several are followed."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self._narrow = out.is_terminal and out.width < _NARROW

    def __call__(self, item: StreamItem, before: Text | None = None) -> None:
        """Show one."""
        if item.kind == "gap":
            line = Text(f"history before {item.data.get('first_sequence')} is gone", "yellow")
        else:
            line = event_line(item.data, plain=self.out.plain, narrow=self._narrow)
        if before is not None:
            line = Text.assemble(before, line)
        if self.out.is_terminal and not self._narrow:
            self.out.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        else:
            self.out.say(line)


def show_json(item: StreamItem) -> None:
    """Show an event as JSON."""
    say_json(item.data)

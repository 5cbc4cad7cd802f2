"""Follows a session in the terminal: one line an event, over lost connections and restarts of the gateway."""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.text import Text

from gateway.cli.client import ApiClient, StreamItem
from gateway.cli.faults import Refusal
from gateway.cli.lines import clean, event_line

_FIRST_WAIT = 0.5
_LONGEST_WAIT = 10.0


class Output(Console):
    """Stdout in colour or plain; a reader that has gone away (`| head`) is the end, and no error."""

    def on_broken_pipe(self) -> None:
        # What is still in the buffer would be complained about when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0)


def tail(api: ApiClient, session: str, *, after: int | None, as_json: bool) -> None:
    """Print what happens until the session is closed or somebody presses Ctrl-C.

    Raises:
        Refusal: there is no such session or no gateway at first; later it is waited for.
    """
    found = api.session(session)
    path = f"/v1/sessions/{quote(found['session_id'], safe='')}"
    place = found["last_sequence"] if after is None else after
    show = _json_lines() if as_json else _lines(found, place)
    wait = _FIRST_WAIT
    started = False
    while True:
        try:
            for item in api.follow(f"{path}/events/stream", after=place):
                started, wait = True, _FIRST_WAIT
                place = place if item.sequence is None else item.sequence
                show(item)
            if api.get(path)["state"] == "closed":
                return
        except Refusal as exc:
            if not exc.passing or not started:
                raise
            _note(f"{exc}; trying again")
        # With jitter, so that many followers do not come back in the same moment.
        time.sleep(wait * (0.5 + random.random() / 2))  # noqa: S311
        wait = min(2 * wait, _LONGEST_WAIT)


def _lines(found: dict[str, Any], place: int) -> Callable[[StreamItem], None]:
    console = Output(highlight=False)
    plain = not console.encoding.lower().startswith("utf")
    name = f"{clean(found['runtime'])}/{clean(found['native_id'])}"
    if console.is_terminal:
        behind = f"; {place} events came before (--after 0 shows them)" if place else ""
        _note(f"following {name}, {clean(found['state'])}{behind}; Ctrl-C ends")

    def show(item: StreamItem) -> None:
        if item.kind == "gap":
            line = Text(f"history before {item.data.get('first_sequence')} is gone", "yellow")
        else:
            line = event_line(item.data, plain=plain)
        if console.is_terminal:
            console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        else:
            console.print(line, soft_wrap=True)

    return show


def _json_lines() -> Callable[[StreamItem], None]:
    console = Output(highlight=False)

    def show(item: StreamItem) -> None:
        # ASCII, so that no character in an event can steer a terminal.
        console.print(Text(json.dumps(item.data)), soft_wrap=True)

    return show


def _note(text: str) -> None:
    Console(stderr=True, highlight=False).print(Text(f"· {text}", "dim"), soft_wrap=True)

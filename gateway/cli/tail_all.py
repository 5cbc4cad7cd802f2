"""Follows many sessions at once: looks once a second which of them have moved on, and reads what is new there."""

import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote
from zlib import crc32

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from gateway.cli.client import ApiClient, StreamItem, name_of
from gateway.cli.faults import Refusal
from gateway.cli.lines import clean
from gateway.cli.tail import FIRST_WAIT, LONGEST_WAIT, Lines, jittered, show_json
from gateway.cli.terminal import Output, note

LOOK = 1.0
"""Seconds between two looks."""
_AT_ONCE = 500
"""Events of one session that are read at a look; the rest at the next."""
_LONGEST_NAME = 24
_COLOURS = ("cyan", "green", "magenta", "blue", "yellow", "bright_cyan", "bright_green", "bright_magenta")

Row = Mapping[str, Any]


def tail_all(api: ApiClient, *, most: int, as_json: bool) -> None:
    """Print what is recorded in any session until somebody presses Ctrl-C.

    Raises:
        Refusal: there is no gateway at first; later it is waited for.
    """
    places = Places(api, most)
    watched = places.look()
    note(f"following {watched} session{'' if watched == 1 else 's'}, and new ones; Ctrl-C ends")
    lines = None if as_json else _NamedLines(Output())
    wait, away = FIRST_WAIT, False
    while True:
        time.sleep(jittered(wait) if away else LOOK)
        try:
            places.look()
            # In the order in which it was recorded, over all of them.
            for row, item in sorted(places.news(), key=lambda one: str(one[1].data.get("recorded_at", ""))):
                if lines is None:
                    show_json(item)
                else:
                    lines.show(row, item)
            wait, away = FIRST_WAIT, False
        except Refusal as exc:
            if not exc.passing:
                raise
            if not away:
                note(f"{exc}; trying again")
            wait, away = min(2 * wait, LONGEST_WAIT), True


class Places:
    """Where each of the sessions stands that were opened last, and how far it was read."""

    def __init__(self, api: ApiClient, most: int) -> None:
        self._api = api
        self._most = most
        self._rows: list[Row] = []
        self._read: dict[str, int] | None = None

    def look(self) -> int:
        """Look where they stand; returns how many there are. What is there at the first look is passed over."""
        rows = self._api.get("/v1/sessions", order="newest", limit=self._most)["data"]
        read = self._read
        # What stands before all that is known was opened since; what has come in behind it is older.
        opened = read is not None
        places: dict[str, int] = {}
        for row in rows:
            session_id = str(row["session_id"])
            if read is not None and session_id in read:
                places[session_id], opened = read[session_id], False
            else:
                places[session_id] = 0 if opened else int(row["last_sequence"])
        self._rows, self._read = rows, places
        return len(rows)

    def news(self) -> Iterator[tuple[Row, StreamItem]]:
        """Read what was recorded since, each event once."""
        assert self._read is not None, "somebody looks first"
        for row in self._rows:
            session_id = str(row["session_id"])
            if int(row["last_sequence"]) <= self._read[session_id]:
                continue
            try:
                found = self._events(session_id, self._read[session_id])
            except Refusal as exc:
                if exc.problem != "gone":
                    raise
                # As the stream of one session says it.
                first = int(row["first_sequence"])
                self._read[session_id] = max(first - 1, self._read[session_id] + 1)
                yield row, StreamItem("gap", {"session_id": session_id, "first_sequence": first}, None)
                continue
            for envelope in found:
                self._read[session_id] = int(envelope["sequence"])
                yield row, StreamItem(str(envelope["event"]["kind"]), envelope, int(envelope["sequence"]))

    def _events(self, session_id: str, after: int) -> list[dict[str, Any]]:
        path = f"/v1/sessions/{quote(session_id, safe='')}/events"
        return self._api.get(path, after=after, limit=_AT_ONCE)["data"]


class _NamedLines(Lines):
    """Shows each event behind the name of its session."""

    def show(self, row: Row, item: StreamItem) -> None:
        name = clean(name_of(dict(row)), 200)
        size = max(8, min(_LONGEST_NAME, self.out.width // 4)) if self.out.is_terminal else cell_len(name)
        cut = name if cell_len(name) <= size else set_cell_size(name, size - 1) + "…"
        self(item, Text.assemble((set_cell_size(cut, size), _COLOURS[crc32(name.encode()) % len(_COLOURS)]), "  "))

"""Clients of the world: each goes on over all restarts, repeats what got no answer, and knows what it has seen."""

import asyncio
import json
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from random import Random
from typing import Any
from urllib.parse import urlencode

from tests.simulation.instance import Exchange

_AGAIN = 0.5

Ask = Callable[[str, str, bytes, dict[str, str]], Exchange | None]
"""Begins a request at an instance that listens: method, path, body, headers; None if there is none."""
GAP = (-1, "")
_NO_FILTERS: Mapping[str, str] = {}


class Follower:
    """Follows the events of one session after a sequence, or new events of all, with the position of its last one."""

    def __init__(
        self,
        ask: Ask,
        session_id: str | None,
        after: int = 0,
        *,
        random: Random,
        hangs_up: float = 0.0,
        filters: Mapping[str, str] = _NO_FILTERS,
    ) -> None:
        """Prepare; `filters` of all sessions are a runtime, and a kind that may end in `*`.

        `hangs_up` is the share of events after which its connection breaks.
        """
        self._random = random
        self.hangs_up = hangs_up
        of = "" if session_id is None else f"/sessions/{session_id}"
        self._ask, self._path = ask, f"/v1{of}/events/stream?{urlencode(filters)}"
        self.filters = filters
        self._first = "" if session_id is None else f"after={after}"
        self.refused = ""
        """The problem with which a stream was refused for good."""
        self.after = after
        self.position: str | None = None
        self.seen: list[tuple[int, str]] = []
        """The sequences and ids of events in the order of their arrival, and `GAP`."""

    async def follow(self) -> None:
        """Follow forever; each broken stream is continued after the last event."""
        while True:
            query = self._first if self.position is None else ""
            headers = {} if self.position is None else {"last-event-id": self.position}
            exchange = self._ask("GET", f"{self._path}{query}", b"", headers)
            if exchange is not None:
                await self._read(exchange)
                if exchange.status is not None and 400 <= exchange.status < 500 and exchange.status != 429:
                    self.refused = f"{exchange.status} {exchange.body.decode()[:200]}"
                    return
            await asyncio.sleep(_AGAIN * self._random.choice((0.0, 0.1, 1.0)) if self.hangs_up else _AGAIN)

    def matches(self, runtime: str, kind: str) -> bool:
        """Whether the filters admit an event."""
        return fnmatchcase(runtime, self.filters.get("runtime", "*")) and fnmatchcase(
            kind, self.filters.get("kind", "*")
        )

    async def _read(self, exchange: Exchange) -> None:
        read = 0
        while True:
            while (end := exchange.body.find(b"\n\n", read)) >= 0:
                self._take(exchange.body[read:end].decode())
                read = end + 2
                if self.hangs_up and self._random.random() < self.hangs_up:
                    # What follows has been sent, and never arrives.
                    exchange.gone.set()
                    return
            if exchange.over:
                return
            await exchange.changed.wait()

    def _take(self, block: str) -> None:
        fields: dict[str, Any] = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        self.position = fields.get("id", self.position)
        if fields.get("event") == "gap":
            self.seen.append(GAP)
        elif "id" in fields and fields.get("event") != "position":
            event = json.loads(fields["data"])
            self.seen.append((event["sequence"], event["event_id"]))


class Writer:
    """Posts one request with a key until it is answered, and once more after that, now and then."""

    def __init__(self, ask: Ask, path: str, body: dict[str, Any], key: str, *, repeats: int) -> None:
        self._ask, self._path, self.body = ask, path, body
        self.key = key
        self._repeats = repeats
        self.answers: list[dict[str, Any]] = []
        """The bodies of successful responses."""
        self.last = ""
        """What the last response was, unless it was an answer."""
        self.refused = ""
        """The problem that ended it."""

    async def write(self) -> None:
        """Post until as many answers as wanted have arrived, or one that no repeat can change."""
        while len(self.answers) <= self._repeats and not self.refused:
            headers = {"idempotency-key": self.key}
            exchange = self._ask("POST", self._path, json.dumps(self.body).encode(), headers)
            if exchange is not None:
                await exchange.whole()
                self._take(exchange)
            await asyncio.sleep(_AGAIN)

    def _take(self, exchange: Exchange) -> None:
        status = exchange.status
        if status is None or exchange.broken:
            return
        content = json.loads(exchange.body)
        # A call is answered with its outcome; 202 says that it is open.
        if status == 200 or (status == 202 and "events" in self.body):
            self.answers.append(content)
            return
        self.last = f"{status} {content.get('type') or content.get('state')} {content.get('detail')}"
        if status < 500 and status not in {202, 409, 429}:
            self.refused = self.last

"""Notifications between instances: collects names for a moment, sends them together, and dispatches received ones.

A notification is a kind and some names, `session:ID,ID`. Notifications are only hints. Every receiver also polls, so a
lost notification causes a delay and a repeated one an extra look.
"""

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

from gateway.guard import guard_call
from gateway.store.port import Notifier

Kind = Literal["orphans", "session", "follow", "interaction", "copies", "handover"]
LIVE = "live"
"""The kind of notification that carries a live event; if it is lost, so is the event."""

_GATHER = 0.02
_MOST_CHARACTERS = 2_000
_MOST_TOPICS = 3
"""Notifications sent at once, so that together they fit into one message; other names wait for the next flush."""
_MOST_LIVE = 4_000
"""Bytes of live events sent within `_GATHER` seconds; further events are dropped."""
_MOST_WAITING = 10_000
"""Names that wait to be sent; further names are dropped, and receivers find them by polling."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """The receivers of notifications from other instances."""

    named: Mapping[Kind, Callable[[Sequence[str]], None]]
    """Called with the names of each notification of a kind."""
    live: Callable[[str, str], None]
    """Called with the session and the text of each live event from another instance."""
    missed: Sequence[Callable[[], None]]
    """Called when notifications may have been missed."""


class Notifications:
    """Sends the notifications of this instance, and delivers those of others."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._waiting: dict[Kind, dict[str, None]] = {}
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._flushed_at = 0.0
        self._live_number = 0
        self._live_characters = 0
        self._live_since = 0.0

    @contextmanager
    def deliver_to(self, listeners: Listeners) -> Generator[None]:
        """Deliver notifications of other instances to these listeners; send waiting names on exit, if they fit."""
        stop = self._notifier.listen(partial(_dispatch, listeners))
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._flush()
            if self._timer is not None:
                self._timer.cancel()
            stop()

    def tell(self, kind: Kind, names: Iterable[str]) -> None:
        """Queue names to send: at once if the last flush was more than `_GATHER` seconds ago."""
        waiting = self._waiting.setdefault(kind, {})
        for name in names:
            if self._count < _MOST_WAITING and name not in waiting:
                waiting[name] = None
                self._count += 1
        if self._timer is None and self._count:
            loop = asyncio.get_running_loop()
            wait = max(0.0, self._flushed_at + _GATHER - loop.time())
            self._timer = loop.call_later(wait, guard_call("notifications", self._flush))

    def show(self, session_id: str, text: str) -> None:
        """Send a live event to followers at other instances; drop it if too many are sent at once."""
        now = asyncio.get_running_loop().time()
        if now - self._live_since > _GATHER:
            self._live_since, self._live_characters = now, 0
        self._live_characters += len(text.encode(errors="replace"))
        if self._live_characters <= _MOST_LIVE:
            # Notifiers collect and sort topics; the number preserves the order.
            self._live_number += 1
            guard_call("notifications", self._notifier.notify)(f"{LIVE}:{session_id}:{self._live_number:012d}:{text}")

    def _flush(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        self._flushed_at = loop.time()
        for _ in range(_MOST_TOPICS):
            if self._count:
                self._notifier.notify(self._next())
        if self._count:
            self._timer = loop.call_later(_GATHER, guard_call("notifications", self._flush))

    def _next(self) -> str:
        """Remove as many names of one kind as fit into a notification, and write it."""
        kind: Kind = next(kind for kind in self._waiting if self._waiting[kind])
        names = self._waiting.pop(kind)
        some: list[str] = []
        characters = 0
        for name in names:
            characters += len(name) + 1
            if some and characters > _MOST_CHARACTERS:
                break
            some.append(name)
        for name in some:
            del names[name]
        self._count -= len(some)
        # Appended at the end, so that other kinds go first.
        self._waiting[kind] = names
        return f"{kind}:{','.join(some)}"


def _dispatch(listeners: Listeners, topic: str | None) -> None:
    if topic is None:
        for missed in listeners.missed:
            guard_call("notifications", missed)()
        return
    kind, _, names = topic.partition(":")
    if kind == LIVE:
        session_id, _, numbered = names.partition(":")
        guard_call("notifications", listeners.live)(session_id, numbered.partition(":")[2])
        return
    # A notification of an unknown kind has no listener.
    listener = listeners.named.get(cast("Kind", kind))
    if listener is not None and names:
        guard_call("notifications", listener)(names.split(","))

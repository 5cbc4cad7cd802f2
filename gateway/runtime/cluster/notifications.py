"""Notifications between instances: gathered for a moment, many names in one, taken apart by whoever hears it.

A notification is a kind and some names, `session:ID,ID`. None of them carries truth: everybody also looks from time
to time, so that a lost one costs a wait and a repeated one a look.
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
"""Notifications that carry what is only live: they are the only ones that carry anything, and lost they stay lost."""

_GATHER = 0.02
_MOST_CHARACTERS = 2_000
_MOST_TOPICS = 3
"""Sent at once, so that together they fit into whatever carries them; the other names wait for the next time."""
_MOST_LIVE = 4_000
"""Characters of live items that are sent in one moment; more of them are left out."""
_MOST_WAITING = 10_000
"""Names that wait to be sent; what is over must find its way by being looked for."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who hears what other instances say."""

    named: Mapping[Kind, Callable[[Sequence[str]], None]]
    """Called with the names of each notification of a kind."""
    live: Callable[[str, str], None]
    """Called with the session and the text of each live item that another instance shows."""
    missed: Sequence[Callable[[], None]]
    """Called when notifications may have been missed."""


class Notifications:
    """Notifies for this instance, and tells its parts what others say."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._waiting: dict[Kind, dict[str, None]] = {}
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._rung_at = 0.0
        self._live_number = 0
        self._live_characters = 0
        self._live_since = 0.0

    @contextmanager
    def heard(self, listeners: Listeners) -> Generator[None]:
        """Let these hear what other instances say; on the way out what waits is sent, as far as it fits."""
        stop = self._notifier.listen(partial(_hear, listeners))
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
        """Notify soon: at once where nothing was sent just now."""
        waiting = self._waiting.setdefault(kind, {})
        for name in names:
            if self._count < _MOST_WAITING and name not in waiting:
                waiting[name] = None
                self._count += 1
        if self._timer is None and self._count:
            loop = asyncio.get_running_loop()
            wait = max(0.0, self._rung_at + _GATHER - loop.time())
            self._timer = loop.call_later(wait, guard_call("notifications", self._flush))

    def show(self, session_id: str, text: str) -> None:
        """Show a live item to those who follow a session elsewhere; what is too much for a notification is left out."""
        now = asyncio.get_running_loop().time()
        if now - self._live_since > _GATHER:
            self._live_since, self._live_characters = now, 0
        self._live_characters += len(text.encode(errors="replace"))
        if self._live_characters <= _MOST_LIVE:
            # Notifiers gather topics and sort them; the number keeps these in their order.
            self._live_number += 1
            guard_call("notifications", self._notifier.notify)(f"{LIVE}:{session_id}:{self._live_number:012d}:{text}")

    def _flush(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        self._rung_at = loop.time()
        for _ in range(_MOST_TOPICS):
            if self._count:
                self._notifier.notify(self._next())
        if self._count:
            self._timer = loop.call_later(_GATHER, guard_call("notifications", self._flush))

    def _next(self) -> str:
        """Take out as many names of one kind as fit into a notification."""
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
        # What else waits is of other kinds first.
        self._waiting[kind] = names
        return f"{kind}:{','.join(some)}"


def _hear(listeners: Listeners, topic: str | None) -> None:
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
    hear = listeners.named.get(cast("Kind", kind))
    if hear is not None and names:
        guard_call("notifications", hear)(names.split(","))

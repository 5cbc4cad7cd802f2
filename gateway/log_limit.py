"""Limits log lines that a peer can cause at will: one line per key and minute, with the number of its repeats."""

import asyncio
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from gateway.guard import guard_call

WINDOW = 60.0
"""Seconds between two lines of one key."""
MOST_KEYS = 1_000
"""Keys that are counted apart; all others share one per text."""

Write = Callable[..., object]
"""A method of a logger, such as `log.warning`."""


@dataclass(slots=True)
class _Window:
    """The repeats since the last line of one key, and the newest of them."""

    loop: asyncio.AbstractEventLoop
    write: Write
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    count: int = 0


class LogLimit:
    """Writes the first line of a key at once, and then at most one per window with the `count` of its repeats."""

    def __init__(self, window: float = WINDOW, most: int = MOST_KEYS) -> None:
        self._window = window
        self._most = most
        self._windows: dict[Hashable, _Window] = {}

    @property
    def keys(self) -> int:
        """The number of keys with an open window."""
        return len(self._windows)

    def __call__(self, write: Write, text: str, *, per: Hashable, **facts: Any) -> None:
        """Log a line by `write(text, **facts)`, limited per text and `per`, such as a session or an executor.

        A line that stands for repeats shows the newest facts. Without a running event loop every line is written.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            write(text, **facts)
            return
        key = (text, per)
        if key not in self._windows and len(self._windows) >= self._most:
            key = (text, None)
        window = self._windows.get(key)
        if window is not None and window.loop is loop:
            window.write, window.facts = write, facts
            window.count += 1
            return
        write(text, **facts)
        self._windows[key] = _Window(loop, write)
        loop.call_later(self._window, guard_call("log limit", self._close), key, text, loop)

    def _close(self, key: Hashable, text: str, loop: asyncio.AbstractEventLoop) -> None:
        """End a window: write the line of its repeats and open the next one, or forget the key."""
        window = self._windows.get(key)
        if window is None or window.loop is not loop:
            return
        if not window.count:
            del self._windows[key]
            return
        window.write(text, **window.facts, count=window.count, seconds=self._window)
        self._windows[key] = _Window(loop, window.write)
        loop.call_later(self._window, guard_call("log limit", self._close), key, text, loop)


LIMIT: ContextVar[LogLimit] = ContextVar("log_limit", default=LogLimit())  # noqa: B039 - what runs outside of gateways
"""The limit of the gateway in whose context the code runs."""


def limited(write: Write, text: str, *, per: Hashable, **facts: Any) -> None:
    """Log a line by the limit of this context, as `LogLimit` does."""
    LIMIT.get()(write, text, per=per, **facts)

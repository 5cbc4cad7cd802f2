"""The pings of a websocket that wait for their answers, which a peer gives behind everything that was sent before."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from gateway.errors import LinkLost
from gateway.guard import guard_call


class Pings:
    """One link's; all share a timer, which runs out in peace where nothing waits: most are answered at once."""

    __slots__ = ("_last", "_loop", "_patience", "_silent", "_timer", "_waiting")

    def __init__(self, patience: timedelta, silent: Callable[[str], None]) -> None:
        """Prepare; `silent` is told when nothing has come in time."""
        self._patience = patience.total_seconds()
        self._silent = silent
        self._loop = asyncio.get_running_loop()
        self._last = 0
        self._waiting: list[tuple[int, float, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None

    def expect(self) -> tuple[bytes, "asyncio.Future[None]"]:
        """Number the next ping; the future is done when its answer, or that of a later one, has come."""
        self._last += 1
        answer = self._loop.create_future()
        self._waiting.append((self._last, self._loop.time(), answer))
        if self._timer is None:
            self._timer = self._loop.call_later(self._patience, _LOOK, self)
        return str(self._last).encode(), answer

    def take(self, said: bytes) -> None:
        """Take an answer; a peer may also send one unasked, with whatever it likes in it."""
        if not said.isdigit() or len(said) >= 20 or int(said) > self._last:
            return
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            number, _, answer = one
            if number > int(said):
                self._waiting.append(one)
            elif not answer.done():
                answer.set_result(None)

    def look(self) -> None:
        """End the link where the oldest ping has waited too long, else look again when it will have."""
        self._timer = None
        if not self._waiting:
            return
        _, asked_at, _ = self._waiting[0]
        if self._loop.time() >= asked_at + self._patience:
            self._silent(f"no sign of the peer within {self._patience:g} s")
        else:
            self._timer = self._loop.call_at(asked_at + self._patience, _LOOK, self)

    def end(self, reason: str) -> None:
        """Let nobody wait any more: the link is over."""
        waiting, self._waiting = self._waiting, []
        for _, _, answer in waiting:
            if not answer.done():
                answer.set_exception(LinkLost(reason))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_LOOK = guard_call("link", Pings.look)

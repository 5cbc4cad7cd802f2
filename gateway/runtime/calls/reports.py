"""What an executor inside this process says about how far a call is, on its way to the record."""

import asyncio
from asyncio import AbstractEventLoop, Future
from typing import Any, cast

import structlog

from gateway.errors import DragomanError, TooLarge
from gateway.events import CallId
from gateway.guard import guard_call
from gateway.log_limit import limited
from gateway.runtime.session.inbox import Inbox
from gateway.runtime.session.signals import ProgressGiven
from gateway.strict_json import Unreadable, read_strictly, write_strictly

log = structlog.get_logger(__name__)

PACE = 0.1
"""Seconds from one report of a call on record to its next; of those that come meanwhile only the newest is."""
MOST_REPORTED = 64 * 1024
"""Bytes of JSON that one report may have."""


class Report:
    """The `report` of one attempt: it takes a report at once, from any thread, and never raises.

    One report at a time is on its way to the record. After the attempt's end, or the call's, none is taken.
    """

    __slots__ = ("_call_id", "_newest", "_over", "_under_way", "session")

    def __init__(self, session: Inbox, call_id: CallId) -> None:
        """Pass on what is reported in the session's own loop."""
        self.session = session
        self._call_id = call_id
        self._newest: dict[str, Any] | None = None
        self._under_way = self._over = False

    def __call__(self, data: dict[str, Any]) -> None:
        """Take word of how far the call is: a JSON object of `MOST_REPORTED` bytes at most."""
        if self._over:
            return
        try:
            self._newest = _copied(data)
        except ValueError as exc:
            limited(
                log.warning,
                "progress ignored",
                per=self._call_id,
                call_id=self._call_id,
                reason=str(exc),
            )
            return
        if self._under_way:
            return
        self._under_way = True
        if _runs_here(self.session.loop):
            self._pass_on()
        else:
            self.session.loop.call_soon_threadsafe(guard_call("dispatcher", self._pass_on))

    def end(self) -> None:
        """The attempt is over: pass on what was said last, and take nothing more."""
        if self._newest is not None:
            self._pass_on()
        self._over = True

    def _pass_on(self) -> None:
        data, self._newest = self._newest, None
        if data is None or self._over:
            self._under_way = False
            return
        reply: Future[bool] = self.session.loop.create_future()
        reply.add_done_callback(guard_call("dispatcher", self._handle_reply))
        try:
            self.session.put(ProgressGiven(self._call_id, data, reply))
        except DragomanError as exc:
            reply.set_exception(exc)

    def _handle_reply(self, reply: "Future[bool]") -> None:
        """It is on record, or was not taken."""
        problem = None if reply.cancelled() else reply.exception()
        if problem is not None:
            log.warning("progress not recorded", call_id=self._call_id, reason=str(problem))
        if reply.cancelled() or isinstance(problem, TooLarge) or (problem is None and not reply.result()):
            self._over = True
        self.session.loop.call_later(PACE, guard_call("dispatcher", self._pass_on))


def _runs_here(loop: AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        # A thread without a loop.
        return False


def _copied(data: object) -> dict[str, Any]:
    """Copy a JSON object by writing it.

    Raises:
        ValueError: it is none, or too large.
    """
    if not isinstance(data, dict):
        raise ValueError(f"it must be a dict, not {type(data).__name__}")
    try:
        return read_strictly(write_strictly(cast("object", data), most=MOST_REPORTED))
    except Unreadable as exc:
        raise ValueError(f"it is nothing that can be kept: {exc}") from exc
    except ValueError as exc:
        raise ValueError(f"it {exc}") from exc

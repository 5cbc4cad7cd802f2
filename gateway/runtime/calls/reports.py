"""Progress reports of executors inside this process, on their way to the journal."""

import asyncio
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, cast

import structlog

from gateway.errors import DragomanError, TooLarge
from gateway.events import CallId, SessionId
from gateway.guard import guard_call
from gateway.log_limit import limited
from gateway.runtime.signals import ProgressGiven, Signal
from gateway.strict_json import Unreadable, read_strictly, write_strictly

log = structlog.get_logger(__name__)

PACE = 0.1
"""Minimum seconds between two recorded reports of a call; of the reports in between, only the newest is recorded."""
MOST_REPORTED = 64 * 1024
"""Maximum size of one report, in bytes of JSON."""


class Report:
    """The `report` function of one attempt: takes reports from any thread without blocking, and never raises.

    One report at a time is being recorded. Reports after the end of the attempt or the call are ignored.
    """

    __slots__ = ("_call_id", "_context", "_loop", "_newest", "_over", "_signal", "_under_way", "session")

    def __init__(self, session: SessionId, call_id: CallId, signal: Callable[[SessionId, Signal], None]) -> None:
        """Prepare; reports are passed on in the running loop, where `signal` puts them into the session's inbox."""
        self.session = session
        self._loop = asyncio.get_running_loop()
        self._signal = signal
        self._call_id = call_id
        self._newest: dict[str, Any] | None = None
        self._under_way = self._over = False
        self._context = copy_context()

    def __call__(self, data: dict[str, Any]) -> None:
        """Report the progress of the call: a JSON object of at most `MOST_REPORTED` bytes."""
        if not self._over:
            # A copy, because several threads may report at once.
            self._context.copy().run(self._take, data)

    def _take(self, data: dict[str, Any]) -> None:
        try:
            self._newest = _copy_json(data)
        except ValueError as exc:
            limited(log.warning, "progress ignored", per=self._call_id, call_id=self._call_id, reason=str(exc))
            return
        if self._under_way:
            return
        self._under_way = True
        if _runs_here(self._loop):
            self._pass_on()
        else:
            self._loop.call_soon_threadsafe(guard_call("dispatcher", self._pass_on))

    def end(self) -> None:
        """Pass on the newest report and ignore later ones, since the attempt has ended."""
        if self._newest is not None:
            self._pass_on()
        self._over = True

    def _pass_on(self) -> None:
        data, self._newest = self._newest, None
        if data is None or self._over:
            self._under_way = False
            return
        reply: Future[bool] = self._loop.create_future()
        reply.add_done_callback(guard_call("dispatcher", self._handle_reply))
        try:
            self._signal(self.session, ProgressGiven(self._call_id, data, reply))
        except DragomanError as exc:
            reply.set_exception(exc)

    def _handle_reply(self, reply: "Future[bool]") -> None:
        problem = None if reply.cancelled() else reply.exception()
        if problem is not None:
            log.warning("progress not recorded", call_id=self._call_id, reason=str(problem))
        if reply.cancelled() or isinstance(problem, TooLarge) or (problem is None and not reply.result()):
            self._over = True
        self._loop.call_later(PACE, guard_call("dispatcher", self._pass_on))


def _runs_here(loop: AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        # A thread without a loop.
        return False


def _copy_json(data: object) -> dict[str, Any]:
    """Copy a JSON object by serializing it.

    Raises:
        ValueError: it is not a JSON object, or too large.
    """
    if not isinstance(data, dict):
        raise ValueError(f"it must be a dict, not {type(data).__name__}")
    try:
        return read_strictly(write_strictly(cast("object", data), most=MOST_REPORTED))
    except Unreadable as exc:
        raise ValueError(f"it cannot be stored: {exc}") from exc
    except ValueError as exc:
        raise ValueError(f"it {exc}") from exc

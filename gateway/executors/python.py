"""Answers requests by calling an async function in the gateway's process.

The function runs in its own task and on a copy of the request. The attempt therefore ends in time even if the function
ignores a cancel, and changes to its argument do not affect the gateway.
"""

import asyncio
import copy
from collections.abc import Mapping
from traceback import format_exception
from typing import Any, cast

import structlog

from gateway.clock import describe_stall
from gateway.events import Outcome
from gateway.executors.port import (
    WITHHELD,
    Answer,
    Answered,
    Cancellation,
    Replied,
    Request,
    Uncertain,
    outcome_from,
)
from gateway.executors.webhook.answers import clean, failure, read_json, unreadable
from gateway.guard import Tasks, spawn
from gateway.log_limit import limited
from gateway.settings.functions import find_function, takes_report
from gateway.settings.model import PythonSpec
from gateway.strict_json import write_strictly

_log = structlog.get_logger(__name__)

MAX_RESULT = 1024**2
"""The largest result in bytes of JSON; the same as the default for webhooks."""

_CLOSE_TIMEOUT = 5.0
_MAX_TRACEBACK = 4_000


class PythonExecutor:
    """An executor that calls the function at a dotted path; the caller decides about retries."""

    def __init__(self, spec: PythonSpec) -> None:
        """Import the function.

        Raises:
            OperatorError: it cannot be imported or has the wrong signature.
        """
        self._path = spec.call
        self._function = find_function(spec.call)
        self._reports = takes_report(self._function)
        self._tasks = Tasks()

    async def __aenter__(self) -> "PythonExecutor":
        return self

    async def __aexit__(self, *exc: object) -> None:
        tasks, self._tasks = self._tasks, Tasks()
        await tasks.close(within=_CLOSE_TIMEOUT)

    async def execute(self, request: Request) -> Answer:
        task = spawn("python executor", self._call(request), self._tasks)
        until = asyncio.get_running_loop().time() + request.timeout.total_seconds()
        try:
            await asyncio.wait({task}, timeout=request.timeout.total_seconds())
        finally:
            # Not awaited: a function that ignores the cancel must not delay the attempt.
            task.cancel()
        if not task.done():
            stall = describe_stall(asyncio.get_running_loop().time() - until)
            return Uncertain(stall or f"no answer within {request.timeout.total_seconds():g} s")
        if task.cancelled():
            return failure("the tool was canceled before it finished")
        return task.result()

    async def cancel(self, cancellation: Cancellation) -> None:
        """Do nothing: the end of `execute` has canceled the function already."""

    async def _call(self, request: Request) -> Answer:
        if not request.may_start():
            return WITHHELD
        try:
            more = {"report": request.report} if self._reports else {}
            answer = await self._function(copy.deepcopy(request.data), **more)
        # Any exception of the function fails its call. A SystemExit that left this task would end the gateway.
        except (Exception, SystemExit) as exc:  # noqa: BLE001
            traceback = "".join(format_exception(exc))[-_MAX_TRACEBACK:]
            facts = {"call": self._path, "key": request.key, "exception": traceback}
            limited(_log.warning, "python executor failed", per=self._path, **facts)
            return failure(clean(str(exc)) or f"the tool failed ({type(exc).__name__})")
        try:
            return _read(answer, request.kind)
        except ValueError as exc:
            facts = {"call": self._path, "key": request.key, "reason": str(exc)}
            limited(_log.warning, "python executor returned an invalid outcome", per=self._path, **facts)
            return unreadable(clean(f"the tool answered {exc}"))


def _read(answer: object, kind: str) -> Answer:
    """Turn a returned value into an answer.

    Raises:
        ValueError: with a text that completes "the tool answered ...".
    """
    value, written = _as_json(answer)
    if kind != "tool.requested":
        if value is None:
            return Replied({})
        if not isinstance(value, dict):
            raise ValueError(f"an invalid reply to {kind}: it must be a dict")
        return Replied(cast("dict[str, Any]", value))
    if not isinstance(value, dict) or "outcome" not in value:
        return Answered(Outcome(outcome="success", result=value), written=written)
    try:
        answered = outcome_from(value, written=written)
    except ValueError as exc:
        raise ValueError(f"an invalid outcome: {exc}") from exc
    outcome = answered.outcome
    if outcome.outcome == "success" or outcome.error:
        return answered
    explained = outcome.model_copy(update={"error": f"the tool answered {outcome.outcome} without saying why"})
    return Answered(outcome=explained, updates=answered.updates, wakes_agent=answered.wakes_agent)


def _as_json(answer: object) -> tuple[Any, bytes | None]:
    """Convert a value to plain JSON types, and serialize it; any mapping counts as a dict."""
    plain: object = dict(cast("Mapping[str, Any]", answer)) if isinstance(answer, Mapping) else answer
    try:
        body = write_strictly(plain, most=MAX_RESULT)
    except ValueError as exc:
        raise ValueError(f"a value that {exc}") from exc
    try:
        return read_json(body)
    except ValueError as exc:
        raise ValueError(f"a value {exc}") from exc

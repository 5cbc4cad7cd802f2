"""Answers requests by calling an async function inside the gateway's own process.

The function runs as a task of its own, on a copy of the request: whatever it does with its argument,
and whether or not it heeds a cancel, the attempt ends in time and the gateway's memory stays as it was.
"""

import asyncio
import copy
from collections.abc import Mapping
from traceback import format_exception
from typing import Any, cast

import structlog

from gateway.events import Outcome
from gateway.executors.port import Answer, Answered, Cancellation, Replied, Request, Uncertain, outcome_from
from gateway.executors.webhook.answers import clean, failure
from gateway.executors.webhook.json_body import read_json
from gateway.guard import Tasks, spawn
from gateway.log_limit import limited
from gateway.settings.functions import find_function, takes_report
from gateway.settings.model import PythonSpec
from gateway.strict_json import write_strictly

_log = structlog.get_logger(__name__)

MAX_RESULT = 1024**2
"""The largest result, written as JSON; the same as the default for webhooks."""

_FAREWELL = 5.0
_MAX_TRACEBACK = 4_000


class PythonExecutor:
    """An executor behind a dotted path; the caller decides about retries."""

    def __init__(self, spec: PythonSpec) -> None:
        """Import the function.

        Raises:
            OperatorError: it cannot be imported, or cannot be called as an executor calls it.
        """
        self._path = spec.call
        self._function = find_function(spec.call)
        self._reports = takes_report(self._function)
        self._tasks = Tasks()

    async def __aenter__(self) -> "PythonExecutor":
        return self

    async def __aexit__(self, *exc: object) -> None:
        tasks, self._tasks = self._tasks, Tasks()
        await tasks.close(within=_FAREWELL)

    async def execute(self, request: Request) -> Answer:
        task = spawn("python executor", self._call(request), self._tasks)
        try:
            await asyncio.wait({task}, timeout=request.timeout.total_seconds())
        finally:
            # Not waited for: a function that ignores the cancel must not hold the attempt.
            task.cancel()
        if not task.done():
            return Uncertain(f"no answer within {request.timeout.total_seconds():g} s")
        if task.cancelled():
            return failure("the tool gave up in the middle")
        return task.result()

    async def cancel(self, cancellation: Cancellation) -> None:
        """Do nothing: whoever stops waiting for `execute` has the function canceled by that."""

    async def _call(self, request: Request) -> Answer:
        try:
            more = {"report": request.report} if self._reports else {}
            answer = await self._function(copy.deepcopy(request.data), **more)
        # The function is somebody else's: whatever it raises is a failure of the call. A SystemExit that
        # left this task would end the gateway.
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
            return failure(clean(f"the tool answered {exc}"))


def _read(answer: object, kind: str) -> Answer:
    """Say what a returned value means.

    Raises:
        ValueError: with a text that completes "the tool answered ...".
    """
    value, written = _as_json(answer)
    if kind != "tool.requested":
        if value is None:
            return Replied({})
        if not isinstance(value, dict):
            raise ValueError(f"what is no reply to {kind}: it must be a dict")
        return Replied(cast("dict[str, Any]", value))
    if not isinstance(value, dict) or "outcome" not in value:
        return Answered(Outcome(outcome="success", result=value), written=written)
    try:
        answered = outcome_from(value, written=written)
    except ValueError as exc:
        raise ValueError(f"what is no outcome: {exc}") from exc
    outcome = answered.outcome
    if outcome.outcome == "success" or outcome.error:
        return answered
    told = outcome.model_copy(update={"error": f"the tool answered {outcome.outcome} without saying why"})
    return Answered(outcome=told, updates=answered.updates, wakes_agent=answered.wakes_agent)


def _as_json(answer: object) -> tuple[Any, bytes | None]:
    """Turn a value into what JSON can carry; a mapping of any kind counts as a dict."""
    plain: object = dict(cast("Mapping[str, Any]", answer)) if isinstance(answer, Mapping) else answer
    try:
        body = write_strictly(plain, most=MAX_RESULT)
    except ValueError as exc:
        raise ValueError(f"what {exc}") from exc
    try:
        return read_json(body)
    except ValueError as exc:
        raise ValueError(f"a value {exc}") from exc

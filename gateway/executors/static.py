"""Answers every request with the configured result or error, after the configured delay."""

import asyncio
import json
from typing import Any, cast

from gateway.errors import OperatorError
from gateway.events import Outcome
from gateway.executors.port import Answer, Answered, Cancellation, Replied, Request, Uncertain
from gateway.executors.webhook.answers import failure
from gateway.settings.model import StaticSpec


class StaticExecutor:
    """An executor without a backend, for trials and for tools with a constant answer."""

    def __init__(self, spec: StaticSpec) -> None:
        """Prepare the answer.

        Raises:
            OperatorError: the result is YAML but not JSON, for example a date or .nan.
        """
        self._result = _as_json(spec.result)
        self._error = spec.error
        self._delay = spec.delay

    async def __aenter__(self) -> "StaticExecutor":
        return self

    async def __aexit__(self, *exc: object) -> None:
        return

    async def execute(self, request: Request) -> Answer:
        if self._delay:
            await asyncio.sleep(min(self._delay, request.timeout).total_seconds())
        if self._delay > request.timeout:
            return Uncertain(f"no answer within {request.timeout.total_seconds():g} s")
        if self._error is not None:
            return failure(self._error)
        if request.kind == "tool.requested":
            return Answered(Outcome(outcome="success", result=self._result))
        result: object = self._result
        if result is None:
            return Replied({})
        if isinstance(result, dict):
            return Replied(cast("dict[str, Any]", result))
        return failure(f"the static result is not a reply to {request.kind}: it must be a mapping")

    async def cancel(self, cancellation: Cancellation) -> None:
        """Do nothing, since there is no backend."""


def _as_json(result: Any) -> Any:
    try:
        return json.loads(json.dumps(result, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as exc:
        raise OperatorError(f"result: cannot be JSON ({exc}); quote dates and similar values") from exc

"""Tells the gateway what came later, and how far a call is."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import httpx
from pydantic_core import to_json

_FIRST, _LONGEST = 0.5, 10.0
_MOST = 400
"""Tries for one outcome: over an hour, beyond which no call waits for it unless it was told to."""
_JSON = {"content-type": "application/json"}

log = logging.getLogger("dragoman.kit")


class CallbackClient:
    """Posts outcomes until they are heard, and progress once."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._told: set[str] = set()

    def tell(self, key: str, url: str, outcome: "asyncio.Task[bytes]") -> Coroutine[Any, Any, None] | None:
        """Have the outcome of a call posted when it is there; None where that is under way already."""
        if key in self._told:
            return None
        self._told.add(key)
        return self._tell(key, url, outcome)

    async def _tell(self, key: str, url: str, outcome: "asyncio.Task[bytes]") -> None:
        try:
            await asyncio.wait({outcome})
            if outcome.cancelled() or outcome.exception() is not None:
                # It was canceled, or the application stops.
                return
            pause = _FIRST
            for _ in range(_MOST):
                status = await self._post(key, url, outcome.result())
                if status is not None and (status < 500 and status not in {408, 425, 429}):
                    if status not in {200, 410}:
                        log.error("the gateway does not take the outcome of %s: %d", key, status)
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST)
            log.error("the outcome of %s could not be told", key)
        finally:
            self._told.discard(key)

    async def report(self, key: str, url: str, data: dict[str, Any]) -> None:
        """Say once how far a call is."""
        try:
            body = to_json(data)
        except ValueError as exc:
            log.warning("the progress of %s is no JSON: %s", key, exc)
            return
        status = await self._post(key, url, body)
        if status is not None and status >= 300:
            log.warning("the gateway does not take the progress of %s: %d", key, status)

    async def _post(self, key: str, url: str, body: bytes) -> int | None:
        try:
            return (await self._client.post(url, content=body, headers=_JSON)).status_code
        except httpx.HTTPError as exc:
            log.warning("the gateway cannot be told of %s: %s", key, type(exc).__name__)
            return None

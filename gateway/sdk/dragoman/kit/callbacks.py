"""The client of the gateway's callback addresses: outcomes with retries, progress once."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import httpx
from pydantic_core import to_json

from dragoman.kit.store import Callback

_FIRST, _LONGEST = 0.5, 10.0
_BEYOND = 3_600.0
"""Seconds beyond the deadline of its request for which an outcome is posted: after a 202 the gateway waits longer."""
_POSTS = 32
"""Outcomes that are posted at once."""
_JSON = {"content-type": "application/json"}

log = logging.getLogger("dragoman.kit")


class CallbackClient:
    """Posts outcomes until the gateway has them, and progress once."""

    def __init__(self, client: httpx.AsyncClient, settle: Callable[[str], Awaitable[None]]) -> None:
        """Post with `client`; call `settle` with the key of each outcome that needs no further post."""
        self._client, self._settle = client, settle
        self._keys: set[str] = set()
        self._posts = asyncio.Semaphore(_POSTS)

    @property
    def count(self) -> int:
        """The number of outcomes that are not delivered yet."""
        return len(self._keys)

    def deliver(
        self, key: str, callback: Callback, outcome: "asyncio.Future[bytes]"
    ) -> Coroutine[Any, Any, None] | None:
        """Return a coroutine that posts the outcome of a call once it is known; None if another one does so."""
        if key in self._keys:
            return None
        self._keys.add(key)
        return self._deliver(key, callback, outcome)

    async def _deliver(self, key: str, callback: Callback, outcome: "asyncio.Future[bytes]") -> None:
        try:
            await asyncio.wait({outcome})
            if outcome.cancelled() or outcome.exception() is not None:
                # The call is left without an answer: its gateway requests it again.
                return
            ends_at = max(time.time(), callback.deadline) + _BEYOND
            pause = _FIRST
            while not await self._is_settled(key, callback.url, outcome.result()):
                if time.time() > ends_at:
                    log.error("could not deliver the outcome of %s before its call ended", key)
                    return
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter is no secret
                pause = min(2 * pause, _LONGEST)
            await self._settle(key)
        finally:
            self._keys.discard(key)

    async def _is_settled(self, key: str, url: str, body: bytes) -> bool:
        """Post an outcome; return whether the gateway took it or refused it permanently."""
        async with self._posts:
            status = await self._post(key, url, body)
        if status is None or status >= 500 or status in {408, 425, 429}:
            return False
        if status >= 300:
            log.error("the gateway refused the outcome of %s with %d; it is not sent again", key, status)
        return True

    async def report(self, key: str, url: str, data: dict[str, Any]) -> None:
        """Post the progress of a call once."""
        try:
            body = to_json(data)
        except ValueError as exc:
            log.warning("the progress of %s is not JSON: %s", key, exc)
            return
        status = await self._post(key, url, body)
        if status is not None and status >= 300:
            log.warning("the gateway refused the progress of %s with %d", key, status)

    async def _post(self, key: str, url: str, body: bytes) -> int | None:
        try:
            return (await self._client.post(url, content=body, headers=_JSON)).status_code
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            log.warning("could not reach the callback address of %s: %s", key, type(exc).__name__)
            return None

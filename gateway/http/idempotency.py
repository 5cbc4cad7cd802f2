"""Idempotency-Key: the same request sent twice is carried out once, and answered twice the same."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import orjson
import structlog
from starlette.requests import Request

from gateway.errors import Conflict, EngineUnavailable
from gateway.http.errors import Refused
from gateway.http.reply import Reply, dump
from gateway.runtime.gateway import Gateway

KEEP = timedelta(hours=24)
_PATIENCE = timedelta(seconds=30)
_LONGEST_KEY = 255

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Once:
    """Carries requests with a key out once."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._under_way: dict[tuple[str, str], _Turn] = {}

    async def run(self, request: Request, fingerprint: bytes, act: Callable[[], Awaitable[Reply]]) -> Reply:
        """Act, or answer as the first time; `fingerprint` tells requests with one key apart and holds no secrets.

        Raises:
            Refused: the key is not usable, or belongs to another request.
            Conflict: the first request with the key is still under way.
        """
        key = request.headers.get("idempotency-key")
        if key is None:
            return await act()
        if not 1 <= len(key) <= _LONGEST_KEY or not key.isascii() or not key.isprintable():
            raise Refused("invalid-request", f"Idempotency-Key must be 1 to {_LONGEST_KEY} printable ASCII characters")
        scope = f"{request.state.caller.name} {request.method} {request.url.path}"
        sha = hashlib.sha256(fingerprint).hexdigest()
        async with self._turn(scope, key):
            kept = await self._gateway.recall(key=key, scope=scope)
            if kept is not None:
                if kept.request_sha != sha:
                    raise Refused("idempotency-conflict", "this Idempotency-Key was used with another body")
                return _replayed(kept.response)
            answer = await act()
            await self._keep(answer, key=key, scope=scope, sha=sha)
            return answer

    async def _keep(self, answer: Reply, *, key: str, scope: str, sha: str) -> None:
        head = dump({"status": answer.status, "headers": dict(answer.headers)})
        try:
            await self._gateway.remember(
                key=key, scope=scope, request_sha=sha, response=head + b"\n" + answer.body, keep=KEEP
            )
        except EngineUnavailable as exc:
            # The request itself is on record: calling it failed would invite the repeat that the key is to prevent.
            log.warning("answer to an idempotent request not kept", reason=str(exc))

    @asynccontextmanager
    async def _turn(self, scope: str, key: str) -> AsyncGenerator[None]:
        turn = self._under_way.setdefault((scope, key), _Turn())
        turn.waiting += 1
        try:
            try:
                async with asyncio.timeout(_PATIENCE.total_seconds()):
                    await turn.lock.acquire()
            except TimeoutError as exc:
                raise Conflict("the first request with this Idempotency-Key is still being worked on") from exc
            try:
                yield
            finally:
                turn.lock.release()
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                self._under_way.pop((scope, key), None)


class _Turn:
    """Requests with one key, one after the other."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = 0


def _replayed(kept: bytes) -> Reply:
    head, _, body = kept.partition(b"\n")
    said = orjson.loads(head)
    return Reply(said["status"], body, {**said["headers"], "idempotency-replayed": "true"})

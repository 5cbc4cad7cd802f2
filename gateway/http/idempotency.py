"""Idempotency-Key: a repeated request runs once and gets the same response twice."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

import orjson
import structlog
from fastapi import Header
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import EngineUnavailable, InvalidRequest
from gateway.http.body import refuse_two_keys
from gateway.http.errors import Refused
from gateway.http.reply import dump
from gateway.log_limit import limited
from gateway.runtime.app import Gateway
from gateway.store.step import Keep

KEEP = timedelta(hours=24)
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Makes repeats safe for 24 hours: the same request gets the same response, with "
        "`Idempotency-Replayed: true`.",
        examples=["order-4711"],
    ),
]
_LOOK = 0.1
"""Seconds between two polls for the response of another instance."""
_LONGEST_KEY = 255
_BUSY = "the first request with this Idempotency-Key is still in progress"

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class IdempotentRequests:
    """Runs each request with a key once."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._under_way: dict[tuple[str, str], _Turn] = {}

    async def run(
        self, request: Request, key: str | None, fingerprint: bytes, act: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Run a request once per key and replay its response; `fingerprint` identifies the request without secrets.

        This instance locks the key meanwhile. If it dies, others can take the key when its lease expires; whether the
        request ran is then unknown.

        Raises:
            Refused: the key is invalid, belongs to another request, or the first request is still in progress.
        """
        if key is None:
            return await act()
        place = _place(request, key, fingerprint)
        async with self._turn(place):
            kept = await self._recall_or_hold(place)
            if kept is not None:
                return _replayed(kept)
            try:
                # The previous holder may have stored a response since the last check.
                kept = await self._recall(place)
                if kept is not None:
                    return _replayed(kept)
                answer = await act()
                await self._keep(answer, place)
                return answer
            finally:
                await self._release(place)

    async def run_step(
        self,
        request: Request,
        key: str,
        fingerprint: bytes,
        act: Callable[[Keep], Awaitable[Response]],
        again: Callable[[Sequence[int]], Awaitable[Response]],
    ) -> Response:
        """Like `run`, for a request that is one Step: its response is committed in the same Step.

        `act` receives the place to store it; `again` builds the response from the stored sequences.

        Raises:
            Refused: as `run`. Gone: the events were removed meanwhile.
        """
        place = _place(request, key, fingerprint)
        async with self._turn(place):
            kept = await self._recall(place)
            if kept is None:
                return await act(self._gateway.keep(key=place.key, scope=place.scope, request_sha=place.sha, keep=KEEP))
            if b"\n" in kept:
                # An earlier release stored the complete response.
                return _replayed(kept)
            return _marked(await again(orjson.loads(kept)["sequences"]))

    async def _recall(self, place: "_Place") -> bytes | None:
        kept = await self._gateway.recall(key=place.key, scope=place.scope)
        if kept is not None and kept.request_sha != place.sha:
            raise Refused("idempotency-conflict", "this Idempotency-Key was used with another body")
        return None if kept is None else kept.response

    async def _keep(self, answer: Response, place: "_Place") -> None:
        headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
        head = dump({"status": answer.status_code, "headers": headers})
        try:
            await self._gateway.remember(
                key=place.key,
                scope=place.scope,
                request_sha=place.sha,
                response=head + b"\n" + bytes(answer.body),
                keep=KEEP,
            )
        except EngineUnavailable as exc:
            # The request itself succeeded: an error would cause the repeat that the key must prevent.
            limited(log.warning, "idempotent response not stored", per=None, reason=str(exc))

    async def _recall_or_hold(self, place: "_Place") -> bytes | None:
        """Wait for the response of another instance; None once this instance holds the key."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._gateway.tuning.repeat
        while (kept := await self._recall(place)) is None and not await self._gateway.hold(place.name):
            if loop.time() >= until:
                raise Refused("idempotency-busy", _BUSY)
            await asyncio.sleep(_LOOK)
        return kept

    async def _release(self, place: "_Place") -> None:
        try:
            await self._gateway.release_name(place.name)
        except EngineUnavailable as exc:
            # This instance can take it again at once, others when this instance's lease expires.
            limited(log.warning, "idempotency key not released", per=None, reason=str(exc))

    @asynccontextmanager
    async def _turn(self, place: "_Place") -> AsyncGenerator[None]:
        turn = self._under_way.setdefault((place.scope, place.key), _Turn())
        turn.waiting += 1
        try:
            try:
                async with asyncio.timeout(self._gateway.tuning.repeat):
                    await turn.lock.acquire()
            except TimeoutError as exc:
                raise Refused("idempotency-busy", _BUSY) from exc
            try:
                yield
            finally:
                turn.lock.release()
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                self._under_way.pop((place.scope, place.key), None)


class _Turn:
    """Serializes requests with one key."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = 0


@dataclass(frozen=True, slots=True)
class _Place:
    """The key of a stored response, with its request."""

    key: str
    scope: str
    sha: str

    @property
    def name(self) -> str:
        """The name that is locked while a request with the key runs."""
        return "once:" + hashlib.sha256(f"{self.scope}\n{self.key}".encode()).hexdigest()


def _place(request: Request, key: str, fingerprint: bytes) -> _Place:
    refuse_two_keys(request)
    if not 1 <= len(key) <= _LONGEST_KEY or not key.isascii() or not key.isprintable():
        reason = f"Idempotency-Key must be 1 to {_LONGEST_KEY} printable ASCII characters"
        raise InvalidRequest(reason, pointer="Idempotency-Key")
    scope = f"{request.state.caller.name} {request.method} {request.url.path}"
    return _Place(key, scope, hashlib.sha256(fingerprint).hexdigest())


def _replayed(kept: bytes) -> Response:
    head, _, body = kept.partition(b"\n")
    said = orjson.loads(head)
    return _marked(Response(body, said["status"], said["headers"]))


def _marked(answer: Response) -> Response:
    answer.headers["idempotency-replayed"] = "true"
    return answer

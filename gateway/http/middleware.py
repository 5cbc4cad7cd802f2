"""The middleware of every request: an id, common headers, a deadline, one log line, and the limits of its body."""

import asyncio
import random
import re
import time
from datetime import timedelta
from typing import Any

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import Overloaded, TooLarge
from gateway.guard import FAULTS, is_fault
from gateway.http.errors import PROBLEMS, ProblemKind, Refused, problem_reply
from gateway.runtime.app import Gateway

BODY_DEADLINE = timedelta(seconds=30)
REQUEST_ID = b"x-request-id"
"""Names one request in responses, in log lines and at the instance that it is forwarded to."""
_PLAIN_ID = re.compile(rb"[\w.:/+=@-]{1,128}")
_CLIENT_LEFT = 499
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
"""The defaults of headers that a response may set itself."""

# Ids need only differ; asking the system for each would cost more than the rest of it.
_jitter = random.Random()  # noqa: S311

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class RequestMiddleware:
    """Names each request, answers unexpected exceptions and writes one log line; pure ASGI, so streams pass through."""

    def __init__(self, app: ASGIApp, *, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = _request_id(scope)
        is_head = scope["method"] == "HEAD"
        state: dict[str, Any] = {**scope.get("state", {}), "head": is_head}
        # HEAD is answered as GET without the body; a request without an id is forwarded with the one it got.
        headers = [*(one for one in scope["headers"] if one[0] != REQUEST_ID), (REQUEST_ID, request_id)]
        scope = {**scope, "method": "GET" if is_head else scope["method"], "headers": headers, "state": state}
        # Never unbound: the server starts a task, and with it a context, for each request.
        structlog.contextvars.bind_contextvars(request_id=request_id.decode())
        patience = self._gateway.tuning.answer
        deadline, has_deadline = asyncio.timeout(patience), True
        status: int | None = None
        mistake: BaseException | None = None

        async def respond(message: Message) -> None:
            nonlocal status, has_deadline
            if message["type"] == "http.response.start":
                status = message["status"]
                if has_deadline:
                    # Only the start of the response has one.
                    deadline.reschedule(None)
                    has_deadline = False
                message = _with_headers(message, request_id, began)
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        try:
            async with deadline:
                try:
                    await self._app(scope, receive, respond)
                finally:
                    has_deadline = False
        except ClientDisconnect:
            status = _CLIENT_LEFT
        # The outermost handler: an unexpected exception is answered as a 500 without details and logged once, below.
        except BaseException as exc:
            if not is_fault(exc):
                raise
            if isinstance(exc, TimeoutError) and deadline.expired():
                state["problem"] = PROBLEMS["overloaded"]
                exc = Overloaded(f"nothing came of it within {patience:g} s; it may still be done")
            else:
                FAULTS.count("http")
                mistake = exc
            if status is None:
                await problem_reply(exc)(scope, receive, respond)
        _write_line(scope, status=status, problem=state.get("problem"), began=began, mistake=mistake)


class BodyLimits:
    """Limits request bodies in size and time, and the memory that all of them take together."""

    def __init__(self, app: ASGIApp, *, gateway: Gateway, deadline: timedelta = BODY_DEADLINE) -> None:
        self._app = app
        self._gateway = gateway
        self._seconds = deadline.total_seconds()
        self._held = 0
        """Bytes of the bodies of all requests that are being served."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit, size, is_complete = int(self._gateway.settings.api.max_body), 0, False
        until: float | None = None

        async def receive_limited() -> Message:
            nonlocal size, is_complete, until
            if is_complete:
                return await receive()
            if until is None:
                until = asyncio.get_running_loop().time() + self._seconds
                announced = dict(scope["headers"]).get(b"content-length", b"")
                if announced.isdigit() and int(announced) > limit:
                    raise TooLarge(f"the body has {int(announced)} bytes; at most {limit} are allowed")
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError as exc:
                raise Refused("request-timeout", f"the body did not arrive within {self._seconds:g} seconds") from exc
            is_complete = not message.get("more_body", False)
            added = len(message.get("body", b""))
            self._hold(added)
            size += added
            if size > limit:
                raise TooLarge(f"the body is larger than the {limit} bytes that are allowed")
            return message

        try:
            await self._app(scope, receive_limited, send)
        finally:
            self._held -= size

    def _hold(self, size: int) -> None:
        most = int(self._gateway.settings.api.body_memory)
        if size and self._held and self._held + size > most:
            raise Overloaded(f"the request bodies being served take {most} bytes already; try again later")
        self._held += size


def _with_headers(message: Message, request_id: bytes, began: float) -> Message:
    """Add the common headers to the start of a response, except those that it has already."""
    given = list(message.get("headers", ()))
    names = {name for name, _ in given}
    added = [one for one in _HEADERS if one[0] not in names]
    elapsed = b"gateway;dur=%.1f" % ((time.perf_counter() - began) * 1_000)
    return {**message, "headers": [*given, *added, (REQUEST_ID, request_id), (b"server-timing", elapsed)]}


def _request_id(scope: Scope) -> bytes:
    """Read the id that the client gave its request if it is a plain one, otherwise make one."""
    for name, value in scope["headers"]:
        if name == REQUEST_ID:
            if _PLAIN_ID.fullmatch(value):
                return bytes(value)
            break
    return b"%016x" % _jitter.getrandbits(64)


def _write_line(
    scope: Scope, *, status: int | None, problem: ProblemKind | None, began: float, mistake: BaseException | None
) -> None:
    # The query string is never logged: callback tokens live there.
    path: str = scope["path"]
    caller = scope["state"].get("caller")
    facts = {
        "method": "HEAD" if scope["state"]["head"] else scope["method"],
        "path": path[:200],
        "status": status,
        "ms": round((time.perf_counter() - began) * 1_000, 2),
        "key": getattr(caller, "name", "-"),
    }
    if mistake is not None:
        log.error("request failed", **facts, problem=PROBLEMS["internal"].name, exc_info=mistake)
    elif problem is not None:
        getattr(log, problem.level)("request refused", **facts, problem=problem.name)
    else:
        log.debug("request served", **facts)

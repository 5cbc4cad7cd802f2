"""The middleware of every request: an id, common headers, a deadline, one log line, and the limits of its body."""

import asyncio
import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, cast

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import Draining, Overloaded, TooLarge
from gateway.guard import FAULTS, is_fault
from gateway.http.auth import ANONYMOUS, FORWARDED
from gateway.http.errors import PROBLEMS, ProblemKind, Refused, problem_reply
from gateway.http.plain_http import WATCH
from gateway.http.prefix import local_path, prefix_of
from gateway.log_limit import LogLimit
from gateway.runtime.app import Gateway
from gateway.runtime.cluster.hops import HEADER, VERSION
from gateway.runtime.delivery.links import START

BODY_DEADLINE = timedelta(seconds=30)
REQUEST_ID = b"x-request-id"
"""Names one request in responses, in log lines and at the instance that it is forwarded to."""
_PLAIN_ID = re.compile(rb"[\w.:/+=@-]{1,128}")
_CLIENT_LEFT = 499
_UNKNOWN_BODY = 16 * 1024
_UNKNOWN_MEMORY = 1024 * 1024
"""The limits of a body, and of all bodies, of requests that are not authenticated, such as a sign-in."""
_LINK = "/a/"
"""What precedes the token of a link in a path; a proxy may keep a prefix before it."""
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
"""The defaults of headers that a response may set itself."""

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class RequestMiddleware:
    """Names each request, answers unexpected exceptions and writes one log line; pure ASGI, so streams pass through."""

    def __init__(self, app: ASGIApp, *, gateway: Gateway, roots: Collection[str]) -> None:
        self._app = app
        self._gateway = gateway
        self._roots = roots
        """The first segments of the paths of all routes."""
        self._strangers = LogLimit()
        """Apart from the gateway's own, whose keys the addresses of strangers could use up."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        prefix = prefix_of(self._gateway.settings)
        scope = self._local(scope, prefix)
        monotonic = self._gateway.clock.monotonic
        began = monotonic()
        request_id = _given_id(scope) or self._gateway.ids.span_id().encode()
        is_head = scope["method"] == "HEAD"
        state: dict[str, Any] = {**scope.get("state", {}), "head": is_head}
        # HEAD is answered as GET without the body; a request without an id is forwarded with the one it got.
        headers = [*(one for one in scope["headers"] if one[0] != REQUEST_ID), (REQUEST_ID, request_id)]
        scope = {**scope, "method": "GET" if is_head else scope["method"], "headers": headers, "state": state}
        # Neither is unbound: the server starts a task, and with it a context, for each request.
        self._gateway.ambient.bind()
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
                message = _with_headers(self._located(message, prefix), request_id, monotonic() - began, state)
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
            expected = _expected(exc, deadline, patience)
            if expected is None:
                FAULTS.get().count("http")
                mistake = exc
            else:
                state["problem"], exc = expected
            if status is None:
                await _reply(exc, state)(scope, receive, respond)
        self._write_line(scope, monotonic() - began, status=status, problem=state.get("problem"), mistake=mistake)

    def _write_line(
        self,
        scope: Scope,
        seconds: float,
        *,
        status: int | None,
        problem: ProblemKind | None,
        mistake: BaseException | None,
    ) -> None:
        # The query string is never logged: callback tokens live there.
        path = _hide_link(scope["path"])
        caller = scope["state"].get("caller")
        facts = {
            "method": "HEAD" if scope["state"]["head"] else scope["method"],
            "path": path[:200],
            "status": status,
            "ms": round(seconds * 1_000, 2),
            "key": getattr(caller, "name", "-"),
        }
        if mistake is not None:
            log.error("request failed", **facts, problem=PROBLEMS["internal"].name, exc_info=mistake)
        elif problem is not None:
            write = getattr(log, problem.level)
            if _is_known(scope):
                write("request refused", **facts, problem=problem.name)
            else:
                # Everybody can cause these.
                self._strangers(
                    write,
                    "request refused",
                    per=(problem.name, scope["client"] and scope["client"][0]),
                    **facts,
                    problem=problem.name,
                )
        else:
            log.debug("request served", **facts)

    def _local(self, scope: Scope, prefix: str) -> Scope:
        """Take the prefix off the path."""
        path = local_path(scope["path"], prefix, self._roots)
        if path == scope["path"]:
            return scope
        raw_path = local_path(scope["raw_path"].decode("latin-1"), prefix, self._roots)
        return {**scope, "path": path, "raw_path": raw_path.encode("latin-1")}

    def _located(self, message: Message, prefix: str) -> Message:
        """Write the prefix before a `Location`, unless another instance has done so."""
        if not prefix or all(name != b"location" for name, _ in message.get("headers", ())):
            return message
        headers: list[tuple[bytes, bytes]] = []
        for name, value in message["headers"]:
            path = value.decode("latin-1")
            is_local = name == b"location" and path.startswith("/") and local_path(path, prefix, self._roots) == path
            headers.append((name, prefix.encode() + value if is_local else value))
        return {**message, "headers": headers}


class BodyLimits:
    """Limits request bodies in size and time, and the memory that all of them take together."""

    def __init__(self, app: ASGIApp, *, gateway: Gateway, deadline: timedelta = BODY_DEADLINE) -> None:
        self._app = app
        self._gateway = gateway
        self._seconds = deadline.total_seconds()
        self._held = {True: 0, False: 0}
        """Bytes of the bodies of all requests that are being served: of authenticated ones, and of others."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit, size, is_complete, is_known = _UNKNOWN_BODY, 0, False, False
        until: float | None = None

        async def receive_limited() -> Message:
            nonlocal limit, size, is_complete, is_known, until
            if is_complete:
                # The request waits for nothing but the end of its client.
                if (watch := scope.get("extensions", {}).get(WATCH)) is not None:
                    watch()
                return await receive()
            if until is None:
                until = asyncio.get_running_loop().time() + self._seconds
                if is_known := _is_known(scope):
                    limit = int(self._gateway.settings.api.max_body)
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
            self._hold(added, is_known=is_known)
            size += added
            if size > limit:
                raise TooLarge(f"the body is larger than the {limit} bytes that are allowed")
            return message

        try:
            await self._app(scope, receive_limited, send)
        finally:
            self._held[is_known] -= size

    def _hold(self, size: int, *, is_known: bool) -> None:
        most, held = int(self._gateway.settings.api.body_memory) if is_known else _UNKNOWN_MEMORY, self._held[is_known]
        if size and held and held + size > most:
            raise Overloaded(f"the request bodies being served take {most} bytes already; try again later")
        self._held[is_known] += size


def _expected(exc: BaseException, deadline: asyncio.Timeout, patience: float) -> tuple[ProblemKind, Exception] | None:
    """Name the problem of a request that was given up; None if nobody did."""
    if isinstance(exc, TimeoutError) and deadline.expired():
        return PROBLEMS["overloaded"], Overloaded(f"nothing came of it within {patience:g} s; it may still be done")
    if isinstance(exc, asyncio.CancelledError):
        # The gateway has ended a task that the request waits for.
        return PROBLEMS["draining"], Draining("the gateway stopped during the request; it may still be done")
    return None


def _hide_link(path: str) -> str:
    """Return a path without the token of a link."""
    begin, found, _ = path.partition(_LINK)
    return f"{begin}{_LINK}…" if found and (not begin or START in path) else path


def _is_known(scope: Scope) -> bool:
    """Report whether the sender of a request has been authenticated."""
    return scope["state"].get("caller", ANONYMOUS) is not ANONYMOUS


def _reply(exc: BaseException, state: Mapping[str, Any]) -> ASGIApp:
    """Make the response to an exception: the problem, or the page that shows it if a page was asked for."""
    if "error_page" not in state:
        return problem_reply(exc)
    try:
        return cast(ASGIApp, state["error_page"](exc))
    except BaseException as failed:
        if not is_fault(failed):
            raise
        FAULTS.get().note("http", failed, text="error page failed")
        return problem_reply(exc)


def _with_headers(message: Message, request_id: bytes, seconds: float, state: Mapping[str, Any]) -> Message:
    """Add the common headers to the start of a response, except those that it has already."""
    given = list(message.get("headers", ()))
    names = {name for name, _ in given}
    added = [one for one in _HEADERS if one[0] not in names]
    if FORWARDED in state:
        added.append((HEADER.encode(), VERSION.encode()))
    elapsed = b"gateway;dur=%.1f" % (seconds * 1_000)
    return {**message, "headers": [*given, *added, (REQUEST_ID, request_id), (b"server-timing", elapsed)]}


def _given_id(scope: Scope) -> bytes | None:
    """Read the id that the client gave its request; None if it gave none or not a plain one."""
    given = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
    return bytes(given) if _PLAIN_ID.fullmatch(given) else None

"""The outermost layer of every request: limits of size and time, headers, one log line, the last net for mistakes."""

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from typing import Any

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import Overloaded, TooLarge
from gateway.guard import FAULTS, is_fault
from gateway.http.errors import PROBLEMS, ProblemKind, problem_reply
from gateway.runtime.app import Gateway

REQUEST_ID = b"x-request-id"
"""Names one request in answers and log lines, here and where it is passed on to."""
_PLAIN_ID = re.compile(rb"[\w.:/+=@-]{1,128}")
_QUIET = ("/healthz", "/livez", "/health", "/readyz", "/ready", "/metrics")
_CLIENT_LEFT = 499
_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
_NO_STORE = (b"cache-control", b"no-store")

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Edge:
    """Wraps the application; pure ASGI, because anything else would buffer streams."""

    def __init__(self, app: ASGIApp, *, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway
        self._bodies = 0
        """Bytes of the request bodies under way."""

    def _weigh(self, size: int) -> None:
        most = int(self._gateway.settings.api.body_memory)
        if size > 0 and self._bodies and self._bodies + size > most:
            raise Overloaded(f"the request bodies under way take {most} bytes already; try again later")
        self._bodies += size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = _request_id(scope)
        head = scope["method"] == "HEAD"
        state = {**scope.get("state", {}), "head": head}
        # A HEAD is answered as a GET is, without the body; a request without an id is passed on with the one it got.
        scope = {
            **scope,
            "method": "GET" if head else scope["method"],
            "headers": [*((n, v) for n, v in scope["headers"] if n != REQUEST_ID), (REQUEST_ID, request_id)],
            "state": state,
        }
        with structlog.contextvars.bound_contextvars(request_id=request_id.decode()):
            await self._answer(scope, receive, send, state, began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, state: dict[str, Any], began: float) -> None:
        mistake: BaseException | None = None
        limited = _Limited(receive, scope, limit=int(self._gateway.settings.api.max_body), weigh=self._weigh)
        patience = self._gateway.tuning.answer
        deadline = asyncio.timeout(patience)
        outgoing = _Outgoing(send, deadline, request_id=dict(scope["headers"])[REQUEST_ID], head=state["head"])
        try:
            async with deadline:
                try:
                    await self._app(scope, limited.receive, outgoing.send)
                finally:
                    outgoing.deadline = None
        except ClientDisconnect:
            outgoing.status = _CLIENT_LEFT
        except TimeoutError:
            state["problem"] = PROBLEMS["overloaded"]
            late = Overloaded(f"nothing came of it within {patience:g} s; it may still be done")
            await problem_reply(late).response()(scope, receive, outgoing.send)
        # This is the edge: what nobody foresaw is told as a 500 without details and logged once, below.
        except BaseException as exc:
            if not is_fault(exc):
                raise
            FAULTS.count("http")
            mistake = exc
            if outgoing.status is None:
                await problem_reply(exc).response()(scope, receive, outgoing.send)
        finally:
            limited.let_go()
        _write_line(scope, status=outgoing.status, problem=state.get("problem"), began=began, mistake=mistake)


class _Outgoing:
    """Notes the status and adds the headers that all responses have; an answer that has begun may take its time."""

    def __init__(self, send: Send, deadline: asyncio.Timeout, *, request_id: bytes, head: bool) -> None:
        self._send = send
        self._request_id = request_id
        self._head = head
        self.deadline: asyncio.Timeout | None = deadline
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.deadline is not None:
                self.deadline.reschedule(None)
            headers = [*message.get("headers", ()), *_HEADERS, (REQUEST_ID, self._request_id)]
            if all(name != b"cache-control" for name, _ in headers):
                headers.append(_NO_STORE)
            message = {**message, "headers": headers}
        elif self._head and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)


class _Limited:
    """Counts the body while it arrives, whether its length was announced or not."""

    def __init__(self, receive: Receive, scope: Scope, *, limit: int, weigh: Callable[[int], None]) -> None:
        self._receive = receive
        self._limit = limit
        self._weigh = weigh
        self._seen = 0
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        self._announced = int(announced) if announced.isdigit() else 0

    async def receive(self) -> Message:
        if self._announced > self._limit:
            raise TooLarge(f"the body has {self._announced} bytes; at most {self._limit} are allowed")
        message = await self._receive()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self._weigh(size)
            self._seen += size
            if self._seen > self._limit:
                raise TooLarge(f"the body is larger than the {self._limit} bytes that are allowed")
        return message

    def let_go(self) -> None:
        """The body is needed no more."""
        self._weigh(-self._seen)
        self._seen = 0


def _request_id(scope: Scope) -> bytes:
    """Take the caller's id of a request where it is a plain one, else make one."""
    given = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
    return given if _PLAIN_ID.fullmatch(given) else secrets.token_hex(8).encode()


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
    elif path in _QUIET or path.endswith("/events/stream"):
        log.debug("request served", **facts)
    else:
        log.info("request served", **facts)

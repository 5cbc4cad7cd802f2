"""The outermost layer of every request: limits of size and time, headers, one log line, the last net for mistakes."""

import asyncio
import random
import re
import time
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
_CLIENT_LEFT = 499
HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
NO_STORE = (b"cache-control", b"no-store")

# Ids need only differ; asking the system for each would cost more than the rest of it.
_jitter = random.Random()  # noqa: S311

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Edge:
    """Wraps the application; pure ASGI, because anything else would buffer streams."""

    def __init__(self, app: ASGIApp, *, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway
        self._bodies = 0
        """Bytes of the request bodies under way."""

    def weigh(self, size: int) -> None:
        """Count bytes of bodies that came, or are needed no more.

        Raises:
            Overloaded: these would be too many.
        """
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
        state: dict[str, Any] = {**scope.get("state", {}), "head": head}
        # A HEAD is answered as a GET is, without the body; a request without an id is passed on with the one it got.
        headers = [*(one for one in scope["headers"] if one[0] != REQUEST_ID), (REQUEST_ID, request_id)]
        scope = {**scope, "method": "GET" if head else scope["method"], "headers": headers, "state": state}
        # Nothing takes it back: the server begins a task, and with it a context, for each request.
        structlog.contextvars.bind_contextvars(request_id=request_id.decode())
        patience, mistake = self._gateway.tuning.answer, None
        deadline = asyncio.timeout(patience)
        exchange = _Exchange(self, scope, receive, send, deadline, limit=int(self._gateway.settings.api.max_body))
        try:
            async with deadline:
                try:
                    await self._app(scope, exchange.receive, exchange.send)
                finally:
                    exchange.deadline = None
        except ClientDisconnect:
            exchange.status = _CLIENT_LEFT
        # This is the edge: what nobody foresaw is told as a 500 without details and logged once, below.
        except BaseException as exc:
            if not is_fault(exc):
                raise
            if isinstance(exc, TimeoutError) and deadline.expired():
                state["problem"] = PROBLEMS["overloaded"]
                exc = Overloaded(f"nothing came of it within {patience:g} s; it may still be done")
            else:
                FAULTS.count("http")
                mistake = exc
            if exchange.status is None:
                await problem_reply(exc)(scope, receive, exchange.send)
        finally:
            exchange.let_go()
        _write_line(scope, status=exchange.status, problem=state.get("problem"), began=began, mistake=mistake)


class _Exchange:
    """One request and its answer: counts the body while it arrives, notes the status, adds the headers of all."""

    def __init__(
        self, edge: Edge, scope: Scope, receive: Receive, send: Send, deadline: asyncio.Timeout, *, limit: int
    ) -> None:
        self._edge = edge
        self._scope = scope
        self._receive = receive
        self._send = send
        self._limit = limit
        self._seen = 0
        self.deadline: asyncio.Timeout | None = deadline
        """Ended by the answer's beginning, which may then take its time."""
        self.status: int | None = None

    async def receive(self) -> Message:
        if not self._seen:
            announced = next((value for name, value in self._scope["headers"] if name == b"content-length"), b"")
            if announced.isdigit() and int(announced) > self._limit:
                raise TooLarge(f"the body has {int(announced)} bytes; at most {self._limit} are allowed")
        message = await self._receive()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self._edge.weigh(size)
            self._seen += size
            if self._seen > self._limit:
                raise TooLarge(f"the body is larger than the {self._limit} bytes that are allowed")
        return message

    def let_go(self) -> None:
        """The body is needed no more."""
        if self._seen:
            self._edge.weigh(-self._seen)
            self._seen = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.deadline is not None:
                self.deadline.reschedule(None)
            headers = [*message.get("headers", ()), *HEADERS, self._scope["headers"][-1]]
            if b"cache-control" not in dict(headers):
                headers.append(NO_STORE)
            message = {**message, "headers": headers}
        elif self._scope["state"]["head"] and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)


def _request_id(scope: Scope) -> bytes:
    """Take the caller's id of a request where it is a plain one, else make one."""
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

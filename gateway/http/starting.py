"""Answers requests while the gateway starts: alive from the first second, and ready when it is open."""

from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.errors import Refused, problem_reply
from gateway.http.prefix import local_path
from gateway.http.reply import Reply

_ALIVE = frozenset({"/healthz", "/livez", "/health"})
_READY = frozenset({"/readyz", "/ready"})
_ROOTS = frozenset(path.strip("/") for path in _ALIVE | _READY)


class StartingApp:
    """The application of a server; it passes requests on to `app` once there is one."""

    def __init__(self, prefix: str) -> None:
        """Start without an application; `prefix` is the path of `public_url`."""
        self.app: Any = None
        self._prefix = prefix
        self._step = "opening the store"
        self._percent = 0

    def report(self, step: str, share: float) -> None:
        """Take the current step of the start and its completed share."""
        self._step, self._percent = step, round(share * 100)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
            return
        path = local_path(scope["path"], self._prefix, _ROOTS)
        said = f"{self._step}, {self._percent} %"
        response: ASGIApp
        if path in _ALIVE:
            response = Reply({"status": "ok"})
        elif path in _READY:
            body: dict[str, Any] = {
                "ready": False,
                "checks": {"start": said},
                "instance_id": None,
                "sessions": 0,
                "failing": [],
            }
            response = Reply(body, 503)
        else:
            response = problem_reply(Refused("starting", "the gateway is starting"))
        await response(scope, receive, send)

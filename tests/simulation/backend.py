"""The backend of the world: it does work, or not, and answers, or not."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulation.network import Network
from tests.simulation.servers import HttpConn

MANNERS = {
    "ok": 30, "fail": 3, "accept": 6, "early": 1, "busy": 2, "error": 2, "before": 3, "after": 3, "hang": 2,
    "unreadable": 2, "cut": 2, "refuse": 1, "broken": 2,
}  # fmt: skip
"""The ways to treat a request, with their weights."""


READABLE = frozenset({"ok", "fail", "refuse"})
"""Those that end a call."""


@dataclass(slots=True)
class Request:
    """One request that arrived."""

    key: str
    kind: str
    attempt: int
    data: dict[str, Any]
    manner: str
    at: float
    answered_at: float | None = None
    """When a readable answer was written to a connection that was open."""


@dataclass(slots=True)
class Work:
    """What the backend knows of one key."""

    requests: list[Request] = field(default_factory=list[Request])
    nonces: list[str] = field(default_factory=list[str])
    """One for each time that the work was done."""
    sent: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The outcomes that it sent, as answers and as callbacks."""


class Backend:
    """One webhook endpoint."""

    def __init__(self, net: Network, random: Random, port: int, call_back: Callable[[str, bytes, int], None]) -> None:
        self._net, self._random, self._port = net, random, port
        self._call_back = call_back
        self.work: dict[str, Work] = {}
        self.canceled: dict[str, None] = {}
        self.kind = False
        """Whether it answers everything at once, as at the end of a run."""
        self.on_request: Callable[[Request], None] = lambda _: None
        self.start()

    def start(self) -> None:
        self._net.listeners[self._port] = lambda: HttpConn(self._take)

    def stop(self) -> None:
        self._net.listeners.pop(self._port, None)

    def _take(self, conn: HttpConn, url: str, headers: dict[str, str], body: bytes) -> None:
        del url
        content = json.loads(body)
        if content["type"] != "tool.requested":
            if content["type"] == "tool.canceled":
                self.canceled[content["data"]["call_id"]] = None
                conn.respond(204)
            else:
                conn.respond(200, b'{"outcome":"success"}')
            return
        manner = "ok" if self.kind else self._random.choices([*MANNERS], [*MANNERS.values()])[0]
        key = headers["webhook-id"]
        request = Request(
            key, content["type"], int(headers["dragoman-attempt"]), content["data"], manner, self._net.loop.now
        )
        work = self.work.setdefault(key, Work())
        work.requests.append(request)
        self.on_request(request)
        seconds = self._random.choice((0.0, 0.0, 0.01, 0.1, 1.0, 5.0)) * self._random.random()
        self._net.call_at(
            self._net.loop.now + (0.0 if self.kind else seconds), lambda: self._treat(conn, request, work)
        )

    def _treat(self, conn: HttpConn, request: Request, work: Work) -> None:
        if request.manner in READABLE and not conn.over:
            request.answered_at = self._net.loop.now
        match request.manner:
            case "ok":
                conn.respond(200, self._do(request, work))
            case "fail":
                outcome = {"outcome": "failure", "error": "the tool failed"}
                work.sent.append(outcome)
                conn.respond(200, json.dumps(outcome).encode())
            case "accept" | "early":
                if request.manner == "early":
                    self._promise(request, work, 0.0)
                conn.respond(202)
                if request.manner == "accept":
                    self._promise(request, work, 30 * self._random.random() ** 3)
            case "busy":
                conn.respond(503, b"{}", retry_after="1")
            case "error":
                conn.respond(500, b"{}")
            case "refuse":
                conn.respond(404, b'{"detail":"no such tool"}')
            case "before":
                conn.reset()
            case "after":
                self._do(request, work)
                conn.reset()
            case "cut":
                answer = self._do(request, work)
                conn.send(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n" + answer[:9]
                )
                conn.reset()
            case "unreadable" | "broken":
                self._do(request, work)
                # A proxy in front of it fails after the work.
                status = 200 if request.manner == "unreadable" else self._random.choice((408, 500, 502, 503, 504))
                conn.respond(status, b"<html>", content_type="text/html")
            case _:
                pass

    def _do(self, request: Request, work: Work) -> bytes:
        """Do the work once more; return the outcome."""
        nonce = f"{request.key}/{len(work.nonces)}"
        work.nonces.append(nonce)
        outcome = {"outcome": "success", "result": {"nonce": nonce}}
        work.sent.append(outcome)
        return json.dumps(outcome).encode()

    def _promise(self, request: Request, work: Work, seconds: float) -> None:
        url = request.data["callback_url"]
        if url is None or (not self.kind and self._random.random() < 0.2):
            return

        def post() -> None:
            self._call_back(url, self._do(request, work), 0)

        self._net.call_at(self._net.loop.now + seconds, post)

"""The backend of the world: it does work, or not, and answers, or not."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulation.loop import Process
from tests.simulation.network import Network
from tests.simulation.servers import HttpConn

MANNERS = {
    "ok": 30, "fail": 3, "accept": 6, "early": 1, "busy": 2, "error": 2, "before": 3, "after": 3, "hang": 2,
    "unreadable": 2, "cut": 2, "refuse": 1, "broken": 2, "late": 2,
}  # fmt: skip
"""The ways to treat a request, with their weights."""


READABLE = frozenset({"ok", "fail", "refuse"})
"""Those that end a call."""


UNSURE = frozenset({"error", "before", "after", "hang", "unreadable", "cut", "broken", "late"})
"""Those after which the work may have been done, as far as a client can tell."""


def failed_in(attempt: int) -> str:
    """Return the error of an attempt whose tool fails."""
    return f"the tool failed in attempt {attempt}"


@dataclass(slots=True)
class Request:
    """One request that arrived."""

    key: str
    path: str
    attempt: int
    data: dict[str, Any]
    manner: str
    at: float
    answered_at: float | None = None
    """When a readable answer was written to a connection that was open."""
    pause: tuple[float, float] | None = None
    """When the backend has asked not to get the call again, and until when."""


@dataclass(slots=True)
class Callback:
    """An outcome that was sent to a callback URL."""

    call_id: str
    outcome: dict[str, Any]
    status: int | None = None
    """The final response, if there was one."""


@dataclass(slots=True)
class Work:
    """What the backend knows of one call."""

    requests: list[Request] = field(default_factory=list[Request])
    nonces: list[str] = field(default_factory=list[str])
    """One for each time that the work was done."""
    sent: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The outcomes that it sent, as answers and as callbacks."""


def _ignore(*_: object) -> None:
    """Take something that nobody judges."""


class Backend:
    """One webhook endpoint."""

    def __init__(
        self,
        net: Network,
        random: Random,
        port: int,
        call_back: Callable[[str, str, dict[str, Any]], None],
        *,
        limit: float,
        repeats: bool,
    ) -> None:
        """Listen; `call_back` posts an outcome, an attempt ends by its `limit`.

        With `repeats`, an accepted call comes again while its last attempt runs.
        """
        self._net, self._random, self._port = net, random, port
        self._call_back = call_back
        slow = random.choice((5.0, 1.5 * limit))
        usual = (0.0, 0.0, 0.01, 0.1, 1.0, slow)
        self._delays = (0.1, limit, limit) if repeats else random.choice((usual, usual, (0.1, slow, slow)))
        # Some backends mostly answer later, others are mostly busy.
        self._manners = {name: MANNERS[name] * random.choice((0.3, 1, 1, 4)) for name in MANNERS}
        if repeats:
            self._manners |= {"accept": 30.0, "fail": 10.0}
        self.work: dict[str, Work] = {}
        self.messages: list[tuple[str, str]] = []
        """The key of each message that arrived, and the executor that it was sent to."""
        self.canceled: dict[str, None] = {}
        self.kind = False
        """Whether it answers everything at once, as at the end of a run."""
        self.on_request: Callable[[Request, Process | None, Any], None] = _ignore
        """Takes each request, the process that sent it, and the stamp of the network on its last byte."""
        self.on_progress: Callable[[Request], None] = _ignore
        """Posts a report of progress."""
        self.on_accept: Callable[[Request], None] = _ignore
        """Takes each request that was accepted."""
        self.on_answer: Callable[[Request, str], None] = _ignore
        """Takes each request whose outcome was written to an open connection, and the kind of the outcome."""
        self.start()

    def start(self) -> None:
        self._net.listeners[self._port] = lambda: HttpConn(self._take)

    def stop(self) -> None:
        self._net.listeners.pop(self._port, None)

    def _take(self, conn: HttpConn, url: str, headers: dict[str, str], body: bytes) -> None:
        content = json.loads(body)
        if content["type"] != "tool.requested":
            if content["type"] == "tool.canceled":
                self._stop(content["data"]["call_id"])
                conn.respond(204)
            else:
                if content["type"] == "message.posted":
                    self.messages.append((headers["webhook-id"], url.rpartition("/")[2]))
                # A message is sometimes confirmed when its agent hardly waits any more.
                seconds = 0.0 if self.kind else self._random.choice((0.0, 0.1, 5.0, 25.0)) * self._random.random()
                self._net.call_at(self._net.loop.now + seconds, lambda: conn.respond(200, b'{"outcome":"success"}'))
            return
        manner = "ok" if self.kind else self._random.choices([*self._manners], [*self._manners.values()])[0]
        key = headers["webhook-id"]
        request = Request(key, url, int(headers["dragoman-attempt"]), content["data"], manner, self._net.loop.now)
        work = self.work.setdefault(request.data["call_id"], Work())
        work.requests.append(request)
        self.on_request(request, conn.wire.owner, conn.wire.to_server.stamp)
        seconds = self._random.choice(self._delays) * self._random.random()
        self._net.call_at(
            self._net.loop.now + (0.0 if self.kind else seconds), lambda: self._treat(conn, request, work)
        )

    def _treat(self, conn: HttpConn, request: Request, work: Work) -> None:
        self._note_answer(conn, request)
        match request.manner:
            case "ok":
                conn.respond(200, self._do(request, work))
            case "fail":
                outcome = {"outcome": "failure", "error": failed_in(request.attempt)}
                work.sent.append(outcome)
                conn.respond(200, json.dumps(outcome).encode())
            case "early":
                self._promise(request, work, 0.0)
                conn.respond(202)
            case "accept" | "late":
                if request.manner == "accept":
                    conn.respond(202)
                    self.on_accept(request)
                    self._report(request, self._random.choice((0, 0, 1, 6)))
                # After no response the work goes on, too.
                self._promise(request, work, self._later())
            case "busy":
                self._delay(conn, request)
            case "error":
                conn.respond(500, b"{}")
            case "refuse":
                conn.respond(404, b'{"detail":"no such tool"}')
            case "before" | "after":
                if request.manner == "after":
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

    def _delay(self, conn: HttpConn, request: Request) -> None:
        """Ask for the call later."""
        seconds = self._random.choice((1, 1, 5))
        if not conn.over:
            request.pause = self._net.loop.now, self._net.loop.now + seconds
        conn.respond(self._random.choice((425, 429, 503)), b"{}", retry_after=str(seconds))

    def _note_answer(self, conn: HttpConn, request: Request) -> None:
        if request.manner not in READABLE or conn.over:
            return
        request.answered_at = self._net.loop.now
        # A repeat that is refused leaves its accepted call as it is.
        if request.manner != "refuse":
            self.on_answer(request, "success" if request.manner == "ok" else "failure")

    def _do(self, request: Request, work: Work) -> bytes:
        """Do the work once more; return the outcome."""
        return json.dumps(self._done(request, work)).encode()

    def _done(self, request: Request, work: Work) -> dict[str, Any]:
        nonce = f"{request.data['call_id']}/{len(work.nonces)}"
        work.nonces.append(nonce)
        outcome = {"outcome": "success", "result": {"nonce": nonce}}
        work.sent.append(outcome)
        return outcome

    def _later(self) -> float:
        """Draw when an outcome comes by callback: soon, after the attempt, or when the call has ended long ago."""
        chance, longest = self._random.random(), self._random.choice((6, 30, 90))
        return longest * (chance**3 if longest == 30 else chance)

    def _report(self, request: Request, times: int) -> None:
        """Report progress, now and then."""
        if times and not self.kind and request.data["progress_url"] is not None:
            self.on_progress(request)
            seconds = 9 * self._random.random()
            self._net.call_at(self._net.loop.now + seconds, lambda: self._report(request, times - 1))

    def _promise(self, request: Request, work: Work, seconds: float) -> None:
        if request.data["callback_url"] is None or (not self.kind and self._random.random() < 0.2):
            return
        fails = not self.kind and self._random.random() < 0.2

        def post() -> None:
            if fails:
                outcome = {"outcome": "failure", "error": f"the work of attempt {request.attempt} failed later"}
                work.sent.append(outcome)
            else:
                outcome = self._done(request, work)
            self._call_back(request.data["callback_url"], request.data["call_id"], outcome)

        self._net.call_at(self._net.loop.now + seconds, post)

    def _stop(self, call_id: str) -> None:
        """Take a cancel: the work may stop and say so, soon or late, or go on."""
        self.canceled[call_id] = None
        work = self.work.get(call_id)
        if work is None or self.kind or self._random.random() < 0.7:
            return
        request = work.requests[-1]

        def post() -> None:
            outcome = {"outcome": "canceled", "error": f"the work of attempt {request.attempt} stopped"}
            work.sent.append(outcome)
            self._call_back(request.data["callback_url"], call_id, outcome)

        if request.data["callback_url"] is not None:
            seconds = self._random.choice((0.1, 3.0, 20.0)) * self._random.random()
            self._net.call_at(self._net.loop.now + seconds, post)

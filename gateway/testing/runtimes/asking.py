"""Lets a simulated agent ask a human on request, and reports the answer."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

PATIENCE = 600.0
"""The time in seconds for which the agent waits for its answer; longer than a gateway's timeout."""
TEXT_LIMIT = 8_000
MOST_OPEN = 100
"""The number of requests that may wait at once."""


@dataclass(frozen=True, slots=True)
class Way:
    """One kind of request: its default text, and a function that asks and describes the answer."""

    usual: str
    ask: Callable[[str], Coroutine[Any, Any, str]]


class Busy(Exception):
    """The agent cannot ask now; the text is the reason."""


class Asking:
    """`POST /simulator/ask/{what}` with the text as body; it needs no key, and responds before the human answers."""

    def __init__(self, ways: Mapping[str, Way], *, check: Callable[[], object]) -> None:
        self.tell: Callable[[str], None] = _ignore
        """Receives a line for each request and each answer."""
        self.ways = ways
        self._check = check
        self._tasks: set[asyncio.Task[None]] = set()

    def add_page(self, app: FastAPI) -> None:
        """Add the route."""
        app.add_api_route("/simulator/ask/{what}", self._order, methods=["POST"])

    def stop(self) -> None:
        """Cancel all waiting requests without an answer."""
        for task in self._tasks:
            task.cancel()

    async def _order(self, what: str, request: Request) -> JSONResponse:
        """Let the agent ask, for use with curl."""
        way = self.ways.get(what)
        if way is None:
            message = f"the agent cannot ask for {what[:64]!r}; available: {', '.join(self.ways)}"
            return JSONResponse({"message": message}, 404)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > TEXT_LIMIT:
                return JSONResponse({"message": f"a text has at most {TEXT_LIMIT} bytes"}, 413)
        if len(self._tasks) >= MOST_OPEN:
            return JSONResponse({"message": f"{MOST_OPEN} requests are waiting already"}, 409)
        try:
            self._check()
        except Busy as exc:
            return JSONResponse({"message": str(exc)}, 409)
        text = body.decode(errors="replace").strip() or way.usual
        task = asyncio.create_task(self._ask(what, way, text))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return JSONResponse({"asked": what, "text": text}, 202)

    async def _ask(self, what: str, way: Way, text: str) -> None:
        self.tell(f"→ ask {what}: {text}" if text else f"→ ask {what}")
        try:
            answer = await way.ask(text)
        except (TimeoutError, Busy) as exc:
            answer = f"no answer: {exc}"
        self.tell(f"← {answer}")


def _ignore(_line: str) -> None:
    """Drop the line."""

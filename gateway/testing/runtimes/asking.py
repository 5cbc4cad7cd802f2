"""Lets a simulated agent ask a person by one line of curl, and tells what it was answered."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

PATIENCE = 600.0
"""How long the agent waits for its answer: longer than a gateway asks people."""
TEXT_LIMIT = 8_000
MOST_OPEN = 100
"""Questions that wait at once."""


@dataclass(frozen=True, slots=True)
class Way:
    """One thing that an agent can ask: what it asks where no text is given, and how; that tells what it heard."""

    usual: str
    ask: Callable[[str], Coroutine[Any, Any, str]]


class Busy(Exception):
    """The agent cannot ask now; the text says why."""


class Asking:
    """`POST /simulator/ask/{what}`, whose body is the text; it wants no key, and answers before the person does."""

    def __init__(self, ways: Mapping[str, Way], *, check: Callable[[], object]) -> None:
        self.tell: Callable[[str], None] = _nobody_listens
        """Is told what the agent asks and hears, a line each."""
        self.ways = ways
        self._check = check
        self._tasks: set[asyncio.Task[None]] = set()

    def add_page(self, app: FastAPI) -> None:
        """Serve the page."""
        app.add_api_route("/simulator/ask/{what}", self._order, methods=["POST"])

    def stop(self) -> None:
        """Ask no more; what is open stays so."""
        for task in self._tasks:
            task.cancel()

    async def _order(self, what: str, request: Request) -> JSONResponse:
        """For people with curl: let the agent ask."""
        way = self.ways.get(what)
        if way is None:
            return JSONResponse({"message": f"it asks for {', '.join(self.ways)}; not for {what[:64]!r}"}, 404)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > TEXT_LIMIT:
                return JSONResponse({"message": f"a text has at most {TEXT_LIMIT} bytes"}, 413)
        if len(self._tasks) >= MOST_OPEN:
            return JSONResponse({"message": f"{MOST_OPEN} questions wait already"}, 409)
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
        self.tell(f"asks   {what}: {text}" if text else f"asks   {what}")
        try:
            heard = await way.ask(text)
        except (TimeoutError, Busy) as exc:
            heard = f"nothing: {exc}"
        self.tell(f"hears  {heard}")


def _nobody_listens(_line: str) -> None:
    """Drop the line."""

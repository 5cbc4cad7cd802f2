"""A backend that writes down every request, and answers as the tool's name says, at once or when it is let."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from standardwebhooks import Webhook

from gateway.testing.change import PATIENCE, Change
from tests.faults.judge import new_nonce

SECRET = "whsec_ZmF1bHRzIG5lZWQgYSBzZWNyZXQgYXMgd2VsbA=="


@dataclass(frozen=True, slots=True)
class Seen:
    """One verified request."""

    key: str
    kind: str
    attempt: int
    content: dict[str, Any]
    answers: list[str] = field(default_factory=list[str])
    """What it was answered, at once or later, as JSON."""

    @property
    def tool(self) -> str | None:
        return self.content.get("tool")

    def success(self) -> dict[str, Any]:
        """Make an answer of its own to it: with an update, and with a nonce that no other answer has."""
        arguments = self.content["arguments"]
        update = {"name": "board", "context": {"board": arguments}, "description": "The board has changed."}
        result = {"did": arguments, "answer": new_nonce()}
        return self.answer({"outcome": "success", "result": result, "updates": [update]})

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Write down what it is answered."""
        self.answers.append(json.dumps(body))
        return body


class RecordingBackend:
    """`again` and `once` succeed with an update, `later` promises, messages are delivered, copies are taken."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.changed = Change()
        self.gates = {page: asyncio.Event() for page in ("tools", "messages", "events")}
        """Answers of a page wait for its gate; all are open unless a test closes them."""
        self.open()
        self.on_request: Callable[[Seen], None] = lambda _: None
        """Called as soon as a request has been read, before it is answered."""
        self._webhook = Webhook(SECRET)
        self.app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        self.app.add_api_route("/{page}", self._take, methods=["POST"])

    def open(self) -> None:
        """Open all gates."""
        for gate in self.gates.values():
            gate.set()

    def close(self, page: str) -> None:
        """Hold the answers of a page back."""
        self.gates[page].clear()

    async def wait(self, look: Callable[[Seen], bool], *, count: int = 1, within: float = PATIENCE) -> list[Seen]:
        """Wait for requests that fit."""

        def found() -> list[Seen] | None:
            fitting = [seen for seen in self.seen if look(seen)]
            return fitting if len(fitting) >= count else None

        return await self.changed.until(found, within, what=lambda: f"{count} requests; seen: {self.seen[-5:]}")

    async def _take(self, page: str, request: Request) -> Response:
        content = self._webhook.verify(await request.body(), dict(request.headers))
        attempt = int(request.headers.get("dragoman-attempt", "0"))
        seen = Seen(request.headers["webhook-id"], content["type"], attempt, content["data"])
        self.seen.append(seen)
        self.changed.tell()
        self.on_request(seen)
        await self.gates[page].wait()
        match page, seen.tool:
            case "tools", "later":
                return JSONResponse({}, 202)
            case "tools", _:
                return JSONResponse(seen.success())
            case "messages", _:
                return JSONResponse({"delivered": True})
            case _:
                return Response(status_code=204)

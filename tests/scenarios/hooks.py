"""A backend for scenarios: each tool's answer is a script, each request is verified and remembered."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from standardwebhooks import Webhook

from gateway.testing.change import Change
from gateway.testing.serving import Served
from tests.pace import PATIENCE
from tests.webhook_models import check_webhook

SECRET = "whsec_" + base64.b64encode(b"scenario-secret-canary-0123456789").decode()

# The three forms of a script: the whole body of a 200, a response, or a function that finds one of the two.
Said = dict[str, Any] | Response
Script = Said | Callable[["Asked"], Said | Awaitable[Said]]


@dataclass(frozen=True)
class Asked:
    """One verified request."""

    kind: str
    """`tool.requested`, `tool.canceled`, or the kind of an event."""
    key: str
    attempt: int
    data: dict[str, Any]
    body: bytes
    headers: dict[str, str]
    timestamp: str

    @property
    def name(self) -> str:
        """What scripts are found by: the tool of a call, else the kind."""
        return str(self.data.get("tool", self.kind)) if self.kind == "tool.requested" else self.kind


def success(result: Any = None, **more: Any) -> dict[str, Any]:
    return {"outcome": "success", "result": result, **more}


def update(name: str, **context: Any) -> dict[str, Any]:
    return {"name": name, "context": context, "description": f"{name} happened"}


@dataclass
class Hooks:
    """Serves `/tools`, `/chat` and `/copies/NAME`; every page takes whatever is signed."""

    scripts: dict[str, Script] = field(default_factory=dict[str, Script])
    """By tool or kind; the default is a success that repeats the arguments."""
    asked: list[Asked] = field(default_factory=list[Asked])
    unsigned: int = 0
    strange: list[str] = field(default_factory=list[str])
    """What is wrong with requests that are not as they are described."""
    running: int = 0
    most_running: int = 0
    change: Change = field(default_factory=Change)

    def __post_init__(self) -> None:
        app = FastAPI(openapi_url=None)
        app.add_api_route("/{page:path}", self._take, methods=["POST"])
        self._served = Served(app)

    @property
    def url(self) -> str:
        return self._served.url

    async def __aenter__(self) -> Self:
        await self._served.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._served.stop()
        assert not self.strange, self.strange

    async def wait_for(self, count: int = 1, *, name: str | None = None, within: float = PATIENCE) -> list[Asked]:
        """Wait for requests about a tool or of a kind (all of them by default)."""

        def look() -> list[Asked] | None:
            found = self.of(name)
            return found if len(found) >= count else None

        return await self.change.until(look, within, what=lambda: f"{count} of {name}, {len(self.of(name))} came")

    def of(self, name: str | None) -> list[Asked]:
        return [one for one in self.asked if name is None or one.name == name]

    def check(self, body: bytes) -> None:
        """Hold what came against its model."""
        try:
            check_webhook(body)
        except ValueError as exc:
            self.strange.append(str(exc))

    async def _take(self, request: Request) -> Response:
        body = await request.body()
        headers = {name.lower(): value for name, value in request.headers.items()}
        try:
            Webhook(SECRET).verify(body, headers)
        # The library raises several unrelated kinds for what is no valid signature.
        except Exception:  # noqa: BLE001
            self.unsigned += 1
            return Response(status_code=401)
        said = json.loads(body)
        self.check(body)
        asked = Asked(
            kind=said["type"],
            key=headers["webhook-id"],
            attempt=int(headers.get("dragoman-attempt", "0")),
            data=said["data"],
            body=body,
            headers=headers,
            timestamp=said["timestamp"],
        )
        self.asked.append(asked)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.change.tell()
        try:
            return await self._answer(asked, request.url.path)
        finally:
            self.running -= 1
            self.change.tell()

    async def _answer(self, asked: Asked, page: str) -> Response:
        # A page of copies has one script, since copies are of any kind.
        script = self.scripts.get(page) or self.scripts.get(asked.name)
        if script is None:
            script = success(asked.data["arguments"]) if "arguments" in asked.data else Response()
        said = script(asked) if callable(script) and not isinstance(script, Response) else script
        if isinstance(said, Awaitable):
            said = await said
        return said if isinstance(said, Response) else JSONResponse(said)


class Gate:
    """Holds scripts until the test opens it."""

    def __init__(self) -> None:
        self._open = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    async def wait(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._open.wait()

    def answering(self, said: Said) -> Script:
        async def answer(_asked: Asked) -> Said:
            await self.wait()
            return said

        return answer

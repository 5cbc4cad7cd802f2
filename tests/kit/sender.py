"""The gateway's side of the webhook contract, signed by the library of Standard Webhooks."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request, Response
from standardwebhooks import Webhook

from gateway.testing.serving import Served
from tests.faults.process import Forked
from tests.pace import PATIENCE

SECRET = "whsec_dHdlbnR5LWZvdXItYnl0ZXMtb3ItbW9yZQ=="
RUNS, DIE, STORE = "KIT_RUNS", "KIT_DIE", "KIT_STORE"


def request_of(
    tool: str, arguments: Mapping[str, Any], key: str, *, callback: str | None = None, call_id: str | None = None
) -> dict[str, Any]:
    """Write a `tool.requested`."""
    data = {
        "call_id": call_id or key,
        "native_call_id": "n",
        "session_id": "s",
        "native_session_id": "finn",
        "labels": {},
        "runtime": "finn",
        "protocol": "huma/0.2.0",
        "tool": tool,
        "arguments": dict(arguments),
        "attempt": 1,
        "deadline": (datetime.now(UTC) + timedelta(minutes=2)).isoformat(),
        "callback_url": callback,
        "progress_url": None if callback is None else f"{callback}/progress",
    }
    return {"type": "tool.requested", "timestamp": datetime.now(UTC).isoformat(), "data": data}


class Sender:
    """Posts signed requests to one backend."""

    def __init__(self, url: str, http: httpx.AsyncClient, *, secret: str = SECRET) -> None:
        self.url, self._http = url, http
        self._seal = Webhook(secret)

    async def post(self, body: Any, key: str, *, headers: Mapping[str, str] | None = None) -> httpx.Response:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        now = datetime.now(UTC)
        signed = {
            "webhook-id": key,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._seal.sign(key, now, raw.decode("utf-8", "surrogateescape")),
            "content-type": "application/json",
            **(headers or {}),
        }
        return await self._http.post(f"{self.url}/tools", content=raw, headers=signed)

    async def call(self, tool: str, arguments: Mapping[str, Any], key: str, **more: Any) -> httpx.Response:
        return await self.post(request_of(tool, arguments, key, **more), key)

    async def cancel(self, call_id: str) -> httpx.Response:
        data = {"call_id": call_id, "native_call_id": "n", "session_id": "s", "tool": "t", "reason": None}
        return await self.post({"type": "tool.canceled", "timestamp": "", "data": data}, f"{call_id}.cancel")


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncGenerator[str]:
    """Serve an application in this process."""
    async with app.router.lifespan_context(app), Served(app) as served:
        yield served.url


class Gateway:
    """Where outcomes are called back, and progress is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.statuses: list[int] = []
        """What is answered to the next ones; 200 behind them."""
        self.come = asyncio.Event()
        self.app = FastAPI()
        self.app.post("/{path:path}")(self._take)

    async def _take(self, path: str, request: Request) -> Response:
        status = self.statuses.pop(0) if self.statuses else 200
        self.heard.append((path, await request.json()))
        self.come.set()
        return Response(status_code=status)

    async def hears(self, count: int) -> list[tuple[str, Any]]:
        async with asyncio.timeout(PATIENCE):
            while len(self.heard) < count:
                self.come.clear()
                await self.come.wait()
        return self.heard


class Backend:
    """The backend of `backend.py` as processes that can be killed."""

    def __init__(self, folder: Path, store: str) -> None:
        self.runs = folder / "runs"
        self._log = folder / "backend.log"
        self._env = {RUNS: str(self.runs), STORE: store}

    def ran(self, word: str = "") -> list[str]:
        """List what was run, in order."""
        text = self.runs.read_text("utf-8") if self.runs.exists() else ""
        return [line for line in text.splitlines() if line.startswith(word)]

    @asynccontextmanager
    async def worker(self, die: str = "", **env: str) -> AsyncGenerator[tuple[str, Forked]]:
        """Run one worker on a port of its own."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with self.worker_at(listener, die, **env) as process:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}", process

    @asynccontextmanager
    async def worker_at(self, listener: socket.socket, die: str = "", **env: str) -> AsyncGenerator[Forked]:
        """Run one worker on a socket; connections wait in its backlog while no worker runs."""
        process = Forked(self._log, _serve, listener, {**self._env, DIE: die, **env})
        try:
            yield process
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE):
                await process.wait()


def _serve(listener: socket.socket, env: Mapping[str, str]) -> None:
    os.environ.update(env)
    # A store in memory knows the workers of its application by their command.
    sys.argv[:] = ["backend", env[RUNS]]
    # The application reads the environment when it is imported.
    uvicorn.Server(uvicorn.Config("tests.kit.backend:app", log_level="warning")).run([listener])

"""A backend in a process of its own, which keeps what it was asked in a file and can be killed at any time.

`later` is answered 202 and never called back; asked again under the same key, it is answered with an outcome.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from standardwebhooks import Webhook

from tests.faults.backend import SECRET, Seen
from tests.faults.process import Forked, Process, end
from tests.ports import free_port

_START = 30.0


class MortalBackend:
    """The test's side: one process after the other on one port and one file."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._file = folder / "backend.jsonl"
        self._process: Process | None = None

    async def start(self) -> None:
        """Start a process, and wait until it listens."""
        self._process = Forked(self._file.with_suffix(".log"), _serve, self.port, self._file)
        async with asyncio.timeout(_START):
            while True:
                assert self._process.returncode is None
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    return

    async def kill(self) -> None:
        """End the process as `kill -9` does."""
        if self._process is not None:
            await end(self._process)

    def seen(self) -> list[Seen]:
        """Every request, with its answers, as the processes have written them down."""
        found: list[Seen] = []
        for line in self._file.read_text().splitlines() if self._file.exists() else ():
            kept: dict[str, Any] = json.loads(line)
            if "answer" in kept:
                found[int(kept["number"])].answers.append(str(kept["answer"]))
            else:
                found.append(Seen(**kept))
        return found


def _app(file: Path) -> FastAPI:
    """Make the backend's side: what a killed process has kept is known to the next one."""
    lines = file.read_text().splitlines() if file.exists() else []
    asked = [kept["key"] for line in lines if "key" in (kept := json.loads(line))]
    webhook = Webhook(SECRET)

    def keep(line: dict[str, Any]) -> None:
        with file.open("a") as written:
            written.write(json.dumps(line) + "\n")

    async def take(request: Request) -> JSONResponse:
        content = webhook.verify(await request.body(), dict(request.headers))
        key, attempt = request.headers["webhook-id"], int(request.headers.get("dragoman-attempt", "0"))
        seen, again, number = Seen(key, content["type"], attempt, content["data"]), key in asked, len(asked)
        asked.append(key)
        keep({"key": key, "kind": seen.kind, "attempt": attempt, "content": seen.content})
        if seen.tool == "later" and not again:
            return JSONResponse({}, 202)
        if seen.kind != "tool.requested":
            return JSONResponse({})
        body = seen.success()
        keep({"number": number, "answer": seen.answers[0]})
        return JSONResponse(body)

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_api_route("/tools", take, methods=["POST"])
    return app


def _serve(port: int, file: Path) -> None:
    uvicorn.run(_app(file), host="127.0.0.1", port=port, log_level="warning")

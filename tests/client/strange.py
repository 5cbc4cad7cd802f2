"""A server on a raw socket that answers what it is told to, whatever is asked."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tests.pace import PATIENCE

Serve = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Writes what is more than an answer at once; the connection is closed behind it."""
Answer = bytes | Serve


@dataclass
class Asked:
    """One request that came in."""

    line: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.line.split(" ")[1].partition("?")[0]


def answer(body: bytes | str | Any, status: str = "200 OK", *, kind: str = "application/json", **headers: str) -> bytes:
    """Write a whole answer."""
    match body:
        case bytes():
            raw = body
        case str():
            raw = body.encode()
        case _:
            raw = json.dumps(body).encode()
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(raw)}\r\n{more}connection: close\r\n\r\n"
    return head.encode() + raw


def problem(status: str, name: str, detail: str = "no", **headers: str) -> bytes:
    """Write a problem as a gateway does."""
    body = {"type": f"/problems/{name}", "title": name, "status": int(status[:3]), "detail": detail}
    return answer(body, status, kind="application/problem+json", **headers)


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@dataclass
class StrangeServer:
    """Gives each path its answers, one after the other, and the last one for ever."""

    answers: dict[str, list[Answer]] = field(default_factory=dict[str, list[Answer]])
    asked: list[Asked] = field(default_factory=list[Asked])
    url: str = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def told(self, path: str) -> list[Asked]:
        return [one for one in self.asked if one.path == path]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A client goes when it likes.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            try:
                line, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in rest)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.asked.append(Asked(line, headers, body))
                given = self.answers.get(self.asked[-1].path, self.answers.get("", []))
                one = given.pop(0) if len(given) > 1 else given[0]
                if isinstance(one, bytes):
                    writer.write(one)
                    await writer.drain()
                else:
                    await one(writer)
            finally:
                writer.close()


def sse(sequence: int | None, kind: str, data: Any) -> bytes:
    """Write one event of a stream."""
    number = b"" if sequence is None else b"id: %d\n" % sequence
    return b"%sevent: %s\ndata: %s\n\n" % (number, kind.encode(), json.dumps(data).encode())


def envelope(sequence: int, event: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Write the envelope of a hint, as a gateway shows it."""
    return {
        "event_id": f"event-{sequence}",
        "session_id": "s",
        "sequence": sequence,
        "recorded_at": "2026-11-23T01:00:00+00:00",
        "direction": "to_runtime",
        "origin": None,
        "caused_by": None,
        "losses": [],
        "event": event or {"kind": "turn.steered", "text": f"{sequence}"},
        **more,
    }


def session(last: int, state: str = "idle", **more: Any) -> dict[str, Any]:
    """Write a session, as a gateway shows it."""
    return {
        "session_id": "s",
        "runtime": "finn",
        "protocol": "huma/0.2.0",
        "native_id": "agent-7",
        "state": state,
        "labels": {},
        "first_sequence": 1,
        "last_sequence": last,
        "opened_at": "2026-11-23T01:00:00+00:00",
        "updated_at": "2026-11-23T01:00:00+00:00",
        "owner": None,
        **more,
    }


async def collect(items: AsyncIterator[Any], count: int, *, within: float = PATIENCE) -> list[Any]:
    """Take so many items."""
    found: list[Any] = []
    async with asyncio.timeout(within):
        while len(found) < count:
            found.append(await anext(items))
    return found

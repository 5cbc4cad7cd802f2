"""Who else is about while calls are made: a destination of copies, a follower of the events, a reader of the API."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.bench.processes import BenchProblem, Peers
from tests.bench.subjects import ROUTES, SECRET, Subject

_EVERY = 1.0


def destination(peers: Peers) -> dict[str, Any]:
    """Write the settings of one that is told every outcome."""
    return {
        "destinations": {"log": {"url": peers.copies, "secret": SECRET, "concurrency": 64}},
        "routes": [*ROUTES, {"match": {"event": "tool.finished"}, "copy_to": ["log"]}],
    }


@asynccontextmanager
async def watched(subject: Subject) -> AsyncGenerator[None]:
    """Follow the first session of a gateway, and ask its API a question a second, for as long as the block lasts."""
    async with httpx.AsyncClient(base_url=subject.url, trust_env=False, timeout=30) as http:
        session = (await http.get("/v1/sessions", params={"limit": 1})).json()["data"][0]["session_id"]
        path = f"/v1/sessions/{session}"
        watching = [
            asyncio.create_task(_follow(subject, f"{path}/events/stream")),
            asyncio.create_task(_ask(http, path)),
        ]
        try:
            yield
        finally:
            for task in watching:
                # One that has ended is one that has failed.
                failed = task.done() and task.exception()
                task.cancel()
                if failed:
                    raise BenchProblem("a watcher of the gateway has failed") from failed


async def _follow(subject: Subject, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(subject.url).port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
        while await reader.read(2**20):
            pass
        raise BenchProblem("the stream has ended")
    finally:
        writer.close()


async def _ask(http: httpx.AsyncClient, path: str) -> None:
    """Ask for a session, its newest events, since the oldest of very many are removed, and the newest calls."""
    newest = 0
    for kind in cycle(("session", "events", "calls")):
        match kind:
            case "session":
                newest = (await _get(http, path))["last_sequence"]
            case "events":
                await _get(http, f"{path}/events?limit=100&after={max(0, newest - 100)}")
            case _:
                await _get(http, "/v1/calls?limit=100")
        await asyncio.sleep(_EVERY)


async def _get(http: httpx.AsyncClient, path: str) -> dict[str, Any]:
    return (await http.get(path)).raise_for_status().json()

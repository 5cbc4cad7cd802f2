"""The event stream that people would write by hand: one asyncio.Queue for each follower, over a StreamingResponse."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import orjson
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from tests.bench.followers import KIND

_followers: set[asyncio.Queue[bytes]] = set()


async def follow(_request: Request) -> StreamingResponse:
    """Follow everything that is posted."""
    return StreamingResponse(_stream(), media_type="text/event-stream")


async def post(request: Request) -> dict[str, int]:
    """Give every follower every event; each is encoded once, as the gateway does it."""
    events: list[dict[str, Any]] = orjson.loads(await request.body())["events"]
    for number, event in enumerate(events):
        frame = b"id: %d\nevent: %b\ndata: %b\n\n" % (number, KIND.encode(), orjson.dumps(_envelope(number, event)))
        for queue in _followers:
            queue.put_nowait(frame)
    return {"taken": len(events)}


async def _stream() -> AsyncGenerator[bytes]:
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    _followers.add(queue)
    try:
        yield b": heartbeat\n"
        while True:
            yield await queue.get()
    finally:
        _followers.discard(queue)


def _envelope(number: int, event: dict[str, Any]) -> dict[str, Any]:
    return {
        "event_id": f"0190a0b0-0000-7000-8000-{number:012d}",
        "session_id": "b2c5bd4e-7d9d-5a34-8f0e-000000000000",
        "sequence": number,
        "recorded_at": datetime.now(UTC),
        "direction": "to_runtime",
        "origin": None,
        "caused_by": None,
        "losses": [],
        "event": event,
    }


def main(port: int) -> None:
    """Serve until told to stop."""
    app = FastAPI()
    app.add_api_route("/stream", follow, response_model=None)
    app.add_api_route("/events", post, methods=["POST"])
    uvicorn.run(app, port=port, loop="uvloop", http="httptools", log_level="warning", access_log=False, backlog=4096)


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""A client of an agent-server made of a socket and REST alone, without the adapter."""

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import httpx

from gateway.testing.change import Change
from tests.pace import PATIENCE
from tests.peers.agent_server import KEY, AgentServer

Event = dict[str, Any]


@dataclass
class Heard:
    """The frames of one socket."""

    frames: list[Event] = field(default_factory=list[Event])
    closed: int | None = None
    """The code of the close."""
    change: Change = field(default_factory=Change)

    @property
    def events(self) -> list[Event]:
        """All events, bare or unwrapped from their frames."""
        return [frame.get("event", frame) for frame in self.frames if "event" in frame or "kind" in frame]

    @property
    def stored(self) -> list[int]:
        return [frame["seq"] for frame in self.frames if frame.get("type") == "durable"]

    async def wait(self, wanted: Callable[[Event], bool], count: int = 1, *, within: float = PATIENCE) -> list[Event]:
        def look() -> list[Event] | None:
            found = [event for event in self.events if wanted(event)]
            return found if len(found) >= count else None

        return await self.change.until(look, within, what=lambda: f"heard {[one.get('kind') for one in self.events]}")

    async def wait_closed(self) -> int:
        return await self.change.until(lambda: self.closed, PATIENCE, what=lambda: "the socket stays open")

    async def status(self, word: str, count: int = 1) -> None:
        """Wait for a stored status."""
        await self.wait(lambda event: event.get("key") == "execution_status" and event["value"] == word, count)

    async def settled(self, word: str) -> None:
        """Wait for a state after a run (OV34)."""
        await self.status(word)
        await self.wait(lambda event: event.get("key") == "full_state" and event["value"]["execution_status"] == word)


def is_kind(kind: str, *words: str) -> Callable[[Event], bool]:
    """Match events of a kind that contain all words."""
    return lambda event: event.get("kind") == kind and all(word in json.dumps(event) for word in words)


@dataclass
class Conversation:
    """A conversation of a server."""

    server: AgentServer
    http: httpx.AsyncClient
    id: str

    @classmethod
    async def create(cls, server: AgentServer, http: httpx.AsyncClient, body: Event) -> "Conversation":
        conversation = cls(server, http, str(uuid.uuid4()))
        answer = await http.post("/api/conversations", json={**body, "conversation_id": conversation.id})
        assert answer.status_code == 201, answer.text
        return conversation

    async def post(self, path: str, body: Event | None = None, *, within: float = PATIENCE) -> httpx.Response:
        return await self.http.post(f"/api/conversations/{self.id}/{path}", json=body, timeout=within)

    async def say(self, text: str, *, run: bool = True, within: float = PATIENCE) -> httpx.Response:
        body = {"role": "user", "content": [{"type": "text", "text": text}], "run": run}
        return await self.post("events", body, within=within)

    async def answer(self, *, accept: bool, reason: str = "") -> httpx.Response:
        return await self.post("events/respond_to_confirmation", {"accept": accept, "reason": reason})

    async def page(self, **query: Any) -> Event:
        answer = await self.http.get(f"/api/conversations/{self.id}/events/search", params={"limit": 100, **query})
        assert answer.status_code == 200, answer.text
        return answer.json()

    @asynccontextmanager
    async def listening(self, query: str = "", *, key: str | None = KEY) -> AsyncGenerator[Heard]:
        """Hear the socket of the version; the first frame authenticates unless `key` is None (OV5)."""
        socket = "session" if self.server.sequenced else "events"
        heard = Heard()
        url = f"{self.server.url}/sockets/{socket}/{self.id}{query}"
        async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as ws:
            if key is not None:
                await ws.send_json({"type": "auth", "session_api_key": key})
            reading = asyncio.create_task(_read(ws, heard))
            try:
                yield heard
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)


async def _read(ws: aiohttp.ClientWebSocketResponse, heard: Heard) -> None:
    async for message in ws:
        heard.frames.append(json.loads(message.data))
        heard.change.tell()
    heard.closed = ws.close_code
    heard.change.tell()

"""A client of an agent-server out of nothing but websockets and httpx, to hold the simulated one to account."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Self

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from gateway.testing.runtimes.openhands_v1.server import AgentServer, Manners, SimConversation
from tests.pace import PATIENCE

Frame = dict[str, Any]
QUICK = Manners(ending=timedelta(milliseconds=100))


class RawSocket:
    """Keeps every frame that arrives, in order."""

    def __init__(self, connection: ClientConnection) -> None:
        self.frames: list[Frame] = []
        self.closed: tuple[int, str] | None = None
        self._connection = connection
        self._more = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @property
    def events(self) -> list[Frame]:
        """The events, without their envelopes."""
        return [frame.get("event", frame) for frame in self.frames if "event" in frame or "source" in frame]

    @property
    def stored(self) -> list[Frame]:
        """The stored events."""
        return [event for event in self.events if event.get("key") != "full_state"]

    async def send(self, frame: object) -> None:
        await self._connection.send(frame if isinstance(frame, str) else json.dumps(frame))

    async def until(self, fits: Callable[[Frame], bool]) -> Frame:
        """Wait for a frame that fits."""
        async with asyncio.timeout(PATIENCE):
            while not (found := [frame for frame in self.frames if fits(frame)]):
                assert self.closed is None, f"closed: {self.closed}"
                self._more.clear()
                await self._more.wait()
        return found[0]

    async def until_event(self, fits: Callable[[Frame], bool]) -> Frame:
        """Wait for an event that fits."""
        frame = await self.until(lambda frame: fits(frame.get("event", frame)))
        return frame.get("event", frame)

    async def until_closed(self) -> tuple[int, str]:
        """Wait until the server closes the socket; return code and reason."""
        async with asyncio.timeout(PATIENCE):
            await self._reading
        assert self.closed is not None
        return self.closed

    async def close(self) -> None:
        await self._connection.close()
        await self._reading

    async def _read(self) -> None:
        try:
            async for text in self._connection:
                self.frames.append(json.loads(text))
                self._more.set()
        except ConnectionClosed:
            pass
        self.closed = (self._connection.close_code or 1006, self._connection.close_reason or "")
        self._more.set()


@asynccontextmanager
async def socket(
    url: str, kind: str, conversation_id: str, query: str = "", *, key: str | None = None, **more: Any
) -> AsyncGenerator[RawSocket]:
    """Connect to one of the two sockets; `key` is sent in the first frame."""
    address = f"{url.replace('http', 'ws', 1)}/sockets/{kind}/{conversation_id}{query}"
    async with connect(address, max_size=None, **more) as connection:
        raw = RawSocket(connection)
        if key is not None:
            await raw.send({"type": "auth", "session_api_key": key})
        try:
            yield raw
        finally:
            await raw.close()


class RawRest:
    """Posts to one conversation."""

    def __init__(self, url: str, conversation_id: str, *, key: str | None = None) -> None:
        headers = {} if key is None else {"X-Session-API-Key": key}
        self.http = httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE)
        self.path = f"/api/conversations/{conversation_id}"

    async def post(self, path: str, body: object = None) -> httpx.Response:
        return await self.http.post(f"{self.path}/{path}", json=body)

    async def say(self, text: str, *, run: bool = True) -> httpx.Response:
        return await self.post("events", {"role": "user", "content": [{"type": "text", "text": text}], "run": run})

    async def answer(self, accept: bool, reason: str = "no") -> httpx.Response:
        return await self.post("events/respond_to_confirmation", {"accept": accept, "reason": reason})

    async def page(self, **query: str | int) -> Frame:
        return (await self.http.get(f"{self.path}/events/search", params=query)).json()

    async def status(self) -> str:
        return (await self.http.get(self.path)).json()["execution_status"]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.http.aclose()


def is_status(status: str) -> Callable[[Frame], bool]:
    """Fit a change to a status."""
    return lambda event: event.get("key") == "execution_status" and event["value"] == status


def is_state(status: str) -> Callable[[Frame], bool]:
    """Fit a whole state with a status."""
    return lambda event: event.get("key") == "full_state" and event["value"]["execution_status"] == status


def kinds(events: list[Frame]) -> list[str]:
    """Say shortly what events are, without metrics."""
    found: list[str] = []
    for event in events:
        match event:
            case {"key": "execution_status", "value": str(status)}:
                found.append(status)
            case {"key": "stats" | "last_user_message_id"}:
                pass
            case {"key": str(key)}:
                found.append(key)
            case {"kind": "MessageEvent", "source": str(source)}:
                found.append(f"{source} says")
            case {"kind": str(kind)}:
                found.append(kind.removesuffix("Event"))
            case _:
                pass
    return found


@asynccontextmanager
async def world(
    manners: Manners = QUICK, query: str = "?after_seq=-1", **body: Any
) -> AsyncGenerator[tuple[AgentServer, SimConversation, RawRest, RawSocket]]:
    """A server with one conversation, and a client with a session socket."""
    async with AgentServer(manners=manners) as server:
        work = server.add(**body)
        async with (
            RawRest(server.url, work.conversation_id) as rest,
            socket(server.url, "session", work.conversation_id, query) as seen,
        ):
            await seen.until_event(is_state("idle"))
            yield server, work, rest, seen

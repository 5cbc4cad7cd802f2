"""An event stream writes what comes as it comes, unless something waits before it or there is no room to wait."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from gateway.events import Live, MessageStreamed
from gateway.http.sse import WIRE, EventStream, Followers, Wire
from gateway.runtime.views import InteractionItem, News, StreamItem

PIECE = "a few words more"


class _Client:
    """Takes everything, unless it `stalls`."""

    def __init__(self) -> None:
        self.stalls = False
        self.written: list[bytes] = []
        self.goes_on = asyncio.Event()
        self.wire = Wire(self.written.append, lambda: self.stalls, self._drained, lambda: None)

    @property
    def pieces(self) -> int:
        return b"".join(self.written).count(PIECE.encode())

    async def _drained(self) -> None:
        await self.goes_on.wait()


async def _items(news: "asyncio.Queue[News | None]") -> AsyncGenerator[StreamItem | InteractionItem]:
    while (item := await news.get()) is not None:
        yield item


async def test_what_comes_is_written_at_once_and_waits_only_where_the_client_does_not_take_it() -> None:
    followers, client = Followers(), _Client()
    news: asyncio.Queue[News | None] = asyncio.Queue()
    stream = EventStream(_items(news), followers, about="s", buffer=100_000)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(_message: Any) -> None:
        pass

    async def until(there: Callable[[], bool]) -> None:
        # Nothing tells of it.
        while not there():  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def tell(pieces: int) -> None:
        news.put_nowait(News([Live(MessageStreamed(text=PIECE), 0)]))
        for _ in range(5):
            await asyncio.sleep(0)
        assert client.pieces == pieces

    scope: Any = {"state": {"head": False}, "extensions": {WIRE: client.wire}}
    async with asyncio.timeout(5):
        serving = asyncio.create_task(stream(scope, receive, send))
        await until(lambda: len(followers) == 1)
        await tell(1)
        await tell(2)
        assert followers.room.bytes == 0
        # Others wait for all the room there is.
        followers.room.add(followers.room.most)
        await tell(2)
        followers.room.add(-followers.room.most)
        await until(lambda: client.pieces == 3)
        client.stalls = True
        await tell(4)
        assert followers.room.bytes == stream.waiting > 0
        await tell(4)
        client.stalls = False
        client.goes_on.set()
        await until(lambda: client.pieces == 5 and followers.room.bytes == 0)
        news.put_nowait(None)
        await serving

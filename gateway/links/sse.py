"""Reads a stream of server-sent events over httpx, within bounds of size and silence."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
from httpx_sse import EventSource

from gateway.errors import LinkLost
from gateway.links.masking import Mask
from gateway.links.rest_client import RestClient, check_plain, explain

MAX_EVENT = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_NOT_STREAMS = frozenset({"text/html", "application/json", "application/problem+json"})


@asynccontextmanager
async def open_events(
    client: RestClient, path: str, *, headers: Mapping[str, str], within: timedelta, idle: timedelta
) -> AsyncGenerator["SseStream"]:
    """Connect and yield the stream; leaving closes the connection.

    Raises:
        LinkLost: the server cannot be reached, or what it answers is no stream.
        LinkRefused: the server said no.
    """
    wanted = {"Accept": "text/event-stream", "Cache-Control": "no-store", **headers}
    async with client.stream(path, headers=wanted, within=within) as response:
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind in _NOT_STREAMS:
            raise LinkLost(f"the server answered with {kind} in place of an event stream")
        yield SseStream(response, idle=idle, mask=client.mask)


class SseStream:
    """The events of one response; only their `data` counts, names and ids are for others."""

    def __init__(self, response: httpx.Response, *, idle: timedelta, mask: Mask) -> None:
        self._bytes = _Watched(response, idle.total_seconds())
        self._mask = mask

    async def texts(self) -> AsyncGenerator[str]:
        """Yield the data of each event until the server ends the stream; events without data are left out.

        Raises:
            LinkLost: the connection broke, went silent, or sent an event without end.
        """
        # The library wants to see its content type and would believe any charset, but SSE is UTF-8.
        source = EventSource(httpx.Response(200, headers={"Content-Type": "text/event-stream"}, stream=self._bytes))
        events = source.aiter_sse()
        failure: str | None = None
        try:
            async for event in events:
                self._bytes.unread = 0
                if event.data:
                    yield event.data
        except TimeoutError:
            failure = f"nothing came for {self._bytes.idle:g} s"
        except (httpx.HTTPError, httpx.StreamError, OSError, ValueError) as exc:
            failure = explain(exc, self._mask)
        finally:
            await events.aclose()
        if failure is not None:
            raise LinkLost(failure)


class _Watched(httpx.AsyncByteStream):
    """The raw bytes of a response, each piece under a deadline, without a byte order mark."""

    def __init__(self, response: httpx.Response, idle: float) -> None:
        self._response = response
        self.idle = idle
        self.unread = 0
        """Bytes since the last whole event."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        check_plain(self._response)
        pieces = self._response.aiter_raw()
        head: bytes | None = b""
        while (piece := await self._next(pieces)) is not None:
            self.unread += len(piece)
            if self.unread > MAX_EVENT:
                raise ValueError(f"an event is over {MAX_EVENT} bytes")
            if head is not None:
                head += piece
                if len(head) < len(_BOM) and _BOM.startswith(head):
                    continue
                piece, head = head.removeprefix(_BOM), None
            if piece:
                yield piece

    async def _next(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        async with asyncio.timeout(self.idle):
            return await anext(pieces, None)

    async def aclose(self) -> None:
        await self._response.aclose()

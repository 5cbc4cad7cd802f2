"""Reads a stream of server-sent events over httpx, within bounds of size and silence."""

from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import cast

import httpx
from httpx_sse import EventSource

from gateway.errors import LinkLost
from gateway.links.masking import Mask
from gateway.links.rest import RestClient, check_plain, explain

_Utf8 = getincrementaldecoder("utf-8-sig")
_NOT_STREAMS = frozenset({"text/html", "application/json", "application/problem+json"})


@asynccontextmanager
async def open_events(
    client: RestClient,
    path: str,
    *,
    headers: Mapping[str, str],
    within: timedelta,
    idle: timedelta,
    largest: int,
) -> AsyncGenerator["SseStream"]:
    """Connect and yield the stream, whose events have `largest` bytes at most; leaving closes the connection.

    Raises:
        LinkLost: the server cannot be reached, or what it answers is no stream.
        LinkRefused: the server said no.
    """
    wanted = {"Accept": "text/event-stream", "Cache-Control": "no-store", **headers}
    async with client.stream(path, headers=wanted, within=within, idle=idle) as response:
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind in _NOT_STREAMS:
            raise LinkLost(f"the server answered with {kind} in place of an event stream")
        yield SseStream(response, mask=client.mask, largest=largest)


class SseStream:
    """The events of one response; only their `data` counts, names and ids are for others."""

    def __init__(self, response: httpx.Response, *, mask: Mask, largest: int) -> None:
        self._text = _Bounded(response, largest)
        self._mask = mask

    async def texts(self) -> AsyncGenerator[str]:
        """Yield the data of each event until the server ends the stream; events without data are left out.

        Raises:
            LinkLost: the connection broke, went silent, or sent an event without end.
        """
        events = EventSource(self._text).aiter_sse()
        failure: str | None = None
        try:
            async for event in events:
                self._text.unread = 0
                if event.data:
                    yield event.data
        except httpx.ReadTimeout as exc:
            failure = str(exc)
        except (httpx.HTTPError, httpx.StreamError, OSError, ValueError) as exc:
            failure = explain(exc, self._mask)
        finally:
            await events.aclose()
        if failure is not None:
            raise LinkLost(failure)


class _Bounded(httpx.Response):
    """The text of an answer, without a byte order mark, and of no event without end.

    httpx itself would hand each piece through four generators more.
    """

    def __init__(self, answer: httpx.Response, largest: int) -> None:
        # The library wants to see its content type; SSE is UTF-8, whatever charset a server names.
        super().__init__(200, headers={"Content-Type": "text/event-stream"})
        self._answer, self._largest = answer, largest
        self.unread = 0
        """Bytes since the last whole event."""

    async def aiter_text(self, chunk_size: int | None = None) -> AsyncIterator[str]:
        """Decode what comes as it comes; the size of a piece is the server's."""
        del chunk_size
        check_plain(self._answer)
        decoder = _Utf8("replace")
        async for piece in cast("httpx.AsyncByteStream", self._answer.stream):
            self.unread += len(piece)
            if self.unread > self._largest:
                raise ValueError(f"an event is over {self._largest} bytes")
            if text := decoder.decode(piece):
                yield text

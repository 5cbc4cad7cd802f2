"""Reads a stream of server-sent events over httpx, within bounds of size and silence."""

import re
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
_END = re.compile(r"\r\n\r\n|\n\n|\r\r")
"""The end of an event."""
_WITHOUT_END = 8
"""How many times the largest size an event may have before the connection ends."""
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
    """Connect and yield the stream, whose events are cut behind `largest` bytes; leaving closes the connection.

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
        self.is_cut = False
        """Whether the event yielded last was too large, and its data are cut."""

    async def texts(self) -> AsyncGenerator[str]:
        """Yield the data of each event until the server ends the stream; events without data are left out.

        Raises:
            LinkLost: the connection broke, went silent, or sent an event without end.
        """
        events = EventSource(self._text).aiter_sse()
        failure: str | None = None
        try:
            async for event in events:
                self.is_cut, self._text.is_cut = self._text.is_cut, False
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
    """The text of an answer, without a byte order mark, with events cut behind the largest size.

    httpx itself would hand each piece through four generators more.
    """

    def __init__(self, answer: httpx.Response, largest: int) -> None:
        # The library wants to see its content type; SSE is UTF-8, whatever charset a server names.
        super().__init__(200, headers={"Content-Type": "text/event-stream"})
        self._answer, self._largest = answer, largest
        self.unread = 0
        """Bytes since the last whole event."""
        self.is_cut = False
        """Whether the present event is too large: the rest of it is left out."""

    async def aiter_text(self, chunk_size: int | None = None) -> AsyncIterator[str]:
        """Decode what comes as it comes; the size of a piece is the server's."""
        del chunk_size
        check_plain(self._answer)
        decoder = _Utf8("replace")
        tail = ""
        async for piece in cast("httpx.AsyncByteStream", self._answer.stream):
            self.unread += len(piece)
            if self.unread > _WITHOUT_END * self._largest:
                raise ValueError(f"an event is over {_WITHOUT_END * self._largest} bytes")
            text = decoder.decode(piece)
            if self.unread > self._largest:
                text = tail + text
                end = _END.search(text)
                self.is_cut = True
                tail = "" if end is not None else text[-3:]
                text = "" if end is None else "\n\n" + text[end.end() :]
            if text:
                yield text

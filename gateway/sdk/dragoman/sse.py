"""Reads server-sent events from an httpx response, within a size limit."""

from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, AsyncIterator
from time import monotonic
from typing import cast

import httpx
from httpx_sse import EventSource, ServerSentEvent


class SseReader:
    """The events of one response.

    An event over `largest` bytes is cut there, and an event over `limit` bytes ends the stream. Without `limit`, no
    event is cut. Comments and the lines between events have no limit.
    """

    def __init__(self, response: httpx.Response, *, largest: int, limit: int | None = None) -> None:
        self._text = _EventTexts(response, largest, largest if limit is None else limit)
        self.is_cut = False
        """Whether the latest event was too large, and its data are cut."""
        self.has_data = False
        """Whether an event with data has arrived."""
        self.retry: float | None = None
        """Seconds to wait before a reconnect, if the server has sent them."""

    @property
    def received_at(self) -> float | None:
        """When the latest bytes arrived, in seconds of the monotonic clock; None before the first ones."""
        return self._text.received_at

    async def events(self) -> AsyncGenerator[ServerSentEvent]:
        """Yield each event with data or a cut until the server ends the stream; without an id it has the latest id.

        Raises:
            httpx.HTTPError, httpx.StreamError: the connection broke or was silent.
            ValueError: an event is over the limit; if events are cut, its beginning has been yielded.
        """
        found = EventSource(self._text).aiter_sse()
        try:
            async for event in found:
                self.is_cut = self._text.is_cut
                if event.retry is not None:
                    self.retry = event.retry / 1000
                if event.data or self.is_cut:
                    self.has_data = True
                    yield event
        finally:
            await found.aclose()


class _EventTexts(httpx.Response):
    """The text of a response, one event at a time: without a byte order mark and comments, and with large events cut.

    httpx itself would pass each chunk through four more generators, and the line decoder of httpx-sse keeps a CR back
    until the next chunk.
    """

    def __init__(self, response: httpx.Response, largest: int, limit: int) -> None:
        # The library requires this content type. SSE is always UTF-8, even if a server names another charset.
        super().__init__(200, headers={"Content-Type": "text/event-stream"})
        self._response, self._largest, self._limit = response, largest, limit
        self.received_at: float | None = None
        self.is_cut = False
        """Whether the latest event is too large: only its beginning is yielded."""
        self._start: bytes | None = b""
        """The first bytes, while they may be those of a byte order mark."""
        self._is_after_cr = False

    async def aiter_text(self, chunk_size: int | None = None) -> AsyncIterator[str]:
        """Yield each event as soon as its blank line is complete."""
        del chunk_size
        event = bytearray()
        size = 0
        is_inside = is_comment = False
        async for chunk in cast("httpx.AsyncByteStream", self._response.stream):
            self.received_at = monotonic()
            # A line may arrive in several parts.
            for part in self._split(chunk):
                content = part.rstrip(b"\r\n")
                if not is_inside:
                    is_comment = content.startswith(b":")
                if content or is_inside:
                    is_inside = len(content) == len(part)
                    if is_comment:
                        continue
                    size += len(part)
                    event += (content if is_inside else content + b"\n")[: self._largest - len(event)]
                    if size <= self._limit:
                        continue
                self.is_cut = size > self._largest
                if event and (size <= self._limit or self._limit > self._largest):
                    yield event.decode("utf-8", "replace") + "\n\n"
                if size > self._limit:
                    raise ValueError(f"an event of the stream has more than {self._limit} bytes")
                event.clear()
                size = 0

    def _split(self, chunk: bytes) -> list[bytes]:
        """Split at the ends of lines; an end is complete with its CR, and an LF after it is skipped."""
        if self._start is not None:
            self._start += chunk
            if BOM_UTF8.startswith(self._start):
                return []
            chunk, self._start = self._start.removeprefix(BOM_UTF8), None
        if not chunk:
            return []
        parts = (chunk.removeprefix(b"\n") if self._is_after_cr else chunk).splitlines(keepends=True)
        self._is_after_cr = chunk.endswith(b"\r")
        return parts

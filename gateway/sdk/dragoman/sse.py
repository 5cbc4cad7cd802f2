"""Reads server-sent events from an httpx response, within a size limit."""

import re
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, AsyncIterator
from time import monotonic
from typing import cast

import httpx
from httpx_sse import EventSource, ServerSentEvent

_Utf8 = getincrementaldecoder("utf-8-sig")
_END = re.compile(r"\r\n\r\n|\n\n|\r\r")
"""The end of an event."""


class SseReader:
    """The events of one response.

    An event over `largest` bytes is cut there, and an event over `limit` bytes ends the stream. Without `limit`, no
    event is cut.
    """

    def __init__(self, response: httpx.Response, *, largest: int, limit: int | None = None) -> None:
        self._text = _BoundedText(response, largest, largest if limit is None else limit)
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
        """Yield each event with data until the server ends the stream; an event without an id repeats the latest id.

        Raises:
            httpx.HTTPError, httpx.StreamError: the connection broke or was silent.
            ValueError: an event is over the limit.
        """
        found = EventSource(self._text).aiter_sse()
        try:
            async for event in found:
                self.is_cut, self._text.is_cut = self._text.is_cut, False
                self._text.unread = 0
                if event.retry is not None:
                    self.retry = event.retry / 1000
                if event.data:
                    self.has_data = True
                    yield event
        finally:
            await found.aclose()


class _BoundedText(httpx.Response):
    """The text of a response, without a byte order mark and with large events cut.

    httpx itself would pass each chunk through four more generators.
    """

    def __init__(self, response: httpx.Response, largest: int, limit: int) -> None:
        # The library requires this content type. SSE is always UTF-8, even if a server names another charset.
        super().__init__(200, headers={"Content-Type": "text/event-stream"})
        self._response, self._largest, self._limit = response, largest, limit
        self.received_at: float | None = None
        self.unread = 0
        """Bytes since the latest complete event."""
        self.is_cut = False
        """Whether the present event is too large: the rest of it is dropped."""

    async def aiter_text(self, chunk_size: int | None = None) -> AsyncIterator[str]:
        """Decode each chunk as it arrives."""
        del chunk_size
        decoder = _Utf8("replace")
        tail = ""
        async for chunk in cast("httpx.AsyncByteStream", self._response.stream):
            self.received_at = monotonic()
            self.unread += len(chunk)
            if self.unread > self._limit:
                raise ValueError(f"an event of the stream has more than {self._limit} bytes")
            text = decoder.decode(chunk)
            if self.unread > self._largest:
                text = tail + text
                end = _END.search(text)
                self.is_cut = True
                tail = "" if end is not None else text[-3:]
                text = "" if end is None else "\n\n" + text[end.end() :]
            if text:
                yield text

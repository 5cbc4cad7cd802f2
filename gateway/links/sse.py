"""Opens a stream of server-sent events to a runtime, with limits on event size and silence."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta

import httpx

from dragoman.sse import SseReader
from gateway.errors import LinkLost
from gateway.links.masking import Mask
from gateway.links.rest import RestClient, check_plain, explain

_ENDLESS = 8
"""The multiple of the largest size at which an event ends the connection."""
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
    """Connect and yield the stream; its events are cut after `largest` bytes. Leaving closes the connection.

    Raises:
        LinkLost: the server cannot be reached, or its response is not a stream.
        LinkRefused: the server refused.
    """
    fields = {"Accept": "text/event-stream", "Cache-Control": "no-store", **headers}
    async with client.stream(path, headers=fields, within=within, idle=idle) as response:
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind in _NOT_STREAMS:
            raise LinkLost(f"the server answered with {kind} instead of an event stream")
        yield SseStream(response, mask=client.mask, largest=largest)


class SseStream:
    """The events of one response; names and ids are dropped, only `data` is read."""

    def __init__(self, response: httpx.Response, *, mask: Mask, largest: int) -> None:
        self._response = response
        self._reader = SseReader(response, largest=largest, limit=_ENDLESS * largest)
        self._mask = mask

    @property
    def is_cut(self) -> bool:
        """Whether the event yielded last was too large, and its data are cut."""
        return self._reader.is_cut

    async def texts(self) -> AsyncGenerator[str]:
        """Yield the data of each event until the server ends the stream; skip events without data.

        Raises:
            LinkLost: the connection broke, was silent, or sent an event without end.
        """
        failure: str | None = None
        try:
            check_plain(self._response)
            async with aclosing(self._reader.events()) as events:
                async for event in events:
                    yield event.data
        except httpx.ReadTimeout as exc:
            failure = str(exc)
        except (httpx.HTTPError, httpx.StreamError, OSError, ValueError) as exc:
            failure = explain(exc, self._mask)
        if failure is not None:
            raise LinkLost(failure)

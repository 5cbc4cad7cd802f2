"""How httpx reaches a runtime: over aiohttp, whose parser is C, and only at addresses that may be connected to.

httpx's own transport passes each piece of a stream through a parser in Python and a dozen generators, which costs a
stream of small events several times what reading them does.
"""

from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from io import BytesIO
from typing import Self

import aiohttp
import httpx
from yarl import URL

from gateway.links.addresses import AddressRefused, guarded_socket

# uvicorn and Node close an idle connection after 5 s; letting go first avoids the race with that.
_IDLE_SECONDS = 4.0
_LONGEST_LINE = 64 * 1024
"""Of an answer's head."""


class GuardedTransport(httpx.AsyncBaseTransport):
    """The connections of one client; entered with it.

    Every wait is bounded by whoever waits: httpx's own timeouts are not looked at.
    """

    async def __aenter__(self) -> Self:
        # Made here, since it belongs to the loop that runs.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                socket_factory=guarded_socket,
                keepalive_timeout=_IDLE_SECONDS,
                ssl=httpx.create_ssl_context(trust_env=False),
            ),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            trust_env=False,
            max_line_size=_LONGEST_LINE,
            max_field_size=_LONGEST_LINE,
        )
        return self

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and wait for the head of its answer.

        Raises:
            AddressRefused: the address must not be connected to.
            httpx.TransportError: `ConnectError` and `ConnectTimeout` where nothing was sent.
        """
        content = await request.aread()
        with _in_httpx_words():
            answer = await self._session.request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=request.headers.multi_items(),
                # Of bytes alone aiohttp warns where they are many.
                data=BytesIO(content) if content else None,
                allow_redirects=False,
            )
        return httpx.Response(answer.status, headers=answer.raw_headers, stream=_Body(answer), request=request)

    async def aclose(self) -> None:
        await self._session.close()


class _Body(httpx.AsyncByteStream):
    """The bytes of an answer, as they come."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _in_httpx_words():
            while piece := await self._answer.content.readany():
                yield piece

    async def aclose(self) -> None:
        # One that was read to its end leaves its connection to the next request.
        if self._answer.content.at_eof():
            self._answer.release()
        else:
            self._answer.close()


@contextmanager
def _in_httpx_words() -> Generator[None]:
    try:
        yield
    except aiohttp.ConnectionTimeoutError as exc:
        raise httpx.ConnectTimeout(str(exc)) from exc
    except aiohttp.ClientConnectorError as exc:
        if isinstance(exc.os_error, AddressRefused):
            raise exc.os_error from None
        raise httpx.ConnectError(str(exc)) from exc
    except aiohttp.ClientError as exc:
        raise httpx.RemoteProtocolError(f"{type(exc).__name__}: {exc}") from exc
    except OSError as exc:
        raise httpx.ReadError(str(exc)) from exc

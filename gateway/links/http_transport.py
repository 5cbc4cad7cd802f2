"""How httpx reaches a runtime: over aiohttp, whose parser is C, and only at addresses that may be connected to.

httpx's own transport passes each piece of a stream through a parser in Python and a dozen generators, which costs a
stream of small events several times what reading them does.
"""

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from io import BytesIO
from typing import Self

import aiohttp
import httpx
from yarl import URL

from gateway.guard import guard_call
from gateway.links.addresses import AddressRefused, guarded_socket
from gateway.links.keep_alive import IDLE_SECONDS, reuse_seconds
from gateway.links.names import Resolver

_LONGEST_LINE = 64 * 1024
"""Of an answer's head."""


class GuardedTransport(httpx.AsyncBaseTransport):
    """The connections of one client; entered with it.

    Of httpx's own time-outs that of reading holds; every other wait is bounded by whoever waits.
    """

    async def __aenter__(self) -> Self:
        # Made here, since it belongs to the loop that runs.
        self._sessions = [_make_session(reuse=True)]
        return self

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and wait for the head of its answer.

        Raises:
            AddressRefused: the address must not be connected to.
            httpx.TransportError: `ConnectError` and `ConnectTimeout` where nothing was sent.
        """
        content = await request.aread()
        with _in_httpx_words():
            answer = await self._sessions[-1].request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=request.headers.multi_items(),
                # Of bytes alone aiohttp warns where they are many.
                data=BytesIO(content) if content else None,
                allow_redirects=False,
            )
        hints = answer.headers.getall("Keep-Alive", ())
        if len(self._sessions) == 1 and reuse_seconds(hints) < IDLE_SECONDS:
            # Without reuse from now on: the connections of the first session carry no other request.
            self._sessions.append(_make_session(reuse=False))
        body = _Body(answer, patience=request.extensions["timeout"]["read"])
        return httpx.Response(answer.status, headers=answer.raw_headers, stream=body, request=request)

    async def aclose(self) -> None:
        for session in self._sessions:
            await session.close()


def _make_session(*, reuse: bool) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0,
            socket_factory=guarded_socket,
            resolver=Resolver(),
            force_close=not reuse,
            keepalive_timeout=IDLE_SECONDS if reuse else None,
        ),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        trust_env=False,
        max_line_size=_LONGEST_LINE,
        max_field_size=_LONGEST_LINE,
    )


class _Body(httpx.AsyncByteStream):
    """The bytes of an answer, as they come, until nothing has come for so many seconds while somebody waited.

    One timer looks from time to time: to arm one for each piece costs as much as reading it.
    """

    def __init__(self, answer: aiohttp.ClientResponse, *, patience: float | None) -> None:
        self._answer = answer
        self._patience = patience
        self._waits_since: float | None = None
        self._alarm: asyncio.TimerHandle | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop, content = asyncio.get_running_loop(), self._answer.content
        if self._patience is not None:
            self._look_again(self._patience)
        with _in_httpx_words():
            while True:
                self._waits_since = loop.time()
                piece = await content.readany()
                self._waits_since = None
                if not piece:
                    return
                yield piece

    def _look_again(self, seconds: float) -> None:
        self._alarm = asyncio.get_running_loop().call_later(seconds, guard_call("link", self._look))

    def _look(self) -> None:
        assert self._patience is not None
        since = self._waits_since
        left = self._patience if since is None else since + self._patience - asyncio.get_running_loop().time()
        if left > 0:
            self._look_again(left)
        else:
            self._answer.content.set_exception(aiohttp.SocketTimeoutError(f"nothing came for {self._patience:g} s"))

    async def aclose(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
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
    except aiohttp.SocketTimeoutError as exc:
        raise httpx.ReadTimeout(str(exc)) from exc
    except aiohttp.ClientConnectorError as exc:
        if isinstance(exc.os_error, AddressRefused):
            raise exc.os_error from None
        raise httpx.ConnectError(str(exc)) from exc
    except aiohttp.ClientError as exc:
        raise httpx.RemoteProtocolError(f"{type(exc).__name__}: {exc}") from exc
    except OSError as exc:
        raise httpx.ReadError(str(exc)) from exc

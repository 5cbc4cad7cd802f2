"""A transport of httpx over aiohttp, which has a parser in C; it refuses forbidden addresses.

httpx's own transport passes each chunk through a parser in Python and a dozen generators. For a stream of small events
that costs several times as much as reading them.
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
from gateway.links.http_session import describe
from gateway.links.keep_alive import IDLE_SECONDS, reuse_seconds
from gateway.links.names import Resolver

_LONGEST_LINE = 64 * 1024
"""Of the head of a response."""


class GuardedTransport(httpx.AsyncBaseTransport):
    """The connections of one client, entered with it.

    It supports only httpx's read timeout; the callers bound all other waits.
    """

    async def __aenter__(self) -> Self:
        # Created here, because it belongs to the running loop.
        self._sessions = [_make_session(reuse=True)]
        return self

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and wait for the head of its response.

        Raises:
            AddressRefused: the address is forbidden.
            httpx.TransportError: `ConnectError` and `ConnectTimeout` if nothing was sent.
        """
        content = await request.aread()
        with _translate_errors():
            answer = await self._sessions[-1].request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=request.headers.multi_items(),
                # aiohttp warns about large bodies of plain bytes.
                data=BytesIO(content) if content else None,
                allow_redirects=False,
            )
        hints = answer.headers.getall("Keep-Alive", ())
        if len(self._sessions) == 1 and reuse_seconds(hints) < IDLE_SECONDS:
            # No reuse from now on: the connections of the first session get no further request.
            self._sessions.append(_make_session(reuse=False))
        body = _Body(answer, read_timeout=request.extensions["timeout"]["read"])
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
    """The streamed bytes of a response; reading fails after `read_timeout` seconds without data.

    One timer checks periodically: arming one for each chunk costs as much as reading it.
    """

    def __init__(self, answer: aiohttp.ClientResponse, *, read_timeout: float | None) -> None:
        self._answer = answer
        self._read_timeout = read_timeout
        self._waits_since: float | None = None
        self._alarm: asyncio.TimerHandle | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop, content = asyncio.get_running_loop(), self._answer.content
        if self._read_timeout is not None:
            self._set_alarm(self._read_timeout)
        with _translate_errors():
            while True:
                self._waits_since = loop.time()
                chunk = await content.readany()
                self._waits_since = None
                if not chunk:
                    return
                yield chunk

    def _set_alarm(self, seconds: float) -> None:
        self._alarm = asyncio.get_running_loop().call_later(seconds, guard_call("link", self._check_silence))

    def _check_silence(self) -> None:
        assert self._read_timeout is not None
        since = self._waits_since
        remaining = (
            self._read_timeout if since is None else since + self._read_timeout - asyncio.get_running_loop().time()
        )
        if remaining > 0:
            self._set_alarm(remaining)
        else:
            self._answer.content.set_exception(aiohttp.SocketTimeoutError(f"no data for {self._read_timeout:g} s"))

    async def aclose(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        # After a complete response the next request may use the connection.
        if self._answer.content.at_eof():
            self._answer.release()
        else:
            self._answer.close()


@contextmanager
def _translate_errors() -> Generator[None]:
    try:
        yield
    except aiohttp.ConnectionTimeoutError as exc:
        raise httpx.ConnectTimeout(describe(exc)) from exc
    except aiohttp.SocketTimeoutError as exc:
        raise httpx.ReadTimeout(str(exc)) from exc
    except aiohttp.ClientConnectorError as exc:
        if isinstance(exc.os_error, AddressRefused):
            raise exc.os_error from None
        raise httpx.ConnectError(describe(exc)) from exc
    except aiohttp.ClientError as exc:
        raise httpx.RemoteProtocolError(describe(exc)) from exc
    except OSError as exc:
        raise httpx.ReadError(describe(exc)) from exc

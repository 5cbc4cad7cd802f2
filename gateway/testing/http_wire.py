"""Records the traffic of an MCP client verbatim."""

from collections.abc import AsyncIterator

import httpx2

from gateway.testing.wire import Passed, Wire


class NotingTransport(httpx2.AsyncHTTPTransport):
    """An HTTP transport that records both directions on a `Wire`."""

    def __init__(self, wire: Wire) -> None:
        # The connections are not encrypted, and loading the machine's certificates is slow.
        super().__init__(verify=False)
        self._wire = wire

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange, body = self._wire.begin(), (await request.aread()).decode()
        head = f"{request.method} {request.url.path}"
        self._wire.passed.append(Passed(body, by_gateway=False, exchange=exchange, head=head))
        response = await super().handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _NotedStream(response.stream, self._wire, exchange, str(response.status_code))
        return response


class _NotedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, wire: Wire, exchange: int, status: str) -> None:
        self._stream, self._wire, self._exchange, self._status = stream, wire, exchange, status

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            text = piece.decode(errors="replace")
            self._wire.passed.append(Passed(text, by_gateway=True, exchange=self._exchange, head=self._status))
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()

"""HTTP/1.1 that ignores every offer to upgrade the connection (RFC 9110, 7.8)."""

import asyncio
from typing import cast

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class _Parser(HttpRequestParser):
    """A parser that keeps the bytes after a request head with an `Upgrade` header, where httptools reads no body."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        super().__init__(protocol)
        # As uvicorn sets it up.
        self.set_dangerous_leniencies(lenient_data_after_close=True)
        self.rest: memoryview | None = None

    def feed_data(self, data: bytes | bytearray | memoryview) -> None:  # type: ignore[override]
        try:
            super().feed_data(data)
        except HttpParserUpgrade as exc:
            self.rest = memoryview(data)[exc.args[0] :]


class PlainHttp(HttpToolsProtocol):
    """Uvicorn's protocol over httptools, which parses a head with an `Upgrade` header again without that header.

    The JDK's HttpClient offers `h2c` with each request. httptools treats such a request as complete after its head, so
    it would parse the body as the next request on the connection.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.parser = _Parser(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # A loop: a segment may hold many requests with offers. Without a parser the connection is lost.
        while (parser := cast("_Parser | None", self.parser)) is not None and parser.rest is not None:
            head = self._head_without_offer()
            self.parser = _Parser(self)
            for piece in (head, parser.rest):
                super().data_received(cast("bytes", piece))

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_headers_complete()
        elif self.parser.get_method() == b"CONNECT":
            # It makes a tunnel of the connection, offer or not.
            raise ValueError("CONNECT is not supported")

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _head_without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

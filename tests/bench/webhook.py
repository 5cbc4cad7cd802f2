"""The fast webhook: answers every POST with an outcome that names the call, at once or after a delay."""

import asyncio
import re
from collections.abc import Iterator
from itertools import repeat
from typing import cast

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CALL = re.compile(rb'"native_call_id": ?"([^"]{1,128})"')
_SIGNATURE = b"webhook-signature: v1,"
_REFUSAL = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


def result_of(call: str) -> dict[str, object]:
    """Say what the right result of a call is."""
    return {"echo": call, "cards": 3}


class Webhook:
    """What all connections share: how long an answer takes, and who has been asked how often."""

    def __init__(self) -> None:
        self.delays: Iterator[float] = repeat(0.0)
        """Seconds before each answer, in turn."""
        self.posts = 0
        self.signed = 0
        self.connections = 0

    def connect(self) -> asyncio.Protocol:
        """Make the protocol of one connection."""
        return _Connection(self)


class _Connection(asyncio.Protocol):
    def __init__(self, webhook: Webhook) -> None:
        self._webhook = webhook
        self._rest = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none by inheritance.
        self._transport = cast("asyncio.Transport", transport)
        self._webhook.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._webhook.connections -= 1

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                break
            length = _LENGTH.search(data, 0, end)
            if length is None:
                self._transport.write(_REFUSAL)
                self._transport.close()
                return
            stop = end + 4 + int(length[1])
            if len(data) < stop:
                break
            self._answer(data, end)
            data = data[stop:]
        self._rest = data

    def _answer(self, data: bytes, end: int) -> None:
        webhook = self._webhook
        found = _CALL.search(data, end)
        if found is None:
            self._transport.write(_REFUSAL)
            return
        webhook.posts += 1
        webhook.signed += _SIGNATURE in data[:end]
        body = b'{"outcome":"success","result":{"echo":"' + found[1] + b'","cards":3}}'
        answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
            len(body),
            body,
        )
        delay = next(webhook.delays)
        if delay:
            asyncio.get_running_loop().call_later(delay, self._transport.write, answer)
        else:
            self._transport.write(answer)

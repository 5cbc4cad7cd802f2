"""Records the traffic of a simulated peer verbatim."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

KEPT = 2_000


@dataclass(frozen=True, slots=True)
class Passed:
    """One recorded message: of a WebSocket, a request's body, or one chunk of a response's body."""

    text: str
    by_gateway: bool
    """Whether the gateway sent it; otherwise the peer did."""
    exchange: int
    """The number of its WebSocket, or of its request and response."""
    head: str = ""
    """`POST /tools` for a request, the status for a response, empty for a WebSocket."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """The headers of a request, without credentials."""
    at: float = field(default_factory=time.monotonic, compare=False)
    """The time of the message, in seconds of the monotonic clock."""


class Wire:
    """Records the newest messages of the applications that it wraps."""

    def __init__(self) -> None:
        self.passed: deque[Passed] = deque(maxlen=KEPT)
        self._exchanges = 0

    def begin(self) -> int:
        """Return the number for a new WebSocket, or for a request with its response."""
        self._exchanges += 1
        return self._exchanges

    def find(self, text: str, *, by_gateway: bool) -> Passed | None:
        """Find the first message of one side that contains a text."""
        return next((each for each in self.passed if each.by_gateway is by_gateway and text in each.text), None)

    def answer_to(self, asked: Passed) -> Passed | None:
        """Find the response to a request."""
        same = (each for each in self.passed if each.exchange == asked.exchange)
        return next((each for each in same if each.by_gateway is not asked.by_gateway), None)

    def around(self, app: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap an ASGI application to which gateways connect."""

        async def recording(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
            exchange, body, status = self.begin(), bytearray(), ""

            async def receive_recorded() -> dict[str, Any]:
                message: dict[str, Any] = await receive()
                if message["type"] == "websocket.receive" and message.get("text") is not None:
                    self.passed.append(Passed(message["text"], by_gateway=True, exchange=exchange))
                if message["type"] == "http.request":
                    body.extend(message.get("body", b""))
                    if not message.get("more_body", False):
                        head, headers = f"{scope['method']} {scope['path']}", _readable(scope["headers"])
                        self.passed.append(Passed(_text(body), True, exchange, head, headers))
                return message

            async def send_recorded(message: dict[str, Any]) -> None:
                nonlocal status
                if message["type"] == "websocket.send" and message.get("text") is not None:
                    self.passed.append(Passed(message["text"], by_gateway=False, exchange=exchange))
                if message["type"] == "http.response.start":
                    status = str(message["status"])
                if message["type"] == "http.response.body" and message.get("body"):
                    self.passed.append(Passed(_text(message["body"]), by_gateway=False, exchange=exchange, head=status))
                await send(message)

            await app(scope, receive_recorded, send_recorded)

        return recording


def _readable(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    read = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    return {name: value for name, value in read.items() if name not in {"authorization", "cookie", "x-api-key"}}


def _text(body: bytes | bytearray) -> str:
    return body.decode(errors="replace")

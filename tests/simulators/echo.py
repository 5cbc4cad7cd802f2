"""A page that answers with what it was sent."""

from collections.abc import Awaitable, Callable
from typing import Any


async def echo(
    scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]], send: Callable[..., Awaitable[None]]
) -> None:
    """Answer one request, an ASGI application."""
    assert scope["type"] == "http"
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"you said " + body})

"""Strict parsing of JSON-RPC messages before the MCP library, which accepts values that we cannot pass on. Pure."""

from typing import Any, cast

from gateway.http.body import parse_json
from gateway.http.errors import Refused

PARSE_ERROR, INVALID_REQUEST = -32700, -32600


class NoMessage(Exception):
    """A body that is not a message; `code` is JSON-RPC's, `place` an RFC 6901 pointer if known."""

    def __init__(self, code: int, reason: str, place: str | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.place = place


def read_message(raw: bytes) -> dict[str, Any]:
    """Parse one message as strictly as the API does, and refuse repeated members.

    Raises:
        NoMessage: names the error and its place.
    """
    try:
        value = parse_json(raw, unique=True)
    except Refused as exc:
        raise NoMessage(PARSE_ERROR, str(exc), exc.members.get("pointer")) from exc
    if isinstance(value, list):
        raise NoMessage(INVALID_REQUEST, "batches are not supported; send one message per request")
    if not isinstance(value, dict):
        raise NoMessage(INVALID_REQUEST, "expected a JSON-RPC message, an object")
    message = cast("dict[str, Any]", value)
    # The library treats a request with another type of id as a notification and sends no response.
    if "id" in message and "method" in message and type(message["id"]) not in {str, int}:
        raise NoMessage(INVALID_REQUEST, "the id of a request must be a string or an integer", "/id")
    return message

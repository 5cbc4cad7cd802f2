"""Strict parsing of JSON-RPC messages before the MCP library, which accepts values that we cannot pass on. Pure."""

import json
from collections.abc import Iterator
from typing import Any, cast

from gateway.http.body import parse_json
from gateway.http.errors import Refused
from gateway.strict_json import pointer

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
        value = parse_json(raw)
    except Refused as exc:
        raise NoMessage(PARSE_ERROR, str(exc), exc.members.get("pointer")) from exc
    if (twice := _find_repeated(raw)) is not None:
        raise NoMessage(PARSE_ERROR, f"the member {twice!r} is repeated", twice)
    if isinstance(value, list):
        raise NoMessage(INVALID_REQUEST, "batches are not supported; send one message per request")
    if not isinstance(value, dict):
        raise NoMessage(INVALID_REQUEST, "expected a JSON-RPC message, an object")
    message = cast("dict[str, Any]", value)
    # The library treats a request with another type of id as a notification and sends no response.
    if "id" in message and "method" in message and type(message["id"]) not in {str, int}:
        raise NoMessage(INVALID_REQUEST, "the id of a request must be a string or an integer", "/id")
    return message


class _Twice(dict[str, Any]):
    """An object with a repeated member."""

    name = ""


def _find_repeated(raw: bytes) -> str | None:
    """Find a repeated member; our parsers use the last value, others perhaps the first."""
    found: list[_Twice] = []

    def take(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) == len(pairs):
            return members
        seen: set[str] = set()
        twice = _Twice(members)
        twice.name = next(name for name, _ in pairs if name in seen or seen.add(name))
        found.append(twice)
        return twice

    value = json.loads(raw, object_pairs_hook=take)
    if not found:
        return None
    return next((pointer(place, one.name) for place, one in _objects(value, "") if isinstance(one, _Twice)), "")


def _objects(value: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    match value:
        case dict():
            members = cast("dict[str, Any]", value)
            yield place, members
            for name, inner in members.items():
                yield from _objects(inner, pointer(place, name))
        case list():
            for index, inner in enumerate(cast("list[Any]", value)):
                yield from _objects(inner, pointer(place, index))
        case _:
            pass

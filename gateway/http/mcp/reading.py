"""Reads a JSON-RPC message strictly, before the protocol's library does, which takes what we cannot hand on. Pure."""

import json
from collections.abc import Iterator
from typing import Any, cast

from gateway.http.body import parse_json
from gateway.http.errors import Refused
from gateway.strict_json import pointer

PARSE_ERROR, INVALID_REQUEST = -32700, -32600


class NoMessage(Exception):
    """A body that is no message; `code` is JSON-RPC's, `place` an RFC 6901 pointer where it can be told."""

    def __init__(self, code: int, reason: str, place: str | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.place = place


def read_message(raw: bytes) -> dict[str, Any]:
    """Read one message: as strictly as the API reads, and no member may be given twice.

    Raises:
        NoMessage: with what is wrong, and where.
    """
    try:
        value = parse_json(raw)
    except Refused as exc:
        raise NoMessage(PARSE_ERROR, str(exc), exc.members.get("pointer")) from exc
    if (twice := _given_twice(raw)) is not None:
        raise NoMessage(PARSE_ERROR, f"the member {twice!r} is given twice", twice)
    if isinstance(value, list):
        raise NoMessage(INVALID_REQUEST, "batches are not taken; send one message at a time")
    if not isinstance(value, dict):
        raise NoMessage(INVALID_REQUEST, "expected one JSON-RPC message, which is an object")
    message = cast("dict[str, Any]", value)
    # The library takes a request with another id for a notification, and answers nothing.
    if "id" in message and "method" in message and type(message["id"]) not in {str, int}:
        raise NoMessage(INVALID_REQUEST, "the id of a request is a string or an integer", "/id")
    return message


class _Twice(dict[str, Any]):
    """An object that has a member twice."""

    name = ""


def _given_twice(raw: bytes) -> str | None:
    """Find a member that is given twice; the readers would take the last one, and others perhaps the first."""
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

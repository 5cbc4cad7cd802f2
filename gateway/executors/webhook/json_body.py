"""Reads JSON from a peer strictly: nothing too deep, no number that would be rounded. Pure."""

import json
import re
from collections.abc import Iterable
from typing import Any, cast

import orjson

from gateway.json_members import MEMBERS
from gateway.json_values import LONG, is_simple

MAX_DEPTH = 64

_LONG_NUMBER = re.compile(rb"[0-9]{20}|-[0-9]{19}")
# The expression costs more than all of the parsing. Every match of it is a run of 20 digits and minus signs, and with
# those made all the same, looking for a run is a plain search.
_SAME_DIGITS = bytes.maketrans(b"-123456789", b"0" * 10)
_RUN = b"0" * 20


def read_json(body: bytes) -> Any:
    """Parse a body.

    Raises:
        ValueError: with a text that completes "a body ..." and never quotes the body.
    """
    if (many := MEMBERS.too_many(body)) is not None:
        raise ValueError(f"with {many}")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise ValueError("that is not JSON") from exc
    if len(body) > LONG and is_simple(value):
        return value
    # Counting brackets is cheap and settles it for nearly every body.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_too_deep(value):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    # orjson turns integers beyond 64 bits into floats; the slow parser is asked only where one is possible.
    if _RUN in body.translate(_SAME_DIGITS) and _LONG_NUMBER.search(body):
        json.loads(body, parse_int=_read_int)
    return value


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _children(node) if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def _children(node: Any) -> Iterable[Any]:
    match node:
        case dict():
            return cast("dict[str, Any]", node).values()
        case list():
            return cast("list[Any]", node)
        case _:
            return ()


def _read_int(digits: str) -> int:
    # Python itself refuses numbers of over 4,300 digits with a ValueError that tells about its settings.
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
        raise ValueError("with a whole number beyond 64 bits")
    return int(digits)

"""The approximate memory of a value in bytes, the unit of byte limits. Pure."""

from typing import Any

import orjson
from pydantic import BaseModel

_NODE = 56
"""Bytes of an object without its content."""
_FEW = 64
"""Members that are weighed one by one; above this number the JSON is used."""
_SHORT = 4096
"""Bytes of JSON up to which its commas are counted without parsing: commas in texts add little."""
_MUCH = 1024 * 1024
"""Below this weight, a comma in a text may count as a member."""
# Tuples: a union would be built on each check.
_TEXTS = (str, bytes)
_CONTAINERS = (dict, list, tuple)
_NO_MARKS = bytes(set(range(256)) - set(b",{["))


def weight(value: object, written: bytes | None = None) -> int:
    """Add up the texts and a constant for every value, key and member; `written` is the JSON, if available."""
    if written and len(written) <= _SHORT:
        return len(written) + _NODE * max_members(written)
    total = seen = 0
    waiting: list[Any] = [value]
    while waiting:
        current = waiting.pop()
        kind = current.__class__
        if issubclass(kind, _TEXTS):
            # Includes the object's header; a character may take four bytes.
            total += current.__sizeof__()
            continue
        total += _NODE
        if issubclass(kind, BaseModel):
            for member in current.__dict__.values():
                # Most members are texts or None and need no stack.
                if member.__class__ is str:
                    total += member.__sizeof__()
                elif member is None:
                    total += _NODE
                else:
                    waiting.append(member)
        elif issubclass(kind, _CONTAINERS):
            seen += len(current)
            if seen > _FEW and written:
                return _weight_of_json(value, written)
            if seen > _FEW and (inside := _weight_of_json(current)):
                total += inside
                continue
            waiting.extend(current)
            if issubclass(kind, dict):
                waiting.extend(current.values())
    return total


def max_members(written: bytes) -> int:
    """Return the maximum number of members of a JSON text; commas in its strings count, too."""
    # Each member but the first of its object or array has a comma before it.
    return len(written.translate(None, _NO_MARKS))


def _weight_of_json(container: object, written: bytes | None = None) -> int:
    """Weigh a container by its JSON, which is many times as fast; 0 if it is not JSON.

    Indented JSON has one line for each member and one for each closing bracket, and no newline in a text. Keys count
    only their characters, because many objects repeat the same few keys.
    """
    try:
        written = written or orjson.dumps(container)
        estimate = len(written) + _NODE * max_members(written)
        if estimate < _MUCH:
            return estimate
        lines = orjson.dumps(container, option=orjson.OPT_INDENT_2).count(b"\n")
    except TypeError:
        return 0
    return len(written) + _NODE * lines

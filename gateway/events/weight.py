"""Roughly how many bytes of memory a value takes: what limits by bytes are counted in. Pure."""

from typing import Any

import orjson
from pydantic import BaseModel

_NODE = 56
"""What an object takes beside what it holds."""
_FEW = 64
"""Members that are weighed one by one; what comes on top is weighed by its JSON."""
_SHORT = 4096
"""Bytes of JSON up to which it tells the weight at once: commas in its texts cannot make much of it."""
_MUCH = 1024 * 1024
"""What weighs less is weighed by a look at its JSON, for which a comma in a text is a member."""
# Made once: a union is made anew each time it is asked about.
_TEXTS = (str, bytes)
_CONTAINERS = (dict, list, tuple)
_NO_MARKS = bytes(set(range(256)) - set(b",{["))


def weight(value: object, written: bytes | None = None) -> int:
    """Add up the texts, and so much for every value, key and member; `written` is its JSON, where that is at hand."""
    if written and len(written) <= _SHORT:
        return len(written) + _NODE * count_most(written)
    total = seen = 0
    waiting: list[Any] = [value]
    while waiting:
        current = waiting.pop()
        kind = current.__class__
        if issubclass(kind, _TEXTS):
            # With what it takes as an object; of a text, one letter may take four bytes.
            total += current.__sizeof__()
            continue
        total += _NODE
        if issubclass(kind, BaseModel):
            for member in current.__dict__.values():
                # Nearly all are texts or nothing, which need not wait.
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


def count_most(written: bytes) -> int:
    """Count how many members a JSON text can have at most; texts in it may hold what looks like more of them."""
    # Each member but the first of its object or array has a comma before it.
    return len(written.translate(None, _NO_MARKS))


def _weight_of_json(container: object, written: bytes | None = None) -> int:
    """Weigh what a container holds by how it is written, which is many times sooner done; 0 where it is no JSON.

    Indented, each member has a line of its own, and what is filled one more for its end; none is in a text. Keys
    weigh their letters alone: in many objects they are the same few.
    """
    try:
        written = written or orjson.dumps(container)
        seeming = len(written) + _NODE * count_most(written)
        if seeming < _MUCH:
            return seeming
        lines = orjson.dumps(container, option=orjson.OPT_INDENT_2).count(b"\n")
    except TypeError:
        return 0
    return len(written) + _NODE * lines

"""Roughly how many bytes of memory a value takes: what limits by bytes are counted in. Pure."""

from typing import Any

import orjson
from pydantic import BaseModel

_NODE = 56
"""What an object takes beside what it holds."""
_FEW = 64
"""Members that are weighed one by one; what comes on top is weighed by its JSON."""
# Made once: a union is made anew each time it is asked about.
_TEXTS = (str, bytes)
_LISTS = (list, tuple)


def weight(value: object) -> int:
    """Add up the texts, and so much for every value, key and member."""
    total = seen = 0
    waiting: list[Any] = [value]
    while waiting:
        current = waiting.pop()
        kind = current.__class__
        total += _NODE
        if issubclass(kind, _TEXTS):
            total += len(current)
        elif issubclass(kind, dict):
            seen += len(current)
            if seen > _FEW and (inside := _weight_of_json(current)):
                total += inside
            else:
                waiting.extend(current)
                waiting.extend(current.values())
        elif issubclass(kind, _LISTS):
            seen += len(current)
            if seen > _FEW and (inside := _weight_of_json(current)):
                total += inside
            else:
                waiting.extend(current)
        elif issubclass(kind, BaseModel):
            waiting.extend(current.__dict__.values())
    return total


def _weight_of_json(container: object) -> int:
    """Weigh what a container holds by how it is written, which is many times sooner done; 0 where it is no JSON.

    Indented, each member has a line of its own, and what is filled one more for its end; none is in a text. Keys
    weigh their letters alone: in many objects they are the same few.
    """
    try:
        raw = orjson.dumps(container)
        lines = orjson.dumps(container, option=orjson.OPT_INDENT_2).count(b"\n")
    except TypeError:
        return 0
    return len(raw) + _NODE * lines

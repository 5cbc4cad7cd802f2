"""Roughly how many bytes of memory a value takes: what limits by bytes are counted in. Pure."""

from typing import cast

from pydantic import BaseModel

_NODE = 56
"""What an object takes beside what it holds."""


def weight(value: object) -> int:
    """Add up the texts, and so much for every value, key and member."""
    total = 0
    waiting: list[object] = [value]
    while waiting:
        current = waiting.pop()
        total += _NODE
        if isinstance(current, str | bytes):
            total += len(current)
        elif isinstance(current, dict):
            members = cast("dict[object, object]", current)
            waiting.extend(members)
            waiting.extend(members.values())
        elif isinstance(current, list | tuple):
            waiting.extend(cast("list[object]", current))
        elif isinstance(current, BaseModel):
            waiting.extend(current.__dict__.values())
    return total

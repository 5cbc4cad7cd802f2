"""A session's memory as bytes, so that a session does not fold all of its events again. Pure."""

import json
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from gateway.core.state import Remembered

_MEMORY = TypeAdapter(Remembered)


class Snapshot(NamedTuple):
    """A session's memory after the event of a sequence; later events are folded into it."""

    sequence: int
    memory: Remembered


_NOTHING = Snapshot(0, Remembered())


def to_snapshot(sequence: int, memory: Remembered) -> bytes:
    """Write a session's memory as JSON."""
    return b'{"sequence":%d,"memory":%b}' % (sequence, _MEMORY.dump_json(memory))


def from_snapshot(snapshot: bytes | None) -> Snapshot:
    """Read a memory; an empty one at sequence 0 if there is none, or if it cannot be read."""
    if snapshot is None:
        return _NOTHING
    try:
        # Unlike orjson, this reads integers of any size.
        found: Any = json.loads(snapshot)
        match found:
            # The first release wrote a list.
            case [int(sequence), memory] | {"sequence": int(sequence), "memory": memory}:
                return Snapshot(sequence, _MEMORY.validate_python(memory))
            case _:
                return _NOTHING
    except (ValueError, RecursionError):
        return _NOTHING

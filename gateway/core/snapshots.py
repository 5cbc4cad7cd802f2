"""A session's memory written down, in a way that releases before and after can live with. Pure.

A snapshot carries the number of the folding that made it. One of a newer folding is read for what is known here, and
what is then written carries it along: a memory that was folded without what only the newer release can read is good
enough for this one, but the newer one folds anew from the newest snapshot that lacks nothing.
"""

import json
from typing import Any, NamedTuple, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError

from gateway.core.state import Complete, Remembered

FOLDING = 3
"""The number of this release's folding: a release that remembers more, or other things, of the same events raises it.
The first release wrote none, and counts as 1."""

_MEMORY = TypeAdapter(Remembered)
_MEMBERS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(hint) for name, hint in get_type_hints(Remembered).items()}


class Taken(NamedTuple):
    """A memory as it was read, and what a newer release needs of it."""

    sequence: int
    memory: Remembered
    complete: Complete | None = None


def to_snapshot(sequence: int, memory: Remembered, complete: Complete | None = None) -> bytes:
    """Write a session's memory down, so that it need not be folded from the first event again."""
    kept = _MEMORY.dump_json(memory)
    without = b"" if complete is None else b',"complete":' + complete.snapshot
    return b'{"folding":%d,"sequence":%d,"memory":%b%b}' % (FOLDING, sequence, kept, without)


def from_snapshot(snapshot: bytes | None) -> Taken:
    """Read a memory and the sequence it stands at; an empty one at 0 where there is none, or nothing to read."""
    if snapshot is None:
        return Taken(0, Remembered())
    try:
        told: Any = json.loads(snapshot)
    except (ValueError, RecursionError):
        return Taken(0, Remembered())
    return _read(told, snapshot)


def _read(told: Any, snapshot: bytes) -> Taken:
    match told:
        case [int(sequence), memory]:
            return Taken(sequence, _known(memory))
        case {"folding": int(folding), "complete": complete} if folding < FOLDING:
            # What an older release wrote while it could not read all: this one may know what was missing.
            return _read(complete, _write(complete))
        case {"folding": int(folding), "sequence": int(sequence), "memory": memory}:
            if folding > FOLDING:
                return Taken(sequence, _known(memory), Complete(sequence, snapshot))
            return Taken(sequence, _known(memory), _complete(cast("dict[str, Any]", told).get("complete")))
        case _:
            return Taken(0, Remembered())


def _complete(told: Any) -> Complete | None:
    match told:
        case [int(sequence), _] | {"sequence": int(sequence)}:
            return Complete(sequence, _write(cast("Any", told)))
        case _:
            return None


def _write(told: Any) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode()


def _known(told: Any) -> Remembered:
    """Read of a memory what this release knows; what it does not, it never heard of."""
    try:
        return _MEMORY.validate_python(told)
    except ValidationError:
        members = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
    kept: dict[str, Any] = {}
    for name in _MEMBERS.keys() & members.keys():
        _keep(kept, name, members[name])
    return Remembered(**kept)


def _keep(kept: dict[str, Any], name: str, value: Any) -> None:
    parts: list[Any] = [value]
    match value:
        case list():
            parts = [[item] for item in cast("list[Any]", value)]
            parts = [[part[0] for part in parts if _is_readable(name, part)]]
        case dict():
            items = cast("dict[str, Any]", value).items()
            parts = [{key: item for key, item in items if _is_readable(name, {key: item})}]
        case _:
            pass
    if _is_readable(name, parts[0]):
        kept[name] = _MEMBERS[name].validate_python(parts[0])


def _is_readable(name: str, value: Any) -> bool:
    try:
        _MEMBERS[name].validate_python(value)
    except ValidationError:
        return False
    return True

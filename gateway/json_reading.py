"""The one strict reader of JSON from outside: frames of runtimes, answers of executors, bodies of clients. Pure.

Every check looks at the text first, which costs a fraction of the parsing however much the value holds; what a look
cannot settle is walked through.
"""

import json
from typing import Any, Literal

import orjson

from gateway.json_members import MEMBERS
from gateway.json_values import (
    LONG,
    MAX_DEPTH,
    count_brackets,
    is_simple,
    nests_deeper,
    write_within,
)

# A long integer is a run of 20 digits and minus signs; with those made all the same, looking for one is a plain search,
# many times sooner than an expression.
_SAME_DIGITS = bytes.maketrans(b"-123456789", b"0" * 10)
_RUN = b"0" * 20
_SOME_OF_RUN = b"0" * 5
_BEFORE_NUMBERS = b"[,: \t\r\n"
_LONGEST = len(str(2**64))


_LARGE = 2 * 1024 * 1024
"""Bytes of a text from which on the memory for it is tried first; the system gives so much without touching it."""
_ROOM = 20
"""Times the length of a text that orjson may reserve: up to 14 to parse it, and 17 to write it again."""

Unfit = Literal["members", "syntax", "depth", "integer", "memory"]


class Unreadable(ValueError):
    """A text that is no JSON, or JSON that nobody may hand on; it never quotes the text."""

    def __init__(self, fault: Unfit, reason: str) -> None:
        super().__init__(reason)
        self.fault: Unfit = fault


def read_strictly(text: str | bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """Parse a text: no NaN or infinity, no lone surrogates, no integers beyond 64 bits, bounded depth and members.

    Raises:
        Unreadable: caused by orjson's error where it is none of these bounds.
    """
    return read_and_write(text, max_depth=max_depth)[0]


def write_strictly(value: object, *, most: int) -> bytes:
    """Write a value of Python's own as JSON of so many bytes at most; NaN, of which orjson would make null, is refused.

    Raises:
        ValueError: with a text that completes "what ...".
    """
    try:
        written = json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise ValueError(f"cannot be JSON ({exc})") from exc
    if len(written) > most:
        raise ValueError(f"has {len(written)} bytes of JSON, {most} are allowed")
    return written


def read_and_write(text: str | bytes, *, max_depth: int = MAX_DEPTH) -> tuple[Any, bytes | None]:
    """Parse as `read_strictly` does, and write it compactly where `find_fault` surely minds nothing in it.

    None in place of the JSON means only that somebody must look closer.
    """
    if (many := MEMBERS.too_many(text)) is not None:
        raise Unreadable("members", many)
    if len(text) >= _LARGE:
        _require_memory(_ROOM * len(text))
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise Unreadable("syntax", exc.msg) from exc
    is_long = len(text) > LONG
    if is_long and is_simple(value):
        return value, orjson.dumps(value)
    raw = text.encode() if isinstance(text, str) else text
    # Written while all of the value is at hand, which is half the price; that it can be bounds its depth.
    is_narrow = not is_long and count_brackets(raw) <= MAX_DEPTH
    written = orjson.dumps(value) if is_narrow else write_within(value, MAX_DEPTH)
    if (
        (written is None or max_depth < MAX_DEPTH)
        and count_brackets(raw) > max_depth
        and nests_deeper(value, max_depth)
    ):
        raise Unreadable("depth", f"nested deeper than {max_depth} levels")
    # A number that was rounded is written in another way than it came.
    if written != raw:
        _refuse_huge_integers(raw)
    return value, written


def _require_memory(size: int) -> None:
    """Refuse a text if its memory cannot be reserved (`ulimit -v`): orjson then crashes the process."""
    try:
        len(bytes(size))
    except MemoryError as exc:
        raise Unreadable("memory", "needs more memory than the process has") from exc


def _refuse_huge_integers(raw: bytes) -> None:
    """Refuse integers beyond 64 bits, of which orjson makes floats; the slow parser is asked only where one may be."""
    # Every fourth byte of a run of twenty are five of a kind.
    if raw[::4].translate(_SAME_DIGITS).find(_SOME_OF_RUN) < 0:
        return
    digits = raw.translate(_SAME_DIGITS)
    at = digits.find(_RUN)
    while at >= 0:
        # Elsewhere it is part of a text, as in ids, or behind a point.
        if at == 0 or raw[at - 1] in _BEFORE_NUMBERS:
            json.loads(raw, parse_int=_bounded)
            return
        at = digits.find(_RUN, at + len(_RUN))


def _bounded(digits: str) -> int:
    # Python itself refuses numbers of over 4,300 digits with an error that tells about its settings.
    if len(digits) > _LONGEST or not -(2**63) <= int(digits) < 2**64:
        raise Unreadable("integer", "an integer is beyond 64 bits")
    return int(digits)

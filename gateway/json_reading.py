"""The one strict reader of JSON from outside: frames of runtimes, answers of executors, bodies of clients. Pure.

Every check looks at the text first, which costs a fraction of the parsing however much the value holds; what a look
cannot settle is walked through.
"""

import json
import re
from typing import Any, Literal

import orjson

from gateway.json_members import MEMBERS
from gateway.json_values import LONG, MAX_DEPTH, count_brackets, holds_forbidden_key, is_simple, nests_deeper

_LONG_INTEGER = re.compile(rb"[0-9]{20}|-[0-9]{19}")
# Every match is a run of 20 digits and minus signs; with those made all the same, looking for one is a plain search,
# many times sooner than the expression.
_SAME_DIGITS = bytes.maketrans(b"-123456789", b"0" * 10)
_RUN = b"0" * 20
_LONGEST = len(str(2**64))


Unfit = Literal["members", "syntax", "depth", "integer"]


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
    if (many := MEMBERS.too_many(text)) is not None:
        raise Unreadable("members", many)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise Unreadable("syntax", exc.msg) from exc
    if len(text) > LONG and is_simple(value):
        return value
    raw = text.encode() if isinstance(text, str) else text
    if count_brackets(raw) > max_depth and nests_deeper(value, max_depth):
        raise Unreadable("depth", f"nested deeper than {max_depth} levels")
    # orjson turns integers beyond 64 bits into floats; the slow parser is asked only where one is possible.
    if _RUN in raw.translate(_SAME_DIGITS) and _LONG_INTEGER.search(raw):
        json.loads(raw, parse_int=_bounded)
    return value


def is_plain(text: str | bytes, value: object, *, max_depth: int = MAX_DEPTH) -> bool:
    r"""Say whether `find_fault` surely minds nothing in a value that was read strictly, with this depth, from a text.

    False means only that somebody must look closer: keys may be written with escapes, those of ASCII with `\u00`.
    """
    if len(text) > LONG and is_simple(value):
        return True
    raw = text.encode() if isinstance(text, str) else text
    if holds_forbidden_key(raw) or (b"\\" in raw and b"\\u00" in raw):
        return False
    return max_depth <= MAX_DEPTH or count_brackets(raw) <= MAX_DEPTH or not nests_deeper(value, MAX_DEPTH)


def _bounded(digits: str) -> int:
    # Python itself refuses numbers of over 4,300 digits with an error that tells about its settings.
    if len(digits) > _LONGEST or not -(2**63) <= int(digits) < 2**64:
        raise Unreadable("integer", "an integer is beyond 64 bits")
    return int(digits)

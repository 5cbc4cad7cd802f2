"""JSON for sockets: reading returns a malformed value instead of raising inside a read loop, writing refuses bytes.

The module itself has the two functions that python-socketio asks of a `json=` module.
"""

import asyncio
import json as standard
import re
from collections.abc import Iterator
from typing import Any, cast

import orjson

from gateway.errors import CannotExpress
from gateway.json_members import MEMBERS
from gateway.json_reading import Unreadable, read_and_write
from gateway.json_values import Malformed, has_more_levels
from gateway.links.frame_memory import FRAMES

EXCERPT = 256
MAX_DEPTH = 256
"""Nesting that is handed on at all; what a protocol lets through is for its codec to say."""

CUT_LENGTH = 64 * 1024
"""The longest text of which the depths are cut off; looking through it takes some milliseconds."""

AT_ONCE = 8 * 1024 * 1024
"""Letters of an answer that are parsed at once; orjson reserves up to twenty bytes for each."""

_MARKS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
_NEXT = re.compile(r'[^"\[\]{}]*+(?:"(?:[^"\\]++|\\.)*+"[^"\[\]{}]*+)*+([\[\]{}])', re.DOTALL)
"""What leads to the next bracket that stands in no text, and the bracket."""
_SLICE = 2_000
"""Brackets that are looked at before others get their turn; it takes about a millisecond."""
_SAID = {"members": "has {}", "syntax": "not readable as JSON: {}", "depth": "{}", "integer": "{}", "memory": "{}"}
_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def loads(text: str | bytes) -> Any:
    """Read JSON; what cannot be read comes back as `Malformed`.

    Refused beside broken JSON: more members than `limits.members`, lone surrogates, nesting over `MAX_DEPTH`,
    infinities, and integers beyond 64 bits, which would otherwise be rounded without a word.
    """
    try:
        return read_and_write(text, max_depth=MAX_DEPTH)[0]
    except Unreadable as exc:
        return _malformed(exc, text)


def _malformed(exc: Unreadable, text: str | bytes) -> Malformed:
    return Malformed(_SAID[exc.fault].format(exc), excerpt(text))


def salvage(text: str) -> Any:
    """Read JSON as Python does, with the lone surrogates and huge integers that `loads` refuses.

    A call with one bad argument can then be answered, because its id is known. For the same reason what is nested
    deeper than `MAX_DEPTH` is left out, where the text is short enough to look for it. Whoever takes the value must
    find what is unspeakable in it (`gateway.json_values.find_fault`); it is still nested to `MAX_DEPTH`.
    """
    if len(text) <= CUT_LENGTH:
        text = _without_depths(text)
    if (many := MEMBERS.too_many(text)) is not None:
        return Malformed(f"has {many}", excerpt(text))
    try:
        value = standard.loads(text)
    except (ValueError, RecursionError) as exc:
        reason = exc.msg if isinstance(exc, standard.JSONDecodeError) else "beyond all bounds"
        return Malformed(f"not readable as JSON: {reason}", excerpt(text))
    if text.count("{") + text.count("[") > MAX_DEPTH and has_more_levels(value, MAX_DEPTH):
        return Malformed(f"nested deeper than {MAX_DEPTH} levels", excerpt(text))
    return value


def read(text: str) -> Any:
    """Read JSON leniently: one bad value must not cost all that stands around it.

    Whoever takes the value must find what is unspeakable in it, as for `salvage`.
    """
    return read_frame(text)[0]


def read_frame(text: str | bytes) -> tuple[Any, bytes | None]:
    """Read JSON leniently; beside it, its compact JSON where `find_fault` surely minds nothing in it."""
    try:
        return read_and_write(text, max_depth=MAX_DEPTH)
    except Unreadable as exc:
        if exc.fault == "memory":
            return Malformed(str(exc), excerpt(text), is_large=True), None
        try:
            salvaged = salvage(text if isinstance(text, str) else text.decode())
        except UnicodeDecodeError:
            return Malformed("not UTF-8", excerpt(text)), None
        return _malformed(exc, text) if isinstance(salvaged, Malformed) else salvaged, None


async def read_answer(content: bytes) -> Any:
    """Read an answer leniently; it may hold a list of events.

    A long answer, or one with more members than one value may have, is read event by event. An event that cannot be
    read is `Malformed` in its place, without an excerpt. Other tasks get their turn in between.
    """
    text = content.decode("utf-8", "replace")
    if len(text) <= AT_ONCE and MEMBERS.too_many(content) is None:
        return read(text)
    # In a list the events stand below it, in an object below its lists.
    level = 1 if text.lstrip().startswith("[") else 2
    events: list[Any] = []
    around: list[str] = []
    depth = start = 0
    for number, mark in enumerate(_brackets(text), start=1):
        if mark[1] in "[{":
            if depth == level:
                around.append(f"{text[start : mark.start(1)]}[{len(events)}]")
                start = mark.start(1)
            depth += 1
        else:
            depth -= 1
            if depth == level:
                await asyncio.sleep(0)
                event = _read_part(text, start, mark.end())
                events.append(Malformed(event.reason) if isinstance(event, Malformed) else event)
                start = mark.end()
                await asyncio.sleep(0)
        if number % _SLICE == 0:
            await asyncio.sleep(0)
    rest = "".join((*around, text[start:]))
    answer = _read_part(rest, 0, len(rest))
    return answer if isinstance(answer, Malformed) else _put_in(answer, level, events)


def _read_part(text: str, start: int, end: int) -> Any:
    """Read a part of a long answer; one that is longer than any part or frame may be is `Malformed`."""
    if end - start > max(AT_ONCE, FRAMES.largest):
        return Malformed(f"has {end - start:,} letters; {AT_ONCE:,} are parsed at once")
    return read(text[start:end])


def _brackets(text: str) -> Iterator[re.Match[str]]:
    """Find one after the other; a search would go through what has none again from each of its letters."""
    mark = _NEXT.match(text)
    while mark is not None:
        yield mark
        mark = _NEXT.match(text, mark.end())


def _put_in(around: Any, level: int, events: list[Any]) -> Any:
    """Put the events back; all containers at this level are places of them."""
    match around:
        case [int(place)] if level == 0:
            return events[place]
        case dict():
            members = cast("dict[str, Any]", around)
            return {name: _put_in(inner, level - 1, events) for name, inner in members.items()}
        case list():
            return [_put_in(inner, level - 1, events) for inner in cast("list[Any]", around)]
        case _:
            return around


def dumps(value: object, **_options: object) -> str:
    """Write compact JSON; the options that python-socketio passes (separators) are what it does anyway.

    Raises:
        CannotExpress: the value is not JSON (bytes, for one).
    """
    return encode(value).decode()


def encode(value: object) -> bytes:
    """Write compact JSON, as it is sent.

    Raises:
        CannotExpress: the value is not JSON (bytes, for one).
    """
    try:
        return orjson.dumps(value, option=_OPTIONS)
    except TypeError as exc:
        raise CannotExpress(f"the value is not JSON: {exc}") from exc


def excerpt(text: str | bytes) -> str:
    """Cut a raw message to what may be kept as evidence."""
    if isinstance(text, bytes):
        return text[:EXCERPT].decode("utf-8", "backslashreplace")
    return text[:EXCERPT].encode("utf-8", "backslashreplace").decode()


def _without_depths(text: str) -> str:
    """Leave out what is inside of containers at `MAX_DEPTH`; a text that is shallow comes back as it is."""
    kept: list[str] = []
    depth = start = 0
    for mark in _MARKS.finditer(text):
        match mark[0]:
            case "[" | "{":
                depth += 1
                if depth == MAX_DEPTH:
                    kept.append(text[start : mark.end()])
            case "]" | "}":
                if depth == MAX_DEPTH:
                    start = mark.start()
                depth -= 1
            case _:
                pass
    return "".join((*kept, text[start:])) if kept else text

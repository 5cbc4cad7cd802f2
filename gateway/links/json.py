"""JSON for links: an unreadable text becomes a `Malformed` value, so that read loops continue."""

import asyncio
import json as standard
import re
from collections.abc import Iterator
from typing import Any, cast

import orjson

from gateway.errors import CannotExpress
from gateway.links.frame_memory import FRAMES
from gateway.strict_json import Malformed, Unreadable, find_fault, parse, read_and_write, without_mark

EXCERPT = 256
AT_ONCE = 8 * 1024 * 1024
"""Characters of a response that are parsed at once; orjson reserves up to twenty bytes for each."""

_NEXT = re.compile(r'[^"\[\]{}]*+(?:"(?:[^"\\]++|\\.)*+"[^"\[\]{}]*+)*+([\[\]{}])', re.DOTALL)
"""The text up to the next bracket outside of strings, and the bracket."""
_SLICE = 2_000
"""Brackets that are found before other tasks get their turn, which takes about a millisecond."""
_REASONS = {"members": "has {}", "syntax": "not readable as JSON: {}", "depth": "{}", "integer": "{}", "memory": "{}"}
_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def loads(text: str | bytes) -> Any:
    """Read JSON strictly."""
    return read_frame(text)[0]


def read_frame(text: str | bytes) -> tuple[Any, bytes | None]:
    """Read JSON strictly; return the value and its compact JSON, which is None for a `Malformed`."""
    try:
        return read_and_write(text)
    except Unreadable as exc:
        return _refuse(exc, text), None


def _refuse(exc: Unreadable, text: str | bytes) -> Malformed:
    return Malformed(_REASONS[exc.fault].format(exc), excerpt(text))


async def read_answer(content: bytes) -> Any:
    """Parse a response that may contain lists of events; each invalid event becomes a `Malformed`.

    A response over 8 MiB is parsed event by event. Other tasks get their turn between two events.
    """
    content = without_mark(content)
    if len(content) > AT_ONCE:
        return await _read_long(content.decode("utf-8", "replace"))
    answer: Any
    try:
        answer = parse(content)
    except Unreadable as exc:
        answer = _refuse(exc, content) if exc.fault == "memory" else _parse_leniently(content)
    if isinstance(answer, list):
        return await _check_events(cast("list[Any]", answer))
    if isinstance(answer, Malformed):
        return answer
    members = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {"": answer}
    if fault := find_fault({name: inner for name, inner in members.items() if not isinstance(inner, list)}):
        return Malformed(fault.reason, excerpt(content))
    for name, inner in members.items():
        if isinstance(inner, list):
            members[name] = await _check_events(cast("list[Any]", inner))
    return cast("Any", answer)


def _parse_leniently(content: bytes) -> Any:
    """Parse leniently; `find_fault` then rejects only the invalid events."""
    try:
        return standard.loads(content.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as exc:
        reason = exc.msg if isinstance(exc, standard.JSONDecodeError) else "beyond all limits"
        return Malformed(f"not readable as JSON: {reason}", excerpt(content))


async def _check_events(events: list[Any]) -> list[Any]:
    checked: list[Any] = []
    for event in events:
        fault = find_fault(event)
        checked.append(event if fault is None else Malformed(fault.reason))
        await asyncio.sleep(0)
    return checked


async def _read_long(text: str) -> Any:
    # Events are members of the list, or of the lists in the object.
    level = 1 if text.lstrip().startswith("[") else 2
    events: list[Any] = []
    around: list[str] = []
    depth = start = 0
    for number, mark in enumerate(_find_brackets(text), start=1):
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
        if number % _SLICE == 0:
            await asyncio.sleep(0)
    rest = "".join((*around, text[start:]))
    answer = _read_part(rest, 0, len(rest))
    return answer if isinstance(answer, Malformed) else _put_in(answer, level, events)


def _read_part(text: str, start: int, end: int) -> Any:
    """Parse a part of a long response; a part over the limits is `Malformed`."""
    if end - start > max(AT_ONCE, FRAMES.get().largest):
        return Malformed(f"has {end - start:,} characters; {AT_ONCE:,} are allowed")
    return loads(text[start:end])


def _find_brackets(text: str) -> Iterator[re.Match[str]]:
    # A search would scan a text without brackets again from each character.
    mark = _NEXT.match(text)
    while mark is not None:
        yield mark
        mark = _NEXT.match(text, mark.end())


def _put_in(around: Any, level: int, events: list[Any]) -> Any:
    """Insert the events; each container at this level contains the index of one."""
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
    """Write compact JSON; python-socketio passes options, which are ignored.

    Raises:
        CannotExpress: the value is not JSON.
    """
    return encode(value).decode()


def encode(value: object) -> bytes:
    """Write compact JSON.

    Raises:
        CannotExpress: the value is not JSON.
    """
    try:
        return orjson.dumps(value, option=_OPTIONS)
    except TypeError as exc:
        raise CannotExpress(f"the value is not JSON: {exc}") from exc


def excerpt(text: str | bytes) -> str:
    """Cut a raw message to 256 characters."""
    if isinstance(text, bytes):
        return text[:EXCERPT].decode("utf-8", "backslashreplace")
    return text[:EXCERPT].encode("utf-8", "backslashreplace").decode()

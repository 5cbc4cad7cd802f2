"""Strict JSON: read, check and write values from outside. Pure.

A text is parsed, and one walk over the value checks it: at most 64 levels, at most `limits.members` members, no integer
beyond 64 bits, no NaN, no infinity, no lone surrogate. The size of a value is the length of its text.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, TypeVar, cast

import orjson
from pydantic import BaseModel, ValidationError

from gateway.errors import MalformedFrame
from gateway.events import Loss

MAX_DEPTH = 64
MOST = 20_000
MAX_LISTED = 32
"""Unknown fields that are listed one by one; the rest is one loss."""

_LEAST, _BEYOND = -(2**63), 2**64
_LONGEST = len(str(_BEYOND))
_LARGE = 2 * 1024 * 1024
"""Bytes of a text from which its memory is allocated first as a test; untouched memory costs nothing."""
_EXPANSION = 20
"""Times the length of a text that orjson may reserve: up to 14 to parse it, and 17 to write it again."""
_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"
_LONG_INTEGER = re.compile(rb"[0-9]{19}")
_PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_NO_KEYS: frozenset[str] = frozenset()

Model = TypeVar("Model", bound=BaseModel)
Unfit = Literal["members", "syntax", "depth", "integer", "memory"]


class Members:
    """The limit of members in one value, all levels together; the configuration may set another one."""

    def __init__(self) -> None:
        self.most = MOST

    def explain(self) -> str:
        """Describe a value with more members."""
        return f"more than {self.most} members in all (limits.members)"


MEMBERS: ContextVar[Members] = ContextVar("members", default=Members())  # noqa: B039 - for code without a gateway
"""The limit of the gateway in whose context the code runs."""


class Unreadable(ValueError):
    """A text that is not JSON or exceeds a limit; the message never quotes the text."""

    def __init__(self, fault: Unfit, reason: str) -> None:
        super().__init__(reason)
        self.fault: Unfit = fault


@dataclass(frozen=True, slots=True)
class Malformed:
    """Replaces a payload that could not be read; `excerpt` is the beginning of its text."""

    reason: str
    excerpt: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """The first part of a value that JSON cannot express, and its RFC 6901 pointer."""

    reason: str
    path: str


# Reading ---------------------------------------------------------------------------------------------------


def read_strictly(text: str | bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """Parse a text and check the value; of equal keys the last one counts.

    Raises:
        Unreadable: caused by orjson's error if the syntax is wrong.
    """
    return read_and_write(text, max_depth=max_depth)[0]


def read_and_write(text: str | bytes, *, max_depth: int = MAX_DEPTH) -> tuple[Any, bytes]:
    """Parse as `read_strictly` does; return the value and its compact JSON."""
    value = parse(text)
    _check_size(value, max_depth)
    written = orjson.dumps(value)
    raw = text.encode() if isinstance(text, str) else text
    # orjson rounds an integer beyond 64 bits, so it is written in another way.
    if written != raw and _LONG_INTEGER.search(raw):
        json.loads(raw, parse_int=_read_integer)
    return value, written


def parse(text: str | bytes) -> Any:
    """Parse a text without a check of the value.

    Raises:
        Unreadable: the syntax is wrong, or the memory is insufficient.
    """
    try:
        if len(text) >= _LARGE:
            # orjson crashes the process if an allocation fails (`ulimit -v`).
            len(bytes(_EXPANSION * len(text)))
        return orjson.loads(without_mark(text) if isinstance(text, bytes) else text.removeprefix(_MARK))
    except MemoryError as exc:
        raise Unreadable("memory", "needs more memory than the process has") from exc
    except orjson.JSONDecodeError as exc:
        raise Unreadable("syntax", exc.msg) from exc


def without_mark(text: bytes) -> bytes:
    """Skip a byte order mark, which a reader of JSON may ignore (RFC 8259, 8.1)."""
    return text.removeprefix(BOM_UTF8)


def write_strictly(value: object, *, most: int) -> bytes:
    """Write a Python value as JSON of at most `most` bytes; NaN is refused.

    Raises:
        ValueError: with a text that continues a sentence about the value.
    """
    try:
        written = json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise ValueError(f"cannot be JSON ({exc})") from exc
    if len(written) > most:
        raise ValueError(f"has {len(written)} bytes of JSON, {most} are allowed")
    return written


def _check_size(value: object, max_depth: int) -> None:
    """Check the depth and the members of a JSON value.

    Raises:
        Unreadable: a limit is exceeded.
    """
    members = MEMBERS.get()
    remaining = members.most
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(max_depth):
        remaining -= sum(map(len, level))
        if remaining < 0:
            raise Unreadable("members", members.explain())
        level = [
            inner
            for outer in level
            for inner in (outer.values() if outer.__class__ is dict else outer)
            if inner.__class__ is dict or inner.__class__ is list
        ]
        if not level:
            return
    raise Unreadable("depth", f"nested deeper than {max_depth} levels")


def _read_integer(digits: str) -> int:
    # Python refuses more than 4,300 digits with an error about its own settings.
    if len(digits) > _LONGEST or not _LEAST <= int(digits) < _BEYOND:
        raise Unreadable("integer", "an integer is beyond 64 bits")
    return int(digits)


# Checking --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in a value; its pointer is only written if the place has a fault."""

    parent: "_Place | None"
    key: object
    depth: int

    def write(self, path: str) -> str:
        keys: list[object] = []
        place = self
        while place.parent is not None:
            keys.append(place.key)
            place = place.parent
        return pointer(path, *reversed(keys))


def find_fault(
    value: object, path: str = "", *, forbidden: frozenset[str] = _NO_KEYS, max_depth: int = MAX_DEPTH
) -> Fault | None:
    """Find the first part of a value that is not plain JSON within the limits, or a key in `forbidden`."""
    try:
        written = orjson.dumps(value, option=_PLAIN)
        _check_size(value, max_depth)
    except (TypeError, Unreadable):
        return _locate(value, path, forbidden, max_depth)
    # NaN is written as null, a tuple as a list, a UUID as a text.
    if any(key.encode() in written for key in forbidden) or orjson.loads(written) != value:
        return _locate(value, path, forbidden, max_depth)
    return None


def _locate(value: object, path: str, forbidden: frozenset[str], max_depth: int) -> Fault | None:
    limit = MEMBERS.get()
    remaining = limit.most
    waiting: list[tuple[object, _Place]] = [(value, _Place(None, "", 1))]
    while waiting:
        current, place = waiting.pop()
        reason: str | None = None
        match current:
            case str():
                reason = None if _can_encode(current) else "holds a lone surrogate"
            case None | bool():
                continue
            case dict() | list() | tuple():
                members = cast("dict[object, object] | list[object] | tuple[object, ...]", current)
                remaining -= len(members)
                if remaining < 0:
                    return Fault(f"has {limit.explain()}", path)
                if place.depth > max_depth:
                    reason = f"is nested deeper than {max_depth} levels"
                elif isinstance(members, dict):
                    reason = _key_fault(members)
                    if reason is None and not forbidden.isdisjoint(members):
                        key = next(key for key in members if key in forbidden)
                        return Fault(f"has the forbidden key {key!r}", _Place(place, key, 0).write(path))
                    waiting.extend((inner, _Place(place, key, place.depth + 1)) for key, inner in members.items())
                else:
                    waiting.extend((inner, _Place(place, at, place.depth + 1)) for at, inner in enumerate(members))
            case int():
                reason = None if _LEAST <= current < _BEYOND else "is an integer beyond 64 bits"
            case float():
                reason = None if isfinite(current) else "is NaN or infinite"
            case _:
                reason = f"is of type {type(current).__name__}, which JSON does not have"
        if reason is not None:
            return Fault(reason, place.write(path))
    return None


class _Twice(dict[str, Any]):
    """An object with a repeated member."""

    name = ""


def find_repeated(text: str | bytes) -> str | None:
    """Return the pointer of a repeated member of a JSON text; some parsers use its first value, others its last."""
    found: list[_Twice] = []

    def take(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) == len(pairs):
            return members
        seen: set[str] = set()
        twice = _Twice(members)
        twice.name = next(name for name, _ in pairs if name in seen or seen.add(name))
        found.append(twice)
        return twice

    value = json.loads(text if isinstance(text, bytes) else text.removeprefix(_MARK), object_pairs_hook=take)
    if not found:
        return None
    return next((pointer(place, one.name) for place, one in _objects(value, "") if isinstance(one, _Twice)), "")


def _objects(value: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    match value:
        case dict():
            members = cast("dict[str, Any]", value)
            yield place, members
            for name, inner in members.items():
                yield from _objects(inner, pointer(place, name))
        case list():
            for index, inner in enumerate(cast("list[Any]", value)):
                yield from _objects(inner, pointer(place, index))
        case _:
            pass


def _key_fault(members: Iterable[object]) -> str | None:
    for key in members:
        if not isinstance(key, str):
            return "has a key that is not text"
        if not _can_encode(key):
            return "has a key with a lone surrogate"
    return None


def _can_encode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Describing ------------------------------------------------------------------------------------------------


def utf16_length(text: str) -> int:
    """Count the UTF-16 units of a text, as JavaScript does."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def json_length(value: object, written: bytes | None = None) -> int:
    """Count the UTF-16 units of a value's compact JSON, which may be given as `written`.

    Raises:
        TypeError: the value is not JSON.
    """
    raw = written or orjson.dumps(value)
    return len(raw) if raw.isascii() else utf16_length(raw.decode())


def pointer(path: str, *keys: object) -> str:
    """Extend an RFC 6901 pointer; each key is escaped and cut to 200 characters."""
    for key in keys:
        text = str(key)[:200].encode("utf-8", "backslashreplace").decode()
        path += "/" + text.replace("~", "~0").replace("/", "~1")
    return path


def unknown_fields(extra: Mapping[str, Any] | None, path: str = "") -> tuple[Loss, ...]:
    """List the fields of a message that its protocol does not have as dropped."""
    if not extra:
        return ()
    names = list(extra)
    losses = [Loss(how="dropped", path=pointer(path, name), note="unknown field") for name in names[:MAX_LISTED]]
    if len(names) > MAX_LISTED:
        losses.append(Loss(how="dropped", path=path, note=f"{len(names) - MAX_LISTED} more unknown fields"))
    return tuple(losses)


def read_model(model: type[Model], payload: object, path: str = "") -> Model:
    """Read a native object by its wire model.

    Raises:
        MalformedFrame: with the path of the first error.
    """
    try:
        # `model_validate` takes a third longer, for options that nothing here uses.
        return cast("Model", model.__pydantic_validator__.validate_python(payload))
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        raise MalformedFrame(first["msg"], path=pointer(path, *_plain(first["loc"]))) from exc


def _plain(location: Iterable[int | str]) -> Iterable[int | str]:
    # pydantic names a faulty key of a mapping with an additional element, which is no place in the payload.
    return (part for part in location if part != "[key]")


def json_type(value: object) -> str:
    """Name a value's type as JSON would."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list() | tuple():
            return "an array"
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"

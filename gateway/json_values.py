"""Checks that every protocol needs on free-form JSON: what is sayable, how long it is, where it went wrong. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import isfinite
from threading import local
from typing import Any, TypeVar, cast

import orjson
from pydantic import BaseModel, ValidationError

from gateway.errors import MalformedFrame
from gateway.events import Loss
from gateway.json_members import MEMBERS

MAX_DEPTH = 64
MAX_NODES = 1_000_000
FEW = 64
"""Values that are looked at one by one where a look at the text of all would cost more."""
LONG = 4_096
"""Length of a text from which on that is so."""
MAX_LISTED = 32
"""Unknown fields that are listed one by one; the rest is one loss."""

# Without these flags orjson would quietly turn dates and dataclasses into JSON that nobody wrote.
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_MOST_TRIED = 1_000

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Malformed:
    """Stands where a payload should be that could not be read; `excerpt` is bounded."""

    reason: str
    excerpt: str = ""
    is_large: bool = False
    """Whether it was rejected for its size, unread."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The first thing in a value that cannot be said as JSON, and where it is (RFC 6901)."""

    reason: str
    path: str


def is_simple(value: object) -> bool:
    """Say whether a value is surely harmless JSON: few values, none of which could be more than it seems.

    True means at most `FEW` values and with it nesting under that, keys that are text, no floats (so that no
    integer can have been rounded, and nothing is not finite), no lone surrogates. False means only that
    somebody must look closer. What it costs depends on the number of values and not on the length of texts.
    """
    waiting: list[object] = [value]
    for _ in range(FEW):
        if not waiting:
            return True
        current = waiting.pop()
        kind = type(current)
        if kind is str:
            text = cast("str", current)
            if not (text.isascii() or _is_sayable(text)):
                return False
        elif kind is dict:
            members = cast("dict[object, object]", current)
            if len(members) > FEW:
                return False
            for key, inner in members.items():
                if type(key) is not str or not (key.isascii() or _is_sayable(key)):
                    return False
                waiting.append(inner)
        elif kind is list:
            items = cast("list[object]", current)
            if len(items) > FEW:
                return False
            waiting += items
        elif kind is int:
            if not -(2**63) <= cast("int", current) < 2**64:
                return False
        elif current is not None and kind is not bool:
            return False
    return not waiting


def _is_sayable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_fault(
    value: object, path: str = "", *, forbidden: frozenset[str] = frozenset(), max_depth: int = MAX_DEPTH
) -> Fault | None:
    """Find what keeps a value from being plain, bounded JSON.

    That is: bytes and other foreign types, NaN and infinities, integers beyond 64 bits, lone
    surrogates, keys that are not text, nesting over `max_depth`, and the keys that a protocol's document forbids.
    """
    try:
        raw = orjson.dumps(value, option=_STRICT)
    except TypeError:
        return _walk(value, path, forbidden, max_depth) or Fault("is not JSON", path)
    if (many := MEMBERS.too_many(raw)) is not None:
        return Fault(f"has {many}", path)
    if not forbidden and len(raw) > LONG and max_depth >= FEW and is_simple(value):
        return None
    # Nearly all others end here: the bytes rule out each fault without a walk.
    is_narrow = count_brackets(raw) <= max_depth
    if (
        not any(raw.find(b"%b:" % orjson.dumps(key)) >= 0 for key in forbidden)
        and (is_narrow or not nests_deeper(value, max_depth))
        and (len(raw) <= MAX_NODES or MEMBERS.most < MAX_NODES)
        # What is not finite was written as null.
        and ((is_narrow and b"null" not in raw) or _reads_back(raw, value))
    ):
        return None
    return _walk(value, path, forbidden, max_depth)


def count_brackets(raw: bytes) -> int:
    """Count what opens a level of a text of JSON, which is nested no deeper; texts in it may hold more of them."""
    return raw.count(b"{") + raw.count(b"[")


def write_within(value: object, most: int) -> bytes | None:
    """Write JSON compactly; None where it is nested deeper than so many levels, or more than can be written."""
    # orjson writes so many levels and no more: as many as this value may not have are put around it.
    around, inside, outer = _LEVELS.around(max(_written_levels() - most, 1))
    inside[0] = value
    try:
        raw = orjson.dumps(around)
    except TypeError:
        return None
    finally:
        inside[0] = None
    return raw[outer : len(raw) - outer]


class _Levels(local):
    """Lists in lists, made once in each thread, since to make them costs more than to write what they are for."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[list[Any], list[Any], int]] = {}

    def around(self, count: int) -> tuple[list[Any], list[Any], int]:
        """Give so many: the outermost, and the innermost, which holds one value."""
        if count not in self._made:
            inside = around = [None]
            for _ in range(count - 1):
                around = [around]
            self._made[count] = around, inside, count
        return self._made[count]


_LEVELS = _Levels()


def nests_deeper(value: object, most: int) -> bool:
    """Say whether what is JSON is nested deeper than so many levels."""
    return write_within(value, most) is None and has_more_levels(value, most)


_WORTH_CUTTING = 512
"""Bytes."""


def cut_member(written: bytes, owner: dict[str, Any], name: str) -> bytes:
    """Take a member's JSON out of that of its object, which `orjson` has written."""
    # Little is written anew sooner than it is found where it begins.
    if len(written) < _WORTH_CUTTING or next(reversed(owner)) != name:
        return orjson.dumps(owner[name])
    # What stands before the last one is as long whatever comes then.
    return written[len(orjson.dumps({**owner, name: 0})) - 2 : -1]


@cache
def _written_levels() -> int:
    value: list[Any] = []
    for levels in range(_MOST_TRIED):
        try:
            orjson.dumps(value)
        except TypeError:
            return levels
        value = [value]
    return _MOST_TRIED


def has_more_levels(value: Any, most: int) -> bool:
    """Say the same of any value, by a walk."""
    level: list[Any] = [[value]]
    for _ in range(most + 1):
        level = [
            inner
            for outer in level
            for inner in (cast("dict[str, Any]", outer).values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list | tuple)
        ]
    return bool(level)


def _reads_back(raw: bytes, value: object) -> bool:
    return bool(orjson.loads(raw) == value)


def _walk(value: object, path: str, forbidden: frozenset[str], max_depth: int) -> Fault | None:
    waiting: list[tuple[object, str, int]] = [(value, path, 1)]
    for _ in range(MAX_NODES):
        if not waiting:
            return None
        current, where, depth = waiting.pop()
        match current:
            case dict() | list() | tuple() if depth > max_depth:
                return Fault(f"is nested deeper than {max_depth} levels", where[:200])
            case dict():
                for key, inner in cast("dict[object, object]", current).items():
                    if not isinstance(key, str):
                        return Fault("has a key that is not text", where)
                    if _lone_surrogate(key):
                        return Fault("has a key with a lone surrogate", where)
                    if key in forbidden:
                        return Fault(f"has the forbidden key {key!r}", pointer(where, key))
                    waiting.append((inner, pointer(where, key), depth + 1))
            case list() | tuple():
                items = cast("list[object] | tuple[object, ...]", current)
                waiting.extend((inner, f"{where}/{index}", depth + 1) for index, inner in enumerate(items))
            case _:
                if reason := _scalar_fault(current):
                    return Fault(reason, where)
    return Fault(f"has more than {MAX_NODES} values", path)


def _scalar_fault(value: object) -> str | None:
    match value:
        case None | bool():
            return None
        case str():
            return "holds a lone surrogate" if _lone_surrogate(value) else None
        case int():
            return None if -(2**63) <= value < 2**64 else "is an integer beyond 64 bits"
        case float():
            return None if isfinite(value) else "is NaN or infinite"
        case _:
            return f"is of type {type(value).__name__}, which JSON does not have"


def _lone_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)


def utf16_length(text: str) -> int:
    """Count the length of a text as JavaScript does, in UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def json_length(value: object, written: bytes | None = None) -> int:
    """Count the UTF-16 units of a value's compact JSON, as it is written already or else anew.

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
        MalformedFrame: naming the first place that is wrong.
    """
    try:
        # What `model_validate` does beside it takes a third as long again, and nothing here asks for it.
        return cast("Model", model.__pydantic_validator__.validate_python(payload))
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        raise MalformedFrame(first["msg"], path=pointer(path, *_plain(first["loc"]))) from exc


def _plain(location: Iterable[int | str]) -> Iterable[int | str]:
    # pydantic names a faulty key of a mapping with an element of its own, which is no place in the payload.
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

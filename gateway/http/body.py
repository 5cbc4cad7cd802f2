"""Strict parsing of request bodies and queries, with errors that name the place."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast, get_origin

import orjson
from pydantic import BaseModel
from pydantic_core import ErrorDetails
from starlette.requests import Request

from gateway.http.errors import Refused
from gateway.http.requests import CALL_KEY, LONGEST_CALL_KEY, TARGET, Misplaced
from gateway.settings.schema import Schema, find
from gateway.settings.wording import ValidationFault, Vocabulary, restate, word
from gateway.strict_json import Unreadable, find_fault, find_repeated, read_strictly

DEPTH = 64
"""The maximum nesting depth of a body."""
_MOST_ERRORS = 10
_LOOKED_THROUGH = 256 * 1024
"""Bytes of a refused body that are parsed again to find the place: this blocks the event loop."""
_LONG_NUMBER = 30
_JSON = Vocabulary(
    member="member",
    object="an object",
    array="an array",
    text="a string",
    tag="{value}",
    patterns={
        CALL_KEY: f"1 to {LONGEST_CALL_KEY} printable ASCII characters",
        TARGET: "`runtime`, `destination:NAME` or `notice:NAME`",
    },
)
_QUERY = replace(_JSON, member="parameter")
_JSON_TYPE = re.compile(r"application/(?:[a-z0-9.+-]+\+)?json", re.IGNORECASE)


class JsonRequest(Request):
    """A request whose body is read once, as one JSON object, before FastAPI asks for it."""

    _value: Any = None

    async def read(self, *, optional: bool, unique: bool = False) -> None:
        """Read the body; an `optional` one may be empty; `unique` refuses repeated members.

        Raises:
            Refused, TooLarge: names the error in the body.
        """
        raw = await self.body()
        if optional and not raw:
            return
        check_type(self)
        self._value = parse_json(raw, unique=unique)
        if not isinstance(self._value, dict):
            raise Refused("invalid-request", f"expected a JSON object, got {_json_name(self._value)}", pointer="")

    async def read_none(self) -> None:
        """Check that the body is absent or an empty object.

        Raises:
            Refused, TooLarge: the body is not empty.
        """
        await self.read(optional=True)
        for member in self._value or ():
            place = _pointer([member])
            raise Refused("invalid-request", f"{place}: unknown member; this operation accepts none", pointer=place)

    async def json(self) -> Any:
        """Return the parsed body."""
        return self._value


def parse_json(raw: bytes, *, unique: bool = False) -> Any:
    """Parse strictly: no NaN, no lone surrogates, no integers beyond 64 bits, bounded depth, perhaps `unique` members.

    Raises:
        Refused: `invalid-json`, with the place.
    """
    if not raw.strip():
        raise Refused("invalid-json", "the body is empty; expected a JSON value")
    try:
        value = read_strictly(raw, max_depth=DEPTH)
    except Unreadable as exc:
        place = place_of_fault(raw)
        raise Refused("invalid-json", _explain(exc), **({} if place is None else {"pointer": place})) from exc
    if unique and (twice := find_repeated(raw)) is not None:
        raise Refused("invalid-json", f"the member {twice!r} is repeated", pointer=twice)
    return value


def place_of_fault(raw: bytes) -> str | None:
    """Find the place of a value that is refused; None if the body is not JSON, or too long to search."""
    if len(raw) > _LOOKED_THROUGH:
        return None
    try:
        fault = find_fault(json.loads(raw, parse_int=_whole), max_depth=DEPTH)
    except (ValueError, RecursionError):
        return None
    return None if fault is None else fault.path


def _whole(digits: str) -> int:
    # Python refuses to parse much longer integers.
    return int(digits) if len(digits) < _LONG_NUMBER else 10**_LONG_NUMBER


def refuse_repeats(model: type[BaseModel], request: Request) -> None:
    """Refuse repeated query parameters that are not lists.

    Raises:
        Refused: `invalid-request` with the repeated parameter.
    """
    given = request.query_params.multi_items()
    for name, times in Counter(name for name, _ in given).items() if len(given) > 1 else ():
        field = model.model_fields.get(name)
        if times > 1 and (field is None or get_origin(field.annotation) is not list):
            raise _misplaced(name[:50], f"the query parameter {name[:50]!r} is repeated")


def refuse_query(request: Request, *, has_body: bool) -> None:
    """Refuse the query of an operation without parameters; `has_body` adds a hint at the body.

    Raises:
        Refused: `invalid-request` with the parameters.
    """
    hint = "; send it as a member of the body" if has_body else ""
    detail = f"unknown parameter; this operation accepts none{hint}"
    found = [{"parameter": name[:50], "detail": detail} for name in request.query_params]
    if found:
        named = f"query parameter {found[0]['parameter']!r}"
        raise Refused("invalid-request", f"{named}: {detail}", errors=found[:_MOST_ERRORS])


def refuse_two_keys(request: Request) -> None:
    """Refuse two different Idempotency-Key headers.

    Raises:
        Refused: `invalid-request` with the name of the header.
    """
    if len(set(request.headers.getlist("idempotency-key"))) > 1:
        raise _misplaced("Idempotency-Key", "the request has two different Idempotency-Key headers")


def _misplaced(parameter: str, detail: str) -> Refused:
    return Refused("invalid-request", detail, errors=[{"parameter": parameter, "detail": detail}])


def misfit_query(errors: Sequence[ErrorDetails], model: type[BaseModel], request: Request) -> Refused:
    """Convert pydantic's errors about query parameters to a problem that names them."""
    found = [
        {
            "parameter": name[:50],
            # The error may be in one of several values.
            "detail": _word(error, model, error["loc"][1:], dict(request.query_params), _QUERY)[:300],
        }
        for error in errors[:_MOST_ERRORS]
        for name in [str((*error["loc"], *_member_of(error), "")[1])]
    ]
    first = found[0]
    named = f"query parameter {first['parameter']!r}" if first["parameter"] else "the query parameters"
    return Refused("invalid-request", f"{named}: {first['detail']}", errors=found)


def misfit(
    problem: str,
    errors: Sequence[ErrorDetails],
    body: Mapping[str, Any],
    model: type[BaseModel],
    *,
    at: str = "",
    skip: int = 0,
) -> Refused:
    """Convert pydantic's errors about a `model` to a problem with pointers; `at` is the place of `body` in the request.

    `skip` is how many steps of their places lie outside the body.
    """
    found = [
        {
            "pointer": at + _pointer((*place, *_member_of(error))),
            "detail": _word(error, model, place, body)[:300],
        }
        for error in errors[:_MOST_ERRORS]
        for place in [_place_in(body, error["loc"][skip:])]
    ]
    first = found[0]
    return Refused(
        problem, f"{first['pointer'] or 'the body'}: {first['detail']}", pointer=first["pointer"], errors=found
    )


def _word(
    error: ErrorDetails, model: type[BaseModel], place: Sequence[int | str], body: Any, vocabulary: Vocabulary = _JSON
) -> str:
    """Return the text of an error in `body`, which is validated against `model`."""
    schema, place = _schema_of(model), tuple(place)
    name = str(place[-1]) if place else ""
    fault = ValidationFault(error["type"], error["msg"], error.get("ctx", {}), name, error["input"])
    text = word(fault, vocabulary, here=find(schema, place, body), parent=find(schema, place[:-1], body))
    return text or restate(fault)


@lru_cache(maxsize=64)
def _schema_of(model: type[BaseModel]) -> Schema:
    return model.model_json_schema()


def _member_of(error: ErrorDetails) -> tuple[str, ...]:
    """Name the member that an error of the whole object concerns, if any."""
    raised = error.get("ctx", {}).get("error")
    return (raised.member,) if isinstance(raised, Misplaced) else ()


def _place_in(body: Any, location: Sequence[int | str]) -> tuple[int | str, ...]:
    """Remove union tags from pydantic's location, because they are not in the body."""
    place: list[int | str] = []
    current = body
    for number, step in enumerate(location):
        match current:
            case dict():
                members = cast(dict[str, Any], current)
                if number < len(location) - 1 and step == members.get("type"):
                    continue
                current = members.get(str(step))
            case list():
                items = cast(list[Any], current)
                current = items[step] if isinstance(step, int) and step < len(items) else None
            case _:
                break
        place.append(step)
    return tuple(place)


def _pointer(place: Sequence[int | str]) -> str:
    """Format a place as an RFC 6901 pointer."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1")[:100] for step in place)


def check_type(request: Request) -> None:
    """Check that the Content-Type is JSON and the body is not compressed.

    Raises:
        Refused: `unsupported-media-type`.
    """
    headers = request.headers
    kind = headers.get("content-type", "")
    if kind != "application/json" and not _is_json(kind):
        raise Refused("unsupported-media-type", "the Content-Type must be application/json")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused("unsupported-media-type", "compressed bodies are not supported; omit Content-Encoding")


def _is_json(kind: str) -> bool:
    given, *parameters = [part.strip() for part in kind.split(";")]
    charsets = [value.strip('" ').lower() for name, _, value in map(_split_parameter, parameters) if name == "charset"]
    return bool(_JSON_TYPE.fullmatch(given)) and all(charset in {"utf-8", "utf8"} for charset in charsets)


def _split_parameter(parameter: str) -> tuple[str, str, str]:
    name, equals, value = parameter.partition("=")
    return name.strip().lower(), equals, value


def _explain(exc: Unreadable) -> str:
    match exc.fault:
        case "members":
            return f"the body has {exc}; send less at once"
        case "depth":
            return f"the body nests deeper than {DEPTH} levels"
        case "integer":
            return "an integer is beyond 64 bits; write such numbers as strings"
        case "memory":
            return f"the body {exc}; send less at once"
        case "syntax":
            return _explain_syntax(cast(orjson.JSONDecodeError, exc.__cause__))


def _explain_syntax(exc: orjson.JSONDecodeError) -> str:
    rest = exc.doc[exc.pos : exc.pos + 9]
    if "number is infinity" in exc.msg:
        return f"numbers must be finite, integers within 64 bits (line {exc.lineno}, column {exc.colno})"
    if rest.startswith(("NaN", "Infinity", "-Infinity")):
        return f"numbers must be finite: NaN and Infinity are not JSON (line {exc.lineno}, column {exc.colno})"
    if "depth limit" in exc.msg:
        return f"the body nests deeper than {DEPTH} levels"
    if "surrogate" in exc.msg:
        return f"text must be valid UTF-8 without lone surrogates (line {exc.lineno}, column {exc.colno})"
    return f"not JSON: {exc.msg} (line {exc.lineno}, column {exc.colno})"


def _json_name(value: Any) -> str:
    names: dict[type[Any], str] = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        type(None): "null",
    }
    return names.get(cast(type[Any], type(value)), "a number")

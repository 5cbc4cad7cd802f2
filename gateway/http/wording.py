"""Words what is wrong with a request as it is done for a configuration: what fits, what was probably meant. Pure.

No value is quoted: it may be a secret.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from gateway.http.requests import CALL_KEY, LONGEST_CALL_KEY, TARGET
from gateway.settings.place import Place, suggest
from gateway.settings.schema import Schema, find

_FORMS: Mapping[str, str] = {
    "string_type": "a string",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number within 64 bits",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a number that is finite",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "mapping_type": "an object",
    "list_type": "an array",
    "tuple_type": "an array",
    "set_type": "an array",
    "frozen_set_type": "an array",
    "datetime_type": "a time with its zone, such as 2026-11-20T12:00:00Z",
    "datetime_parsing": "a time with its zone, such as 2026-11-20T12:00:00Z",
    "datetime_from_date_parsing": "a time with its zone, such as 2026-11-20T12:00:00Z",
    "timezone_aware": "a time with its zone, such as 2026-11-20T12:00:00Z",
    "string_unicode": "text in UTF-8",
}
"""What each type error wants to see, behind `must be`."""
_PATTERNS: Mapping[str, str] = {
    CALL_KEY: f"1 to {LONGEST_CALL_KEY} printable ASCII characters",
    TARGET: "`runtime`, or `destination:NAME`",
}
"""What each pattern wants to see."""
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_LENGTHS: Mapping[str, tuple[str, str, str]] = {
    "string_too_short": ("min_length", "at least", "character"),
    "string_too_long": ("max_length", "at most", "character"),
    "too_short": ("min_length", "at least", "member"),
    "too_long": ("max_length", "at most", "member"),
}


def word(error: ErrorDetails, model: type[BaseModel], place: Place, body: Any, *, noun: str = "member") -> str:
    """Word one finding about `body`, which should be a `model`; `place` is where, `noun` what its keys are called."""
    kind, context = error["type"], error.get("ctx", {})
    schema = _schema(model)
    here = find(schema, place, body)
    match kind:
        case "extra_forbidden":
            known = {key for variant in find(schema, place[:-1], body) for key in variant.get("properties", {})}
            return f"unknown {noun}; {suggest(str(place[-1])[:100], known)}" if known else f"unknown {noun}"
        case "missing":
            meaning = next((variant["description"] for variant in here if "description" in variant), "")
            return f"this {noun} is required{f': {_first_line(meaning)}' if meaning else ''}"
        case "literal_error" | "enum":
            allowed = [str(value) for variant in here for value in _choices(variant)]
            return f"not a choice; {_meant(error['input'], allowed)}write {_list(allowed)}"
        case "union_tag_invalid" | "union_tag_not_found":
            key = str(context.get("discriminator", "type")).strip("'")
            tags = [tag.strip(" '") for tag in str(context.get("expected_tags", "")).split(",")]
            allowed = [tag for tag in tags if tag] or [str(v["properties"][key]["const"]) for v in _tagged(here, key)]
            wrong = "is missing" if kind == "union_tag_not_found" else "is not a known one"
            return f"{key!r} {wrong}; write {_list(allowed)}" if allowed else f"{key!r} {wrong}"
        case _ if kind in _FORMS:
            or_text = _FORMS[kind] == "an array" and any(variant.get("type") == "string" for variant in here)
            return f"must be {'a string or ' if or_text else ''}{_FORMS[kind]}"
        case _ if kind in _BOUNDS:
            limit, words = _BOUNDS[kind]
            return f"must be {words} {_number(context.get(limit))}"
        case _ if kind in _LENGTHS:
            limit, words, unit = _LENGTHS[kind]
            number = int(context.get(limit, 0))
            return f"must have {words} {number:,} {unit}{'' if number == 1 else 's'}"
        case "string_pattern_mismatch":
            pattern = str(context.get("pattern"))
            return f"must be {_PATTERNS[pattern]}" if pattern in _PATTERNS else f"must match {pattern}"
        case "value_error" | "assertion_error":
            return str(context.get("error", error["msg"]))
        case _:
            # Our own types of error say all in their text; of pydantic's, only the beginning is about its workings.
            return error["msg"].replace("Input should", "must", 1).replace("String should", "must", 1)


@lru_cache(maxsize=64)
def _schema(model: type[BaseModel]) -> Schema:
    return model.model_json_schema()


def _choices(variant: Schema) -> Iterable[object]:
    return variant["enum"] if "enum" in variant else [variant["const"]] if "const" in variant else []


def _tagged(here: list[Schema], key: str) -> list[Schema]:
    return [variant for variant in here if "const" in variant.get("properties", {}).get(key, {})]


def _meant(given: object, allowed: list[str]) -> str:
    words = suggest(given[:100], allowed) if isinstance(given, str) else ""
    return f"{words} " if words.startswith("did you mean") else ""


def _number(limit: object) -> str:
    return f"{limit:g} s" if isinstance(limit, timedelta) else f"{limit:,}" if isinstance(limit, int) else str(limit)


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0].rstrip(".")


def _list(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))

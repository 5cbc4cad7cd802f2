"""The texts of validation errors, for configuration files and requests. Pure.

They quote no value, since it may be a secret.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from gateway.settings.place import suggest
from gateway.settings.schema import Schema


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The terms of one format."""

    member: str
    """The noun for a key."""
    object: str
    array: str
    text: str
    tag: str
    """The notation for the `key` and `value` that select a variant."""
    patterns: Mapping[str, str] = field(default_factory=dict[str, str])
    """Descriptions of patterns, to follow `must be`."""


@dataclass(frozen=True, slots=True)
class ValidationFault:
    """One pydantic error."""

    kind: str
    message: str
    context: Mapping[str, Any]
    name: str
    """The last step of its place."""
    given: object
    """The value, for suggestions."""


_MOMENT = "a time with its zone, such as 2026-11-20T12:00:00Z"
_DURATION = "a duration such as 20s, 500ms, 2m or 7d"
_SIZE = "a size such as 512KiB, 4MiB or a number of bytes"
_URL = "a URL such as https://host/path"
_FORMS: Mapping[str, str] = {
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number within 64 bits",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a number that is finite",
    "string_unicode": "text in UTF-8",
    "datetime_type": _MOMENT,
    "datetime_parsing": _MOMENT,
    "datetime_from_date_parsing": _MOMENT,
    "timezone_aware": _MOMENT,
    "time_delta_type": _DURATION,
    "byte_size": _SIZE,
    "byte_size_unit": _SIZE,
    "path_type": "a path",
    "url_type": _URL,
    "url_parsing": _URL,
    "url_syntax_violation": _URL,
    "url_scheme": "a URL that begins with http:// or https://",
    "url_too_long": "a shorter URL",
}
"""Descriptions of expected types, to follow `must be`."""
_OBJECTS = frozenset({"dict_type", "model_type", "model_attributes_type", "mapping_type"})
_ARRAYS = frozenset({"list_type", "tuple_type", "set_type", "frozen_set_type"})
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


def word(fault: ValidationFault, vocabulary: Vocabulary, *, here: list[Schema], parent: list[Schema]) -> str | None:
    """Write the text of a fault from the schemas of its place and its parent; None if `restate` must be used.

    A text that begins with `must` or `not` has the value as its subject.
    """
    match fault.kind:
        case "extra_forbidden":
            known = {key for variant in parent for key in variant.get("properties", {})}
            hint = f"; {suggest(fault.name[:100], known)}" if known else ""
            return f"unknown {vocabulary.member}{hint}"
        case "missing":
            meaning = next((variant["description"] for variant in here if "description" in variant), "")
            meaning = meaning.split("\n", 1)[0].rstrip(".")
            return f"this {vocabulary.member} is required{f': {meaning}' if meaning else ''}"
        case "literal_error" | "enum":
            allowed = [str(value) for variant in here for value in _choices(variant)]
            return f"not a choice; {_suggest(fault.given, allowed)}write {join(allowed)}"
        case "union_tag_invalid" | "union_tag_not_found":
            return _word_tag(fault, vocabulary, here)
        case "string_pattern_mismatch":
            pattern = str(fault.context.get("pattern"))
            meaning = vocabulary.patterns.get(pattern)
            return f"must match {pattern}" if meaning is None else f"must be {meaning}"
        case kind if kind in _BOUNDS:
            limit, words = _BOUNDS[kind]
            return f"must be {words} {_number(fault.context.get(limit))}"
        case kind if kind in _LENGTHS:
            limit, words, unit = _LENGTHS[kind]
            number = int(fault.context.get(limit, 0))
            return f"must have {words} {number:,} {unit}{'' if number == 1 else 's'}"
        case kind:
            form = _form(kind, vocabulary, here)
            return None if form is None else f"must be {form}"


def restate(fault: ValidationFault) -> str:
    """Return the validator's own text, without pydantic's technical beginning."""
    if fault.kind in {"value_error", "assertion_error"}:
        return str(fault.context.get("error", fault.message))
    return fault.message.replace("Input should", "must", 1).replace("String should", "must", 1)


def join(words: list[str], last: str = "or") -> str:
    """Join words as in a sentence: `a, b or c`."""
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _word_tag(fault: ValidationFault, vocabulary: Vocabulary, here: list[Schema]) -> str:
    key = str(fault.context.get("discriminator", "type")).strip("'")
    tags = [tag.strip(" '") for tag in str(fault.context.get("expected_tags", "")).split(",")]
    constants = (variant.get("properties", {}).get(key, {}).get("const") for variant in here)
    allowed = [str(one) for one in constants if one is not None] or [tag for tag in tags if tag]
    write = f"write {join([vocabulary.tag.format(key=key, value=value) for value in allowed])}"
    if fault.kind == "union_tag_not_found":
        return f"{key!r} is missing; {write}"
    return f"not a known {key!r}; {_suggest(fault.given, allowed)}{write}"


def _form(kind: str, vocabulary: Vocabulary, here: list[Schema]) -> str | None:
    if kind == "string_type":
        return vocabulary.text
    if kind in _OBJECTS:
        return vocabulary.object
    if kind in _ARRAYS:
        takes_text = any(variant.get("type") == "string" for variant in here)
        return f"{vocabulary.text} or {vocabulary.array}" if takes_text else vocabulary.array
    return _FORMS.get(kind)


def _choices(variant: Schema) -> Iterable[object]:
    return variant["enum"] if "enum" in variant else [variant["const"]] if "const" in variant else []


def _suggest(given: object, allowed: list[str]) -> str:
    words = suggest(given[:100], allowed) if isinstance(given, str) else ""
    return f"{words} " if words.startswith("did you mean") else ""


def _number(limit: object) -> str:
    match limit:
        case timedelta():
            return f"{limit.total_seconds():g} s"
        case int():
            return f"{limit:,}"
        case _:
            return str(limit)

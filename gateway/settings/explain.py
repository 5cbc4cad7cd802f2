"""Turns what pydantic found into findings an operator can act on: where, what is wrong, what would be right. Pure.

Values are quoted from the file as written, never as expanded, and never where the schema says secret.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from gateway.settings.place import Finding, Place, overlap, suggest
from gateway.settings.schema import Schema, child, find

_QUOTED = 60
_FORMS = {
    "dict_type": "a mapping (lines of `key: value`)",
    "model_type": "a mapping (lines of `key: value`)",
    "model_attributes_type": "a mapping (lines of `key: value`)",
    "tuple_type": "a list ([a, b], or lines that begin with `- `)",
    "list_type": "a list ([a, b], or lines that begin with `- `)",
    "set_type": "a list ([a, b], or lines that begin with `- `)",
    "frozen_set_type": "a list ([a, b], or lines that begin with `- `)",
    "string_type": "a text; numbers and true/false need quotes to be texts",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "time_delta_type": "a duration such as 20s, 500ms, 2m or 7d",
    "byte_size": "a size such as 512KiB, 4MiB or a number of bytes",
    "byte_size_unit": "a size such as 512KiB, 4MiB or a number of bytes",
    "path_type": "a path",
    "url_type": "a URL such as https://host/path",
    "url_parsing": "a URL such as https://host/path",
    "url_syntax_violation": "a URL such as https://host/path",
    "url_scheme": "a URL that begins with http:// or https://",
    "url_too_long": "a shorter URL",
}
"""What each type error wants to see, behind `must be`."""
_BOUNDS = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal"})


@dataclass(frozen=True, slots=True)
class SettingFault:
    """One pydantic error at the place it belongs to in the file."""

    place: Place
    type: str
    message: str
    context: Mapping[str, Any]


def faults(error: ValidationError, values: Any, *, under: Place = ()) -> list[SettingFault]:
    """List what a validation found; `values` is the whole file, `under` where the model stands in it."""
    return [
        SettingFault(
            _place_in_file((*under, *entry["loc"]), entry["type"], values),
            "name" if "[key]" in entry["loc"] else entry["type"],
            entry["msg"],
            entry.get("ctx", {}),
        )
        for entry in error.errors(include_url=False, include_input=False)
    ]


def _place_in_file(location: Place, kind: str, values: Any) -> Place:
    # pydantic puts union tags, `[key]` and wrapped list positions into a location; the file has none of them.
    place: list[str | int] = []
    for position, step in enumerate(location):
        match values, step:
            case dict(), str() if step in values:
                values = cast("dict[str, Any]", values)[step]
                place.append(step)
            case list(), int() if step < len(cast("list[Any]", values)):
                values = cast("list[Any]", values)[step]
                place.append(step)
            case _ if kind == "missing" and position == len(location) - 1:
                place.append(step)
            case _:
                pass
    return tuple(place)


def explain(
    found: list[SettingFault],
    *,
    written: Any,
    outside: Collection[Place],
    empty: Mapping[Place, Sequence[str]],
    unexpanded: Callable[[], list[SettingFault]],
    schema: Schema,
) -> list[Finding]:
    """Word each fault; one of a value that variables have left empty is about them.

    Where a value came from outside the file, a validator's own text may quote it; the text that the
    same validator has for the unexpanded value is shown instead (`unexpanded` validates those).
    """
    findings: list[Finding] = []
    plain: dict[tuple[Place, str], str] | None = None
    for fault in found:
        message = _of_empty(empty.get(fault.place, ()), fault) or _word(fault, written, schema)
        if message is None and any(overlap(fault.place, place) for place in outside):
            if plain is None:
                plain = {(other.place, other.type): _tidy(other) for other in unexpanded()}
            message = plain.get((fault.place, fault.type), "this value cannot be used here")
            message = f"{message} (value hidden: it may contain secrets)"
        findings.append(Finding(fault.place, message or _tidy(fault)))
    return findings


def _of_empty(names: Sequence[str], fault: SettingFault) -> str | None:
    if not names:
        return None
    make = f" ({fault.context['make']})" if "make" in fault.context else ""
    which = f"variable {names[0]} is" if len(names) == 1 else f"variables {_list(list(names), 'and')} are"
    return f"the environment {which} empty; set {'it' if len(names) == 1 else 'them'}{make}"


def _word(fault: SettingFault, written: Any, schema: Schema) -> str | None:
    """Word a fault from the file and the schema alone; None leaves it to the validator's text."""
    here = find(schema, fault.place, written)
    parent = find(schema, fault.place[:-1], written)
    shown = _quote(written, fault.place, here)
    last = str(fault.place[-1]) if fault.place else ""
    match fault.type:
        case "refused":
            return fault.message
        case "extra_forbidden":
            known = {key for variant in parent for key in variant.get("properties", {})}
            return f"unknown key; {suggest(last, known)}"
        case "missing":
            meaning = next((variant["description"] for variant in here if "description" in variant), "")
            return f"this key is required{f': {meaning}' if meaning else ''}"
        case "name":
            rule = "use letters, digits, '.', '_' and '-', at most 64, beginning with a letter or digit"
            return f"{last[:_QUOTED]!r} cannot be a name here; {rule}"
        case "literal_error" | "enum":
            allowed = [str(value) for variant in here for value in variant.get("enum", [])]
            return f"{shown} is not a choice; {suggest(shown.strip(chr(39)), allowed)}; write {_list(allowed)}"
        case "union_tag_not_found" | "union_tag_invalid":
            key = str(fault.context.get("discriminator", "type")).strip("'")
            allowed = [str(v["properties"][key]["const"]) for v in _choices(schema, fault.place, written, key)]
            choices = _list([f"{key}: {value}" for value in allowed])
            if fault.type == "union_tag_not_found":
                return f"{key!r} is missing; write {choices}"
            given = _quote(written, (*fault.place, key), [])
            meant = suggest(given.strip("'"), allowed)
            meant = f"{meant} " if meant.startswith("did you mean") else ""
            return f"{given} is not a known {key!r}; {meant}write {choices}"
        case kind if kind in _FORMS:
            mend = ", or remove the key" if shown == "an empty value" else ""
            return f"{shown} is not right here; this must be {_FORMS[kind]}{mend}"
        case kind if kind in _BOUNDS:
            return f"{shown} is out of range; {_tidy(fault)}"
        case "string_pattern_mismatch" | "string_too_short" | "string_too_long" | "too_short" | "too_long":
            return f"{shown} {_tidy(fault).removeprefix('this ')}"
        case _:
            return None


def _choices(schema: Schema, place: Place, written: Any, key: str) -> list[Schema]:
    without = _without(written, place, key)
    return [
        variant for variant in find(schema, place, without) if "const" in variant.get("properties", {}).get(key, {})
    ]


def _without(values: Any, place: Place, key: str) -> Any:
    match values:
        case dict() if not place:
            return {name: value for name, value in cast("dict[str, Any]", values).items() if name != key}
        case dict():
            inner = cast("dict[str, Any]", values)
            return inner | {str(place[0]): _without(inner.get(str(place[0])), place[1:], key)}
        case list() if place:
            return [
                _without(value, place[1:], key) if index == place[0] else value
                for index, value in enumerate(cast("list[Any]", values))
            ]
        case _:
            return values


def _quote(written: Any, place: Place, here: list[Schema]) -> str:
    value = written
    for step in place:
        value = child(value, step)
    secret = any(variant.get("writeOnly") or "https?" in str(variant.get("pattern")) for variant in here)
    match value:
        case None:
            return "an empty value"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case _ if secret:
            return "this value"
        case bool():
            return str(value).lower()
        case str() if len(value) > _QUOTED:
            return repr(value[:_QUOTED] + "…")
        case _:
            return repr(value)


def _list(words: list[str], last: str = "or") -> str:
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _tidy(fault: SettingFault) -> str:
    if fault.type in ("value_error", "assertion_error"):
        return str(fault.context.get("error", fault.message))
    return fault.message.replace("Input should", "this must", 1).replace("String should", "this must", 1)

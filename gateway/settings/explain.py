"""Turns pydantic errors into findings for operators: the place, the fault and the fix. Pure.

Values are quoted as written in the file, never expanded, and never if the schema marks them as secret.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from gateway.settings.place import Finding, Place, overlap
from gateway.settings.schema import Schema, child, find
from gateway.settings.wording import ValidationFault, Vocabulary, join, restate, word

_QUOTED = 60
_YAML = Vocabulary(
    member="key",
    object="a mapping (lines of `key: value`)",
    array="a list ([a, b], or lines that begin with `- `)",
    text="a text; numbers and true/false need quotes to be texts",
    tag="{key}: {value}",
)


@dataclass(frozen=True, slots=True)
class SettingFault:
    """One pydantic error with its place in the file."""

    place: Place
    type: str
    message: str
    context: Mapping[str, Any]


def faults(error: ValidationError, values: Any, *, under: Place = ()) -> list[SettingFault]:
    """List the errors of a validation; `values` is the whole file, `under` the place of the model in it."""
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
    schema: Callable[[], Schema],
) -> list[Finding]:
    """Write a text for each fault; for a value with empty variables, the text names the variables.

    The text of a validator may quote a value from outside the file. It is replaced by the validator's text for the
    unexpanded value; `unexpanded` validates the unexpanded values.
    """
    findings: list[Finding] = []
    plain: dict[tuple[Place, str], str] | None = None
    for fault in found:
        message = _name_empty(empty.get(fault.place, ()), fault) or _word(fault, written, schema)
        if message is None and any(overlap(fault.place, place) for place in outside):
            if plain is None:
                plain = {(other.place, other.type): _tidy(other) for other in unexpanded()}
            message = plain.get((fault.place, fault.type), "this value cannot be used here")
            message = f"{message} (value hidden: it may contain secrets)"
        findings.append(Finding(fault.place, message or _tidy(fault)))
    return findings


def _name_empty(names: Sequence[str], fault: SettingFault) -> str | None:
    if not names:
        return None
    make = f" ({fault.context['make']})" if "make" in fault.context else ""
    subject = f"variable {names[0]} is" if len(names) == 1 else f"variables {join(list(names), 'and')} are"
    return f"the environment {subject} empty; set {'it' if len(names) == 1 else 'them'}{make}"


def _word(fault: SettingFault, written: Any, schema: Callable[[], Schema]) -> str | None:
    """Write the text of a fault from the file and the schema; None if the validator's text must be used."""
    last = str(fault.place[-1]) if fault.place else ""
    match fault.type:
        case "refused":
            return fault.message
        case "name":
            rule = "use letters, digits, '.', '_' and '-', at most 64, beginning with a letter or digit"
            return f"{last[:_QUOTED]!r} is not a valid name; {rule}"
        case "union_tag_not_found" | "union_tag_invalid":
            key = str(fault.context.get("discriminator", "type")).strip("'")
            here = find(schema(), fault.place, _without(written, fault.place, key))
            given = _value_at(written, (*fault.place, key))
            shown = _quote(given, [])
        case _:
            here = find(schema(), fault.place, written)
            given = _value_at(written, fault.place)
            shown = _quote(given, here)
    parent = find(schema(), fault.place[:-1], written)
    found = ValidationFault(fault.type, fault.message, fault.context, last, given)
    text = word(found, _YAML, here=here, parent=parent)
    if text is None:
        return None
    if text.startswith("not "):
        return f"{shown} is {text}"
    if text.startswith("must "):
        fix = ", or remove the key" if given is None else ""
        return f"{shown} is not valid here; this {text}{fix}"
    return text


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


def _value_at(written: Any, place: Place) -> Any:
    for step in place:
        written = child(written, step)
    return written


def _quote(value: Any, here: list[Schema]) -> str:
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


def _tidy(fault: SettingFault) -> str:
    text = restate(ValidationFault(fault.type, fault.message, fault.context, "", None))
    is_ours = fault.type in {"value_error", "assertion_error"}
    return text if is_ours or not text.startswith("must ") else f"this {text}"

"""Converts tools with JSON Schema to the flat form of runtimes with only name, type, description and required."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import orjson

from gateway.adapter.port import Tool
from gateway.events import Loss
from gateway.strict_json import pointer

_TYPES = {"string", "number", "boolean", "object", "array"}
_KNOWN = frozenset({"type", "description", "title"})
"""Keywords of a parameter that the flat form has, or that agents do not use."""
_KNOWN_AT_TOP = frozenset({"type", "properties", "required", "description", "title", "$schema", "$id"})


@dataclass(frozen=True, slots=True)
class FlatTool:
    """A tool in flat form, and its losses."""

    form: dict[str, Any]
    losses: tuple[Loss, ...]


def flatten(tool: Tool) -> FlatTool:
    """Convert a tool; the descriptions contain other keywords, each with a loss `narrowed`."""
    path = pointer("/tools", tool.name, "parameters")
    schema = tool.parameters
    required = schema.get("required", ())
    parameters: list[dict[str, Any]] = []
    losses: list[Loss] = []
    properties = cast("Mapping[str, Any]", schema.get("properties", {}))
    for name, inner in properties.items():
        where = pointer(path, "properties", name)
        if not isinstance(inner, Mapping):
            # `true` and `false` are schemas, too.
            losses.append(Loss(how="defaulted", path=where, note="no type; sent as an object"))
            inner = {"type": "object"}  # noqa: PLW2901
        parameter = _parameter(name, cast("Mapping[str, Any]", inner), where, losses)
        if name in required:
            parameter["required"] = True
        parameters.append(parameter)
    rest = {key: value for key, value in schema.items() if key not in _KNOWN_AT_TOP}
    losses.extend(_narrowed(rest, path))
    description = _join(tool.description, _prose(rest, "The arguments must also match this JSON Schema"))
    return FlatTool({"name": tool.name, "description": description, "parameters": parameters}, tuple(losses))


def _parameter(name: str, schema: Mapping[str, Any], where: str, losses: list[Loss]) -> dict[str, Any]:
    kind, rest = _type(schema)
    if kind is None:
        kind = "string" if all(isinstance(choice, str) for choice in schema.get("enum", ())) else "object"
        losses.append(Loss(how="defaulted", path=f"{where}/type", note=f"sent as {kind}"))
    losses.extend(_narrowed(rest, where))
    choices = cast("list[object] | None", rest.pop("enum", None))
    description = _join(
        str(schema.get("description") or schema.get("title") or ""),
        "One of: " + ", ".join(_compact(choice) for choice in choices) + "." if choices else "",
        _prose(rest, "Must match this JSON Schema"),
    )
    return {"name": name, "type": kind, "description": description}


def _type(schema: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the flat type, and the other keywords."""
    rest = {key: value for key, value in schema.items() if key not in _KNOWN}
    match schema.get("type"):
        case str(kind) if kind in _TYPES:
            return kind, rest
        case "integer":
            return "number", {"type": "integer", **rest}
        case [*kinds]:
            known = [kind for kind in kinds if kind in _TYPES or kind == "integer"]
            first = "number" if known[:1] == ["integer"] else next(iter(known), None)
            return first, {"type": kinds, **rest}
        case _:
            if "properties" in schema:
                return "object", rest
            return ("array" if "items" in schema else None), rest


def _narrowed(rest: Mapping[str, Any], where: str) -> list[Loss]:
    return [Loss(how="narrowed", path=pointer(where, key), note="only in the description") for key in rest]


def _prose(rest: Mapping[str, Any], lead: str) -> str:
    return f"{lead}: {_compact(rest)}." if rest else ""


def _compact(value: object) -> str:
    return orjson.dumps(value).decode()


def _join(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)

"""Checks tool names and schemas against the published rules of model APIs. Pure.

A client sends all its tools with each request. If the API refuses one of them, it refuses the request, with an error
that does not mention the gateway.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

from gateway.settings.lint_routes import takes_calls
from gateway.settings.model import Settings
from gateway.settings.place import Finding, Place

_NAMES = {
    "OpenAI": re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    "Anthropic": re.compile(r"[a-zA-Z0-9_-]{1,128}"),
    "Gemini": re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}"),
}
"""The tool names that each API accepts."""
_ARGUMENT = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""The names of arguments that Anthropic's API accepts."""
_COMBINED = {
    "oneOf": ("OpenAI", "Anthropic"),
    "anyOf": ("OpenAI", "Anthropic"),
    "allOf": ("OpenAI", "Anthropic"),
    "not": ("OpenAI",),
    "enum": ("OpenAI",),
    "const": ("OpenAI",),
}
"""The APIs that refuse a keyword at the top level of a schema."""

_OF_NAMES = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords that contain schemas by name."""
_OF_ONE = frozenset(
    {
        "items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "contains",
        "propertyNames", "not", "if", "then", "else",
    }
)  # fmt: skip
"""Keywords that contain one schema; in older drafts `items` could be a list of schemas."""
_OF_MANY = frozenset({"oneOf", "anyOf", "allOf", "prefixItems", "items"})
_SHOWN = 3

EVERY_AGENT = "every agent that gets it"


@dataclass(frozen=True, slots=True)
class ModelRefusal:
    """One part of a tool that model APIs refuse; the texts omit the tool's name, so that reports can group them."""

    place: Place
    """Inside the tool."""
    apis: tuple[str, ...]
    fault: str
    fix: str

    def describe(self, agents: str = EVERY_AGENT) -> str:
        """Write a warning; `agents` names the agents with failing requests."""
        verb = "refuses" if len(self.apis) == 1 else "refuse"
        apis = " and ".join(filter(None, [", ".join(self.apis[:-1]), self.apis[-1]]))
        return f"{apis} {verb} {self.fault}, and with it each request that lists the tool, for {agents}; {self.fix}"


def lint_models(settings: Settings) -> Iterator[Finding]:
    """Warn of each tool that a model API refuses, and name the runtimes that get it."""
    for name, tool in settings.tools.items():
        for refusal in refusals(name, tool.parameters):
            yield Finding(("tools", name, *refusal.place), refusal.describe(_agents(settings, name)), "warning")


def refusals(name: str, parameters: Mapping[str, Any]) -> Iterator[ModelRefusal]:
    """List the parts of one tool that model APIs refuse."""
    if apis := tuple(api for api, rule in _NAMES.items() if not rule.fullmatch(name)):
        fix = "use 1 to 64 ASCII letters, digits, '_' and '-', beginning with a letter or '_'"
        yield ModelRefusal((), apis, "this name", fix)
    if parameters.get("type") != "object":
        # `lint_tools` reports it, since no API accepts it.
        return
    for keyword in parameters:
        if keyword in _COMBINED:
            fault = f"`{keyword}` at the top level of a schema"
            fix = "move it into a property, or state it in the description"
            yield ModelRefusal(("parameters", keyword), _COMBINED[keyword], fault, fix)
    properties = parameters.get("properties")
    for argument in cast("Mapping[str, Any]", properties) if isinstance(properties, Mapping) else ():
        if not _ARGUMENT.fullmatch(argument):
            fix = "use 1 to 64 ASCII letters, digits, '_', '.' and '-'"
            yield ModelRefusal(("parameters", "properties", argument), ("Anthropic",), "an argument of this name", fix)
    for place in _arrays_without_items(parameters, ("parameters",)):
        fix = "add `items`, such as {type: string}"
        yield ModelRefusal(place, ("OpenAI", "Gemini"), "an array without `items`", fix)


def _agents(settings: Settings, tool: str) -> str:
    """Name the runtimes with a route for calls of a tool, ignoring labels."""
    taking = [route for route in settings.routes if takes_calls(route, tool)]
    names = [name for name in settings.runtimes if any(fnmatchcase(name, route.match.runtime) for route in taking)]
    if not names:
        return EVERY_AGENT
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"agents of {', '.join(names[:_SHOWN])}{more}"


def _arrays_without_items(schema: object, place: Place) -> Iterator[Place]:
    if not isinstance(schema, Mapping):
        return
    members = cast("Mapping[str, Any]", schema)
    kind = members.get("type")
    if (kind == "array" or (isinstance(kind, list) and "array" in kind)) and "items" not in members:
        yield place
    for keyword, value in members.items():
        match value:
            case dict() if keyword in _OF_NAMES:
                for name, inner in cast("dict[str, Any]", value).items():
                    yield from _arrays_without_items(inner, (*place, keyword, name))
            case list() if keyword in _OF_MANY:
                for index, inner in enumerate(cast("list[Any]", value)):
                    yield from _arrays_without_items(inner, (*place, keyword, index))
            case dict() if keyword in _OF_ONE:
                yield from _arrays_without_items(cast("dict[str, Any]", value), (*place, keyword))
            case _:
                pass

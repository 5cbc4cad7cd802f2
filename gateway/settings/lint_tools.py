"""Checks the declared tools: names, schemas and reachability. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.core.arguments import problems_in_schema
from gateway.core.unheard import GET_RESULT
from gateway.settings.model import UNDECLARED, Settings
from gateway.settings.place import Finding, Place

_POINTER = re.compile(r": at (?P<pointer>/\S*): ")


def lint_tools(settings: Settings) -> Iterator[Finding]:
    """Check every tool; compile its schema as for a call, without fetching references."""
    for name, tool in settings.tools.items():
        place = ("tools", name, "parameters")
        if name == GET_RESULT:
            yield Finding(("tools", name), "the gateway offers MCP clients its own tool of this name; use another one")
        if name == UNDECLARED:
            yield Finding(("tools", name), "metrics count undeclared tools under this name; use another one")
        problem = problems_in_schema(tool.parameters)
        if problem is not None:
            yield Finding((*place, *_inner(problem)), problem)
        else:
            yield from _unknown_required(tool.parameters, place)
        if not tool.description:
            yield Finding(
                ("tools", name), "has no description; without one the agent's model can only guess", "warning"
            )
    yield from _shadowed_tools(settings)
    yield from _unknown_addresses(settings)
    yield from _uncovered_approvals(settings)
    yield from _undeclared_arguments(settings)


def _shadowed_tools(settings: Settings) -> Iterator[Finding]:
    for runtime, options in settings.runtimes.items():
        for name in settings.tools if options.takes_mcp else ():
            if name in options.own_tools:
                text = f"an agent of {runtime!r} has its own tool of this name and calls that one; use another name"
                yield Finding(("tools", name), text, "warning")


def _unknown_addresses(settings: Settings) -> Iterator[Finding]:
    for name, options in settings.runtimes.items():
        if options.takes_mcp and settings.tools and options.mcp_base is None and settings.public_url is None:
            fix = "set public_url, or mcp_url here, to the gateway's URL for the runtime"
            text = f"its sessions get none of the tools, because the address of the gateway is unknown; {fix}"
            yield Finding(("runtimes", name), text, "warning")


def _uncovered_approvals(settings: Settings) -> Iterator[Finding]:
    """Note that agents call our tools without an approval; only their server knows whether they ask for any."""
    for name, options in settings.runtimes.items():
        if options.takes_mcp and options.calls_unasked and settings.tools:
            text = (
                "its confirmation mode does not cover the tools declared here: its agents call them without an"
                " approval; give `approve` to the routes of tools that need one"
            )
            yield Finding(("runtimes", name), text, "note")


def _undeclared_arguments(settings: Settings) -> Iterator[Finding]:
    """Warn of tools that take any argument but declare none, where agents pass only declared ones."""
    strict = [name for name, one in settings.runtimes.items() if one.takes_mcp and one.passes_declared_only]
    for name, tool in settings.tools.items() if strict else ():
        schema = tool.parameters
        if not schema.get("properties") and schema.get("additionalProperties") is not False:
            text = f"declares no properties, so an agent of {strict[0]!r} can pass no argument; declare each one"
            yield Finding(("tools", name), text, "warning")


def _inner(problem: str) -> Place:
    """Read the place inside the schema from the problem's JSON pointer."""
    found = _POINTER.search(problem)
    steps = found["pointer"].split("/")[1:] if found else []
    words = [step.replace("~1", "/").replace("~0", "~") for step in steps]
    return tuple(int(word) if word.isdigit() else word for word in words)


def _unknown_required(schema: Mapping[str, Any], place: Place) -> Iterator[Finding]:
    if schema.get("additionalProperties") is not False or "patternProperties" in schema:
        return
    for name in schema.get("required", ()):
        if name not in schema.get("properties", {}):
            yield Finding(
                (*place, "required"), f"requires {name!r}, which `properties` does not have: no call can be valid"
            )

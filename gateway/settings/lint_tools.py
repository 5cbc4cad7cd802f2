"""Checks that each declared tool's `parameters` is a JSON Schema object that can be used. Pure."""

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gateway.core.arguments import problems_in_schema
from gateway.settings.model import UNDECLARED, RouteSpec, Settings
from gateway.settings.place import Finding, Place

GET_RESULT = "get_result"
"""The tool by which MCP clients wait on for a call."""
_POINTER = re.compile(r": at (?P<pointer>/\S*): ")


def lint_tools(settings: Settings) -> Iterator[Finding]:
    """Compile every schema just as the calls' arguments will be checked; nothing is ever fetched for it."""
    for name, tool in settings.tools.items():
        place = ("tools", name, "parameters")
        if name == GET_RESULT:
            yield Finding(("tools", name), "MCP clients wait for unfinished calls by a tool of this name; take another")
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
    yield from _called_elsewhere(settings)
    yield from _out_of_reach(settings)
    yield from _unasked(settings)


def _called_elsewhere(settings: Settings) -> Iterator[Finding]:
    for runtime, options in settings.runtimes.items():
        for name in settings.tools if options.takes_mcp else ():
            if name in options.own_tools:
                text = f"an agent of {runtime!r} has a tool of this name itself and calls that one; take another"
                yield Finding(("tools", name), text, "warning")


def _out_of_reach(settings: Settings) -> Iterator[Finding]:
    for name, options in settings.runtimes.items():
        if options.takes_mcp and settings.tools and options.mcp_base is None and settings.public_url is None:
            mend = "set public_url, or mcp_url here, to where the runtime reaches this gateway"
            text = f"its sessions get none of the tools, since they do not know where these are; {mend}"
            yield Finding(("runtimes", name), text, "warning")


def _unasked(settings: Settings) -> Iterator[Finding]:
    """Warn where approvals are answered for agents that call our tools without asking for one."""
    for name, options in settings.runtimes.items():
        if not (options.takes_mcp and options.calls_unasked and settings.tools):
            continue
        if any(_answers_approvals(route, name) for route in settings.routes):
            text = (
                "its confirmation mode does not cover the tools declared here: its agents call them without an"
                " approval; let the executors of tools that need one ask for it themselves"
            )
            yield Finding(("runtimes", name), text, "warning")


def _answers_approvals(route: RouteSpec, runtime: str) -> bool:
    match = route.match
    asked = match.tool is None and fnmatchcase("approval.asked", match.event or "*")
    return route.to is not None and asked and fnmatchcase(runtime, match.runtime)


def _inner(problem: str) -> Place:
    """Read the place inside the schema out of the problem's JSON pointer."""
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

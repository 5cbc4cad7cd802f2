"""The routes of a world, and what they say about a call: decided without the gateway by another JSON Schema library."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from math import inf
from random import Random
from typing import Any, Literal, cast

from jsonschema import Draft202012Validator

from tests.simulation.loop import Process

APPROVERS = ("ann", "bob")
"""The API keys that may allow calls."""
TOOLS = ("again", "once")

Route = Mapping[str, Any]
Routes = tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the routes say about one call, and the deciding route."""

    kind: Literal["run", "ask", "deny", "unfitting", "unrouted"]
    route: Route | None = None

    @property
    def approve(self) -> Mapping[str, Any]:
        """The options of the approval; empty if everyone may give it in the usual time."""
        found: Any = None if self.route is None else self.route.get("approve")
        return {} if found is True or found is None else found


def ungated(target: str) -> Routes:
    """Return the routes of a world without approvals; `target` takes the tool `again`."""
    return tuple({"match": {"tool": tool}, "to": target if tool == "again" else tool} for tool in TOOLS)


def draw(random: Random, target: str) -> Routes:
    """Draw routes that run calls, ask about them and deny them; `target` takes the tool `again`."""
    leading, denying = list[Route](), list[Route]()
    for tool in TOOLS:
        to = target if tool == "again" else tool
        for fragment in {json.dumps(one): one for one in (_fragment(random), _fragment(random))}.values():
            match random.random():
                case chance if chance < 0.15:
                    denying.append({"match": {"tool": tool[:2] + "*", "arguments": fragment}, "deny": "Not like this."})
                case chance if chance < 0.4:
                    leading.append({"match": {"tool": tool, "arguments": fragment}, "to": to, **_asks(random, 0.5)})
                case _:
                    pass
        match random.random():
            case chance if chance < 0.06:
                denying.append({"match": {"tool": tool}, "deny": f"{tool} is not called now."})
            case chance if chance < 0.14:
                continue
            case _:
                pass
        leading.append({"match": {"tool": tool}, "to": to, **_asks(random, 0.6)})
    # A denial wins wherever it stands.
    return (*leading, *denying)


def against(random: Random, routes: Routes, tool: str) -> Routes:
    """Change routes for a tool whose call waits to be sent: they deny it, take it no more, or ask about it."""
    match random.randrange(3):
        case 0:
            return (*routes, {"match": {"tool": tool}, "deny": "Not any more."})
        case 1:
            return tuple(one for one in routes if one["match"]["tool"] != tool)
        case _:
            asked = {"approve": {"timeout": f"{random.randint(2, 20)}s"}}
            return tuple({**one, **asked} if "to" in one and one["match"]["tool"] == tool else one for one in routes)


def _fragment(random: Random) -> dict[str, Any]:
    number = random.randint(1, 120)
    return random.choice(
        (
            {"properties": {"n": {"type": "integer", "multipleOf": random.choice((2, 3))}}, "required": ["n"]},
            {"properties": {"n": {"type": "number", "maximum": number}}, "required": ["n"]},
            {"properties": {"n": {"exclusiveMinimum": number}}},
            {"required": ["big"]},
            {"properties": {"big": {"maxLength": 300}}, "required": ["big"]},
            {"maxProperties": 1, "additionalProperties": {"type": "integer"}},
            {"not": {"required": ["n"]}},
        )
    )


def _asks(random: Random, share: float) -> dict[str, Any]:
    if random.random() >= share:
        return {}
    return {
        "approve": random.choice((True, True, {"by": ["ann"]}, {"timeout": "9s"}, {"by": ["bob"], "timeout": "2s"}))
    }


@lru_cache(maxsize=4_096)
def _matcher(fragment: str) -> Callable[[Any], bool]:
    return cast("Any", Draft202012Validator(json.loads(fragment))).is_valid


def ruling(routes: Routes, tool: str, arguments: Mapping[str, Any]) -> Verdict:
    """Say what routes do with a call."""
    mine = [one for one in routes if fnmatchcase(tool, one["match"].get("tool", ""))]

    def fits(route: Route) -> bool:
        fragment = route["match"].get("arguments")
        return fragment is None or _matcher(json.dumps(fragment))(arguments)

    for route in mine:
        if "deny" in route and fits(route):
            return Verdict("deny", route)
    leading = [one for one in mine if "to" in one]
    for route in leading:
        if fits(route):
            return Verdict("ask" if route.get("approve") else "run", route)
    return Verdict("unfitting" if leading else "unrouted")


@dataclass(slots=True)
class _Version:
    routes: Routes
    since: float
    before: dict[Process, None] = field(default_factory=dict[Process, None])
    """The processes that may still have the routes before these."""


class Policies:
    """The routes of a world over time: a process has new ones at some moment of its reload."""

    def __init__(self, routes: Routes, alive: Callable[[Process], bool]) -> None:
        """Begin with routes; `alive` says whether a process still runs."""
        self._alive = alive
        self._versions = [_Version(routes, -inf)]
        self._over = [inf]
        """When the last process has left each version."""

    @property
    def newest(self) -> Routes:
        """The routes of the configuration file."""
        return self._versions[-1].routes

    def change(self, routes: Routes, now: float, running: Iterable[Process]) -> Callable[[Process], None]:
        """Begin a version; returns what to tell that a process has read it."""
        number = len(self._versions)
        self._versions.append(_Version(routes, now, dict.fromkeys(running)))
        self._over.append(inf)

        def read(process: Process) -> None:
            for version in self._versions[: number + 1]:
                version.before.pop(process, None)

        return read

    def at(self, first: float, last: float, now: float) -> list[Routes]:
        """List the routes that a process may have had in a span of time; `now` is not before its end."""
        for number, version in enumerate(self._versions[1:]):
            version.before = {one: None for one in version.before if self._alive(one)}
            if not version.before:
                self._over[number] = min(self._over[number], now)
        spans = zip(self._versions, self._over, strict=True)
        return [one.routes for one, until in spans if one.since <= last and until >= first]

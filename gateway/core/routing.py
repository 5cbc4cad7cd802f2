"""Matches events against the routes of the configuration. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal

from gateway.events.frozen import frozen


@frozen
class Route:
    """One rule; all given globs must match."""

    runtime: str = "*"
    tool: str | None = None
    event: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    to: str | None = None
    copy_to: tuple[str, ...] = ()
    live: bool = False
    """Whether the destinations also get live events."""
    undeclared: bool = False
    """Whether an executor also gets tools that match only by a glob and are not declared."""

    def matches(self, *, runtime: str, kind: str, tool: str | None, labels: Mapping[str, str]) -> bool:
        """Return whether an event matches. A rule with `to` and without `event` matches tool calls only."""
        if self.event is not None:
            if not fnmatchcase(kind, self.event):
                return False
        elif self.to is not None and kind != "tool.requested":
            return False
        if self.tool is not None and (tool is None or (self.tool != "*" and not fnmatchcase(tool, self.tool))):
            return False
        if self.runtime != "*" and not fnmatchcase(runtime, self.runtime):
            return False
        if not self.labels:
            return True
        return all(name in labels and fnmatchcase(labels[name], glob) for name, glob in self.labels.items())


@frozen
class Matched:
    """The executor of a route; `index` is the position of the route in the configuration."""

    executor: str
    index: int


@dataclass(frozen=True)
class Routes:
    """All rules, in the order of the configuration."""

    routes: tuple[Route, ...] = ()
    unrouted: Literal["fail", "ignore"] = "fail"
    declared: frozenset[str] = frozenset()
    """The configured tools. If there are any, a glob leads no other tool to an executor."""

    def executor_for(
        self, *, runtime: str, kind: str, tool: str | None = None, labels: Mapping[str, str]
    ) -> Matched | None:
        """Find the executor: the first matching rule with `to`."""
        unknown = kind == "tool.requested" and bool(self.declared) and tool not in self.declared
        for route, found in self._answering:
            if unknown and route.tool != tool and not route.undeclared:
                continue
            if route.matches(runtime=runtime, kind=kind, tool=tool, labels=labels):
                return found
        return None

    def copies_for(
        self, *, runtime: str, kind: str, tool: str | None = None, labels: Mapping[str, str], live: bool = False
    ) -> tuple[str, ...]:
        """Return the destinations that get a copy of a recorded or live event, each once, in the order of the rules."""
        found: dict[str, None] = {}
        for route in self.copying_live if live else self.copying:
            if route.matches(runtime=runtime, kind=kind, tool=tool, labels=labels):
                found.update(dict.fromkeys(route.copy_to))
        return tuple(found)

    def copies_by_name(self, *, runtime: str, kind: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return the destinations of the rules that name a kind without a glob, each once."""
        named = [
            name
            for route in self.copying
            if route.event == kind and route.matches(runtime=runtime, kind=kind, tool=None, labels=labels)
            for name in route.copy_to
        ]
        return tuple(dict.fromkeys(named))

    @cached_property
    def copying(self) -> tuple[Route, ...]:
        """The rules that copy events."""
        return tuple([route for route in self.routes if route.copy_to])

    @cached_property
    def copying_live(self) -> tuple[Route, ...]:
        """The rules that copy live events, too."""
        return tuple([route for route in self.copying if route.live])

    @cached_property
    def _answering(self) -> tuple[tuple[Route, Matched], ...]:
        return tuple([(r, Matched(r.to, index)) for index, r in enumerate(self.routes) if r.to is not None])

"""Matches events and calls against the routes of the configuration. Pure.

A call is decided by `Routes.rule_for`, which also looks at its arguments: a route with `deny` wins wherever it stands,
otherwise the first route with `to` that fits. A route with `deny` or `approve` also matches undeclared tools by a glob.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal

from gateway.core.arguments import Fragment
from gateway.events.frozen import frozen

CALL = "tool.requested"
"""The kind of a call's request."""


@frozen
class Approval:
    """The approval that a route demands before a call is sent."""

    by: tuple[str, ...] = ()
    """The names that may allow it; empty: everyone with the permission."""
    timeout: timedelta | None = None
    """How long the call waits; None: as long as the policy says."""


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
    held: bool = False
    """Whether the executor also answers the approvals of held calls."""
    arguments: Fragment | None = None
    """The arguments of the calls that it matches; None: any."""
    approve: Approval | None = None
    deny: str | None = None
    """The text for the agent whose call is denied."""
    rule: str = ""
    """The hash of match, `to`, `approve` and the executor's address."""

    def matches(self, *, runtime: str, kind: str, tool: str | None, labels: Mapping[str, str]) -> bool:
        """Return whether an event matches. A rule with `to` and without `event` matches tool calls only."""
        if self.event is not None:
            if not fnmatchcase(kind, self.event):
                return False
        elif self.to is not None and kind != CALL:
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


@frozen
class Ruling:
    """What the routes say about a call; `index` is the position of the deciding route in the configuration."""

    index: int
    executor: str | None = None
    """The executor that gets the call; None if it is denied."""
    approve: Approval | None = None
    """The approval that it needs first, if any."""
    denied: str | None = None
    """The text for the agent, if the call is denied."""
    rule: str = ""
    """The hash of the deciding route."""


@frozen
class Unfitting:
    """Routes take the tool, but none takes these arguments: the call fails, also with `unrouted: ignore`."""

    tried: tuple[int, ...]
    """The positions of the routes whose fragments do not fit."""


@dataclass(frozen=True)
class Routes:
    """All rules, in the order of the configuration."""

    routes: tuple[Route, ...] = ()
    unrouted: Literal["fail", "ignore"] = "fail"
    declared: frozenset[str] = frozenset()
    """The configured tools. If there are any, a glob leads no other tool to an executor."""

    def executor_for(
        self, *, runtime: str, kind: str, tool: str | None = None, labels: Mapping[str, str], held: bool = False
    ) -> Matched | None:
        """Find the executor: the first matching rule with `to`, for any arguments of a call.

        With `held`, that of the question about a held call.
        """
        unknown = kind == CALL and bool(self.declared) and tool not in self.declared
        for route, found in self._answering:
            if (unknown and not _leads_undeclared(route, tool)) or (held and not route.held):
                continue
            if route.matches(runtime=runtime, kind=kind, tool=tool, labels=labels):
                return found
        return None

    def rule_for(
        self, *, runtime: str, tool: str, labels: Mapping[str, str], arguments: Mapping[str, Any]
    ) -> Ruling | Unfitting | None:
        """Decide about a call with the arguments that its executor would get; None if no route takes the tool.

        Arguments that cannot be compared with a fragment (a lone surrogate) fit no route, and no call is sent.
        """
        tried: list[int] = []
        try:
            for route, ruling in self._denying:
                if route.matches(runtime=runtime, kind=CALL, tool=tool, labels=labels) and (
                    route.arguments is None or route.arguments.fits(arguments)
                ):
                    return ruling
            unknown = bool(self.declared) and tool not in self.declared
            for route, ruling in self._ruling:
                if unknown and not _leads_undeclared(route, tool):
                    continue
                if route.matches(runtime=runtime, kind=CALL, tool=tool, labels=labels):
                    if route.arguments is None or route.arguments.fits(arguments):
                        return ruling
                    tried.append(ruling.index)
        except ValueError:
            return Unfitting(tuple(tried))
        return Unfitting(tuple(tried)) if tried else None

    def rules_for(self, *, runtime: str, tool: str, labels: Mapping[str, str]) -> tuple[Ruling, ...]:
        """List what may decide about calls of a tool that are not denied; empty if each of them is denied."""
        for route, _ in self._denying:
            if route.arguments is None and route.matches(runtime=runtime, kind=CALL, tool=tool, labels=labels):
                return ()
        unknown = bool(self.declared) and tool not in self.declared
        found: list[Ruling] = []
        for route, ruling in self._ruling:
            if unknown and not _leads_undeclared(route, tool):
                continue
            if route.matches(runtime=runtime, kind=CALL, tool=tool, labels=labels):
                found.append(ruling)
                if route.arguments is None:
                    break
        return tuple(found)

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

    @cached_property
    def _ruling(self) -> tuple[tuple[Route, Ruling], ...]:
        return tuple(
            [
                (route, Ruling(index, executor=route.to, approve=route.approve, rule=route.rule))
                for index, route in enumerate(self.routes)
                if route.to is not None and route.deny is None
            ]
        )

    @cached_property
    def _denying(self) -> tuple[tuple[Route, Ruling], ...]:
        return tuple(
            [
                (route, Ruling(index, denied=route.deny, rule=route.rule))
                for index, route in enumerate(self.routes)
                if route.deny is not None
            ]
        )


def _leads_undeclared(route: Route, tool: str | None) -> bool:
    return route.undeclared or route.approve is not None or route.tool == tool

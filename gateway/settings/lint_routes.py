"""Checks the routes: unknown names, rules that never apply, tools without a route. Pure."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from dragoman.models.events import KINDS
from gateway.core.confirmations import MESSAGE, find_confirmer
from gateway.settings.covering import covers
from gateway.settings.lint_policy import lint_policy
from gateway.settings.model import Settings
from gateway.settings.place import Finding, Place, suggest
from gateway.settings.routes import RouteSpec
from gateway.settings.routing import routes_of

ANSWERED = frozenset({"tool.requested", "message.posted", "approval.asked", "question.asked"})
"""Kinds that an executor can answer."""

LIVE = frozenset({"typing.changed", "message.streamed"})
"""Kinds that are never recorded."""


def lint_routes(settings: Settings) -> Iterator[Finding]:
    """Check each route and the routes above it, then the tools, executors and destinations without a route."""
    for index, route in enumerate(settings.routes):
        place = ("routes", index)
        yield from _names(settings, route, place)
        yield from _match(settings, route, place)
        if route.to is not None and route.approve is None:
            above = next((n for n, other in enumerate(settings.routes[:index]) if _hides(other, route)), None)
            if above is not None:
                yield Finding(
                    (*place, "to"),
                    f"never reached: routes[{above}] takes everything this one matches; move it up",
                    "warning",
                )
    yield from lint_policy(settings)
    yield from _confirmations(settings)
    yield from _unrouted_tools(settings)
    yield from _unused_targets(settings)


def _names(settings: Settings, route: RouteSpec, place: Place) -> Iterator[Finding]:
    if route.to is None and not route.copy_to and route.deny is None and route.approve is None:
        yield Finding(place, "does nothing; add `to: EXECUTOR`, `copy_to: [DESTINATION]` or `deny: TEXT`")
    if route.to is not None and route.to not in settings.executors:
        also = " (it is a destination: use copy_to)" if route.to in settings.destinations else ""
        yield Finding(
            (*place, "to"), f"there is no executor {route.to!r}{also}; {suggest(route.to, settings.executors)}"
        )
    if route.live and not route.copy_to:
        yield Finding((*place, "live"), "only applies to copies; add `copy_to: [DESTINATION]`, or remove this")
    for name in route.copy_to:
        if name not in settings.destinations:
            also = " (it is an executor: use to)" if name in settings.executors else ""
            yield Finding(
                (*place, "copy_to"), f"there is no destination {name!r}{also}; {suggest(name, settings.destinations)}"
            )


def _match(settings: Settings, route: RouteSpec, place: Place) -> Iterator[Finding]:
    match = route.match
    where = (*place, "match")
    if match.runtime != "*" and settings.runtimes and not _any(settings.runtimes, match.runtime):
        yield _warn(
            (*where, "runtime"), f"no runtime matches {match.runtime!r}; {suggest(match.runtime, settings.runtimes)}"
        )
    if match.tool is not None and match.tool != "*" and not _any(settings.tools, match.tool):
        hint = suggest(match.tool, settings.tools)
        hint = hint if settings.tools else "declare it under `tools` to have its arguments checked"
        # A tool that nobody may call need not be declared.
        if route.deny is None or hint.startswith("did you mean"):
            yield _warn((*where, "tool"), f"no declared tool matches {match.tool!r}; {hint}")
    if match.event is None:
        return
    matched = {kind for kind in KINDS if fnmatchcase(kind, match.event)}
    if not matched:
        yield Finding((*where, "event"), f"no event kind matches {match.event!r}; {suggest(match.event, KINDS)}")
    elif route.to is not None and not matched & ANSWERED:
        kinds = ", ".join(sorted(ANSWERED))
        yield Finding((*where, "event"), f"{match.event!r} cannot go `to` an executor, only {kinds} can; use copy_to")
    elif route.copy_to and matched <= LIVE and not route.live:
        yield _warn((*where, "event"), f"{match.event!r} is not recorded, so nothing is copied; add `live: true`")


def _confirmations(settings: Settings) -> Iterator[Finding]:
    """Check that what confirms the agents' messages of each runtime gets these messages."""
    routes = routes_of(settings)
    for runtime, options in settings.runtimes.items():
        rule = options.confirmation
        if rule is None or not rule.expected:
            continue
        place = ("runtimes", runtime)
        by, name = find_confirmer(rule, routes, runtime=runtime, labels=options.labels)
        copies = routes.copies_for(runtime=runtime, kind=MESSAGE, labels=options.labels)
        match by, name:
            case "recorded", _ if rule.by is None:
                text = (
                    "each agent message is confirmed before anybody delivered it; set `confirm` to what delivers it:"
                    " client, executor or copied, or to recorded to keep this"
                )
                yield _warn(place, text)
            case "executor", None:
                yield Finding((*place, "confirm"), f"no route takes {MESSAGE} `to` an executor; add one")
            case "copied", None:
                text = f"not exactly one destination is named by a route for {MESSAGE}; set `confirm_by` to one"
                yield Finding((*place, "confirm"), text)
            case "copied", str() if name not in copies:
                text = f"no route copies {MESSAGE} to {name!r}; {suggest(name, copies)}"
                yield Finding((*place, "confirm_by"), text)
            case _:
                pass
        if by != "executor" and routes.executor_for(runtime=runtime, kind=MESSAGE, labels=options.labels) is not None:
            text = f"with `confirm: {by}` no executor gets {MESSAGE}, although a route takes it `to` one"
            yield _warn((*place, "confirm"), text)


def _unrouted_tools(settings: Settings) -> Iterator[Finding]:
    if settings.unrouted != "fail":
        return
    for name in settings.tools:
        if any(takes_calls(route, name) for route in settings.routes):
            continue
        if any(route.deny is not None and fnmatchcase(name, route.match.tool or "*") for route in settings.routes):
            text = "routes only deny this tool, so no agent is offered it; add a route `to` an executor, or remove it"
        else:
            text = "no route takes this tool, so each call of it fails; add a route `to` an executor"
        yield _warn(("tools", name), text)


def _unused_targets(settings: Settings) -> Iterator[Finding]:
    answering = {route.to for route in settings.routes}
    copied = {name for route in settings.routes for name in route.copy_to}
    copied |= {notified.to for notified in settings.approvals.notify}
    for name in settings.executors.keys() - answering:
        yield _warn(("executors", name), f"no route leads here; add `to: {name}` to one, or remove this")
    for name in settings.destinations.keys() - copied:
        yield _warn(("destinations", name), f"no route copies here; add `copy_to: [{name}]` to one, or remove this")


def takes_calls(route: RouteSpec, tool: str) -> bool:
    """Check whether a route sends calls of a tool to an executor, for any runtime and labels."""
    about_calls = route.match.event is None or fnmatchcase("tool.requested", route.match.event)
    return route.to is not None and about_calls and fnmatchcase(tool, route.match.tool or "*")


def _hides(above: RouteSpec, below: RouteSpec) -> bool:
    return above.to is not None and covers(above, below) and (above.held or not below.held)


def _any(names: Iterable[str], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _warn(place: Place, message: str) -> Finding:
    return Finding(place, message, "warning")

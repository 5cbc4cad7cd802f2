"""Checks the routes that deny or hold calls, or look at their arguments: a mistake in one lets calls through. Pure."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from gateway.addresses import is_loopback
from gateway.core.arguments import problems_in_schema
from gateway.core.holding import EXECUTOR
from gateway.core.routing import CALL
from gateway.settings.covering import covers, has_wildcard, is_wider, may_overlap
from gateway.settings.lint_fragments import lint_fragment
from gateway.settings.model import Settings
from gateway.settings.place import Finding, Place, suggest
from gateway.settings.routes import ApproveSpec, RouteSpec
from gateway.settings.routing import addresses_of


def lint_policy(settings: Settings) -> Iterator[Finding]:
    """Check each route with `deny`, `approve` or `arguments`, and the routes around it."""
    for index, route in enumerate(settings.routes):
        place = ("routes", index)
        yield from _combination(route, place)
        if route.match.arguments is not None:
            tools = {
                name: tool.parameters
                for name, tool in settings.tools.items()
                if fnmatchcase(name, route.match.tool or "*") and problems_in_schema(tool.parameters) is None
            }
            yield from lint_fragment(route.match.arguments, (*place, "match", "arguments"), tools)
        if route.approve is not None:
            yield from _approvers(settings, route.approve, (*place, "approve"))
        yield from _unreached(settings, index, route)
        yield from _leaks(settings, index, route)
        yield from _own_actions(settings, route, place)
        yield from _answering(settings, route, place)
    yield from _notices(settings)


def _answering(settings: Settings, route: RouteSpec, place: Place) -> Iterator[Finding]:
    """Check a route whose executor answers the approvals of held calls."""
    if not route.held:
        return
    if route.match.event != "approval.asked" or route.to is None:
        text = "only about approvals; add `match.event: approval.asked` and `to`, or remove this"
        yield Finding((*place, "held"), text)
        return
    addresses = addresses_of(settings)
    for index, gated in enumerate(settings.routes):
        at = None if gated.to is None else addresses.get(gated.to)
        if gated.approve is not None and (gated.to == route.to or (at is not None and at == addresses.get(route.to))):
            text = f"this executor runs the calls that routes[{index}] holds, so it is not asked about them"
            yield _warn((*place, "to"), text)


def _combination(route: RouteSpec, place: Place) -> Iterator[Finding]:
    approve, arguments = route.approve is not None, route.match.arguments is not None
    if route.deny is not None and route.to is not None:
        yield Finding((*place, "deny"), "a denied call reaches no executor; remove `to`, or remove `deny`")
    if route.deny is not None and approve:
        yield Finding((*place, "approve"), "a denied call asks nobody; remove `approve`, or remove `deny`")
    elif approve and route.to is None:
        yield Finding((*place, "approve"), "an allowed call needs an executor; add `to: EXECUTOR`")
    if arguments and route.to is None and route.deny is None:
        yield Finding((*place, "match", "arguments"), "only `to` and `deny` look at arguments; add one, or remove this")
    elif arguments and route.copy_to:
        text = "copies do not look at arguments; move `copy_to` to a route of its own"
        yield Finding((*place, "copy_to"), text)
    if route.match.event not in (None, CALL) and (route.deny is not None or approve or arguments):
        key = "deny" if route.deny is not None else "approve" if approve else "match.arguments"
        yield Finding((*place, "match", "event"), f"`{key}` is about calls only; remove `event`")


def _approvers(settings: Settings, approve: ApproveSpec, place: Place) -> Iterator[Finding]:
    keys = {key.name: key for key in settings.api.keys}
    by_executor = {f"{EXECUTOR} {route.to}" for route in settings.routes if route.held}
    able = {name for name, key in keys.items() if "approve" in key.scopes}
    by_link = {f"link {one.to}" for one in settings.approvals.notify} if settings.approvals.links else set[str]()
    if not keys:
        text = "without `api.keys`, everybody who reaches the loopback address may allow calls; add keys"
        yield _warn(place, text)
    elif not able | by_link | by_executor:
        yield _warn(place, "no API key has the scope `approve`, so nobody can allow a call; add it to a key")
    if "by" in approve.model_fields_set and not approve.by:
        yield Finding((*place, "by"), "names nobody; list the names of API keys, or remove this")
    for name in approve.by:
        if name in by_link or name in by_executor:
            continue
        if name.startswith(f"{EXECUTOR} "):
            text = f"no route with `held: true` leads to {name!r}; add one for approval.asked"
            yield Finding((*place, "by"), text)
        elif name.startswith("link "):
            text = f"{name!r} is no link; set `approvals.links`, and name the destination in `approvals.notify`"
            yield Finding((*place, "by"), text)
        elif name not in keys:
            yield Finding((*place, "by"), f"no API key is called {name!r}; {suggest(name, keys)}")
        elif able and name not in able:
            yield Finding((*place, "by"), f"the key {name!r} lacks the scope `approve`; add it, or name another key")


def _notices(settings: Settings) -> Iterator[Finding]:
    notify = settings.approvals.notify
    names = [notified.to for notified in notify]
    for n, name in enumerate(names):
        place = ("approvals", "notify", n)
        if name not in settings.destinations:
            known = suggest(name, settings.destinations)
            yield Finding(place, f"there is no destination {name!r}; {known}")
        if name in names[:n]:
            yield Finding(place, f"{name!r} is named twice; remove one")
    if settings.approvals.links:
        yield from _links(settings)
    asked = [route.approve for route in settings.routes if route.approve is not None]
    longest = max((approve.timeout or settings.approvals.timeout for approve in asked), default=None)
    for n, span in enumerate(settings.approvals.remind):
        if longest is not None and span >= longest:
            yield _warn(("approvals", "remind", n), "no call waits that long; shorten it, or raise `approvals.timeout`")
    if settings.approvals.remind and not notify:
        yield _warn(("approvals", "remind"), "nobody is reminded; name destinations in `approvals.notify`")
    if notify and not any(route.approve for route in settings.routes):
        yield _warn(("approvals", "notify"), "no route has `approve`, so nobody is notified; add it to one")


def _links(settings: Settings) -> Iterator[Finding]:
    place, url = ("approvals", "links"), settings.public_url
    if not settings.approvals.notify:
        yield _warn(place, "no notice is sent, so nobody gets a link; name destinations in `approvals.notify`")
    if url is None:
        yield _warn(place, "without `public_url`, links only lead to the loopback address; set it to the gateway's URL")
    elif url.scheme == "http" and not is_loopback(url.host or ""):
        yield Finding(place, "links would cross the network unencrypted; write an https:// URL as `public_url`")
    for n, notified in enumerate(settings.approvals.notify):
        spec = settings.destinations.get(notified.to)
        if spec is not None and spec.url.scheme == "http" and not is_loopback(spec.url.host or ""):
            text = f"notices to {notified.to!r} carry links unencrypted; write an https:// URL in `destinations`"
            yield _warn(("approvals", "notify", n), text)


def _unreached(settings: Settings, index: int, route: RouteSpec) -> Iterator[Finding]:
    """Find what hides a route: a denial anywhere, or, if the route holds calls, a route above it."""
    if route.to is None and route.deny is None:
        return
    key = "to" if route.deny is None else "deny"
    denials = settings.routes if route.deny is None else settings.routes[:index]
    for n, other in enumerate(denials):
        if other.deny is not None and covers(other, route):
            text = f"never reached: routes[{n}] denies everything this one matches; narrow that, or remove this"
            yield _warn(("routes", index, key), text)
            return
    if route.approve is None:
        return
    for n, above in enumerate(settings.routes[:index]):
        if above.deny is None and above.to is not None and covers(above, route):
            text = f"never holds a call: routes[{n}] takes everything this one matches; move this one up"
            if _leads_all(settings, above, route):
                yield Finding(("routes", index, "approve"), text)
            else:
                text = f"only holds calls of undeclared tools: routes[{n}] takes the declared ones; move this one up"
                yield _warn(("routes", index, "approve"), text)
            return


def _leads_all(settings: Settings, above: RouteSpec, below: RouteSpec) -> bool:
    """Whether the route above also takes the undeclared tools of the one below, which matches them by its globs."""
    if not settings.tools or above.undeclared or above.approve is not None:
        return True
    tool = below.match.tool
    return tool in settings.tools or (tool is not None and tool == above.match.tool and not has_wildcard(tool))


def _leaks(settings: Settings, index: int, route: RouteSpec) -> Iterator[Finding]:
    """Warn of a route that runs unasked what a route above it holds only in part."""
    if route.to is None or route.approve is not None or not fnmatchcase(CALL, route.match.event or CALL):
        return
    for n, above in enumerate(settings.routes[:index]):
        if above.approve is None or not may_overlap(above.match, route.match):
            continue
        if above.match.arguments is not None or not _asks_for_all(above, route):
            text = (
                f"runs calls without an approval that routes[{n}] above does not hold; put the calls that need none"
                " above it, and let the last route of the tool ask"
            )
            yield _warn(("routes", index, "to"), text)
            return


def _asks_for_all(above: RouteSpec, below: RouteSpec) -> bool:
    """Whether the route above holds every call of the tools that both match."""
    one, other = above.match, below.match
    return is_wider(one.runtime, other.runtime) and all(
        name in other.label and is_wider(glob, other.label[name]) for name, glob in one.label.items()
    )


def _own_actions(settings: Settings, route: RouteSpec, place: Place) -> Iterator[Finding]:
    """Warn of a rule about a tool that a runtime executes itself, which no route can hold."""
    if route.deny is None and route.approve is None:
        return
    if route.match.tool is None or not route.match.tool.strip("*"):
        return
    for name, options in settings.runtimes.items():
        if not fnmatchcase(name, route.match.runtime):
            continue
        for tool in sorted(options.own_tools):
            if fnmatchcase(tool, route.match.tool):
                text = f"agents of {name!r} run their own {tool!r} without the gateway, so no route can hold or deny it"
                yield _warn((*place, "match", "tool"), text)
                return


def _warn(place: Place, message: str) -> Finding:
    return Finding(place, message, "warning")

"""Converts the routes of the YAML for the core. Pure."""

import json
from hashlib import sha256
from typing import Any

from gateway.core.arguments import Fragment
from gateway.core.routing import Approval, Route, Routes
from gateway.settings.model import PythonSpec, Settings, StaticSpec, WebhookSpec
from gateway.settings.routes import RouteSpec


def routes_of(settings: Settings) -> Routes:
    """Return the core's routing table."""
    routes = tuple(
        Route(
            runtime=route.match.runtime,
            tool=route.match.tool,
            event=route.match.event,
            labels=route.match.label,
            to=route.to,
            copy_to=route.copy_to,
            live=route.live,
            undeclared=route.undeclared,
            held=route.held,
            arguments=None if route.match.arguments is None else Fragment(route.match.arguments),
            approve=None if route.approve is None else Approval(by=route.approve.by, timeout=route.approve.timeout),
            deny=route.deny,
            rule=_hash(settings, route) if route.to is not None or route.deny is not None else "",
        )
        for route in settings.routes
    )
    return Routes(routes, settings.unrouted, frozenset(settings.tools))


def addresses_of(settings: Settings) -> dict[str, str]:
    """Return the type and address of each executor that has an address."""
    found = {name: _address(settings, name) or () for name in settings.executors}
    return {name: " ".join(address) for name, address in found.items() if len(address) > 1}


def _hash(settings: Settings, route: RouteSpec) -> str:
    """Hash the match, `approve`, `to` and executor address of a route."""
    approve = route.approve
    rule: dict[str, Any] = {
        # A filter that a later release adds must not change the hash of a route without it.
        "match": route.match.model_dump(mode="json", exclude_defaults=True),
        "to": route.to,
        "approve": None if approve is None else approve.model_dump(mode="json", exclude_defaults=True),
        "executor": _address(settings, route.to),
    }
    return sha256(json.dumps(rule, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _address(settings: Settings, name: str | None) -> list[str] | None:
    """Return the type and the address of an executor, without the login of its URL."""
    match settings.executors.get(name or ""):
        case None:
            return None
        case WebhookSpec(type=kind, url=url):
            return [kind, f"{url.scheme}://{url.host}:{url.port}{url.path or '/'}?{url.query or ''}"]
        case PythonSpec(type=kind, call=call):
            return [kind, call]
        case StaticSpec(type=kind):
            return [kind]

"""Converts the routes of the YAML for the core. Pure."""

from gateway.core.routing import Route, Routes
from gateway.settings.model import Settings


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
        )
        for route in settings.routes
    )
    return Routes(routes, settings.unrouted, frozenset(settings.tools))

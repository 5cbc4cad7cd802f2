"""The operations of the API, one module per thing they are about."""

from gateway.http.routes import calls, dead_letters, events, interactions, operating, pages, sessions

ROUTES = [
    route
    for module in (sessions, events, calls, dead_letters, interactions, operating, pages)
    for route in module.router.routes
]
"""All routes, in one flat list: a router inside another would look every request up twice."""

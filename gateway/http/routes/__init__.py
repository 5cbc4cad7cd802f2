"""The operations of the API, one module per subject.

May import `core`, `dragoman.models`, `errors`, `events`, `executors`, `guard`, `runtime`, `store`.
"""

from gateway.http.routes import (
    all_events,
    callers,
    calls,
    dead_letters,
    events,
    interactions,
    operating,
    pages,
    sessions,
    tool_access,
)

ROUTES = [
    route
    for module in (
        sessions,
        events,
        all_events,
        tool_access,
        callers,
        calls,
        dead_letters,
        interactions,
        operating,
        pages,
    )
    for route in module.router.routes
]
"""All routes in one flat list, because nested routers would match every request twice."""

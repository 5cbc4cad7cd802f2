"""The operations of the API, one module per thing they are about."""

from gateway.http.idempotency import IdempotentRequests
from gateway.http.operation import Operation
from gateway.http.routes.calls import CallRoutes
from gateway.http.routes.dead_letters import DeadLetterRoutes
from gateway.http.routes.events import EventRoutes
from gateway.http.routes.interactions import InteractionRoutes
from gateway.http.routes.operating import OperatingRoutes
from gateway.http.routes.pages import PageRoutes
from gateway.http.routes.sessions import SessionRoutes
from gateway.http.sse import Followers
from gateway.runtime.app import Gateway


def all_operations(gateway: Gateway, followers: Followers) -> tuple[Operation, ...]:
    """List every operation but /openapi.json, which describes them."""
    once = IdempotentRequests(gateway)
    return (
        *SessionRoutes(gateway, once).operations(),
        *EventRoutes(gateway, once, followers).operations(),
        *CallRoutes(gateway).operations(),
        *DeadLetterRoutes(gateway).operations(),
        *InteractionRoutes(gateway, followers).operations(),
        *OperatingRoutes(gateway).operations(),
        *PageRoutes(gateway).operations(),
    )

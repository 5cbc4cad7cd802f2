"""The tools that a session offers to its callers. Pure."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from gateway.core.session import Policy
from gateway.events.frozen import frozen
from gateway.settings.model import Settings, WebhookSpec


@frozen
class OfferedTool:
    """A tool of the catalog that a route of the session leads to an executor."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    read_only: bool
    idempotent: bool
    """Whether its executor may receive a call twice."""
    longest: timedelta
    """The longest time until its outcome."""


def offered(settings: Settings, policy: Policy, *, runtime: str, labels: Mapping[str, str]) -> Sequence[OfferedTool]:
    """List the offered tools in the order of the configuration."""
    found: list[OfferedTool] = []
    for name, tool in settings.tools.items():
        route = policy.routes.executor_for(runtime=runtime, kind="tool.requested", tool=name, labels=labels)
        if route is not None:
            retry = policy.executors[route.executor]
            found.append(
                OfferedTool(
                    name=name,
                    description=tool.description,
                    parameters=tool.parameters,
                    read_only=tool.read_only,
                    idempotent=retry.idempotent,
                    longest=retry.accepted_deadline if _may_accept(settings, route.executor) else retry.deadline,
                )
            )
    return found


def _may_accept(settings: Settings, executor: str) -> bool:
    return isinstance(settings.executors[executor], WebhookSpec)

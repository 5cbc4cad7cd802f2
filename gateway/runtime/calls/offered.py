"""The tools that a session offers to its callers. Pure."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from gateway.core.session import Policy
from gateway.events.frozen import frozen
from gateway.settings.model import Settings, WebhookSpec


@frozen
class OfferedTool:
    """A tool of the catalog of which some call may reach an executor in the session."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    read_only: bool
    idempotent: bool
    """Whether each of its executors may receive a call twice."""
    longest: timedelta
    """The longest time until its outcome, once it is sent."""
    gated: bool
    """Whether some of its calls need an approval."""


def offered(settings: Settings, policy: Policy, *, runtime: str, labels: Mapping[str, str]) -> Sequence[OfferedTool]:
    """List the offered tools in the order of the configuration."""
    found: list[OfferedTool] = []
    for name, tool in settings.tools.items():
        rules = policy.routes.rules_for(runtime=runtime, tool=name, labels=labels)
        executors = [rule.executor for rule in rules if rule.executor is not None]
        if executors:
            found.append(
                OfferedTool(
                    name=name,
                    description=tool.description,
                    parameters=tool.parameters,
                    read_only=tool.read_only,
                    idempotent=all(policy.executors[executor].idempotent for executor in executors),
                    longest=max(_longest(settings, policy, executor) for executor in executors),
                    gated=any(rule.approve is not None for rule in rules),
                )
            )
    return found


def _longest(settings: Settings, policy: Policy, executor: str) -> timedelta:
    retry = policy.executors[executor]
    return retry.accepted_deadline if isinstance(settings.executors[executor], WebhookSpec) else retry.deadline

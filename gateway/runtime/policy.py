"""What a configuration means for the core and the shell: routes, retry rules, slots."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

from gateway.core.calls import RetryPolicy
from gateway.core.council import Policy
from gateway.core.routing import Route, Routes
from gateway.core.screening import Screen
from gateway.ports.adapter import Tool
from gateway.runtime.breaker import Rule
from gateway.runtime.limits import Limit
from gateway.settings.model import DestinationSpec, ExecutorSpec, PythonSpec, Settings, StaticSpec, WebhookSpec

_MARGIN = timedelta(seconds=20)


def policy_of(settings: Settings) -> Policy:
    """Say what the configuration means for decisions."""
    screen = Screen({tool.name: tool for tool in declared_tools(settings)})
    routes = tuple(
        Route(
            runtime=route.match.runtime,
            tool=route.match.tool,
            event=route.match.event,
            labels=route.match.label,
            to=route.to,
            copy_to=route.copy_to,
        )
        for route in settings.routes
    )
    return Policy(
        routes=Routes(routes, settings.unrouted),
        executors={name: retry_of(spec) for name, spec in settings.executors.items()},
        check_arguments=screen.check,
        declared=frozenset(settings.tools),
        cancel_grace=settings.limits.cancel_grace,
        interaction_timeout=settings.limits.interaction_timeout,
        open_calls=settings.limits.open_calls,
        open_bytes=int(settings.limits.open_bytes),
        progress=int(settings.limits.progress),
        outbound=settings.limits.outbound,
    )


def declared_tools(settings: Settings) -> tuple[Tool, ...]:
    """List the tools of the YAML."""
    return tuple(Tool(name, spec.description, spec.parameters) for name, spec in settings.tools.items())


def retry_of(spec: ExecutorSpec) -> RetryPolicy:
    """Say how often and how long an executor is asked."""
    match spec:
        case WebhookSpec():
            return RetryPolicy(
                attempts=spec.attempts,
                idempotent=spec.idempotent,
                timeout=spec.timeout,
                deadline=spec.deadline,
                accepted_deadline=spec.accepted_deadline,
                initial=spec.backoff.initial,
                maximum=spec.backoff.maximum,
            )
        case PythonSpec():
            return RetryPolicy(
                attempts=spec.attempts, idempotent=spec.idempotent, timeout=spec.timeout, deadline=spec.deadline
            )
        case StaticSpec():
            longer = spec.delay + _MARGIN
            # It never fails, but each process that dies while it waits uses up an attempt.
            return RetryPolicy(attempts=10, idempotent=True, timeout=longer, deadline=longer + _MARGIN)


def copying_of(spec: DestinationSpec) -> RetryPolicy:
    """Say how often a copy is tried; an event copy carries its id, so a repeat does no harm."""
    return RetryPolicy(
        attempts=spec.attempts,
        idempotent=True,
        timeout=spec.timeout,
        initial=spec.backoff.initial,
        maximum=spec.backoff.maximum,
    )


def executor_limits(settings: Settings) -> Mapping[str, Limit]:
    """Say how many calls each executor takes at once and per second."""
    return {
        name: (spec.concurrency, spec.rate if isinstance(spec, WebhookSpec) else None)
        for name, spec in settings.executors.items()
    }


def session_limit(settings: Settings) -> Limit:
    """Say how many calls of one session may be at work at once, and begin per second."""
    return settings.limits.session_concurrency, settings.limits.session_rate


def breaker_rules(settings: Settings) -> Mapping[str, Rule | None]:
    """Say when each executor is left alone; None where never."""
    rules: dict[str, Rule | None] = {}
    for name, spec in settings.executors.items():
        breaker = "off" if isinstance(spec, StaticSpec) else spec.breaker
        rules[name] = None if breaker == "off" else Rule(breaker.failures, breaker.open_for)
    return rules


def changed_paths(old: Settings, new: Settings) -> tuple[str, ...]:
    """List what differs between two configurations, one path per entry of a section."""
    changed: list[str] = []
    for section in type(old).model_fields:
        before, after = getattr(old, section), getattr(new, section)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            one, other = cast("dict[str, Any]", before), cast("dict[str, Any]", after)
            changed += sorted(f"{section}.{name}" for name in {*one, *other} if one.get(name) != other.get(name))
        else:
            changed.append(section)
    return tuple(changed)

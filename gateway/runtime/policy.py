"""Derives the policy of decisions from the settings: routes, tools, retry rules."""

from datetime import timedelta
from typing import Any, cast

from gateway.adapter.port import Tool
from gateway.core.arguments import ArgumentValidator
from gateway.core.session import Approvals, Policy, RetryPolicy
from gateway.runtime.tuning import Tuning
from gateway.settings.model import DestinationSpec, ExecutorSpec, PythonSpec, Settings, StaticSpec, WebhookSpec
from gateway.settings.routing import addresses_of, routes_of

_MARGIN = timedelta(seconds=20)


def policy_of(settings: Settings, tuning: Tuning | None = None) -> Policy:
    """Return the policy of decisions."""
    keeping = [name for name, spec in settings.tools.items() if spec.nulls == "keep"]
    validator = ArgumentValidator({tool.name: tool for tool in declared_tools(settings)}, keeping_nulls=keeping)
    return Policy(
        routes=routes_of(settings),
        executors={name: retry_of(spec) for name, spec in settings.executors.items()},
        addresses=addresses_of(settings),
        fit_arguments=validator.fit,
        declared=frozenset(settings.tools),
        cancel_grace=settings.limits.cancel_grace,
        interaction_timeout=settings.limits.interaction_timeout,
        approvals=Approvals(
            timeout=settings.approvals.timeout,
            while_held=settings.approvals.while_held,
            notify=tuple(one.to for one in settings.approvals.notify),
            remind=settings.approvals.remind,
            tell=settings.approvals.tell,
            tell_after=(tuning or Tuning()).tell_after,
        ),
        open_calls=settings.limits.open_calls,
        open_bytes=int(settings.limits.open_bytes),
        progress=int(settings.limits.progress),
        outbound=settings.limits.outbound,
        trace_ratio=1.0 if settings.traces is None else settings.traces.ratio,
    )


def declared_tools(settings: Settings) -> tuple[Tool, ...]:
    """List the configured tools."""
    return tuple(Tool(name, spec.description, spec.parameters) for name, spec in settings.tools.items())


def retry_of(spec: ExecutorSpec) -> RetryPolicy:
    """Return the attempts, timeouts and back-off of an executor."""
    match spec:
        case WebhookSpec():
            return RetryPolicy(
                attempts=spec.attempts,
                idempotent=spec.idempotent,
                timeout=spec.timeout,
                deadline=spec.deadline,
                accepted_deadline=spec.accepted_deadline,
                accepted_silence=spec.accepted_silence,
                initial=spec.backoff.initial,
                maximum=spec.backoff.maximum,
            )
        case PythonSpec():
            return RetryPolicy(
                attempts=spec.attempts, idempotent=spec.idempotent, timeout=spec.timeout, deadline=spec.deadline
            )
        case StaticSpec():
            longer = spec.delay + _MARGIN
            # It never fails, but each crash during its delay uses up an attempt.
            return RetryPolicy(attempts=10, idempotent=True, timeout=longer, deadline=longer + _MARGIN)


def copying_of(spec: DestinationSpec) -> RetryPolicy:
    """Return the retry rules of copies; a copy carries the event's id, so a repeat does no harm."""
    return RetryPolicy(
        attempts=spec.attempts,
        idempotent=True,
        timeout=spec.timeout,
        initial=spec.backoff.initial,
        maximum=spec.backoff.maximum,
    )


def changed_paths(old: Settings, new: Settings) -> tuple[str, ...]:
    """List the paths that differ between two configurations, one per entry of a section."""
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

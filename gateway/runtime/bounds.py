"""What a configuration means for those who do the work: slots, rates, when an executor is left alone."""

from collections.abc import Mapping

from gateway.runtime.calls.breaker import Rule
from gateway.runtime.calls.slots import Limit
from gateway.settings.model import Settings, StaticSpec, WebhookSpec


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

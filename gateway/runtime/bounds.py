"""What a configuration means for those who do the work: slots, rates, when an executor is left alone."""

from collections.abc import Mapping
from datetime import timedelta

from gateway.runtime.calls.breaker import Rule
from gateway.runtime.calls.slots import Limit
from gateway.runtime.policy import retry_of
from gateway.settings.model import BreakerSpec, Settings, StaticSpec, WebhookSpec

_OPEN_FOR = BreakerSpec().open_for


def executor_limits(settings: Settings) -> Mapping[str, Limit]:
    """Say how many calls each executor takes at once and per second."""
    return {
        name: (spec.concurrency, spec.rate if isinstance(spec, WebhookSpec) else None)
        for name, spec in settings.executors.items()
    }


def session_limit(settings: Settings) -> Limit:
    """Say how many calls of one session may be at work at once, and begin per second."""
    return settings.limits.session_concurrency, settings.limits.session_rate


def breaker_rules(settings: Settings) -> Mapping[str, Rule]:
    """Say when each executor is left alone."""
    rules: dict[str, Rule] = {}
    for name, spec in settings.executors.items():
        breaker = "off" if isinstance(spec, StaticSpec) else spec.breaker
        failures, open_for = (None, _OPEN_FOR) if breaker == "off" else (breaker.failures, breaker.open_for)
        within = spec.reconnect_within if isinstance(spec, WebhookSpec) else timedelta(0)
        rules[name] = Rule(failures, open_for, within, retry_of(spec).reconnect_pause)
    return rules

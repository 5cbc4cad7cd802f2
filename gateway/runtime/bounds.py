"""Derives the limits of executors and sessions from the settings: slots, rates, circuit breakers."""

from collections.abc import Mapping
from datetime import timedelta

from gateway.runtime.calls.breaker import Rule
from gateway.runtime.calls.slots import Limit
from gateway.runtime.policy import retry_of
from gateway.settings.model import BreakerSpec, Settings, StaticSpec, WebhookSpec

_OPEN_FOR = BreakerSpec().open_for


def executor_limits(settings: Settings) -> Mapping[str, Limit]:
    """Return the concurrent calls and calls per second of each executor."""
    return {
        name: (spec.concurrency, spec.rate if isinstance(spec, WebhookSpec) else None)
        for name, spec in settings.executors.items()
    }


def session_limit(settings: Settings) -> Limit:
    """Return the concurrent calls and calls per second of one session."""
    return settings.limits.session_concurrency, settings.limits.session_rate


def breaker_rules(settings: Settings) -> Mapping[str, Rule]:
    """Return the circuit breaker rule of each executor."""
    rules: dict[str, Rule] = {}
    for name, spec in settings.executors.items():
        breaker = "off" if isinstance(spec, StaticSpec) else spec.breaker
        failures, open_for = (None, _OPEN_FOR) if breaker == "off" else (breaker.failures, breaker.open_for)
        within = spec.reconnect_within if isinstance(spec, WebhookSpec) else timedelta(0)
        rules[name] = Rule(failures, open_for, within, retry_of(spec).reconnect_pause)
    return rules

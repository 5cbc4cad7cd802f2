"""The services that most parts of the runtime use."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.clock import Clock, Ids
from gateway.events import SessionId
from gateway.guard import Tasks
from gateway.runtime.drain import Drain
from gateway.runtime.metrics import Metrics
from gateway.runtime.session.signals import Signal
from gateway.runtime.tuning import Tuning
from gateway.store.port import Engine
from gateway.traces.queue import Traces


@dataclass(frozen=True, slots=True)
class Services:
    """The store, the clock and the other services of one gateway."""

    engine: Engine
    clock: Clock
    ids: Ids
    metrics: Metrics
    tuning: Tuning
    jitter: Callable[[], float]
    """Returns a random number in [0, 1)."""
    signal: Callable[[SessionId, Signal], None]
    """Puts a signal into the inbox of a session, if it runs here."""
    tasks: Tasks
    """Owns the tasks that run for sessions and backends."""
    drain: Drain
    """The progress of the gateway's stop."""
    traces: Traces | None
    """Takes spans; None if traces are off."""

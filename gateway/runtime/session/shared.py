"""What all sessions of a process share, and whom their workers hand work to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.clock import Clock, Ids
from gateway.core.effects import Ask, Dispatch, Release
from gateway.core.runtime_context import RuntimeContext
from gateway.core.state import SessionView
from gateway.guard import Tasks
from gateway.runtime.calls.slots import Slots, Waiter
from gateway.runtime.feeds.interactions import InteractionFeed
from gateway.runtime.metrics import Metrics
from gateway.runtime.session.signals import Signal
from gateway.store.port import Engine


class Customer(Waiter, Protocol):
    """A session that has work done; its worker."""

    view: SessionView
    runtime: RuntimeContext

    def put(self, signal: Signal) -> None:
        """Let it know what came of the work."""
        ...


class Workshop(Protocol):
    """Whoever carries out calls and questions; the dispatcher."""

    def dispatch(self, session: Customer, effect: Dispatch) -> None: ...
    def ask(self, session: Customer, effect: Ask) -> None: ...
    def release(self, effect: Release) -> None: ...
    def busy(self, session: Customer) -> bool: ...
    def abandon(self, session: Customer) -> None: ...


@dataclass(frozen=True, slots=True)
class Shared:
    """What all sessions of a process share."""

    engine: Engine
    clock: Clock
    ids: Ids
    metrics: Metrics
    slots: Slots
    workshop: Workshop
    jitter: Callable[[], float]
    copied: Callable[[], None]
    """Wakes the destinations' deliveries after a commit that may hold copies for them."""
    leased: Callable[[], bool]
    """Says whether this process may still speak for its sessions, by the clock and not by a timer."""
    interaction_feed: InteractionFeed
    """Where questions to people that changed are put up."""
    tasks: Tasks
    """What runs for sessions belongs to these."""

"""What all sessions of a process share."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.clock import Clock, Ids
from gateway.guard import Tasks
from gateway.runtime.calls.dispatcher import Dispatcher
from gateway.runtime.calls.slots import Slots
from gateway.runtime.feeds.interactions import InteractionFeed
from gateway.runtime.metrics import Metrics
from gateway.store.port import Engine


@dataclass(frozen=True, slots=True)
class Shared:
    """What all sessions of a process share."""

    engine: Engine
    clock: Clock
    ids: Ids
    metrics: Metrics
    slots: Slots
    dispatcher: Dispatcher
    jitter: Callable[[], float]
    copied: Callable[[], None]
    """Wakes the destinations' deliveries after a commit that may hold copies for them."""
    leased: Callable[[], bool]
    """Says whether this process may still speak for its sessions, by the clock and not by a timer."""
    interaction_feed: InteractionFeed
    """Where questions to people that changed are put up."""
    tasks: Tasks
    """What runs for sessions belongs to these."""

"""What all sessions of a process share."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.clock import Clock, Ids
from gateway.guard import Tasks
from gateway.runtime.calls.dispatcher import Dispatcher
from gateway.runtime.calls.slots import Slots
from gateway.runtime.calls.tool_watch import ToolWatch
from gateway.runtime.cluster.lease import LeaseKeeper
from gateway.runtime.cluster.notifications import Notifications
from gateway.runtime.delivery.backends import Backends
from gateway.runtime.feeds.interactions import InteractionFeed
from gateway.runtime.metrics import Metrics
from gateway.runtime.session.due import Reviews
from gateway.runtime.tuning import Tuning
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
    backends: Backends
    keeper: LeaseKeeper
    notifications: Notifications
    interaction_feed: InteractionFeed
    tuning: Tuning
    reviews: Reviews
    tool_watch: ToolWatch
    tasks: Tasks
    """What runs for sessions belongs to these."""

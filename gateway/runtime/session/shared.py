"""The parts of the runtime that all sessions of a process share."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.events import SessionId
from gateway.runtime.calls.dispatcher import Dispatcher
from gateway.runtime.calls.slots import Slots
from gateway.runtime.calls.tool_watch import ToolWatch
from gateway.runtime.delivery.backends import Backends
from gateway.runtime.feeds.all_sessions import AllSessionsFeed
from gateway.runtime.feeds.interactions import InteractionFeed
from gateway.runtime.lease import LeaseKeeper
from gateway.runtime.notifications import Notifications
from gateway.runtime.services import Services
from gateway.runtime.session.due import Reviews
from gateway.runtime.signals import Signal


@dataclass(frozen=True, slots=True)
class Shared(Services):
    """The services and the parts that all sessions of a process share."""

    slots: Slots
    dispatcher: Dispatcher
    backends: Backends
    keeper: LeaseKeeper
    notifications: Notifications
    interaction_feed: InteractionFeed
    all_sessions: AllSessionsFeed
    reviews: Reviews
    signal: Callable[[SessionId, Signal], None]
    """Puts a signal into the inbox of a session, if it runs here."""
    tool_watch: ToolWatch

"""What all sessions of a process share, and whom their pumps hand work to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gateway.core.effects import Ask, Dispatch, Release
from gateway.ports.clock import Clock, Ids
from gateway.ports.engine import Engine
from gateway.runtime.bulletin import Bulletin
from gateway.runtime.limits import Slots
from gateway.runtime.metrics import Metrics

if TYPE_CHECKING:
    from gateway.runtime.pump import Pump


class Workshop(Protocol):
    """Whoever carries out calls and questions; the dispatcher."""

    def dispatch(self, session: "Pump", effect: Dispatch) -> None: ...
    def ask(self, session: "Pump", effect: Ask) -> None: ...
    def release(self, effect: Release) -> None: ...
    def busy(self, session: "Pump") -> bool: ...
    def abandon(self, session: "Pump") -> None: ...


@dataclass(frozen=True, slots=True)
class Shared:
    """What all sessions of a process share."""

    engine: Engine
    clock: Clock
    ids: Ids
    metrics: Metrics
    slots: Slots
    workshop: Workshop
    dice: Callable[[], float]
    copied: Callable[[], None]
    """Rings the destinations' workers after a commit that may hold copies for them."""
    leased: Callable[[], bool]
    """Says whether this process may still speak for its sessions, by the clock and not by a timer."""
    bulletin: Bulletin
    """Where questions to people that changed are put up."""

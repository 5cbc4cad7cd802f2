"""Who lives and who holds what, for engines that one process has to itself.

It is kept in memory alone: whoever opens such a store is the only process there, so that every lease of
an earlier one has ended, and a heartbeat costs no disk sync and does not fail while the disk is full.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

from gateway.clock import Clock
from gateway.store.rows import Instance

RESTORED = 1_000_000
"""How far a restore moves fences: beyond each one that was given out after the backup was made."""


class InstanceLease(NamedTuple):
    """How long an instance lives; an ended lease stays on the list, so that it is never revived."""

    url: str
    ends_at: float
    """By the steady clock, so that setting the time of day ends nobody's lease."""


class Roster:
    """Keep the leases and what is held under them; any thread may read, the event loop alone writes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Replaced as a whole, so that a thread that reads it sees one state.
        self._leases: Mapping[str, InstanceLease] = {}
        self._holders: dict[str, str] = {}

    def beat(self, instance: str, url: str, ttl: timedelta) -> bool:
        """Begin or renew a lease; False where it has ended."""
        lease = self._leases.get(instance)
        now = self._clock.monotonic()
        if lease is not None and lease.ends_at <= now:
            return False
        self._leases = {**self._leases, instance: InstanceLease(url, now + ttl.total_seconds())}
        return True

    def end(self, instance: str) -> None:
        """End a lease, and with it all that was held."""
        lease = self._leases.get(instance)
        if lease is not None:
            self._leases = {**self._leases, instance: lease._replace(ends_at=self._clock.monotonic())}

    def living(self) -> frozenset[str]:
        now = self._clock.monotonic()
        return frozenset(instance for instance, lease in self._leases.items() if lease.ends_at > now)

    def hold(self, instance: str, name: str) -> bool:
        """Take or keep a name, where nobody else who lives has it."""
        living = self.living()
        holder = self._holders.get(name)
        if instance not in living or (holder != instance and holder in living):
            return False
        self._holders[name] = instance
        return True

    def let_go(self, instance: str, name: str) -> None:
        """Give up a name, where it is this instance's."""
        if self._holders.get(name) == instance:
            del self._holders[name]

    def show(self, sessions: Mapping[str | None, int]) -> list[Instance]:
        """List who lives or still owns sessions, given how many each owns; those of nobody are under None."""
        living = self.living()
        return [
            Instance(instance, lease.url, instance in living, sessions.get(instance, 0))
            for instance, lease in self._leases.items()
            if instance in living or sessions.get(instance)
        ]


def takeover_limit(limit: int, *, owned: int, total: int, living: int) -> int:
    """Say how many sessions an instance may take over: up to the limit, and up to its fair share, rounded up."""
    return max(0, min(limit, -(-total // living) - owned))

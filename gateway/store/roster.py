"""The leases and held names of engines that serve a single process, in memory.

Only one process has such a store open, so all leases of earlier processes have ended. A heartbeat needs no disk sync
and works while the disk is full.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

from gateway.clock import Clock
from gateway.store.rows import Instance

RESTORED = 1_000_000
"""The number that a restore adds to fences, so that they exceed every fence issued after the backup."""


class InstanceLease(NamedTuple):
    """The lease of an instance; an expired lease stays listed, so that it is never renewed."""

    url: str
    ends_at: float
    """By the monotonic clock, so that a change of the system time ends no lease."""


class Roster:
    """Keep leases and held names; any thread may read, only the event loop writes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Replaced as a whole, so that other threads read a consistent state.
        self._leases: Mapping[str, InstanceLease] = {}
        self._holders: dict[str, str] = {}

    def beat(self, instance: str, url: str, ttl: timedelta) -> bool:
        """Acquire or renew a lease; return False if it has expired."""
        lease = self._leases.get(instance)
        now = self._clock.monotonic()
        if lease is not None and lease.ends_at <= now:
            return False
        self._leases = {**self._leases, instance: InstanceLease(url, now + ttl.total_seconds())}
        return True

    def end(self, instance: str) -> None:
        """End a lease, which releases its names."""
        lease = self._leases.get(instance)
        if lease is not None:
            self._leases = {**self._leases, instance: lease._replace(ends_at=self._clock.monotonic())}

    def living(self) -> frozenset[str]:
        now = self._clock.monotonic()
        return frozenset(instance for instance, lease in self._leases.items() if lease.ends_at > now)

    def hold(self, instance: str, name: str) -> bool:
        """Acquire or keep a name unless another living instance holds it."""
        living = self.living()
        holder = self._holders.get(name)
        if instance not in living or (holder != instance and holder in living):
            return False
        self._holders[name] = instance
        return True

    def release_name(self, instance: str, name: str) -> None:
        """Release a name if this instance holds it."""
        if self._holders.get(name) == instance:
            del self._holders[name]

    def show(self, sessions: Mapping[str | None, int]) -> list[Instance]:
        """List the instances that live or still own sessions; `sessions` has the number that each owns."""
        living = self.living()
        return [
            Instance(instance, lease.url, instance in living, sessions.get(instance, 0))
            for instance, lease in self._leases.items()
            if instance in living or sessions.get(instance)
        ]


def takeover_limit(limit: int, *, owned: int, total: int, living: int) -> int:
    """Return how many sessions an instance may take over: at most the limit and its fair share, rounded up."""
    return max(0, min(limit, -(-total // living) - owned))

"""Tells whether a session may act: its lease is valid, and its whole history is known here."""

import asyncio

from gateway.errors import Fenced
from gateway.runtime.cluster.lease import LeaseKeeper
from gateway.store.rows import Regained

_CHECK_AGAIN, _CHECK_SUSPENDED = 0.05, 0.5


class Permit:
    """The permit of one session; each of its steps carries the fence."""

    __slots__ = ("_is_lent", "_keeper", "_regained", "_suspended", "fence", "is_overtaken")

    def __init__(self, keeper: LeaseKeeper, fence: int) -> None:
        self.fence = fence
        self.is_overtaken = False
        """Whether this process regained the session, but another instance has written to it."""
        self._keeper = keeper
        self._is_lent = keeper.shared
        """Whether other instances may own the session; a single gateway checks no lease."""
        self._suspended: asyncio.Future[None] | None = None
        """Completed by `resume`; None while the session is not suspended."""
        self._regained: int | None = None
        """The last sequence in the store under a new fence, until `check` compares it."""

    @property
    def holds(self) -> bool:
        """Whether the session may act; compares the clock, because a timer may fire late."""
        return self._suspended is None and (not self._is_lent or self._keeper.speaks)

    def holds_for(self, last_sequence: int) -> bool:
        """Return whether the session may act; its history is known up to `last_sequence`.

        Raises:
            Fenced: another instance has written.
        """
        if self._suspended is not None or (self._is_lent and not self._keeper.speaks):
            return False
        if self._regained is not None:
            self.check(last_sequence)
        return True

    @property
    def patience(self) -> float:
        """The seconds until the session looks again; only `resume` lets a suspended one act earlier."""
        return _CHECK_AGAIN if self._suspended is None else _CHECK_SUSPENDED

    def suspend(self) -> None:
        """Pause the session until `resume`."""
        if self._suspended is None:
            self._suspended = asyncio.get_running_loop().create_future()

    def resume(self, row: Regained) -> None:
        """Resume under a new fence; `check` detects writes of other instances."""
        self.fence, self._regained = row.fence, row.last_sequence
        suspended, self._suspended = self._suspended, None
        if suspended is not None:
            suspended.set_result(None)

    async def wait_held(self) -> None:
        """Wait until the session may act."""
        while not self.holds:
            await self.wait()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until the permit may have changed, at most `seconds`."""
        if self._suspended is not None:
            await asyncio.wait({self._suspended}, timeout=seconds)
        else:
            # After a stall of the process this runs before the timer of the lease.
            await asyncio.sleep(_CHECK_AGAIN)

    def check(self, last_sequence: int) -> None:
        """Compare the known history with that of the regained session.

        Raises:
            Fenced: another instance has written.
        """
        regained, self._regained = self._regained, None
        if regained is not None and regained != last_sequence:
            self.is_overtaken = True
            raise Fenced("another instance has written to the session meanwhile")

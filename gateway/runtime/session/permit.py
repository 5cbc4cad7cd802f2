"""Whether a session may speak: a lease says that it is this process's, and its whole history is known here."""

import asyncio

from gateway.errors import Fenced
from gateway.runtime.cluster.lease import LeaseKeeper
from gateway.store.rows import Regained

_LOOK_AFTER = 0.05


class Permit:
    """One session's; its fence goes with every step that it writes."""

    __slots__ = ("_is_lent", "_keeper", "_regained", "_suspended", "fence", "outrun")

    def __init__(self, keeper: LeaseKeeper, fence: int) -> None:
        self.fence = fence
        self.outrun = False
        """Whether the session is this process's under a new fence, while its history is another than what is known."""
        self._keeper = keeper
        self._is_lent = keeper.shared
        """Whether other instances may own the session: without them no lease can run out, and none is looked at."""
        self._suspended: asyncio.Future[None] | None = None
        """Until the session may go on, while no lease runs that says that it is this process's."""
        self._regained: int | None = None
        """The last sequence under the new fence; what is known here is the whole of it only where it is the same."""

    @property
    def holds(self) -> bool:
        """Whether the session may speak, by the clock and not by a timer."""
        return self._suspended is None and (not self._is_lent or self._keeper.speaks)

    def holds_for(self, last_sequence: int) -> bool:
        """Whether the session may speak; what is known of its history goes up to this sequence.

        Raises:
            Fenced: somebody else has written.
        """
        if self._suspended is not None or (self._is_lent and not self._keeper.speaks):
            return False
        if self._regained is not None:
            self.check(last_sequence)
        return True

    def suspend(self) -> None:
        """Fall silent until `resume`."""
        if self._suspended is None:
            self._suspended = asyncio.get_running_loop().create_future()

    def resume(self, row: Regained) -> None:
        """Go on under a new fence, unless somebody else has written meanwhile; `check` finds out."""
        self.fence, self._regained = row.fence, row.last_sequence
        suspended, self._suspended = self._suspended, None
        if suspended is not None:
            suspended.set_result(None)

    async def given(self) -> None:
        """Wait until the session may speak."""
        while not self.holds:
            await self.wait()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until the session may perhaps speak again, or for a while."""
        if self._suspended is not None:
            await asyncio.wait({self._suspended}, timeout=seconds)
        else:
            # A process that stood still comes here before its lease's timer has its turn.
            await asyncio.sleep(_LOOK_AFTER)

    def check(self, last_sequence: int) -> None:
        """Go on only with a history that is known here, up to this sequence.

        Raises:
            Fenced: somebody else has written.
        """
        regained, self._regained = self._regained, None
        if regained is not None and regained != last_sequence:
            self.outrun = True
            raise Fenced("its history has gone on meanwhile")

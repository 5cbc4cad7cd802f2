"""The clock of a simulated process."""

from datetime import UTC, datetime

from tests.simulation.loop import Process, SimLoop

EPOCH = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


class SimClock:
    """Reads the time of the loop; the wall clock has the skew of its process."""

    def __init__(self, loop: SimLoop, process: Process) -> None:
        self._loop, self._process = loop, process

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.timestamp(), UTC)

    def timestamp(self) -> float:
        return EPOCH + self._loop.time() + self._process.skew

    def monotonic(self) -> float:
        return self._loop.time()

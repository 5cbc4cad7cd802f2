"""A few connections for questions and for transactions beside the steps.

Who asks is answered in time (`ask` of the tuning) or told EngineUnavailable; a question whose connection is lost is
asked again on a new one meanwhile. A transaction goes on when its caller is canceled, so that a COMMIT is never
cut short.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from gateway.errors import EngineUnavailable
from gateway.guard import Tasks, guard_call, spawn
from gateway.store.postgres.connection import Address
from gateway.store.postgres.faults import Again, ConnectionLost
from gateway.store.postgres.once import ExactlyOnce, Line, Work
from gateway.store.postgres.store import BEGIN

T = TypeVar("T")

WAITING = 256
"""Questions that may wait for a connection; who comes later is told at once."""
CLOSING = 10.0


class Pool:
    """Give connections to who asks, at most `size` at once."""

    def __init__(self, address: Address, once: ExactlyOnce, *, size: int, answer: float) -> None:
        """`answer`: what a connection may take for a question before another one is asked."""
        self._address = address
        self._tuning = address.tuning
        self._once = once
        self._size = size
        self._answer = answer
        self._free: asyncio.LifoQueue[Line] = asyncio.LifoQueue()
        for _ in range(size):
            self._free.put_nowait(Line(address))
        self._waiting = 0
        self._tasks = Tasks()
        self._running: set[asyncio.Task[Any]] = set()
        self._closing = False

    async def ask(self, statement: str, *values: object) -> Sequence[Any]:
        """Run one statement that only reads, or may be repeated; answers its rows.

        Raises:
            EngineUnavailable: no answer in time.
            InvalidRequest: the server cannot take the values.
        """
        loop, tuning = asyncio.get_running_loop(), self._tuning
        until, pause = loop.time() + tuning.ask, tuning.pause_first
        while True:
            line = await self._take(until)
            try:
                link = await line.link()
                seconds = max(min(until - loop.time(), self._answer), 0.01)
                return await link.ask(statement, *values, seconds=seconds)
            except (ConnectionLost, Again) as exc:
                if loop.time() + pause > until:
                    raise EngineUnavailable(str(exc)) from exc
            finally:
                self._free.put_nowait(line)
            await asyncio.sleep(pause)
            pause = min(pause * 2, tuning.pause_longest)

    async def transact(self, work: Work[T], *, begin: str = BEGIN) -> T:
        """Do some work in a transaction, exactly once.

        Raises:
            EngineUnavailable: nothing was written.
            DragomanError: what the work raises; nothing was written.
        """
        return await self._protect(self._transact(work, begin))

    async def _transact(self, work: Work[T], begin: str) -> T:
        until = asyncio.get_running_loop().time() + self._tuning.ask
        line = await self._take(until)
        try:
            return await self._once.run(line, work, until=until, begin=begin)
        finally:
            self._free.put_nowait(line)

    async def _protect(self, work: Coroutine[Any, Any, T]) -> T:
        task = spawn("postgres pool", work, self._tasks)
        self._running.add(task)
        task.add_done_callback(guard_call("postgres pool", self._ended))
        return await asyncio.shield(task)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Looked at here, because whoever asked may be gone.
            task.exception()

    async def _take(self, until: float) -> Line:
        if self._closing:
            raise EngineUnavailable(f"{self._address.place} is closed")
        if self._waiting >= WAITING:
            raise EngineUnavailable(f"{self._address.place} is too slow: {WAITING} questions wait already")
        self._waiting += 1
        try:
            async with asyncio.timeout_at(until):
                return await self._free.get()
        except TimeoutError as exc:
            raise EngineUnavailable(
                f"{self._address.place} is too slow or away: none of {self._size} connections became free"
            ) from exc
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Wait for what is under way, and close the connections."""
        self._closing = True
        if self._running:
            await asyncio.wait(self._running, timeout=CLOSING)
        await self._tasks.close()
        for _ in range(self._size):
            try:
                async with asyncio.timeout(self._tuning.ask):
                    line = await self._free.get()
            except TimeoutError:
                # A question that is still under way ends at its own deadline.
                break
            await line.close()

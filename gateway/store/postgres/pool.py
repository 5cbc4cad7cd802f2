"""The pool of connections for queries and for transactions other than steps.

A query ends within `ask` seconds (see the tuning) with its rows or with EngineUnavailable. If its connection is lost,
it is repeated on a new one within that time. A transaction continues if its caller is canceled, so that no COMMIT is
interrupted.
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
"""The number of queries that may wait for a connection; later ones fail at once."""
CLOSING = 10.0


class Pool:
    """Runs queries and transactions on at most `size` connections."""

    def __init__(self, address: Address, once: ExactlyOnce, *, size: int, answer: float) -> None:
        """Make a pool; `answer` is the time in seconds after which a query is repeated on another connection."""
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
        self._running: dict[asyncio.Task[Any], None] = {}
        self._closing = False

    async def ask(self, statement: str, *values: object) -> Sequence[Any]:
        """Run one statement that only reads or may be repeated; return its rows.

        Raises:
            EngineUnavailable: no response in time.
            InvalidRequest: the server rejects the values.
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
        """Run work in a transaction, exactly once.

        Raises:
            EngineUnavailable: nothing was written.
            DragomanError: raised by the work; nothing was written.
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
        self._running[task] = None
        task.add_done_callback(guard_call("postgres pool", self._ended))
        return await asyncio.shield(task)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._running.pop(task, None)
        if not task.cancelled():
            # Retrieved here, because the caller may have been canceled.
            task.exception()

    async def _take(self, until: float) -> Line:
        if self._closing:
            raise EngineUnavailable(f"{self._address.place} is closed")
        if self._waiting >= WAITING:
            raise EngineUnavailable(f"{self._address.place} is too slow: {WAITING} queries are waiting already")
        self._waiting += 1
        try:
            async with asyncio.timeout_at(until):
                return await self._free.get()
        except TimeoutError as exc:
            raise EngineUnavailable(
                f"{self._address.place} is too slow or unreachable: none of {self._size} connections became free"
            ) from exc
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Wait for the running queries and transactions, and close the connections."""
        self._closing = True
        if self._running:
            await asyncio.wait(self._running, timeout=CLOSING)
        await self._tasks.close()
        for _ in range(self._size):
            try:
                async with asyncio.timeout(self._tuning.ask):
                    line = await self._free.get()
            except TimeoutError:
                # The remaining queries end at their own deadlines.
                break
            await line.close()

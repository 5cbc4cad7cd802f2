"""An event loop with simulated time, whose callbacks belong to simulated processes.

Waiting costs nothing: the selector advances the time to the next timer. A callback belongs to the process that its
context names; the callbacks of a paused process wait, and those of a dead one never run.
"""

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, cast

_READ = 0.002
"""The most seconds that pass with a read of the clock."""
_EARLY = 0.001
"""The most seconds that a timer fires early, as those of a kernel do."""
_HELD = 0.01
"""The most seconds until the loop hears from another thread."""


class Process:
    """A process of the world: its callbacks, its tasks and its fuses."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.paused = False
        self.drains_since = float("inf")
        """When its drain began."""
        self.resumed_at = float("-inf")
        """When its last pause ended."""
        self.connected = False
        """Whether it has connected to a peer."""
        self.skew = 0.0
        """Seconds by which its wall clock is wrong."""
        self.fuse: int | None = None
        """Callbacks until it is killed."""
        self.effects: int | None = None
        """Effects until it is killed, perhaps within a callback: the next ones do not happen."""
        self.on_fuse: Callable[[], object] = lambda: None
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self._held: deque[tuple[Context, Callable[..., object], tuple[Any, ...], list[asyncio.Handle]]] = deque()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """The tasks of a dead process stay here: their coroutines must not be closed while the world exists."""

    def run(self, callback: Callable[..., object], args: tuple[Any, ...], handle: list[asyncio.Handle]) -> None:
        """Run a callback, unless the process is paused or dead; `handle` may be canceled while it is held."""
        if self.dead or handle[0].cancelled():
            return
        if self.paused:
            self._held.append((copy_context(), callback, args, handle))
            return
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse <= 0:
                self.fuse = None
                self.on_fuse()
                return
        callback(*args)

    def acts(self) -> bool:
        """Whether the next effect of the process happens: what it writes to a connection, the store or a client."""
        if self.effects is not None and not self.dead:
            self.effects -= 1
            if self.effects <= 0:
                self.dead = True
                self.on_fuse()
        return not self.dead

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        if len(self._tasks) > 2_000:
            self._tasks = {one: None for one in self._tasks if not one.done()}

    def resume(self, loop: "SimLoop") -> None:
        """Continue after a pause, with all that has happened meanwhile in its order."""
        self.paused, self.resumed_at = False, loop.now
        held, self._held = self._held, deque()
        for context, callback, args, handle in held:
            loop.continue_soon(self, callback, args, handle, context)


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def acts() -> bool:
    """Whether the next effect of the current process happens; the world always acts."""
    process = PROCESS.get()
    return process is None or process.acts()


MOST_TURNS = 3_000_000
"""Turns of the loop after which a run is taken for endless; a usual run takes 10,000."""


class Stuck(Exception):
    """Nothing can happen any more, but somebody waits."""


class Endless(BaseException):
    """The run has exceeded its bound in turns or CPU."""


class _Selector(selectors.BaseSelector):
    """Knows the descriptors of the loop and never waits for them: time passes instead."""

    def __init__(self, advance: Callable[[float | None], None]) -> None:
        self._advance = advance
        self._known = selectors.SelectSelector()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._known.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._known.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._known.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._advance(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._known.get_map()

    def close(self) -> None:
        self._known.close()


class SimLoop(asyncio.SelectorEventLoop):
    """A loop whose time is simulated and whose threads answer at once."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._now = 1_000.0
        self._heard = 0.0
        self.turns = 0
        super().__init__(_Selector(self._advance))
        self.set_task_factory(_make_task)

    def _advance(self, timeout: float | None) -> None:
        self.turns += 1
        if timeout is None:
            raise Stuck
        if self.turns > MOST_TURNS:
            raise Endless(f"{MOST_TURNS:,} turns of the loop")
        self._now += timeout

    def time(self) -> float:
        # Mostly little time passes between two reads.
        self._now += _READ * self.random.random() ** 8
        return self._now

    @property
    def now(self) -> float:
        """The time, without a read of the clock."""
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        owner = PROCESS.get() if context is None else context.get(PROCESS)
        if owner is None:
            return super().call_soon(callback, *args, context=context)
        handle: list[asyncio.Handle] = []
        handle.append(super().call_soon(owner.run, callback, args, handle, context=context))
        return handle[0]

    def continue_soon(
        self,
        owner: Process,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        handle: list[asyncio.Handle],
        context: Context,
    ) -> None:
        """Run a callback that was held while its process was paused."""
        super().call_soon(owner.run, callback, args, handle, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        early = when - _EARLY * self.random.random()
        owner = PROCESS.get() if context is None else context.get(PROCESS)
        if owner is None:
            return super().call_at(early, callback, *args, context=context)
        handle: list[asyncio.Handle] = []
        timer = super().call_at(early, owner.run, callback, args, handle, context=context)
        handle.append(timer)
        return cast("asyncio.TimerHandle", _Timer(timer))

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Hear from a thread a little later, in the order in which threads spoke."""
        self._heard = max(self._heard, self._now + _HELD * self.random.random() ** 4) + 1e-6
        owner = PROCESS.get() if context is None else context.get(PROCESS)
        if owner is None:
            return super().call_at(self._heard, callback, *args, context=context)
        handle: list[asyncio.Handle] = []
        handle.append(super().call_at(self._heard, owner.run, callback, args, handle, context=context))
        return handle[0]

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Do it at once, and answer later."""
        del executor
        answer = self.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        try:
            result, error = func(*args), None
        except Exception as exc:  # noqa: BLE001 - the caller receives it
            result, error = None, exc
        self.call_soon_threadsafe(settle, result, error)
        return answer


class _Timer:
    """A timer as those of uvloop, on which production runs: it is no `asyncio.TimerHandle`."""

    __slots__ = ("cancel", "cancelled", "when")

    def __init__(self, handle: asyncio.TimerHandle) -> None:
        self.cancel, self.cancelled, self.when = handle.cancel, handle.cancelled, handle.when


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, **options)
    context = options.get("context")
    owner = PROCESS.get() if context is None else context.get(PROCESS)
    if owner is not None:
        owner.add(task)
    return task

"""Starts every task and arms every timer of the process, so that a fault ends no more than what it happened in.

`guard` runs what has nobody waiting for it: what it raises is logged once, counted, and begun again. `awaited`
runs what somebody waits for, who gets what it raises. `guard_call` wraps what a loop calls by itself. What gets
past all three ends in the loop's exception handler, which counts it as well.

Faults are the process's, as its log is: gateways that share a process share their number.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from random import random
from sys import intern
from threading import Thread
from types import TracebackType
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

import structlog

log = structlog.get_logger(__name__)

Args = TypeVarTuple("Args")
T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
_STABLE = 10.0
"""Seconds of work behind a pause after which a part counts as well again."""
_FAILS_ON = 3
"""Faults in a row from which on a part is shown as one that fails on."""
_LOOP = "loop"

_ENDS_ALL = (KeyboardInterrupt, GeneratorExit)


@dataclass(slots=True)
class _Trouble:
    """How a part fares that has failed."""

    times: int
    well_at: float
    """When it counts as well again, if nothing more happens."""


class Faults:
    """What was raised that nobody foresaw, by the part it happened in."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self._failing: dict[tuple[str, object], _Trouble] = {}

    def note(self, part: str, exc: BaseException, *, text: str = "a part failed", **about: object) -> None:
        """Log a fault once, with its traceback, and count it."""
        self.count(part)
        log.error(text, part=part, **about, exc_info=exc)

    def count(self, part: str) -> None:
        """Count a fault that is logged elsewhere."""
        self.total[part] += 1

    def pause(self, part: str, key: object, *, now: float) -> float:
        """Take note that a part has failed and begins again; says after how many seconds it does."""
        known = self._failing.get((part, key))
        times = known.times + 1 if known is not None and now < known.well_at else 1
        pause = pause_after(times)
        self._failing[part, key] = _Trouble(times, now + pause + _STABLE)
        return pause

    def ended(self, part: str, key: object) -> None:
        """Forget how a part fared: it has ended."""
        self._failing.pop((part, key), None)

    def failing(self, now: float) -> tuple[str, ...]:
        """Name the parts that fail on although they were begun again."""
        for one in [one for one, trouble in self._failing.items() if now >= trouble.well_at]:
            del self._failing[one]
        return tuple(sorted({part for (part, _), trouble in self._failing.items() if trouble.times >= _FAILS_ON}))


FAULTS = Faults()


class Tasks:
    """Tasks that belong to whoever entered this: none outlives it, and none of them ends it.

    Left regularly, it waits for them; left by an error or `close`, it cancels them first.
    """

    __slots__ = ("_closed", "_running", "context")

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False
        self.context = copy_context()
        """What nobody waits for logs what was known here: a session outlives the request that has opened it."""

    async def __aenter__(self) -> "Tasks":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self._all_ended()
        finally:
            await self.close()

    async def close(self, *, within: float | None = None) -> None:
        """Cancel what still runs, and wait for it, for so many seconds; what is started from now on ends at once."""
        self._closed = True
        for task in self._running:
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._all_ended()

    async def _all_ended(self) -> None:
        while left := self._running - {asyncio.current_task()}:
            await asyncio.wait(left)

    def add(self, work: Coroutine[Any, Any, T], name: str, context: Context | None = None) -> "asyncio.Task[T]":
        """Run a coroutine as one of these; for `guard` and `awaited`, which everybody else uses."""
        task = asyncio.get_running_loop().create_task(work, name=intern(f"dragoman-{name}"), context=context)
        self._running.add(task)
        task.add_done_callback(self._running.discard, context=self.context)
        if self._closed:
            task.cancel()
        return task


def guard(
    name: str,
    make: Callable[[], Awaitable[object]],
    tasks: Tasks,
    *,
    again: bool = True,
    times: int | None = None,
    **about: object,
) -> "asyncio.Task[None]":
    """Run what `make` makes, in a task; the only way to start one that nobody waits for.

    What it raises, foreseen by nobody, is logged with `name` and `about`, counted in `dragoman_faults_total{part}`,
    and what `make` makes then runs in its place, after 0.1-30 s. The task ends without `again`, or when it has failed
    so many `times`. `name` is a word of ours, never a peer's.
    """
    return tasks.add(_guarded(name, make, times if again else 1, about), name, tasks.context.copy())


async def _guarded(
    name: str, make: Callable[[], Awaitable[object]], most: int | None, about: dict[str, object]
) -> None:
    loop, key, faults = asyncio.get_running_loop(), object(), 0
    try:
        while True:
            try:
                await make()
            except BaseException as exc:
                if not is_fault(exc):
                    raise
                faults += 1
                over = most is not None and faults >= most
                FAULTS.note(name, exc, text="a part failed" if over else "part failed and restarts", **about)
                if over or is_to_end():
                    return
            else:
                return
            await asyncio.sleep(FAULTS.pause(name, key, now=loop.time()))
    finally:
        FAULTS.ended(name, key)


@contextmanager
def running(name: str, make: Callable[[], Awaitable[object]], tasks: Tasks) -> Generator[None]:
    """Keep a part at work, as `guard` does, for as long as this is entered."""
    task = guard(name, make, tasks)
    try:
        yield
    finally:
        task.cancel()


def pause_after(times: int) -> float:
    """Say how many seconds to wait before a part begins again that has failed so often in a row."""
    ceiling = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(times, 20))
    return max(FIRST_PAUSE, ceiling * (0.5 + 0.5 * random()))  # noqa: S311 - jitter, nobody gains from guessing it


def is_fault(exc: BaseException) -> bool:
    """Whether this is a part's own doing, and not the end that somebody asked the running task or the process for."""
    return not (isinstance(exc, asyncio.CancelledError) and is_to_end()) and not isinstance(exc, _ENDS_ALL)


def is_to_end() -> bool:
    """Whether somebody has asked the running task to end, whatever was raised instead on its way out."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def awaited(name: str, work: Awaitable[T], tasks: Tasks) -> "asyncio.Task[T]":
    """Await `work` in a task and return the task, which raises what `work` raises."""
    task = tasks.add(_awaited(work), name)
    if isinstance(work, Coroutine):
        # A task that is canceled before its first step never awaits `work`, and Python warns of that.
        task.add_done_callback(lambda _: work.close())
    return task


async def _awaited(work: Awaitable[T]) -> T:
    try:
        return await work
    except SystemExit as exc:
        # A loop ends with the task that raises this, and with it everything else.
        raise RuntimeError(f"a part wants to end the process with {exc.code!r}") from exc


async def tried(name: str, work: Awaitable[object], **about: str) -> None:
    """Do something on the way out, where what is left to do must be done whatever this raises."""
    try:
        await work
    except BaseException as exc:
        if not is_fault(exc):
            raise
        FAULTS.note(name, exc, text="part failed while closing", **about)


@asynccontextmanager
async def in_time(seconds: float | None, what: str) -> AsyncGenerator[asyncio.Timeout]:
    """Bound what somebody else's code is waited for; `what` it did not do in time is said in the error.

    Raises:
        TimeoutError: it did not.
    """
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            yield deadline
    except TimeoutError as exc:
        if not deadline.expired():
            raise
        raise TimeoutError(f"{what} took longer than {seconds:g} s") from exc


async def in_thread(name: str, call: Callable[[], T], *, within: float, what: str) -> T:
    """Run what may block in a thread of its own; one that takes longer is left behind, and holds up nobody.

    Raises:
        TimeoutError: it took longer.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, exc: BaseException | None) -> None:
        if answer.done():
            return
        if exc is not None:
            answer.set_exception(exc)
        else:
            answer.set_result(cast("T", result))

    def work() -> None:
        result, fault = None, None
        try:
            result = call()
        # It is whoever waits for it who gets it, in the loop's thread.
        except BaseException as exc:  # noqa: BLE001
            fault = exc
        # A loop that was closed meanwhile has nobody left who waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(guard_call(name, settle), result, fault)

    Thread(target=work, name=f"dragoman-{name}", daemon=True).start()
    async with in_time(within, what):
        return await answer


def guard_call(name: str, call: Callable[[*Args], object]) -> Callable[[*Args], None]:
    """Wrap what a loop calls by itself (timers, callbacks): what it raises is logged and counted."""

    # In quotes, since this takes longer to look up than the rest takes together.
    def guarded(*args: "Unpack[Args]") -> None:
        try:
            call(*args)
        except _ENDS_ALL:
            raise
        # The edge of a part: whatever it raises reaches nobody else.
        except BaseException as exc:  # noqa: BLE001
            FAULTS.note(name, exc)

    return guarded


def count_what_is_left() -> None:
    """Log and count what the running loop is told of, and nobody else: the faults that no part was there for."""
    loop = asyncio.get_running_loop()
    if loop.get_exception_handler() is None:
        loop.set_exception_handler(_left)


def _left(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    exc = context.get("exception") or RuntimeError(context.get("message", "no reason was given"))
    FAULTS.note(_LOOP, exc, text="failure outside all parts", told=context.get("message"))

"""Starts every task and timer of the process, so that a fault affects only the part in which it happens.

A fault is an exception that no other code handles. `guard` runs background work: it logs and counts each fault and
restarts the work. `awaited` runs work with a waiting caller, which receives the exception. `guard_call` wraps callbacks
of the event loop. The loop's exception handler counts all other faults.

The faults of a gateway are those of its context, which its tasks, timers and threads inherit.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from random import random
from sys import intern
from threading import Thread
from types import TracebackType
from typing import Any, TypeVar, TypeVarTuple, Unpack

import structlog

log = structlog.get_logger(__name__)

Args = TypeVarTuple("Args")
T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
_STABLE = 10.0
"""Seconds of work after a restart until a part counts as healthy."""
_FAILS_ON = 3
"""Consecutive faults from which a part counts as failing."""
_LOOP = "loop"

_ENDS_ALL = (KeyboardInterrupt, GeneratorExit)


@dataclass(slots=True)
class _Failure:
    """The recent faults of a part."""

    times: int
    healthy_at: float
    """The time at which the part counts as healthy without another fault."""


class Faults:
    """The faults of a gateway, by part."""

    def __init__(self, total: Counter[str] | None = None, jitter: Callable[[], float] = random) -> None:
        """Count into `total`; `jitter` returns a random number in [0, 1)."""
        self.total: Counter[str] = Counter() if total is None else total
        self._jitter = jitter
        self._failing: dict[tuple[str, object], _Failure] = {}

    def note(self, part: str, exc: BaseException, *, text: str = "part failed", **about: object) -> None:
        """Log a fault once, with its traceback, and count it."""
        self.count(part)
        log.error(text, part=part, **about, exc_info=exc)

    def count(self, part: str) -> None:
        """Count a fault that is logged elsewhere."""
        self.total[part] += 1

    def pause(self, part: str, key: object, *, now: float) -> float:
        """Record a fault of a part that restarts; return the seconds until the restart."""
        known = self._failing.get((part, key))
        times = known.times + 1 if known is not None and now < known.healthy_at else 1
        pause = self.pause_after(times)
        self._failing[part, key] = _Failure(times, now + pause + _STABLE)
        return pause

    def pause_after(self, times: int) -> float:
        """Return the seconds to wait before a restart after `times` consecutive faults."""
        ceiling = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(times, 20))
        return max(FIRST_PAUSE, ceiling * (0.5 + 0.5 * self._jitter()))

    def forget(self, part: str, key: object) -> None:
        """Forget the faults of a part that has ended."""
        self._failing.pop((part, key), None)

    def failing(self, now: float) -> tuple[str, ...]:
        """Return the parts that keep failing after restarts."""
        for one in [one for one, failure in self._failing.items() if now >= failure.healthy_at]:
            del self._failing[one]
        return tuple(sorted({part for (part, _), failure in self._failing.items() if failure.times >= _FAILS_ON}))


FAULTS: ContextVar[Faults] = ContextVar("faults", default=Faults())  # noqa: B039 - what runs outside of gateways
"""The faults of the gateway in whose context the code runs."""


class Tasks:
    """A group of tasks: no task outlives it, and a failing task does not end it.

    A regular exit waits for the tasks; an exit by an error or `close` cancels them first.
    """

    __slots__ = ("_closed", "_running", "context")

    def __init__(self) -> None:
        # A dict keeps the order of their starts.
        self._running: dict[asyncio.Task[Any], None] = {}
        self._closed = False
        self.context = copy_context()
        """The log context of background tasks: a session outlives the request that opened it."""

    async def __aenter__(self) -> "Tasks":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self._wait_all()
        finally:
            await self.close()

    async def close(self, *, within: float | None = None) -> None:
        """Cancel the running tasks and wait up to `within` seconds; tasks that are added later are canceled at once."""
        self._closed = True
        for task in tuple(self._running):
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._wait_all()

    async def _wait_all(self) -> None:
        while others := self._running.keys() - {asyncio.current_task()}:
            await asyncio.wait(others)

    def add(self, work: Coroutine[Any, Any, T], name: str, context: Context | None = None) -> "asyncio.Task[T]":
        """Run a coroutine as a task of the group; only `guard` and `awaited` call this."""
        task = asyncio.get_running_loop().create_task(work, name=intern(f"dragoman-{name}"), context=context)
        self._running[task] = None
        task.add_done_callback(self._running.pop, context=self.context)
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
    """Run `make()` in a background task; the only way to start one.

    A fault is logged with `name` and `about`, counted in `dragoman_faults_total{part}`, and followed by another
    `make()` after 0.1 to 30 s. With `again=False`, or after `times` faults, the task ends instead. `name` is a
    constant, never text from a peer.
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
                is_last = most is not None and faults >= most
                FAULTS.get().note(name, exc, text="part failed" if is_last else "part failed and restarts", **about)
                if is_last or is_to_end():
                    return
            else:
                return
            await asyncio.sleep(FAULTS.get().pause(name, key, now=loop.time()))
    finally:
        FAULTS.get().forget(name, key)


@contextmanager
def running(name: str, make: Callable[[], Awaitable[object]], tasks: Tasks) -> Generator[None]:
    """Run a part with `guard` until the context exits."""
    task = guard(name, make, tasks)
    try:
        yield
    finally:
        task.cancel()


def is_fault(exc: BaseException) -> bool:
    """Whether an exception is a fault, not a requested end of the running task or the process."""
    return not (isinstance(exc, asyncio.CancelledError) and is_to_end()) and not isinstance(exc, _ENDS_ALL)


def is_to_end() -> bool:
    """Whether the running task was canceled, even if it raised another exception since."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def spawn(name: str, work: Awaitable[T], tasks: Tasks) -> "asyncio.Task[T]":
    """Run `work` in a task and return the task, which raises the exception of `work`."""
    task = tasks.add(_awaited(work), name)
    if isinstance(work, Coroutine):
        # A task that is canceled before its first step never awaits `work`, and Python would warn.
        task.add_done_callback(lambda _: work.close())
    return task


async def _awaited(work: Awaitable[T]) -> T:
    try:
        return await work
    except SystemExit as exc:
        # This exception would end the loop and all other tasks.
        raise RuntimeError(f"a part tried to end the process with {exc.code!r}") from exc


async def suppress_faults(name: str, work: Awaitable[object], **about: str) -> None:
    """Await `work` while closing; log and suppress a fault, so that the remaining cleanup runs."""
    try:
        await work
    except BaseException as exc:
        if not is_fault(exc):
            raise
        FAULTS.get().note(name, exc, text="part failed while closing", **about)


@asynccontextmanager
async def in_time(seconds: float | None, what: str) -> AsyncGenerator[asyncio.Timeout]:
    """Limit the time of third-party code, which `what` names in the error.

    Raises:
        TimeoutError: it took longer than `seconds`.
    """
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            yield deadline
    except TimeoutError as exc:
        if not deadline.expired():
            raise
        raise TimeoutError(f"{what} took longer than {seconds:g} s") from exc


class _DaemonThread(Executor):
    """Runs each call in a thread of its own, which does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        answer: Future[T] = Future()
        # From now on canceling it has no effect: the thread sets its result.
        answer.set_running_or_notify_cancel()

        def work() -> None:
            try:
                answer.set_result(fn(*args, **kwargs))
            # The waiting caller receives it.
            except BaseException as exc:  # noqa: BLE001
                answer.set_exception(exc)

        Thread(target=work, name=self._name, daemon=True).start()
        return answer


def start_thread(name: str, call: Callable[[], T]) -> "asyncio.Future[T]":
    """Run blocking code in a thread of its own, which does not keep the process alive."""
    # The loop starts it, because a simulated loop has no threads.
    executor = _DaemonThread(f"dragoman-{name}")
    return asyncio.get_running_loop().run_in_executor(executor, copy_context().run, call)


async def in_thread(name: str, call: Callable[[], T], *, within: float, what: str) -> T:
    """Run blocking code in its own thread; after `within` seconds the thread is abandoned.

    Raises:
        TimeoutError: the call took longer.
    """
    async with in_time(within, what):
        return await start_thread(name, call)


def guard_call(name: str, call: Callable[[*Args], object]) -> Callable[[*Args], None]:
    """Wrap a callback of the event loop; its faults are logged and counted."""

    # Quoted: evaluating this takes longer than the rest of the call.
    def guarded(*args: "Unpack[Args]") -> None:
        try:
            call(*args)
        except _ENDS_ALL:
            raise
        # The boundary of a part: its exceptions must not reach the loop.
        except BaseException as exc:  # noqa: BLE001
            FAULTS.get().note(name, exc)

    return guarded


@contextmanager
def loop_faults() -> Generator[None]:
    """Log and count the faults that reach only the exception handler of the loop; an existing handler stays."""
    loop, faults = asyncio.get_running_loop(), FAULTS.get()

    def note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        exc = context.get("exception") or RuntimeError(context.get("message", "no reason was given"))
        faults.note(_LOOP, exc, text="unhandled failure in the event loop", message=context.get("message"))

    is_free = loop.get_exception_handler() is None
    if is_free:
        loop.set_exception_handler(note)
    try:
        yield
    finally:
        if is_free:
            loop.set_exception_handler(None)

"""Begins what seldom has to wait, without a task; only what does wait needs one."""

from collections.abc import Awaitable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any

_ENDED = object()


def begun(work: Coroutine[Any, Any, None]) -> Awaitable[None] | None:
    """Run a coroutine up to where it waits; returns the rest for whoever waits for it, or None where it has ended.

    What it raises comes out of the rest. It must not look at the task that runs it, since the rest may run in another.
    """
    try:
        # With something to say in its place, the end of it is no exception, which would cost as much as the work.
        waits = next(work.__await__(), _ENDED)
    except Exception as exc:  # noqa: BLE001 - raised to whoever waits
        return _raised(exc)
    return None if waits is _ENDED else _rest(work, waits)


@coroutine
def _rest(work: Coroutine[Any, Any, None], waits: Any) -> Generator[Any, Any, None]:
    while True:
        try:
            step = partial(work.send, (yield waits))
        except BaseException as exc:  # noqa: BLE001 - told to the work, which waits
            step = partial(work.throw, exc)
        try:
            waits = step()
        except StopIteration:
            return


@coroutine
def _raised(exc: Exception) -> Generator[Any, Any, None]:
    yield from ()
    raise exc

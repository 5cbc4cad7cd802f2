"""Reports the results of steps to those who submitted or committed them; both engines use it."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from gateway.events import Envelope
from gateway.guard import guard_call
from gateway.store.encoding import encode_event
from gateway.store.port import Settled
from gateway.store.records import EventRecord
from gateway.store.step import Committed, Step

Result = tuple[Step, Committed | Exception]


def offer(steps: Sequence[Step], settled: Settled, put: Callable[[Step, Sequence[EventRecord]], bool]) -> int:
    """Queue steps in order until `put` returns False; return the number of accepted steps."""
    for accepted, step in enumerate(steps):
        try:
            events = encode(step.events)
        # The events of one step do not concern the others.
        except Exception as exc:  # noqa: BLE001
            report_soon([(settled, (step, exc))])
        else:
            if not put(step, events):
                return accepted
    return len(steps)


def encode(events: Iterable[Envelope]) -> list[EventRecord]:
    """Encode the events of a step."""
    return [encode_event(new) for new in events]


def into(future: "asyncio.Future[Committed]") -> Settled:
    """Return a receiver that passes the result of its only step to a future."""
    return partial(_resolve, future)


def _resolve(future: "asyncio.Future[Committed]", results: Sequence[Result]) -> None:
    # The caller may have been canceled while waiting; the commit remains valid.
    for _, result in results if not future.done() else ():
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


def report(results: Iterable[tuple[Settled, Result]]) -> None:
    """Call each receiver once with its results; only a callback of the loop may call this."""
    for settled, found in _by_receiver(results).items():
        guard_call("store", settled)(found)


def report_soon(results: Iterable[tuple[Settled, Result]]) -> None:
    """Call each receiver once with its results, in the next turn of the loop."""
    loop = asyncio.get_running_loop()
    for settled, found in _by_receiver(results).items():
        loop.call_soon(guard_call("store", settled), found)


def _by_receiver(results: Iterable[tuple[Settled, Result]]) -> dict[Settled, list[Result]]:
    found: dict[Settled, list[Result]] = {}
    for settled, result in results:
        found.setdefault(settled, []).append(result)
    return found

"""An engine whose submitted steps pass through a commit that a test has changed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from gateway.store.port import Settled
from gateway.store.step import Committed, Step

Commit = Callable[[Step], Awaitable[Committed]]


def submit_by(commit: Commit, steps: Sequence[Step], settled: Settled) -> int:
    """Commit each step on its own, in order."""
    for step in steps:
        committing = asyncio.ensure_future(commit(step))
        committing.add_done_callback(partial(_settle, step, settled))
    return len(steps)


def _settle(step: Step, settled: Settled, committing: asyncio.Future[Committed]) -> None:
    if committing.cancelled():
        return
    exc = committing.exception()
    if exc is None:
        settled([(step, committing.result())])
    else:
        assert isinstance(exc, Exception)
        settled([(step, exc)])


class SubmitsByCommit:
    """Passes submitted steps to `commit`."""

    async def commit(self, step: Step) -> Committed:
        raise NotImplementedError

    def submit(self, steps: Sequence[Step], settled: Settled) -> int:
        return submit_by(self.commit, steps, settled)

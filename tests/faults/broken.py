"""Builds that are broken on purpose: a suite that holds anything must turn red over each of them.

`python -m tests.faults.broken BUILD serve --config …` patches the product and runs its command; nothing in the product
knows of it.
"""

import sys
from collections.abc import Callable, Mapping
from itertools import count

from gateway import serve
from gateway.cli import main as dragoman
from gateway.core.snapshots import Snapshot, from_snapshot
from gateway.executors.port import Answer, Request
from gateway.executors.webhook.executor import WebhookExecutor
from gateway.runtime.log import register_secret
from gateway.runtime.session import load

EVERY = 20


def swap_results() -> None:
    """Give each 20th call the result of the call before."""
    execute, number = WebhookExecutor.execute, count(1)
    last: list[Answer] = []

    async def swapped(self: WebhookExecutor, request: Request) -> Answer:
        answer = await execute(self, request)
        before, last[:] = list(last), [answer]
        return before[0] if before and next(number) % EVERY == 0 else answer

    WebhookExecutor.execute = swapped


def register_no_secret() -> None:
    """Hide no secret of the configuration from the log."""

    def forget(_value: str) -> None:
        """Register nothing."""

    assert serve.log_setup.register_secret is register_secret
    serve.log_setup.register_secret = forget


def fold_twice() -> None:
    """Let recovery fold the last event of a snapshot again."""

    def behind(snapshot: bytes | None) -> Snapshot:
        taken = from_snapshot(snapshot)
        return taken._replace(sequence=max(0, taken.sequence - 1))

    assert load.from_snapshot is from_snapshot
    load.from_snapshot = behind


BUILDS: Mapping[str, Callable[[], None]] = {
    "none": lambda: None,
    "swaps-results": swap_results,
    "registers-no-secret": register_no_secret,
    "folds-twice": fold_twice,
}


def main() -> None:
    """Break what is named, and run the command with what is left of the line."""
    build = sys.argv.pop(1)
    BUILDS[build]()
    dragoman()


if __name__ == "__main__":
    main()

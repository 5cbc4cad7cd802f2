"""The port of a backend's call store: claims, answers and pending callbacks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Protocol

KEPT = timedelta(days=3)
"""The time for which a key is kept after its claim; the gateway repeats a call until its deadline."""


class KeyReused(Exception):
    """A key was reused with another tool or other arguments."""


class StoreUnavailable(Exception):
    """The store is unavailable; it is unknown whether the claim or answer was stored."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The state of a key after a claim.

    `new` and `abandoned` belong to the claiming worker: no worker has claimed the first before, and the previous owner
    of the second left no answer. `running` belongs to another live worker: one worker never claims a key twice at once.
    `done` has the answer.
    """

    state: Literal["new", "running", "abandoned", "done"]
    answer: bytes | None = None


@dataclass(frozen=True, slots=True)
class Callback:
    """The address that the outcome of an accepted call is posted to."""

    url: str
    tool: str
    deadline: float
    """The deadline that the request named, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Owed:
    """A callback that a dead worker owes; `answer` is None if its call has no answer and does not run."""

    key: str
    callback: Callback
    answer: bytes | None


class CallStore(Protocol):
    """Keeps the claims of one backend, for one worker or for many.

    An `async with` opens and closes it. If the store is unreachable, methods raise StoreUnavailable within seconds.
    """

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def claim(self, key: str, digest: str) -> Claimed:
        """Claim a key for this worker, if it is free; `digest` identifies its tool and arguments.

        Raises:
            KeyReused: the key has another digest.
        """
        ...

    async def accept(self, key: str, callback: Callback) -> None:
        """Record that this worker owes the outcome of a key to a callback, before it answers 202."""
        ...

    async def finish(self, key: str, answer: bytes) -> Callback | None:
        """Store the answer of a key that this worker has claimed; return its pending callback.

        If another worker has taken the claim over, its answer stays.
        """
        ...

    async def settle(self, key: str) -> None:
        """Record that the callback of a key is no longer owed: it took the outcome or refused it permanently."""
        ...

    async def take_owed(self, idempotent: Collection[str], limit: int) -> Sequence[Owed]:
        """Take over up to `limit` callbacks whose worker is dead and whose call no live worker runs.

        Unanswered calls of the `idempotent` tools are skipped, because the gateway requests them again.
        """
        ...

    async def forget(self, key: str) -> None:
        """Release a key that this worker has claimed but not processed."""
        ...

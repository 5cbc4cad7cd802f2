"""The port of a backend's call store: claims, answers and the callbacks that are still owed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Protocol

KEPT = timedelta(days=3)
"""For how long a key is kept behind its claim; the gateway repeats a call for as long as its deadline."""


class KeyReused(Exception):
    """A key came again with another tool or other arguments."""


class StoreUnavailable(Exception):
    """The store cannot say just now; nothing was claimed or finished for sure."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What is known of a key by now.

    `new` and `abandoned` belong to whoever asked: nobody has had the first before, and whoever had the second left it
    without an answer. `running` is another worker's that lives: one worker never claims a key twice at once. `done` has
    the answer.
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
    """A callback that a dead worker owes; `answer` is None if its call has none and nothing runs it."""

    key: str
    callback: Callback
    answer: bytes | None


class CallStore(Protocol):
    """Keeps the claims of one backend, for one worker or for many.

    An `async with` opens and closes it. What cannot be reached raises StoreUnavailable, within seconds.
    """

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def claim(self, key: str, digest: str) -> Claimed:
        """Take a key for this worker, if it is free; `digest` says what is asked under it.

        Raises:
            KeyReused: something else was asked under it.
        """
        ...

    async def accept(self, key: str, callback: Callback) -> None:
        """Record that this worker owes the outcome of a key to a callback, before it answers 202."""
        ...

    async def finish(self, key: str, answer: bytes) -> Callback | None:
        """Keep the answer of a key that this worker has claimed; return the callback that is owed for it.

        If another worker has taken the claim over, its answer stays.
        """
        ...

    async def settle(self, key: str) -> None:
        """Record that the callback of a key is no longer owed: it took the outcome or refused it permanently."""
        ...

    async def take_owed(self, idempotent: Collection[str], limit: int) -> Sequence[Owed]:
        """Take over up to `limit` callbacks whose worker is dead and whose call no living worker runs.

        Unanswered calls of the `idempotent` tools are left out: the gateway requests them again.
        """
        ...

    async def forget(self, key: str) -> None:
        """Give a key back that this worker has claimed and done nothing about."""
        ...

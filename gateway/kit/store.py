"""Where a backend keeps which calls it has taken on, so that a repeat of one is never a second one."""

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

    async def finish(self, key: str, answer: bytes) -> None:
        """Keep the answer of a key that this worker has claimed; one that was taken from it keeps what it has."""
        ...

    async def forget(self, key: str) -> None:
        """Give a key back that this worker has claimed and done nothing about."""
        ...

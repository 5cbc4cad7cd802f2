"""Waits for conditions with a timeout."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

PATIENCE = 60.0
"""The default timeout in seconds; long enough that a slow machine does not fail a test."""

Found = TypeVar("Found")


class Received(NamedTuple):
    """One frame of a client, numbered in the order of arrival."""

    number: int
    payload: Any


class Change:
    """Wakes all waiting tasks after each change, so that they check their condition."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def tell(self) -> None:
        """Wake all waiters."""
        self._next.set()
        self._next = asyncio.Event()

    async def until(self, look: Callable[[], Found | None], within: float, *, what: Callable[[], str]) -> Found:
        """Wait until `look` returns a value other than None, and return it.

        Raises:
            TimeoutError: with the text of `what`, after `within` seconds.
        """
        try:
            async with asyncio.timeout(within):
                while (found := look()) is None:
                    await self._next.wait()
        except TimeoutError as exc:
            raise TimeoutError(f"not within {within:g} s: {what()}") from exc
        return found

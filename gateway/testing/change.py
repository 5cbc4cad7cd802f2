"""Wait, with a limit, until something has become true; and keep what peers have sent."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

PATIENCE = 60.0
"""Seconds to wait for what must happen unless a caller says otherwise: a slow machine must not fail a test."""

Found = TypeVar("Found")


class Received(NamedTuple):
    """One frame a client sent, numbered in the order of arrival."""

    number: int
    payload: Any


class Change:
    """Wakes whoever waits for something to become true, after each change."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def tell(self) -> None:
        """Let all waiters look again."""
        self._next.set()
        self._next = asyncio.Event()

    async def until(self, look: Callable[[], Found | None], within: float, *, what: Callable[[], str]) -> Found:
        """Wait until `look` finds something.

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

"""Something that happens once, and that any number of tasks may wait for."""

import asyncio


class Once:
    """An event that is never cleared.

    It takes a tenth of the memory of an `asyncio.Event`, of which every idle session would hold several.
    """

    __slots__ = ("_future", "_happened")

    def __init__(self) -> None:
        self._happened = False
        self._future: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._happened

    def set(self) -> None:
        """Let it happen; again is nothing."""
        self._happened = True
        future, self._future = self._future, None
        if future is not None and not future.done():
            future.set_result(None)

    def future(self) -> "asyncio.Future[None]":
        """Give what `asyncio.wait` may wait for; it belongs to all who wait, so that nobody may cancel it."""
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
            if self._happened:
                self._future.set_result(None)
        return self._future

    async def wait(self) -> None:
        """Wait until it has happened."""
        if not self._happened:
            await asyncio.wait({self.future()})

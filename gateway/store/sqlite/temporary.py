"""The engine of `type: memory`: a SQLite file in a temporary folder, deleted when the engine closes."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Self
from uuid import uuid4

from gateway.clock import Clock
from gateway.errors import EngineUnusable
from gateway.store.sqlite.engine import SqliteEngine
from gateway.store.sqlite.tuning import SqliteTuning

_TUNING = SqliteTuning(synchronous="OFF")


class TemporaryEngine(SqliteEngine):
    """Keep everything in a file that no restart finds again.

    A killed process leaves the folder in the system's temporary folder.
    """

    def __init__(self, clock: Clock) -> None:
        self._folder = Path(tempfile.gettempdir()) / f"dragoman-{uuid4()}"
        super().__init__(self._folder / "dragoman.db", clock, tuning=_TUNING)

    async def __aenter__(self) -> Self:
        try:
            self._folder.mkdir(mode=0o700)
        except OSError as exc:
            raise EngineUnusable(f"cannot create the folder {str(self._folder)!r} ({exc.strerror})") from exc
        try:
            return await super().__aenter__()
        except BaseException:
            await self._remove_folder()
            raise

    async def __aexit__(self, *exc: object) -> None:
        try:
            await super().__aexit__(*exc)
        finally:
            await self._remove_folder()

    async def _remove_folder(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

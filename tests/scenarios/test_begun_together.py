"""Thousands of sessions that begin together: a restart is ready before their links, which leave room for all else."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.adapter.port import Link, Receiver
from gateway.events import SessionId
from gateway.runtime.app import Gateway
from gateway.runtime.cluster.takeover import BATCH
from gateway.runtime.system_clock import SystemClock
from gateway.runtime.tuning import Tuning
from gateway.serve import parts_for
from gateway.settings.load import load
from gateway.store.port import Engine
from gateway.store.rows import SessionRow
from gateway.store.sqlite import SqliteEngine
from tests.pace import PATIENCE
from tests.scenarios.plain_runtime import PlainRuntime

MANY = 2 * BATCH + 17


@dataclass
class Watched(PlainRuntime):
    """Remembers in which turn of the loop each link was begun."""

    begun: list[int] = field(default_factory=list[int])
    turn: int = 0
    standing: int = 0
    cut: asyncio.Event = field(default_factory=asyncio.Event)

    def connect(
        self, native_id: str, receiver: Receiver, *, resume_after: str | None = None
    ) -> AbstractAsyncContextManager[Link]:
        self.begun.append(self.turn)
        self.change.tell()
        return super().connect(native_id, receiver, resume_after=resume_after)

    async def wait_closed(self) -> str:
        self.standing += 1
        self.change.tell()
        await self.cut.wait()
        return "the network is gone"

    async def all_stand(self) -> None:
        await self.change.until(
            lambda: self.standing == MANY or None, PATIENCE, what=lambda: f"{self.standing} of {MANY}"
        )

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


class Watching(SqliteEngine):
    """Remembers how many links had been begun when sessions were last read."""

    def __init__(self, folder: Path, runtime: Watched) -> None:
        super().__init__(folder / "dragoman.db", SystemClock())
        self._runtime = runtime
        self.portions: list[int] = []
        self.links_at_reads: list[int] = []

    async def take_over(self, instance: str, *, runtimes: Collection[str], limit: int) -> Sequence[SessionRow]:
        rows = await super().take_over(instance, runtimes=runtimes, limit=limit)
        self.portions.append(len(rows))
        return rows

    async def session(self, session_id: SessionId) -> SessionRow | None:
        self.links_at_reads.append(len(self._runtime.begun))
        return await super().session(session_id)


@asynccontextmanager
async def served(folder: Path, engine: Engine, runtime: Watched) -> AsyncGenerator[Gateway]:
    config = folder / "plain.yaml"
    config.write_text(
        "engine: {type: memory}\n"
        "runtimes: {finn: {adapter: plain, url: 'http://plain.invalid', session: room-0}}\n"
        "limits: {drain: 1s}\n"
    )
    settings = load(config, adapters={"plain": runtime}, env={}).settings
    parts = parts_for(settings, reread=lambda: settings)
    parts = replace(parts, adapters={"plain": runtime}, engine=engine, shared=True, tuning=Tuning(link_first=0.0))
    async with Gateway.running(settings, parts) as gateway:
        yield gateway


async def test_no_link_is_begun_before_all_sessions_are_taken_up_and_then_one_each_turn(tmp_path: Path) -> None:
    first = Watched()
    async with served(tmp_path, Watching(tmp_path, first), first) as gateway:
        for number in range(1, MANY):
            await gateway.opening.open("finn", native_id=f"room-{number}", labels={})
        await first.all_stand()
    again = Watched()
    engine = Watching(tmp_path, again)
    turns = asyncio.create_task(again.count_turns())
    async with served(tmp_path, engine, again):
        # One was opened by name, as the options say; the others came in portions.
        assert engine.portions == [BATCH, BATCH, MANY - 1 - 2 * BATCH, 0]
        read_at_start = len(engine.links_at_reads)
        await again.all_stand()
        turns.cancel()
    assert max(engine.links_at_reads[:read_at_start]) <= 1
    assert len(set(again.begun)) == MANY


async def test_links_that_break_together_are_begun_again_one_each_turn(tmp_path: Path) -> None:
    runtime = Watched()
    async with served(tmp_path, Watching(tmp_path, runtime), runtime) as gateway:
        for number in range(1, MANY):
            await gateway.opening.open("finn", native_id=f"room-{number}", labels={})
        await runtime.all_stand()
        broken, runtime.cut = runtime.cut, asyncio.Event()
        runtime.begun, runtime.standing = [], 0
        turns = asyncio.create_task(runtime.count_turns())
        broken.set()
        await runtime.all_stand()
        turns.cancel()
    assert len(set(runtime.begun)) == MANY

"""A gateway that never lives for as long as silence takes to count as delivery says again only a bounded part.

The window is longer than any of its lives, so nothing is believed for silence alone. The agent counts what it is told.
"""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from gateway.runtime.session.outbox import BATCH
from gateway.testing.runtimes.huma.rules import Dialect
from tests.faults.process import Forked, end, run_mortal
from tests.pace import PATIENCE
from tests.ports import free_port
from tests.scenarios.environment import GOOD, Scene, ended, scene

pytestmark = pytest.mark.faults


async def _live(made: Scene) -> Forked:
    """Start a gateway; returns it once its link is up."""
    links = made.agent.connections
    process = Forked(made.folder / "gateway.log", run_mortal, made.config, made.port)
    await made.agent.wait_connections(links + 1, within=PATIENCE)
    return process


async def _kill(process: Forked) -> None:
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()


def _outcomes(made: Scene) -> int:
    return sum(len(call.results) for call in made.agent.calls.values())


def _configure(made: Scene) -> None:
    made.port = free_port()
    made.configure({"runtimes": {"finn": {"delivery_window": "10m"}},
                    "executors": {"cards": {"type": "static", "result": "cards", "url": None, "secret": None,
                                            "timeout": None, "idempotent": None, "backoff": None}}})  # fmt: skip


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
async def test_repeats_grow_with_the_kills_and_not_with_the_backlog(tmp_path: Path, dialect: Dialect) -> None:
    kills, calls = 16, 40
    async with scene(tmp_path, dialect) as made:
        _configure(made)
        for _ in range(kills):
            process = await _live(made)
            try:
                asked = [await made.agent.call("ask", GOOD) for _ in range(calls)]
                await asyncio.gather(*[ended(call, within=PATIENCE) for call in asked])
                await _kill(process)
            finally:
                await end(process)
        repeats = _outcomes(made) - kills * calls
        # Each is said once more at most, and a portion of them again where its fate was not on record at the kill.
        assert repeats <= kills * (calls + BATCH), repeats
        made.is_clean()


async def test_a_long_backlog_is_told_though_no_life_is_long_enough_for_silence(tmp_path: Path) -> None:
    kills, calls = 12, 20 * BATCH
    async with scene(tmp_path, "0.2") as made:
        _configure(made)
        process = await _live(made)
        try:
            asked = [await made.agent.call("ask", GOOD) for _ in range(calls)]
            await asyncio.gather(*[ended(call, within=PATIENCE) for call in asked])
            await _kill(process)
            for _ in range(kills):
                before = _outcomes(made)
                process = await _live(made)
                # As soon as it has begun to say the backlog again, or has nothing left to say, it dies.
                last = await made.agent.call("ask", GOOD)
                await made.agent.wait_for(lambda _, told=before: _outcomes(made) > told, within=PATIENCE)
                await _kill(process)
                del last
            process = await _live(made)
            last = await made.agent.call("ask", GOOD)
            assert (await ended(last, within=PATIENCE)).outcome == "success"
        finally:
            await end(process)
        repeats = _outcomes(made) - len([call for call in made.agent.calls.values() if call.results])
        assert repeats <= calls + (kills + 1) * 2 * BATCH, repeats
        made.is_clean()

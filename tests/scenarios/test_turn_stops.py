"""A gateway is told to stop while its sessions are busy: it stops in time, and the next one ends each recorded call."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from gateway.adapter.port import Frame, Receipt
from gateway.events import SessionId, ToolRequested
from tests.scenarios import long_tools
from tests.scenarios.crowd import AgentLink, CrowdRuntime, HeldEngine, opened, text
from tests.scenarios.environment import Running, until
from tests.scenarios.plain_runtime import plain_gateway
from tests.scenarios.test_turns import STATIC

pytestmark = pytest.mark.slow

_STOP = 30.0
"""Seconds in which it stops: the drain of one second, seven for the rest, and the time of a busy machine."""
_TOOLS: Mapping[str, Any] = {
    **STATIC,
    "executors": {"cards": {**long_tools.SPEC, "idempotent": True, "concurrency": 1_000}},
    "limits": {"drain": "1s", "sessions": 20_000},
}


class CongestedRuntime(CrowdRuntime):
    """A runtime that takes nothing while it is congested."""

    congested = False

    def take(self, link: AgentLink, frames: Sequence[Frame]) -> Receipt | Awaitable[Receipt]:
        return self._never() if self.congested else super().take(link, frames)

    async def _never(self) -> Receipt:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def flood(running: Running, runtime: CrowdRuntime, engine: HeldEngine, ids: Mapping[str, SessionId]) -> None:
    for name in ids:
        for number in range(255):
            runtime.says(name, text(str(number)))
        runtime.asks(name, "call")
    await until(lambda: _any(engine.in_store > 0))


async def ready(running: Running, runtime: CrowdRuntime, engine: HeldEngine, ids: Mapping[str, SessionId]) -> None:
    del running
    for name in ids:
        runtime.asks(name, "call")
    # The turn of this moment takes 256 of them.
    await until(lambda: _any(engine.in_store > 0))


async def full_store(running: Running, runtime: CrowdRuntime, engine: HeldEngine, ids: Mapping[str, SessionId]) -> None:
    engine.most, engine.held = 10, True
    for name in ids:
        runtime.asks(name, "call")
    await until(lambda: _any(engine.kept == 10))


async def mute_store(running: Running, runtime: CrowdRuntime, engine: HeldEngine, ids: Mapping[str, SessionId]) -> None:
    engine.held = True
    for name in ids:
        runtime.asks(name, "call")
    await until(lambda: _any(engine.kept > 0))


async def long_tool(running: Running, runtime: CrowdRuntime, engine: HeldEngine, ids: Mapping[str, SessionId]) -> None:
    long_tools.started.clear()
    for name in ids:
        runtime.says(name, ToolRequested(native_call_id="call", tool="wait", arguments={}))
    await until(lambda: _any(len(long_tools.started) == len(ids)))
    # The next process does not wait for it.
    long_tools.patience = 0.0


async def congestion(running: Running, runtime: CrowdRuntime, engine: HeldEngine, ids: Mapping[str, SessionId]) -> None:
    assert isinstance(runtime, CongestedRuntime)
    runtime.congested = True
    for name in ids:
        runtime.asks(name, "call")
    await running.wait_call("call", "succeeded")


async def _any(holds: bool) -> bool:
    return holds


Busy = Callable[[Running, CrowdRuntime, HeldEngine, Mapping[str, SessionId]], Awaitable[None]]


@pytest.mark.parametrize(
    ("busy", "size"),
    [(flood, 64), (ready, 10_000), (full_store, 300), (mute_store, 64), (long_tool, 8), (congestion, 8)],
    ids=["flood", "ready", "full store", "mute store", "long tool", "congestion"],
)
async def test_a_gateway_that_is_told_to_stop_while_it_is_busy_stops_in_time_and_loses_no_recorded_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: Busy, size: int
) -> None:
    monkeypatch.setattr(long_tools, "patience", 600.0)
    runtime, engine = CongestedRuntime(), HeldEngine(tmp_path)
    leaving = AsyncExitStack()
    gateway = plain_gateway(tmp_path, runtime=runtime, parts={"engine": engine}, settings=_TOOLS)
    running, _ = await leaving.enter_async_context(gateway)
    ids = await opened(running, engine, [f"s{number:03d}" for number in range(size)])
    await busy(running, runtime, engine, ids)
    began = monotonic()
    await leaving.aclose()
    assert monotonic() - began < _STOP
    assert not running.gateway.ambient.faults.total
    runtime.congested = False
    again = {"engine": HeldEngine(tmp_path)}
    async with plain_gateway(tmp_path, runtime=runtime, parts=again, settings=_TOOLS) as (running, _):
        await until(lambda: _none_open(running))
        recorded = await _sessions_with_calls(running)
        requested = [name for name, session_id in ids.items() if session_id in recorded]
        # Reading the histories of all 10,000 takes a minute.
        for session_id in list(ids.values())[:300]:
            events = await running.events(session_id)
            assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
            kinds = Counter(event["event"]["kind"] for event in events)
            assert kinds["tool.requested"] == kinds["tool.finished"] == (session_id in recorded)
        # Each session has one call at most.
        await runtime.wait(lambda: all(set(runtime.results_of(name)) == {"call"} for name in requested), "results")
        assert requested or busy is flood


async def _sessions_with_calls(running: Running) -> set[str]:
    found, after = set[str](), None
    while True:
        page = await running.get("/v1/calls", limit=500, **({"after": after} if after else {}))
        found.update(row["session_id"] for row in page["data"])
        after = page["next"]
        if after is None:
            return found


async def _none_open(running: Running) -> bool:
    return not (await running.get("/v1/calls", state="held,queued,dispatched,accepted"))["data"]

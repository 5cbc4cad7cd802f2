"""That an outcome was delivered is on record with the session's next step, or soon with one of its own."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest

from gateway.adapter.port import Capabilities, Frame, Receipt
from gateway.events import ToolRequested
from gateway.runtime.session.outbox import CROWD
from tests.engines.sqlite_looker import all_of
from tests.pace import PATIENCE
from tests.scenarios.environment import Running, until
from tests.scenarios.plain_runtime import PlainRuntime, plain_gateway

STEPS = "dragoman_journal_commit_seconds_count"


_SILENT = replace(PlainRuntime.capabilities, delivery="silence")


@dataclass
class SilentRuntime(PlainRuntime):
    """A runtime that says nothing of what it has got, where silence means delivery."""

    capabilities: Capabilities = _SILENT
    proofs: int = 0
    """How often it was asked whether it is there."""

    async def send_all(self, frames: Sequence[Frame]) -> Receipt:
        await super().send_all(frames)
        return Receipt("sent")

    async def prove(self) -> None:
        self.proofs += 1
        self.change.tell()

    @property
    def ended(self) -> list[str]:
        """The calls whose outcomes were heard."""
        return [one["native_call_id"] for one in self.heard if one["kind"] == "tool.finished"]

    async def called(self, name: str) -> None:
        """Call a tool, and wait for the outcome."""
        self.say(ToolRequested(native_call_id=name, tool="ask", arguments={}), name)
        await self.change.until(lambda: name in self.ended or None, PATIENCE, what=str)

    async def proven(self) -> None:
        """Wait until the silence after what was sent is believed."""
        before = self.proofs
        await self.change.until(lambda: self.proofs > before or None, PATIENCE, what=str)


@dataclass
class BusyRuntime(SilentRuntime):
    """One that notes when it is asked whether it is there."""

    asked_along: list[bool] = field(default_factory=list[bool])
    """For each time that it was asked: whether something was sent to it in the same turn of the loop."""
    _just_sent: bool = False

    def send_all(self, frames: Sequence[Frame]) -> Receipt:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._just_sent = True
        asyncio.get_running_loop().call_soon(self._forget)
        self.heard.extend(frame.payload for frame in frames)
        self.change.tell()
        return Receipt("sent")

    def _forget(self) -> None:
        self._just_sent = False

    def prove(self) -> Awaitable[None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.asked_along.append(self._just_sent)
        return super().prove()


@asynccontextmanager
async def running(
    folder: Path, *, window: str, runtime: SilentRuntime | None = None
) -> AsyncGenerator[tuple[Running, SilentRuntime]]:
    settings = {
        "runtimes": {
            "finn": {"adapter": "plain", "url": "http://plain.invalid", "session": "s", "delivery_window": window}
        },
        "executors": {"cards": {"type": "static", "result": "Go fish!"}},
        "routes": [{"match": {"tool": "*"}, "to": "cards"}],
    }
    runtime = runtime or SilentRuntime()
    async with plain_gateway(folder, settings=settings, runtime=runtime) as (gateway, _):
        yield gateway, runtime


def states(folder: Path) -> list[str]:
    """List the states of the outcomes that were sent, in their order."""
    rows = "SELECT state FROM outbound JOIN events USING (session_id, seq) WHERE kind = 'tool.finished' ORDER BY seq"
    with all_of(folder / "plain.db") as store:
        return [state for (state,) in store.execute(rows)]


async def test_that_an_outcome_was_delivered_goes_along_with_the_next_step(tmp_path: Path) -> None:
    async with running(tmp_path, window="1s") as (gateway, runtime):
        await runtime.called("a")
        await runtime.proven()
        before = (await gateway.metrics())[STEPS]
        await runtime.called("b")
        assert states(tmp_path) == ["delivered", "pending"]
        assert (await gateway.metrics())[STEPS] - before == 2


async def test_that_an_outcome_was_delivered_has_a_step_of_its_own_where_no_other_comes(tmp_path: Path) -> None:
    async with running(tmp_path, window="100ms") as (_, runtime):
        await runtime.called("a")

        async def look() -> bool:
            return states(tmp_path) == ["delivered"]

        await until(look)


async def test_a_gateway_that_stops_leaves_on_record_what_was_delivered_and_says_nothing_again(tmp_path: Path) -> None:
    async with running(tmp_path, window="1s") as (_, runtime):
        await runtime.called("a")
        await runtime.proven()
    assert states(tmp_path) == ["delivered"]
    async with running(tmp_path, window="1s") as (_, runtime):
        await runtime.called("b")
    assert runtime.ended == ["b"]


async def test_a_busy_link_is_asked_along_with_what_leaves_anyhow_once_a_window_is_over(tmp_path: Path) -> None:
    runtime, names = BusyRuntime(), count()
    async with running(tmp_path, window="1s", runtime=runtime), asyncio.timeout(PATIENCE):
        begun = asyncio.get_running_loop().time()
        while True not in runtime.asked_along:
            await runtime.called(str(next(names)))
        took = asyncio.get_running_loop().time() - begun
        await runtime.called("last")
    assert len(runtime.asked_along) <= took
    assert "delivered" in states(tmp_path)


@pytest.mark.slow
async def test_a_session_that_hears_much_within_a_window_never_waits_for_the_end_of_it(tmp_path: Path) -> None:
    runtime, many = BusyRuntime(), CROWD + CROWD // 2
    async with running(tmp_path, window="5m", runtime=runtime):
        for first in range(0, many, 100):
            names = [str(number) for number in range(first, first + 100)]
            for name in names:
                runtime.say(ToolRequested(native_call_id=name, tool="ask", arguments={}), name)
            await runtime.change.until(lambda upto=first + 100: len(runtime.heard) >= upto or None, PATIENCE, what=str)
    assert sorted(runtime.ended, key=int) == [str(number) for number in range(many)]
    # Of the newest the silence is still waited for.
    assert CROWD // 2 <= states(tmp_path).count("delivered") < many - CROWD // 4

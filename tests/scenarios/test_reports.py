"""What an executor inside the gateway reports of a call under way: on record, in order, within bounds."""

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.events import ToolRequested
from tests.pace import PATIENCE
from tests.scenarios import reporting_tools
from tests.scenarios.environment import Running, merge
from tests.scenarios.plain_runtime import PlainRuntime, plain_gateway
from tests.scenarios.reporting_tools import HeldCalls, Report

SETTINGS: dict[str, Any] = {
    "executors": {"here": {"type": "python", "call": "tests.scenarios.reporting_tools:hold", "timeout": "30s"}},
    "routes": [{"match": {"tool": "*"}, "to": "here"}],
    "limits": {"drain": "1s", "progress": "4KiB"},
}


class Scene:
    """A gateway at work with one call under way, and the `report` of its function."""

    def __init__(self, gateway: Running, runtime: PlainRuntime, held: HeldCalls) -> None:
        self.gateway, self.runtime, self.held = gateway, runtime, held

    async def ask(self, native_call_id: str = "c-1") -> Report:
        self.runtime.say(ToolRequested(native_call_id=native_call_id, tool="hold"))
        async with asyncio.timeout(PATIENCE):
            return await self.held.reports.get()

    async def reported(self, count: int) -> list[dict[str, Any]]:
        return [one["event"]["data"] for one in await self.gateway.wait_events("call.progressed", count)]

    async def end(self) -> list[dict[str, Any]]:
        """Let the call end; returns what is on record of its progress then."""
        self.held.go.set()
        await self.gateway.wait_events("tool.finished")
        return [one["event"]["data"] for one in await self.gateway.events(kind="call.progressed")]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    held = HeldCalls()
    reporting_tools.HELD.append(held)
    async with plain_gateway(tmp_path, settings=SETTINGS) as (gateway, runtime):
        yield Scene(gateway, runtime, held)


async def test_reports_are_on_record_before_the_outcome_and_followers_see_them(scene: Scene) -> None:
    async with scene.gateway.stream(await scene.gateway.session(), after=0) as source:
        report = await scene.ask()
        report({"percent": 40})
        await scene.reported(1)
        report({"percent": 80})
        assert await scene.end() == [{"percent": 40}, {"percent": 80}]
        seen = [row["data"] for row in await source.until("tool.finished") if "data" in row]
    kinds = [one["event"]["kind"] for one in seen]
    assert kinds[-4:] == ["tool.requested", "call.progressed", "call.progressed", "tool.finished"]
    assert {one["caused_by"] for one in seen[-3:]} == {seen[-4]["sequence"]}


async def test_of_many_reports_in_a_row_the_newest_is_kept(scene: Scene) -> None:
    report = await scene.ask()
    told = {"n": -1}
    for n in range(1_000):
        told["n"] = n
        report(told)
    told["n"] = -1
    assert await scene.end() == [{"n": 0}, {"n": 999}]


@pytest.mark.parametrize(
    "odd",
    [
        None,
        ["a list"],
        {"not finite": math.nan},
        {"no JSON": object()},
        {"too large": "x" * 64 * 1024},
        {"rounded": 2**80},
        {"half a letter": "\ud800"},
    ],
)
async def test_a_report_that_cannot_be_kept_is_ignored_and_the_call_goes_on(scene: Scene, odd: Any) -> None:
    report = await scene.ask()
    report(odd)
    report({"percent": 40})
    assert await scene.end() == [{"percent": 40}]


async def test_what_one_call_may_report_is_bounded(scene: Scene) -> None:
    report = await scene.ask()
    for n in range(4):
        report({"n": n})
        await scene.reported(n + 1)
    report({"n": 4})
    assert [one["n"] for one in await scene.end()] == [0, 1, 2, 3]


async def test_a_report_from_a_thread_is_on_record(scene: Scene) -> None:
    report = await scene.ask()
    await asyncio.to_thread(report, {"percent": 40})
    assert await scene.reported(1) == [{"percent": 40}]
    await scene.end()


async def test_a_report_after_the_end_is_ignored(scene: Scene) -> None:
    report = await scene.ask()
    await scene.end()
    report({"percent": 100})
    scene.held.go.clear()
    # What was said before another call's progress is decided about before it.
    (await scene.ask("c-2"))({"percent": 1})
    assert await scene.reported(1) == [{"percent": 1}]
    scene.held.go.set()


async def test_an_attempt_that_was_given_up_reports_no_more_while_the_next_one_runs(tmp_path: Path) -> None:
    held = HeldCalls()
    reporting_tools.HELD.append(held)
    again = {"attempts": 2, "idempotent": True, "timeout": "500ms"}
    settings = merge(SETTINGS, {"executors": {"here": again}})
    async with plain_gateway(tmp_path, settings=settings) as (gateway, runtime), asyncio.timeout(PATIENCE):
        scene = Scene(gateway, runtime, held)
        first, second = await scene.ask(), await held.reports.get()
        first({"attempt": 1})
        second({"attempt": 2})
        assert await scene.reported(1) == [{"attempt": 2}]


async def test_a_report_that_says_it_is_another_event_is_progress_all_the_same(scene: Scene) -> None:
    report = await scene.ask()
    forged = {
        "kind": "call.linked",
        "native_call_id": "c-1",
        "tool": "hold",
        "call_id": "x",
        "event": {"kind": "opaque"},
    }
    report(forged)
    assert await scene.end() == [forged]
    assert {one["event"]["kind"] for one in await scene.gateway.events()} <= {
        "session.opened", "link.changed", "tool.requested", "call.progressed", "tool.finished", "session.moved",
    }  # fmt: skip

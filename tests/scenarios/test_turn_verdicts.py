"""A session between its decision, the report of the store, and the effects."""

import asyncio
import json
from collections.abc import Awaitable, Mapping
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from structlog.testing import capture_logs

from gateway.events import CallProgressed, Envelope, SessionId, ToolCanceled, ToolRequested
from gateway.runtime.system_clock import SystemIds
from gateway.runtime.views import News
from gateway.settings.load import load
from gateway.settings.model import Settings
from gateway.store.sqlite import SqliteEngine
from gateway.store.step import Step
from tests.faults.host_faults import logged_to
from tests.scenarios import long_tools
from tests.scenarios.crowd import CrowdRuntime, HeldEngine, Results
from tests.scenarios.environment import API_KEY, Running, until
from tests.scenarios.test_sleeping_machine import SleepingClock
from tests.scenarios.test_turns import STATIC, crowd

LEASE = 3
_TOOLS: Mapping[str, Any] = {
    **STATIC,
    "executors": {"cards": {**long_tools.SPEC, "idempotent": True, "concurrency": 1}},
}


@pytest.fixture(autouse=True)
def _forget_tools() -> None:
    long_tools.started.clear()
    long_tools.canceled.clear()


@pytest.mark.parametrize("how", ["it is renewed", "a new one", "a new one after a foreign write"])
async def test_a_lease_that_ends_between_commit_and_effects_and_returns(tmp_path: Path, how: str) -> None:
    clock = SleepingClock()
    parts: Mapping[str, Any] = {"clock": clock, "shared": True}
    settings = {**STATIC, "instance": {"lease": f"{LEASE}s"}}
    async with crowd(tmp_path, 2, settings=settings, parts=parts) as (running, runtime, engine, ids):
        name, beside = ids
        link = runtime.links[name]
        seen: list[str] = []
        following = asyncio.create_task(_follow(running, ids[name], seen))
        await until(lambda: _has_seen(seen, "link.changed"))

        def expire(results: Results) -> Results:
            if any(isinstance(one.event, ToolRequested) for step, _ in results for one in step.events):
                engine.reports = lambda results: results
                engine.cut_off = how != "it is renewed"
                clock.sleep(60)
            return results

        engine.reports = expire
        runtime.asks(name, "call")
        if how != "it is renewed":
            await until(lambda: _lost_leases(running))
            assert "tool.requested" not in seen, "without a lease the session has no effects"
            if how == "a new one after a foreign write":
                progressed = CallProgressed(native_call_id="another", call_id="another", data={})
                event_id = SystemIds(clock).event_id()
                written = Envelope(event_id, ids[name], 0, datetime.now(UTC), "to_runtime", progressed, synthetic=True)
                await SqliteEngine.commit(engine, Step(ids[name], (written,)))
            engine.cut_off = False
        await runtime.wait(lambda: bool(runtime.results_of(name)), "the result")
        runtime.asks(beside, "call")
        await runtime.wait(lambda: bool(runtime.results_of(beside)), "the result of another session")
        runtime.asks(name, "next")
        await runtime.wait(lambda: runtime.results_of(name) == ["call", "next"], "the next result")
        # After a foreign write the session begins again from the store, with a new link.
        assert (runtime.links[name] is link) is (how != "a new one after a foreign write")
        numbers = [event["sequence"] for event in await running.events(ids[name])]
        assert numbers == list(range(1, len(numbers) + 1))
        await until(lambda: _has_seen(seen, "tool.finished", 2))
        assert seen.count("tool.requested") == 2
        following.cancel()


async def _follow(running: Running, session_id: SessionId, seen: list[str]) -> None:
    async for item in running.gateway.follow(session_id, after=0):
        seen += [one.event.kind for one in item.items] if isinstance(item, News) else []


async def _has_seen(seen: list[str], kind: str, count: int = 1) -> bool:
    return seen.count(kind) == count


async def _lost_leases(running: Running) -> bool:
    return (await running.metrics())["dragoman_leases_lost_total"] > 0


async def test_a_verdict_for_a_session_that_has_ended_has_no_effects(tmp_path: Path) -> None:
    """The sessions end because a reload removes their runtime; the next reload brings it back."""
    runtime, now = CrowdRuntime(), list[Settings]()
    parts = {"reread": lambda: now[0]}
    async with crowd(tmp_path, 2, runtime=runtime, settings=_TOOLS, parts=parts) as (running, _, engine, ids):
        with_runtime = running.gateway.settings
        without = yaml.safe_load((tmp_path / "plain.yaml").read_text()) | {"runtimes": {}}
        (tmp_path / "without.yaml").write_text(yaml.safe_dump(without))
        now[:] = [load(tmp_path / "without.yaml", adapters={"plain": runtime}, env={}).settings]
        with capture_logs() as logs:
            engine.held = True
            for name in ids:
                runtime.asks(name, "call")
            await until(lambda: _kept(engine, 2))
            for name in ids:
                # This one waits in the inbox, and its loss is logged at the end of the session.
                runtime.asks(name, "lost")
            reloading = asyncio.create_task(running.gateway.reload())
            await until(lambda: _count_lost(logs, 2))
            engine.let_go()
            await reloading
        assert long_tools.started == []
        assert [(one.running, one.waiting) for one in running.gateway.status.activity().executors] == [(0, 0)]
        # The next owner of the session finds the step in the store.
        now[:] = [with_runtime]
        await running.gateway.reload()
        await runtime.wait(lambda: all(runtime.results_of(name) == ["call"] for name in ids), "results")
        assert long_tools.started == ["ask", "ask"]
        assert not running.gateway.ambient.faults.total


async def _kept(engine: HeldEngine, count: int) -> bool:
    return engine.kept == count


async def _count_lost(logs: list[Any], count: int) -> bool:
    return [line["event"] for line in logs].count("unrecorded frames dropped") == count


@pytest.mark.parametrize("by", ["the agent", "an operator"])
async def test_a_python_tool_of_ten_minutes_is_canceled_at_once_and_frees_its_slot(tmp_path: Path, by: str) -> None:
    async with crowd(tmp_path, 2, settings=_TOOLS) as (running, runtime, _, ids):
        name, beside = ids
        runtime.says(name, ToolRequested(native_call_id="long", tool="wait", arguments={}))
        await until(_has_started)
        runtime.asks(beside, "behind it")
        if by == "the agent":
            runtime.says(name, ToolCanceled(native_call_id="long"))
        else:
            call = await running.call_of("long")
            await running.post(f"/v1/calls/{call['call_id']}/cancel", {}, status=202)
        await runtime.wait(lambda: runtime.results_of(beside) == ["behind it"], "the next call")
        assert long_tools.canceled == ["wait"]
        assert (await running.call_of("long"))["state"] == "canceled"
        await until(lambda: _is_idle(running))


async def _has_started() -> bool:
    return bool(long_tools.started)


async def _is_idle(running: Running) -> bool:
    return [one.running for one in running.gateway.status.activity().executors] == [0]


@pytest.mark.slow
async def test_a_store_that_answers_after_30_seconds_costs_no_call(tmp_path: Path) -> None:
    async with crowd(tmp_path, 64, settings=STATIC) as (running, runtime, engine, ids):
        engine.held = True
        for name in ids:
            runtime.asks(name, "call")
        await until(lambda: _kept(engine, 64))
        for name in ids:
            runtime.asks(name, "next")
        # The store needs these seconds.
        for _ in range(30):
            await asyncio.sleep(1)
            assert (await running.http.get("/healthz")).status_code == 200
        assert (await running.get(f"/v1/sessions/{next(iter(ids.values()))}"))["state"] != "closed"
        assert not any(runtime.results_of(name) for name in ids)
        engine.let_go()
        await runtime.wait(lambda: all(len(runtime.results_of(name)) == 2 for name in ids), "results")
        assert all(runtime.results_of(name) == ["call", "next"] for name in ids)
        assert not running.gateway.ambient.faults.total


async def test_no_line_of_a_session_has_the_id_of_a_request_to_another_session(tmp_path: Path) -> None:
    async with crowd(tmp_path, 16, settings={**STATIC, "logging": {"format": "json", "level": "debug"}}) as (
        running,
        runtime,
        _,
        ids,
    ):
        async with logged_to(StringIO(), level="debug") as logged:
            asking: list[Awaitable[httpx.Response]] = []
            for number, (name, session_id) in enumerate(ids.items()):
                body = {"kind": "context.updated", "name": "news", "context": {"n": number}}
                headers = {"x-request-id": f"request-{name}", "authorization": f"Bearer {API_KEY}"}
                asking.append(running.http.post(f"/v1/sessions/{session_id}/events", json=body, headers=headers))
                if number % 2:
                    runtime.asks(name, "call")
            answers = await asyncio.gather(*asking)
            assert {answer.status_code for answer in answers} == {202}
            for name in ids:
                runtime.asks(name, "next")
            await runtime.wait(lambda: all(runtime.results_of(name)[-1:] == ["next"] for name in ids), "results")
        lines = [json.loads(line) for line in logged.getvalue().splitlines()]
        of_sessions = [line for line in lines if "session" in line]
        assert {line["session"] for line in of_sessions} >= {f"finn/{name}" for name in ids}
        wrong = [
            line
            for line in of_sessions
            if line.get("request_id") not in {None, f"request-{line['session'].partition('/')[2]}"}
        ]
        assert wrong == []

"""Two gateways in one process: each has its own limits, faults and log, as two processes have."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.runtime.ambient import Ambient
from gateway.runtime.system_clock import SystemClock
from gateway.store.port import Engine
from gateway.store.rows import EngineHealth
from gateway.store.sqlite import TemporaryEngine
from gateway.strict_json import find_fault
from tests.scenarios.environment import GOOD, Running, Scene, ended, scene
from tests.scenarios.hooks import success

Pair = tuple[tuple[Scene, Running], tuple[Scene, Running]]
GENEROUS: dict[str, Any] = {"members": 100_000, "frame": 8 * 1024**2}
STRICT: dict[str, Any] = {"members": 1_000, "frame": 64 * 1024}
MANY = {f"key{number}": number for number in range(30_000)}
SOME = {f"key{number}": number for number in range(2_000)}


@asynccontextmanager
async def two(folder: Path, engine: Engine | None = None) -> AsyncGenerator[Pair]:
    """Run a strict gateway inside a generous one on `engine`, with an agent and a backend each."""
    async with AsyncExitStack() as stack:
        found: list[tuple[Scene, Running]] = []
        for name, limits in (("generous", GENEROUS), ("strict", STRICT)):
            (folder / name).mkdir()
            one = await stack.enter_async_context(scene(folder / name))
            one.configure({"limits": limits})
            one.engine = None if found else engine
            found.append((one, await stack.enter_async_context(one.running())))
        yield found[0], found[1]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with two(tmp_path) as made:
        yield made


async def test_a_body_is_read_by_the_limit_of_the_gateway_that_gets_it(pair: Pair) -> None:
    (_, generous), (_, strict) = pair
    event = {"kind": "context.updated", "name": "n", "context": MANY}
    await generous.post(f"/v1/sessions/{await generous.session()}/events", event, status=202)
    refused = await strict.http.post(f"/v1/sessions/{await strict.session()}/events", json=event)
    assert (refused.status_code, "more than 1000 members" in refused.text) == (400, True)


async def test_a_frame_is_read_by_the_limits_of_the_gateway_whose_link_gets_it(pair: Pair) -> None:
    (generous, _), (strict, running) = pair
    generous.hooks.scripts["free"] = success()
    large = {"text": "x" * 5 * 1024**2}
    for given in (large, MANY):
        assert (await ended(await generous.agent.call("free", given))).outcome == "success"
    assert "limits.frame allows 65,536" in ((await ended(await strict.agent.call("free", large))).error or "")
    await strict.agent.emit("event", {"type": "speak-status", **SOME})
    (rejected,) = await running.wait_events("frame.rejected")
    assert "more than 1000 members" in rejected["event"]["reason"]


async def test_an_answer_of_a_backend_is_read_by_the_limit_of_the_gateway_that_asked(pair: Pair) -> None:
    for (one, _), outcome in zip(pair, ("success", "failure"), strict=True):
        one.hooks.scripts["ask"] = success(SOME)
        assert (await ended(await one.agent.call("ask", GOOD))).outcome == outcome


async def test_a_gateway_counts_its_own_faults_only(tmp_path: Path) -> None:
    class Unwell(TemporaryEngine):
        async def health(self) -> EngineHealth:
            raise RuntimeError("unforeseen")

    async with two(tmp_path, Unwell(SystemClock())) as ((_, unwell), (_, well)):
        assert (await unwell.http.get("/readyz")).status_code == 500
        assert (await well.http.get("/readyz")).status_code == 200
        assert (await unwell.metrics())['dragoman_faults_total{part="http"}'] == 1
        assert not [name for name in await well.metrics() if name.startswith("dragoman_faults_total")]


async def test_a_line_of_one_gateway_does_not_silence_the_other(pair: Pair) -> None:
    with capture_logs() as lines:
        for _ in range(3):
            for _, running in pair:
                await running.http.get("/v1/sessions", headers={"authorization": "Bearer wrong"})
    assert len([line for line in lines if line["event"] == "request refused"]) == 2


async def test_what_runs_after_a_gateway_has_the_state_from_before(tmp_path: Path) -> None:
    before = Ambient.here()
    async with scene(tmp_path) as one:
        one.configure({"limits": STRICT})
        async with one.running():
            assert find_fault(SOME) is not None
    assert Ambient.here() == before
    assert find_fault(SOME) is None

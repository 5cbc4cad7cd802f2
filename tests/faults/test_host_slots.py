"""A slot that was granted, and that no decision has taken over, is free again."""

from pathlib import Path
from typing import Any

import pytest

from gateway.events import CallProgressed, Envelope, ToolRequested
from gateway.runtime.system_clock import SystemClock, SystemIds
from gateway.runtime.tuning import Tuning
from gateway.store.step import Step
from tests.faults.host_faults import Host, configuration, host
from tests.pace import PATIENCE
from tests.scenarios.environment import until
from tests.scenarios.hooks import SECRET

pytestmark = pytest.mark.slow

ONE_AT_A_TIME: dict[str, Any] = {
    "echo": {
        "type": "webhook",
        "url": "http://echo.invalid",
        "secret": SECRET,
        "concurrency": 1,
        "idempotent": True,
        "attempts": 10,
        "timeout": "60s",
        "deadline": "60s",
    }
}
FOR_GOOD = 1_000_000
CONTEXT = {"kind": "context.updated", "name": "world", "context": {"n": 1}}


async def test_a_slot_is_not_lost_where_what_must_be_read_first_cannot_be_read(tmp_path: Path) -> None:
    tuning = Tuning(sweep=0.5, link_first=0.02, link_longest=0.05)
    runtimes = {name: {**one, "hydrate": True} for name, one in configuration()["runtimes"].items()}
    async with host(tmp_path, runtimes=runtimes, executors=ONE_AT_A_TIME, tuning=tuning) as one:
        await one.post(f"/v1/sessions/{await one.session('finn')}/events", CONTEXT, status=202)
        # The call is queued between two attempts: several of them, since one pause may be too short to be seen.
        one.traps.set("executor.execute, at once", FOR_GOOD)
        asked = await one.asks(one.finn)
        await until(lambda: _is(one, asked, "queued"), within=PATIENCE)
        one.traps.set("executor.execute, at once", 0)
        # Its slot comes together with a link that has come up, for which the store must be read.
        one.traps.set("engine.commit, away", FOR_GOOD)
        one.traps.set("engine.pending_sends, away", FOR_GOOD)
        one.traps.set("link.wait_closed")
        await one.traps.springs("engine.pending_sends, away", 4)
        one.traps.set("engine.commit, away", 0)
        one.traps.set("engine.pending_sends, away", 0)
        await one.told(one.finn, lambda: asked in one.finn.results(), asked)
        await one.is_well()


async def test_a_slot_is_not_lost_with_a_session_whose_history_has_gone_on_elsewhere(tmp_path: Path) -> None:
    async with host(tmp_path, executors=ONE_AT_A_TIME, tuning=Tuning(sweep=0.5)) as one:
        sound = (await one.ids())["sound"]
        one.finn.say(ToolRequested(native_call_id="long", tool="slow"))
        await until(lambda: _is(one, "long", "dispatched"))
        one.sound.say(ToolRequested(native_call_id="next", tool="echo", arguments={"n": 1}))
        await until(lambda: _is(one, "next", "queued"))
        one.traps.set("engine.beat", FOR_GOOD)
        await until(lambda: _lost_leases(one), within=PATIENCE)
        one.traps.set("slow ends")
        await one.traps.springs("slow ends")
        # Somebody else writes to the session that has the slot now.
        progressed = CallProgressed(native_call_id="another", call_id="another", data={})
        clock = SystemClock()
        written = Envelope(SystemIds(clock).event_id(), sound, 0, clock.now(), "to_runtime", progressed, synthetic=True)
        await one.engine.commit(Step(sound, (written,)))
        one.traps.set("engine.beat", 0)
        await one.told(one.sound, lambda: "next" in one.sound.results(), "next")
        await one.is_well()


async def _is(one: Host, asked: str, state: str) -> bool:
    return (await one.call_of(asked))["state"] == state


async def _lost_leases(one: Host) -> float:
    return (await one.metrics())["dragoman_leases_lost_total"]

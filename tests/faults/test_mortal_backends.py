"""Backends that are killed and come back, or stay away: each call ends once, and as few as possible fail."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.testing.runtimes.huma.rules import Dialect
from tests.faults.judge import Request
from tests.faults.mortal_backend import MortalBackend
from tests.faults.scene import Scene
from tests.pace import PATIENCE

pytestmark = [pytest.mark.faults]

stores = pytest.mark.parametrize(("dialect", "store"), [("0.1", "sqlite"), ("0.2", "postgres")])

SILENCE, WITHIN = 1.5, 2.0
"""Seconds after which a silent call is sent again, and for which calls wait for a backend, where a test says so."""
AWAY = 4.0
"""Seconds that a backend takes for its restart, far longer than three attempts with their pauses do."""


class Mortal(Scene):
    """A scene whose executors are asked at a backend in a process of its own, as the defaults say."""

    repeatable = frozenset({"again", "later"})
    reasons = r"outcome unknown: |has been unreachable since "

    def __init__(self, folder: Path, dialect: Dialect, *, options: dict[str, Any] | None = None, **more: Any) -> None:
        super().__init__(folder, dialect, copies=False, **more)
        self.mortal = MortalBackend(folder)
        self._options = options or {}

    async def start_runtime(self) -> None:
        await super().start_runtime()
        await self.mortal.start()

    async def stop_runtime(self) -> None:
        await self.mortal.kill()
        await super().stop_runtime()

    def settings(self, instance: Any, **engine: Any) -> dict[str, Any]:
        made = super().settings(instance, **engine)
        usual: dict[str, Any] = {
            "url": f"{self.mortal.url}/tools",
            "breaker": {},
            "attempts": 3,
            "backoff": {},
            **self._options,
        }
        for name in ("again", "once"):
            made["executors"][name] |= usual
        made["routes"].insert(0, {"match": {"tool": "later"}, "to": "again"})
        return made

    def requests(self) -> list[Request]:
        return [
            Request(
                seen.key,
                seen.content["native_call_id"],
                seen.content["tool"],
                json.dumps(seen.content["arguments"], sort_keys=True),
                tuple(seen.answers),
            )
            for seen in self.mortal.seen()
            if seen.kind == "tool.requested"
        ]


@stores
@pytest.mark.parametrize("gateway_dies", [False, True], ids=["", "with its gateway"])
@pytest.mark.fault("Idempotent backend killed after its 202")
async def test_calls_of_a_backend_that_died_behind_its_202_are_sent_again(
    tmp_path: Path, dialect: Dialect, store: str, *, gateway_dies: bool
) -> None:
    options = {"accepted_silence": f"{SILENCE}s"}
    async with Mortal(tmp_path, dialect, options=options, store=store) as scene:
        await scene.run()
        calls = [await scene.call("later") for _ in range(4)]
        for call in calls:
            await scene.recorded(call, "accepted")
        await scene.mortal.kill()
        if gateway_dies:
            scene.kill()
            await scene.dead()
            await scene.run()
        await scene.mortal.start()
        for call in calls:
            await call.result(PATIENCE)
            assert call.reading is not None
            assert call.reading.outcome == "success"
        await scene.settled()
        await scene.verify()
        asked = [(seen.key, seen.attempt) for seen in scene.mortal.seen()]
        assert sorted(asked) == sorted((key, attempt) for key in {key for key, _ in asked} for attempt in (1, 2))
        await scene.stop()
        await scene.verify_journal()


@stores
@pytest.mark.fault("Backend restarted for four seconds")
async def test_calls_outlast_a_restart_of_their_backend(tmp_path: Path, dialect: Dialect, store: str) -> None:
    async with Mortal(tmp_path, dialect, store=store) as scene:
        await scene.run()
        first = await scene.call("once")
        await first.result(PATIENCE)
        await scene.mortal.kill()
        calls = [await scene.call("once") for _ in range(4)]
        # That it is away for so long is the fault.
        await asyncio.sleep(AWAY)
        await scene.mortal.start()
        for call in calls:
            await call.result(PATIENCE)
            assert call.reading is not None
            assert call.reading.outcome == "success", call.reading
        await scene.settled()
        await scene.verify()
        assert [seen.attempt for seen in scene.mortal.seen()] == [1] * 5
        await scene.stop()
        await scene.verify_journal()


@stores
@pytest.mark.fault("Backend down for longer than `reconnect_within`")
async def test_calls_of_a_backend_that_stays_away_fail_in_words_until_it_is_back(
    tmp_path: Path, dialect: Dialect, store: str
) -> None:
    options = {"reconnect_within": f"{WITHIN}s", "breaker": {"open_for": "1s"}}
    async with Mortal(tmp_path, dialect, options=options, store=store) as scene:
        await scene.run()
        await scene.mortal.kill()
        waiting = [await scene.call("again") for _ in range(4)]
        for call in waiting:
            await call.result(PATIENCE)
        later = await scene.call("again")
        await later.result(PATIENCE)
        for call in (*waiting, later):
            assert call.reading is not None
            assert "has been unreachable since" in (call.reading.error or ""), call.reading
        await scene.mortal.start()
        # The next probe lets all in again; which call is the probe, nobody says.
        async with asyncio.timeout(PATIENCE):
            while True:
                call = await scene.call("again")
                await call.result(PATIENCE)
                assert call.reading is not None
                if call.reading.outcome == "success":
                    break
        await scene.settled()
        rows = await scene.verify()
        assert all(rows[call.call_id]["dead"] and not rows[call.call_id]["unknown"] for call in waiting)
        await scene.stop()
        await scene.verify_journal()

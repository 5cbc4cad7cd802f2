"""A confirmation never leaves once its runtime has stopped waiting: what was said so far is told instead.

The runtime waits for 30 s by its protocol, so the clock is put forward; sockets and timers are real.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.runtime.system_clock import SystemClock
from tests.faults.proxy import Proxy
from tests.scenarios.environment import Running, Scene, ended
from tests.scenarios.hooks import Gate

CHAT = {"match": {"event": "message.posted"}, "to": "cards"}
START = {"kind": "context.updated", "name": "start", "context": {"deck": 1}, "description": "The game began."}
LATE = 30.5


class AheadClock(SystemClock):
    """The real clock, put forward."""

    ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self.ahead

    def timestamp(self) -> float:
        return self.now().timestamp()

    def skip(self, seconds: float) -> None:
        self.ahead += timedelta(seconds=seconds)


@pytest.fixture
def clock(newer: Scene) -> AheadClock:
    newer.clock = made = AheadClock()
    return made


@asynccontextmanager
async def asked_about_a_message(scene: Scene, gateway: Running) -> AsyncGenerator[None]:
    """Let the agent say something that the backend is asked to deliver."""
    await gateway.post(f"/v1/sessions/{await gateway.session()}/events", START, status=202)
    saying = asyncio.create_task(scene.agent.say(["Hello"]))
    await scene.hooks.wait_for(1, name="message.posted")
    try:
        yield
    finally:
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)


def slow(scene: Scene, reply: dict[str, Any], **runtime: Any) -> Gate:
    """Let the backend hold its replies about messages until the gate is open."""
    gate = Gate()
    scene.hooks.scripts["message.posted"] = gate.answering(reply)
    scene.configure({"routes": [CHAT], "runtimes": {"finn": {"confirm_timeout": "60s", **runtime}},
                     # The reply is held for as long as the test needs.
                     "executors": {"cards": {"timeout": "60s"}}})  # fmt: skip
    return gate


async def corrected(scene: Scene) -> None:
    """Wait for the correction, by whatever tells the newest state; the runtime's record has no confirmation then."""
    told = await scene.agent.wait_for(
        lambda frame: "Agent: Hello" in frame.get("context", {}).get("conversationHistory", "")
    )
    assert told.payload["triggering"] is False
    assert told.payload["name"] in {"start", "hydration", "message-correction"}
    # Nobody takes this call; its result comes behind all that was to be said.
    await ended(await scene.agent.call("free", {}))
    assert confirmations(scene) == []


def confirmations(scene: Scene) -> list[Any]:
    return [frame for _, frame in scene.agent.received if frame["type"] == "addon-tool-event"]


async def test_a_backend_that_answers_after_the_time_leads_to_a_correction(newer: Scene, clock: AheadClock) -> None:
    gate = slow(newer, {"delivered": True})
    async with newer.running() as gateway, asked_about_a_message(newer, gateway):
        clock.skip(LATE)
        gate.open()
        await corrected(newer)
        [confirmed] = await gateway.wait_events("message.confirmed")
        assert [loss["note"] for loss in confirmed["losses"]] == ["not sent: the runtime waits 30 s at most"]


async def test_a_gateway_that_was_away_too_long_corrects_what_it_asks_about_again(
    newer: Scene, clock: AheadClock
) -> None:
    newer.configure({"limits": {"drain": "100ms"}})
    gate = slow(newer, {"delivered": True})
    async with newer.running() as gateway, asked_about_a_message(newer, gateway):
        pass
    clock.skip(LATE)
    gate.open()
    async with newer.running() as gateway:
        await corrected(newer)
        assert len(await gateway.events(kind="message.confirmed")) == 1


@pytest.mark.parametrize("away", [False, True], ids=["link comes back late", "gateway comes back late"])
async def test_a_confirmation_that_waited_for_a_link_is_not_sent_too_late(
    newer: Scene, clock: AheadClock, away: bool
) -> None:
    gate = slow(newer, {"delivered": True})
    async with newer.running() as gateway, asked_about_a_message(newer, gateway):
        newer.huma.refuse("finn", "BUSY")
        await newer.agent.drop()
        await gateway.wait_events("link.changed", state="down")
        gate.open()
        await gateway.wait_events("message.confirmed")
        if not away:
            clock.skip(LATE)
            newer.huma.refuse("finn", None)
            await corrected(newer)
    if away:
        clock.skip(LATE)
        newer.huma.refuse("finn", None)
        async with newer.running():
            await corrected(newer)


@pytest.mark.parametrize("updates", [10, 25], ids=["in its lane", "in the ledger"])
async def test_a_confirmation_behind_a_send_that_is_stuck_is_not_sent_too_late(
    newer: Scene, clock: AheadClock, updates: int
) -> None:
    server = urlsplit(newer.huma.url)
    async with Proxy((str(server.hostname), int(server.port or 0))) as wire:
        gate = slow(newer, {"delivered": True, "context": {}}, url=wire.url)
        async with newer.running() as gateway, asked_about_a_message(newer, gateway):
            path = f"/v1/sessions/{await gateway.session()}/events"
            wire.half_open()
            for number in range(updates):
                # The first are more than all buffers on the way hold, and the others too large to wait in a lane.
                text = secrets.token_hex(1_000_000 if number < 10 else 50_000)
                heavy = {**START, "name": f"heavy-{number}", "context": {"text": text}}
                await gateway.post(path, heavy, status=202)
            gate.open()
            await gateway.wait_events("message.confirmed")
            assert not any(name.startswith("heavy") for name, _ in newer.updates())
            clock.skip(LATE)
            wire.heal(keep=True)
            await corrected(newer)
            assert newer.updates()[0][0] == "start"


async def test_a_confirmation_in_time_is_sent_from_behind_a_send_that_was_stuck(
    newer: Scene, clock: AheadClock
) -> None:
    server = urlsplit(newer.huma.url)
    async with Proxy((str(server.hostname), int(server.port or 0))) as wire:
        gate = slow(newer, {"delivered": True, "context": {}}, url=wire.url)
        async with newer.running() as gateway, asked_about_a_message(newer, gateway):
            wire.half_open()
            gate.open()
            await gateway.wait_events("message.confirmed")
            clock.skip(LATE - 10)
            wire.heal(keep=True)
            await newer.agent.wait_for(lambda frame: frame["type"] == "addon-tool-event")
    assert len(confirmations(newer)) == 1
    assert "message-correction" not in [name for name, _ in newer.updates()]

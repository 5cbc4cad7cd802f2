"""What is said again after a restart or a cut, and in which form (gateway/core/README.md#replays)."""

import json
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from fastapi.responses import Response

from gateway.runtime.app import Gateway
from tests.faults.proxy import Proxy
from tests.scenarios.environment import API_KEY, GOOD, Running, Scene, ended, plain_http, until
from tests.scenarios.fleet import message
from tests.scenarios.hooks import success
from tests.scenarios.served import START, Served, serving

INTERRUPT = {"kind": "turn.interrupted"}
LEFT = 'dragoman_frames_total{direction="to_runtime",runtime="finn"}'
TEXT = {"kind": "message.posted", "content": "Your turn, Finn!"}


def texts(scene: Scene) -> list[bool]:
    """Say of each frame that carried the message whether it woke the agent."""
    return [frame["triggering"] for _, frame in scene.agent.received if frame.get("context", {}).get("message")]


async def said(scene: Scene, count: int) -> None:
    """Wait until the message has come so often."""

    async def look() -> bool:
        return len(texts(scene)) >= count

    await until(look)


@pytest.mark.parametrize("cut", ["restart", "link"])
async def test_a_wake_that_is_said_again_does_not_cancel_the_calls_that_it_led_to(newer: Scene, cut: str) -> None:
    newer.configure({"runtimes": {"finn": {"delivery_window": "30s"}}})
    newer.hooks.scripts["ask"] = Response(status_code=202)
    async with newer.running() as gateway:
        await gateway.post(f"/v1/sessions/{await gateway.session()}/events", TEXT, status=202)
        await said(newer, 1)
        call = await newer.agent.call("ask", GOOD)
        [asked] = await newer.hooks.wait_for(1)
        await gateway.wait_call(call.call_id, "accepted")
        if cut == "link":
            await newer.agent.drop()
            await said(newer, 2)
            assert texts(newer) == [True, False]
    async with newer.running() as gateway:
        await said(newer, 2)
        assert set(texts(newer)[1:]) == {False}
        async with plain_http() as http:
            assert (await http.post(asked.data["callback_url"], json=success("cards"))).status_code == 200
        assert (await ended(call)).outcome == "success"


async def test_a_wake_that_may_be_lost_is_said_again_as_it_was_where_no_call_is_open(newer: Scene) -> None:
    newer.configure({"runtimes": {"finn": {"delivery_window": "30s"}}})
    async with newer.running() as gateway:
        await gateway.post(f"/v1/sessions/{await gateway.session()}/events", TEXT, status=202)
        await said(newer, 1)
    async with newer.running():
        await said(newer, 2)
        assert texts(newer) == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("heard", [True, False], ids=["heard", "lost on the wire"])
async def test_messages_and_interrupts_that_a_killed_gateway_had_just_sent(both: Scene, heard: bool) -> None:
    both.configure({"runtimes": {"finn": {"delivery_window": "60s"}}})
    port = int(both.huma.url.rsplit(":", 1)[1])
    posts = (message("one"), INTERRUPT, message("two"), {**INTERRUPT, "reason": "Really."})
    async with Proxy(("127.0.0.1", port)) as wire:
        both.configure({"runtimes": {"finn": {"url": wire.url}}})
        async with process(both) as (served, gateway):
            if not heard:
                wire.half_open()
            path = f"/v1/sessions/{await gateway.session()}/events"
            sequences = [(await gateway.post(path, post, status=202))["data"][0]["sequence"] for post in posts]

            async def left() -> bool:
                return (await gateway.metrics()).get(LEFT, 0) >= len(posts)

            await until(left)
            if heard:
                await until(lambda: _has_heard(both, len(posts)))
            await served.stop(signal.SIGKILL)
    first = told(both)
    assert len(first) == (len(posts) if heard else 0)
    async with Proxy(("127.0.0.1", port)) as wire, _through(wire, both) as gateway:
        # Messages that ride in a context are said again, each; of interrupts the newest stands for all.
        owed = ["one", "two", "Really."] if both.dialect == "0.2" else ["Really."]
        await until(lambda: _has_heard(both, len(first) + len(owed)))
        # Whatever was still to come has come by the time that a later message is there.
        await gateway.post(path, message("later"), status=202)
        await until(lambda: _has_heard(both, len(first) + len(owed) + 1))
        *again, later = told(both)[len(first) :]
        assert [word for word, frame in zip(owed, again, strict=True) if word in json.dumps(frame)] == owed
        assert "later" in json.dumps(later)
        assert not heard or again[-1] == first[-1]
        # The context of a 0.2.0 agent has the whole conversation; a 0.1 agent has each message by itself.
        for frame in again if both.dialect == "0.2" else []:
            history = frame["context"]["conversationHistory"]
            assert [text for text in ("one", "two") if text in history] == ["one", "two"]
        # A plain message would count as a new one, so none is said twice, and none is forgotten.
        unsure = {sequences[0], sequences[2]} if both.dialect == "0.1" else set[int]()
        if unsure:
            await gateway.wait_events("delivery.settled", len(unsure), state="unknown")
        letters = (await gateway.get("/v1/dead-letters"))["data"]
        assert {(letter["sequence"], letter["state"]) for letter in letters} == {(n, "unknown") for n in unsure}
        # An operator who has looked may have them said after all, each once; also while there is no link.
        wire.refuse()
        wire.cut()
        await gateway.wait_link("down")
        for letter in letters:
            await gateway.post(f"/v1/dead-letters/{letter['id']}/redrive", status=202)
        wire.heal()
        await until(lambda: _has_heard(both, len(first) + len(owed) + 1 + len(letters)))
        assert (await gateway.get("/v1/dead-letters"))["data"] == []


@asynccontextmanager
async def process(scene: Scene) -> AsyncGenerator[tuple[Served, Running]]:
    """Run a gateway in a process of its own, with its link up."""
    links = scene.agent.connections
    async with serving(scene) as served, plain_http() as http:
        http.base_url, http.headers = served.url, {"authorization": f"Bearer {API_KEY}"}
        await until(served.ready, within=START)
        await scene.agent.wait_connections(links + 1)
        # The gateway itself is in another process.
        gateway = Running(cast("Gateway", None), served.url, http)
        await gateway.wait_link("up")
        yield served, gateway


@asynccontextmanager
async def _through(wire: Proxy, scene: Scene) -> AsyncGenerator[Running]:
    scene.configure({"runtimes": {"finn": {"url": wire.url}}})
    async with process(scene) as (_, gateway):
        yield gateway


def told(scene: Scene) -> list[dict[str, Any]]:
    """List the frames that made the agent work, as they came."""
    return [payload for _, payload in scene.agent.received if scene.dialect == "0.1" or payload["triggering"]]


async def _has_heard(scene: Scene, count: int) -> bool:
    return len(told(scene)) >= count

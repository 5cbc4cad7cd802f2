"""Followers and destinations where several gateways share a store: nothing is missed, nothing comes twice."""

import asyncio
from typing import Any

import pytest
from fastapi import Response

from gateway.runtime.tuning import Tuning
from tests.scenarios.environment import GOOD, EventSource, Scene, ended, until
from tests.scenarios.hooks import SECRET, Asked
from tests.scenarios.replicas import LEASE, Faulty, Replica, cluster, owner_and_other

MESSAGE = {"kind": "message.posted", "content": "Your turn, Finn!"}


async def collect(source: EventSource, upto: str, times: int = 1) -> list[int]:
    """Read on until a kind has come so often; returns the sequences."""
    found: list[int] = []
    while times:
        item = await source.next()
        if "id" in item:
            found.append(int(item["id"].partition(".")[0]))
            times -= item["event"] == upto
    return found


async def types(scene: Scene) -> None:
    """Let the agent begin to type and stop again, which is only live."""
    burst = {"type": "messaging", "toolCallId": "burst"}
    await scene.agent.emit("event", {**burst, "event": "typing_start"})
    await scene.agent.emit("event", {**burst, "event": "typing_end", "reason": "canceled"})


async def interest(scene: Scene, source: EventSource) -> None:
    """Wait until the owner knows that somebody follows elsewhere: only then is anything shown that is only live."""
    seeing = asyncio.create_task(source.next())
    while not seeing.done():
        await types(scene)
        await asyncio.wait({seeing}, timeout=0.05)
    assert (await seeing)["event"] == "typing.changed"


async def test_a_follower_at_the_other_instance_sees_everything_as_it_happens(newer: Scene) -> None:
    # By notifications, since no look comes in time.
    newer.tuning = Tuning(feed_look=3_600.0, feed_look_idle=3_600.0)
    store = cluster(newer)
    async with store.replica(lease=20) as a, store.replica(lease=20) as b:
        session_id = await a.session()
        _, other = await owner_and_other(session_id, [a, b])
        await a.wait_events("link.changed")
        async with other.stream(session_id, after=0) as source:
            seen = await collect(source, "link.changed")
            await interest(newer, source)
            for _ in range(3):
                assert (await ended(await newer.agent.call("free", {}))).outcome == "success"
                seen += await collect(source, "tool.finished")
        assert seen == list(range(1, len(seen) + 1))


async def test_a_follower_at_the_other_instance_sees_what_is_only_live(newer: Scene) -> None:
    store = cluster(newer)
    async with store.replica(lease=20) as a, store.replica(lease=20) as b:
        session_id = await a.session()
        _, other = await owner_and_other(session_id, [a, b])
        async with other.stream(session_id, after=0) as source:
            await collect(source, "link.changed")
            await interest(newer, source)
            # What was typed until then has come before this.
            await ended(await newer.agent.call("free", {}))
            await collect(source, "tool.finished")
            for _ in range(12):
                await types(newer)
            seen = [await source.next() for _ in range(24)]
        assert all(item["event"] == "typing.changed" and "id" not in item for item in seen)
        assert [item["data"]["event"]["typing"] for item in seen] == [True, False] * 12
        assert [item["data"]["live"] for item in seen] == [True] * 24


@pytest.mark.slow
async def test_when_every_notification_is_lost_news_come_late_and_whole(newer: Scene) -> None:
    store = cluster(newer)
    async with store.replica(prepare=_deafen) as a, store.replica(prepare=_deafen) as b:
        session_id = await a.session()
        one, other = await owner_and_other(session_id, [a, b])
        async with other.stream(session_id, after=0) as source:
            seen = await collect(source, "link.changed")
            for _ in range(3):
                await ended(await newer.agent.call("free", {}))
                seen += await collect(source, "tool.finished")
        assert seen == list(range(1, len(seen) + 1))
        await one.gateway.drain()
        await other.wait_carries(session_id, within=4 * LEASE)
        assert (await ended(await newer.agent.call("free", {}))).outcome == "success"


@pytest.mark.slow
async def test_a_follower_stays_whole_while_the_session_changes_hands(newer: Scene) -> None:
    store = cluster(newer)
    async with store.replica() as a, store.replica() as b:
        session_id = await a.session()
        one, other = await owner_and_other(session_id, [a, b])
        async with other.stream(session_id, after=0) as there, one.stream(session_id, after=0) as here:
            await ended(await newer.agent.call("free", {}))
            seen = {"there": await collect(there, "tool.finished"), "here": await collect(here, "tool.finished")}
            # From one to the other and back; both followers stay connected.
            for loser, winner in ((one, other), (other, one)):
                loser.faults.cut_off = True
                await winner.wait_carries(session_id, within=4 * LEASE)
                loser.faults.cut_off = False
                await ended(await newer.agent.call("ask", GOOD))
                seen["there"] += await collect(there, "tool.finished")
                seen["here"] += await collect(here, "tool.finished")
                await _lives(loser)
            assert seen["there"] == seen["here"] == list(range(1, len(seen["here"]) + 1))
            assert (await other.http.delete(f"/v1/sessions/{session_id}")).status_code == 204
            for source in (there, here):
                await collect(source, "session.closed")
                with pytest.raises(AssertionError, match="the stream has ended"):
                    await source.next()


async def test_a_quiet_follower_elsewhere_has_no_reader_once_it_left(newer: Scene) -> None:
    newer.tuning = Tuning(feed_look=0.05)
    store = cluster(newer)
    async with store.replica() as a, store.replica() as b:
        session_id = await a.session()
        _, other = await owner_and_other(session_id, [a, b])
        before = len(asyncio.all_tasks())
        for _ in range(5):
            async with other.stream(session_id):
                pass

        async def gone() -> bool:
            return len(asyncio.all_tasks()) <= before

        await until(gone)


async def test_copies_leave_once_wherever_they_were_made(newer: Scene) -> None:
    # By notifications, since no look comes in time.
    newer.tuning = Tuning(delivery_look=60.0)
    store = cluster(newer)
    newer.huma.agent("gill")

    async def slowly(_asked: Asked) -> Response:
        # Long enough for another delivery to find it pending.
        await asyncio.sleep(0.15)
        return Response(status_code=204)

    newer.hooks.scripts["tool.finished"] = slowly
    settings: dict[str, Any] = {
        "destinations": {"log": {"url": f"{newer.hooks.url}/events", "secret": SECRET}},
        "routes": [
            {"match": {"tool": "*"}, "to": "cards"},
            {"match": {"event": "tool.finished"}, "copy_to": "log"},
        ],
    }
    async with store.replica(lease=20, **settings) as a, store.replica(lease=20, **settings) as b:
        opened = await b.post("/v1/sessions", {"runtime": "finn", "native_id": "gill"}, status=201)
        await b.wait_carries(opened["session_id"])
        for _ in range(5):
            for name in ("finn", "gill"):
                await ended(await newer.huma.agent(name).call("free", {}))
        await newer.hooks.wait_for(10, name="tool.finished")
        # Whoever holds the destination leaves; the other one goes on with it.
        session_id = (await a.get("/v1/sessions"))["data"][0]["session_id"]
        await a.gateway.drain()
        await b.wait_carries(session_id)
        for _ in range(5):
            await ended(await newer.agent.call("free", {}))
        await newer.hooks.wait_for(15, name="tool.finished")
    # Whatever was under way has ended with its gateway.
    copies = [asked for asked in newer.hooks.asked if asked.kind == "tool.finished"]
    assert len(copies) == len({copy.key for copy in copies}) == 15


async def _lives(one: Replica) -> None:
    async def look() -> bool:
        shown = (await one.get("/v1/instances"))["data"]
        return any(row["url"] == one.url and row["alive"] for row in shown)

    await until(look)


def _deafen(engine: Faulty) -> None:
    engine.deaf = True

"""Two gateway processes on PostgreSQL that get the same request at the same instant, and one that dies at work."""

import asyncio
import signal
from collections import Counter
from itertools import count
from typing import Any

import httpx
import pytest
from fastapi import Response

from tests.faults.proxy import Proxy
from tests.pace import PATIENCE
from tests.scenarios.environment import GOOD, EventSource, Scene, ended, until
from tests.scenarios.hooks import SECRET, Gate, success
from tests.scenarios.replica_processes import Fleet, Serving, fleet
from tests.scenarios.replicas import cluster
from tests.scenarios.test_api import CREATED

ROUNDS = 10
MESSAGE = {"kind": "message.posted", "content": "Your turn, Finn!"}


async def pair(gateways: Fleet) -> tuple[str, Serving, Serving]:
    """Start two processes; the first one carries the session."""
    one, two = await gateways.serve("one"), await gateways.serve("two")
    session_id = await one.session()
    await until(lambda: _carried(session_id, one, two))
    return (session_id, one, two) if await one.carries(session_id) else (session_id, two, one)


async def _carried(session_id: str, *gateways: Serving) -> bool:
    return any([await gateway.carries(session_id) for gateway in gateways])


@pytest.mark.slow
async def test_one_key_posts_one_event_wherever_it_is_sent(newer: Scene) -> None:
    async with fleet(newer, lease="20s") as gateways:
        session_id, one, two = await pair(gateways)
        path = f"/v1/sessions/{session_id}/events"
        for number in range(ROUNDS):
            key = {"idempotency-key": f"k{number}"}
            posts = (gateway.http.post(path, json=MESSAGE, headers=key) for gateway in (one, two))
            answers = await asyncio.gather(*posts)
            assert [answer.status_code for answer in answers] == [202, 202]
            assert answers[0].content == answers[1].content
            assert sum("idempotency-replayed" in answer.headers for answer in answers) == 1
        assert len(await one.events(session_id, kind="message.posted")) == ROUNDS


@pytest.mark.slow
async def test_one_key_creates_one_native_session_wherever_it_is_sent(newer: Scene) -> None:
    newer.configure({"runtimes": {"finn": CREATED}})
    async with fleet(newer, lease="20s") as gateways:
        one, two = await gateways.serve("one"), await gateways.serve("two")
        before = len(newer.huma.agents)
        for number in range(ROUNDS):
            key = {"idempotency-key": f"k{number}"}
            posts = (gateway.http.post("/v1/sessions", json={"runtime": "finn"}, headers=key) for gateway in (one, two))
            answers = await asyncio.gather(*posts)
            assert [answer.status_code for answer in answers] == [201, 201]
            assert answers[0].content == answers[1].content
            assert sum("idempotency-replayed" in answer.headers for answer in answers) == 1
        assert len(newer.huma.agents) == before + ROUNDS
        assert len((await one.get("/v1/sessions"))["data"]) == ROUNDS


@pytest.mark.slow
async def test_one_native_session_is_opened_once_wherever_and_however_often_it_is_asked_for(newer: Scene) -> None:
    newer.configure({"runtimes": {"finn": CREATED}})
    async with fleet(newer, lease="20s") as gateways:
        both = await gateways.serve("one"), await gateways.serve("two")
        for number in range(4 * ROUNDS):
            wanted = {"runtime": "finn", "native_id": f"n{number}"}
            posts = (gateway.http.post("/v1/sessions", json=wanted) for gateway in both * 2)
            answers = await asyncio.gather(*posts)
            assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201], [a.text for a in answers]
            assert len({answer.json()["session_id"] for answer in answers}) == 1
        assert [gateway.process and gateway.process.returncode for gateway in both] == [None, None]


@pytest.mark.slow
async def test_a_key_is_waited_for_and_free_once_the_lease_of_its_killed_holder_has_run_out(newer: Scene) -> None:
    newer.configure({"runtimes": {"finn": {**CREATED, "connect_timeout": "60s"}}})
    port = int(newer.huma.url.rsplit(":", 1)[1])
    async with fleet(newer) as gateways, Proxy(("127.0.0.1", port)) as wire:
        # What the first one asks of the runtime is never heard there.
        wire.half_open()
        one = await gateways.serve("one", runtimes={"finn": {"url": wire.url}})
        two = await gateways.serve("two")
        before = len(newer.huma.agents)
        key, wanted = {"idempotency-key": "k"}, {"runtime": "finn"}
        first = asyncio.create_task(one.http.post("/v1/sessions", json=wanted, headers=key))
        await until(lambda: _reached(wire))
        second = asyncio.create_task(two.http.post("/v1/sessions", json=wanted, headers=key))
        # Long enough for it to have asked the runtime, were it not to wait.
        done, _ = await asyncio.wait({second}, timeout=1)
        assert not done
        assert len(newer.huma.agents) == before
        one.signal(signal.SIGKILL)
        async with asyncio.timeout(PATIENCE):
            answer = await second
        assert (answer.status_code, len(newer.huma.agents)) == (201, before + 1)
        assert "idempotency-replayed" not in answer.headers
        with pytest.raises(httpx.TransportError):
            await first


async def _reached(wire: Proxy) -> bool:
    return wire.opened > 0


@pytest.mark.slow
async def test_two_bulk_redrives_at_once_redrive_each_dead_letter_once(newer: Scene) -> None:
    copies = {"url": f"{newer.hooks.url}/copies/log", "secret": SECRET, "attempts": 1}
    newer.configure(
        {
            "executors": {"cards": {"attempts": 1, "breaker": "off"}},
            "destinations": {"log": copies},
            "routes": [
                {"match": {"event": "tool.finished"}, "copy_to": "log"},
                {"match": {"tool": "*"}, "to": "cards"},
            ],
        }
    )
    newer.hooks.scripts["ask"] = newer.hooks.scripts["/copies/log"] = Response(status_code=500)
    async with fleet(newer, lease="20s") as gateways:
        _, one, two = await pair(gateways)
        calls = [await newer.agent.call("ask", GOOD) for _ in range(20)]
        for call in calls:
            assert (await ended(call)).outcome == "failure"

        async def all_dead() -> list[dict[str, Any]] | None:
            found = (await one.get("/v1/dead-letters", limit=100))["data"]
            return found if len(found) == 2 * len(calls) else None

        await until(all_dead)
        newer.hooks.asked.clear()
        newer.hooks.scripts["ask"] = success("at last")
        newer.hooks.scripts["/copies/log"] = Response()
        redrives = (gateway.post("/v1/dead-letters/redrive", {}, status=200) for gateway in (one, two))
        done = await asyncio.gather(*redrives)
        assert sum(each["redriven"] for each in done) == 2 * len(calls), done
        # Whoever was too late says so of each letter that it had found.
        assert all(each["redriven"] + len(each["failed"]) == each["found"] for each in done), done

        async def all_done() -> bool:
            rows = (await one.get("/v1/calls", limit=500))["data"]
            again = [row for row in rows if row["redrive_of"] is not None]
            assert max(Counter(row["redrive_of"] for row in again).values(), default=1) == 1
            return len(again) == len(calls) and all(row["state"] == "succeeded" for row in again)

        await until(all_done)
        # The first copies, and those of the outcomes of the calls that were redriven.
        await newer.hooks.wait_for(2 * len(calls), name="tool.finished")
        assert set(Counter(asked.key for asked in newer.hooks.asked).values()) == {1}
        assert len(newer.hooks.of("ask")) == len(calls)
        assert (await one.get("/v1/dead-letters"))["data"] == []


async def test_a_letter_that_is_redriven_while_it_is_looked_up_is_not_redriven_again(newer: Scene) -> None:
    newer.configure({"executors": {"cards": {"idempotent": False}}})
    newer.hooks.scripts["ask"] = Response(status_code=500)
    async with cluster(newer).replica(lease=20) as gateway:
        await gateway.wait_link("up")
        await ended(await newer.agent.call("ask", GOOD))
        [letter] = (await gateway.get("/v1/dead-letters"))["data"]
        path = f"/v1/dead-letters/{letter['id']}/redrive"
        newer.hooks.scripts["ask"] = success("at last")
        found, other_done, looks = asyncio.Event(), asyncio.Event(), count(1)

        async def wait_for_the_other() -> None:
            # The first look finds the letter; before the next one another request redrives it.
            if next(looks) == 2:
                found.set()
                await other_done.wait()

        gateway.faults.before_call = wait_for_the_other
        late = asyncio.create_task(gateway.http.post(path))
        async with asyncio.timeout(PATIENCE):
            await found.wait()
        gateway.faults.before_call = None
        assert (await gateway.http.post(path)).status_code == 202
        other_done.set()
        assert (await late).status_code == 409
        await newer.hooks.wait_for(2, name="ask")
        rows = (await gateway.get("/v1/calls"))["data"]
        assert sum(row["redrive_of"] == letter["id"] for row in rows) == 1


@pytest.mark.slow
async def test_a_follower_of_a_killed_process_goes_on_at_the_other_where_it_was(newer: Scene) -> None:
    gate = Gate()
    newer.hooks.scripts["ask"] = gate.answering(success())
    async with fleet(newer) as gateways:
        session_id, one, two = await pair(gateways)
        seen: list[int] = []
        async with one.stream(session_id, after=0) as source:
            for number in range(3):
                await ended(await newer.agent.call("free", {"n": number}))
                seen += await _numbers(source, "tool.finished")
            # It dies in the middle of a call, of which the follower has not seen the end.
            call = await newer.agent.call("ask", GOOD)
            await newer.hooks.wait_for(name="ask")
            one.signal(signal.SIGKILL)
            await one.ended()
        async with two.stream(session_id, last=seen[-1]) as source:
            seen += await _numbers(source, "tool.requested")
            await two.wait_carries(session_id)
            gate.open()
            await ended(call)
            seen += await _numbers(source, "tool.finished")
        assert seen == list(range(1, len(seen) + 1))
        assert [event["sequence"] for event in await two.events(session_id)][: len(seen)] == seen


async def _numbers(source: EventSource, upto: str) -> list[int]:
    """Read on to the next event of a kind; returns the sequences."""
    return [int(item["id"].partition(".")[0]) for item in await source.until(upto) if "id" in item]

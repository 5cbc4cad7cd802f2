"""One value of 200,000 members from a runtime, on every wire: it is parsed and rejected, and the next one is read."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from importlib import import_module
from itertools import pairwise
from statistics import median
from typing import Any

import orjson
import pytest

from gateway.strict_json import MOST, Malformed, find_fault
from gateway.testing.conformance.link import Collector
from tests.adapters import test_huma_links as huma
from tests.adapters.herm import links as herm
from tests.adapters.herm.raw_herm import RawHerm, RestAnswer
from tests.adapters.openhands import test_openhands_links as openhands
from tests.adapters.openhands.raw_openhands import CONVERSATION, RawOpenHands, thought
from tests.adapters.raw_huma import RawHuma
from tests.pace import within

pytestmark = pytest.mark.timing
TOO_MANY = f"has more than {MOST} members in all (limits.members)"
# Adapters load it when it is needed first, which is no part of what is measured.
for name in ("herm", "huma", "openhands"):
    import_module(f"adapters.{name}.connector")


def members(count: int) -> dict[str, int]:
    return {f"key{number}": number for number in range(count)}


OVER = orjson.dumps(members(200_000))
FULL = orjson.dumps(members(MOST))


@cache
def hold() -> float:
    """Seconds of CPU that one turn of the loop may take: half more than parsing and checking 200,000 members."""
    taken: list[float] = []
    for _ in range(3):
        began = time.thread_time()
        find_fault(orjson.loads(OVER))
        taken.append(time.thread_time() - began)
    return 1.5 * median(taken)


@asynccontextmanager
async def loop_is_held_no_longer_than(seconds: float) -> AsyncGenerator[None]:
    """Measure each turn of the loop by the CPU it took."""
    turns = [time.thread_time()]

    async def watch() -> None:
        while True:
            await asyncio.sleep(0)
            turns.append(time.thread_time())

    watching = asyncio.ensure_future(watch())
    yield
    watching.cancel()
    assert max(later - earlier for earlier, later in pairwise(turns)) < seconds


def check(payload: object) -> None:
    assert isinstance(payload, Malformed)
    assert payload.reason == TOO_MANY


async def test_a_frame_of_too_many_members_is_rejected_and_the_next_one_is_read() -> None:
    collector = Collector()
    full = orjson.dumps(["event", members(MOST - 2)]).decode()
    async with RawHuma().serve() as server, huma.linked(server, collector):
        async with loop_is_held_no_longer_than(within(hold())):
            await server.say_raw(f'2["event",{OVER.decode()}]', f"2{full}", '2["event",{"last":1}]')
            frames = await collector.wait_for(3)
        check(frames[0].payload)
        assert [frame.payload for frame in frames[1:]] == [members(MOST - 2), {"last": 1}]


async def test_an_event_of_too_many_members_is_rejected_and_the_stream_goes_on() -> None:
    record = herm.RecordingBackend()
    async with RawHerm().serve() as server, herm.linked(server, record):
        await server.connected()
        async with loop_is_held_no_longer_than(within(hold())):
            await server.raw(*(b"data: " + event + b"\n\n" for event in (OVER, FULL, b'{"last":1}')))
            frames = await record.wait_for(3)
        check(frames[0].payload)
        assert [frame.payload for frame in frames[1:]] == [members(MOST), {"last": 1}]


async def test_a_history_of_many_large_events_is_read_but_for_one_that_is_too_large() -> None:
    record = herm.RecordingBackend()
    events: list[Any] = [{"id": f"evt_{number}", "sequence": number, **members(MOST - 2)} for number in range(20)]
    page = b",".join([OVER, *map(orjson.dumps, events), OVER])
    async with RawHerm().serve() as server:
        server.lists.append(RestAnswer(200, b'{"hasMore": true, "data": [' + page + b"]}"))
        server.lists.append(RestAnswer(200, {"hasMore": False, "data": [{"id": "evt_last", "sequence": 20}]}))
        # The server, which writes its page in this loop too, takes most of a turn.
        async with loop_is_held_no_longer_than(within(1.25 * hold())), herm.linked(server, record):
            frames = await record.wait_for(23)
    strange = [frame.payload for frame in frames if isinstance(frame.payload, Malformed)]
    assert len(strange) == 2
    for payload in strange:
        check(payload)


async def test_a_store_page_of_too_many_members_is_read_but_for_the_event_that_has_them() -> None:
    server, collector = RawOpenHands(), Collector()
    last = {**thought(1), "extras": members(100)}
    page = b",".join([orjson.dumps({**thought(0), "extras": members(MOST // 2)}), OVER, orjson.dumps(last)])
    server.answers[f"/api/conversations/{CONVERSATION}/events"] = (200, b'{"has_more":false,"events":[' + page + b"]}")
    async with loop_is_held_no_longer_than(within(hold())), server.serve(), openhands.linked(server, collector):
        frames = await collector.wait_for(3)
    check(frames[0].payload)
    assert [frame.payload["id"] for frame in frames[1:]] == [0, 1]

"""The budget of frames, and how an inbox keeps to it."""

import asyncio

import pytest

from gateway.adapter.port import Frame
from gateway.links.frame_memory import FRAMES, SMALL, FrameMemory
from gateway.runtime.session.inbox import Inbox
from gateway.runtime.signals import FrameArrived
from gateway.strict_json import Malformed

BIG = SMALL + 1


@pytest.fixture
def memory() -> FrameMemory:
    memory = FrameMemory()
    memory.most, memory.largest = 2 * BIG, 10 * BIG
    return memory


def make_inbox(memory: FrameMemory, *, resumes: bool, overflows: list[str] | None = None) -> Inbox:
    told = [] if overflows is None else overflows
    FRAMES.set(memory)
    return Inbox(
        frames=100,
        size=100 * BIG,
        resumes=resumes,
        is_live=lambda _: False,
        overflow=told.append,
        filled=lambda: None,
    )


async def test_frames_wait_in_turn_until_there_is_room(memory: FrameMemory) -> None:
    memory.hold(2 * BIG)
    order: list[str] = []

    async def arrive(name: str) -> None:
        assert await memory.wait_capacity(BIG, within=20)
        memory.hold(BIG)
        order.append(name)

    waiting = [asyncio.create_task(arrive(name)) for name in "abc"]
    await asyncio.sleep(0)
    memory.release(BIG)
    done, _ = await asyncio.wait(waiting, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), order) == (1, ["a"])
    memory.release(2 * BIG)
    await asyncio.gather(*waiting)
    assert order == ["a", "b", "c"]
    assert memory.held == 2 * BIG


async def test_a_frame_that_waits_too_long_is_told_so(memory: FrameMemory) -> None:
    memory.hold(2 * BIG)
    assert not await memory.wait_capacity(BIG, within=0.01)
    assert await memory.wait_capacity(SMALL, within=0.01)
    memory.release(2 * BIG)
    assert await memory.wait_capacity(100 * BIG, within=0.01)


async def test_a_canceled_wait_gives_its_turn_to_the_next(memory: FrameMemory) -> None:
    memory.hold(2 * BIG)
    first = asyncio.create_task(memory.wait_capacity(BIG, within=20))
    second = asyncio.create_task(memory.wait_capacity(BIG, within=20))
    await asyncio.sleep(0)
    first.cancel()
    memory.release(2 * BIG)
    assert await second


async def test_a_batch_counts_until_it_is_done(memory: FrameMemory) -> None:
    inbox = make_inbox(memory, resumes=False)
    inbox.put_frame(Frame("event", {}, BIG), None)
    assert memory.held == BIG
    batch = inbox.take(10, size=100 * BIG)
    assert (inbox.bytes, memory.held) == (0, BIG)
    inbox.put_back(batch)
    inbox.take(10, size=100 * BIG)
    assert memory.held == BIG
    inbox.done()
    assert memory.held == 0


async def test_an_inbox_whose_session_ends_takes_its_frames_out_of_the_budget(memory: FrameMemory) -> None:
    inbox = make_inbox(memory, resumes=False)
    inbox.put_frame(Frame("event", {}, BIG), None)
    inbox.take(10, size=100 * BIG)
    inbox.put_frame(Frame("event", {}, BIG), None)
    assert memory.held == 2 * BIG
    assert len(inbox.take_all()) == 1
    assert memory.held == 0
    inbox.put_frame(Frame("event", {}, BIG), None)
    assert memory.held == 0
    assert len(inbox.take_all()) == 1
    assert memory.held == 0


async def test_without_room_a_link_that_resumes_is_cut_and_another_gets_a_rejected_frame(memory: FrameMemory) -> None:
    memory.hold(2 * BIG)
    overflows: list[str] = []
    resuming = make_inbox(memory, resumes=True, overflows=overflows)
    resuming.put_frame(Frame("event", {}, BIG), "1")
    assert (resuming.empty, len(overflows)) == (True, 1)
    other = make_inbox(memory, resumes=False)
    other.put_frame(Frame("event", {"a": 1}, BIG), None)
    other.put_frame(Frame("event", {"a": 2}, SMALL), None)
    rejected, small = [one for one in other.take(10, size=100 * BIG) if isinstance(one, FrameArrived)]
    assert rejected.frame.payload == Malformed(
        f"the frame has {BIG:,} bytes; other frames take all of limits.frame_memory", '{"a":1}'
    )
    assert small.frame.payload == {"a": 2}


async def test_a_frame_over_the_limit_is_rejected_and_keeps_its_cursor(memory: FrameMemory) -> None:
    inbox = make_inbox(memory, resumes=True)
    inbox.put_frame(Frame("event", {"text": "x" * 20 * BIG}), "7")
    (signal,) = inbox.take(10, size=100 * BIG)
    assert isinstance(signal, FrameArrived)
    assert isinstance(signal.frame.payload, Malformed)
    assert (signal.cursor, signal.overloaded) == ("7", False)

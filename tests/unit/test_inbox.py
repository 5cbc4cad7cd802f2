"""A session's inbox at its bounds."""

import asyncio
from typing import Any

import pytest

from gateway.adapter.port import Frame
from gateway.errors import Overloaded
from gateway.events import CallId
from gateway.links.frame_memory import FRAMES, FrameMemory
from gateway.runtime.session.inbox import HARD_FRAMES, MOST_REQUESTS, Inbox
from gateway.runtime.signals import CancelOrdered, FrameArrived, Tick
from tests.pace import PATIENCE


class _Filled:
    def __init__(self, *, resumes: bool, size: int = 10_000) -> None:
        self.overflows: list[str] = []
        self.times = 0
        """How often it was filled."""
        FRAMES.set(FrameMemory())
        self.inbox = Inbox(
            frames=10,
            size=size,
            resumes=resumes,
            is_live=lambda frame: frame.channel == "typing",
            overflow=self.overflows.append,
            filled=self._note,
        )
        for number in range(20):
            self.inbox.put_frame(Frame("event", {"n": number}), str(number))

    def _note(self) -> None:
        self.times += 1


async def test_without_resumption_all_small_frames_are_taken_and_the_late_ones_marked():
    filled = _Filled(resumes=False)
    batch = filled.inbox.take(100, size=1_000_000)
    assert [signal.overloaded for signal in batch if isinstance(signal, FrameArrived)] == [False] * 10 + [True] * 10
    assert filled.overflows == []
    assert filled.inbox.bytes == 0


async def test_with_resumption_a_full_inbox_drops_the_link_and_takes_no_later_frame():
    filled = _Filled(resumes=True)
    batch = filled.inbox.take(100, size=1_000_000)
    assert [signal.cursor for signal in batch if isinstance(signal, FrameArrived)] == [str(n) for n in range(10)]
    assert len(filled.overflows) == 1
    filled.inbox.put_frame(Frame("event", {}), "later")
    assert filled.inbox.empty
    filled.inbox.reopen()
    filled.inbox.put_frame(Frame("event", {}), "resumed")
    assert len(filled.inbox.take(100, size=1_000_000)) == 1


async def test_signals_of_our_own_always_get_in():
    filled = _Filled(resumes=True)
    filled.inbox.put(Tick())
    assert isinstance(filled.inbox.take(100, size=1_000_000)[-1], Tick)


async def test_live_frames_give_way_and_only_the_newest_is_shown_at_the_end():
    filled = _Filled(resumes=False)
    for number in range(5):
        filled.inbox.put_frame(Frame("typing", {"n": number}), None)
    filled.inbox.put_frame(Frame("event", {"n": "last"}), None)
    batch = [
        signal.frame.payload["n"]
        for signal in filled.inbox.take(100, size=1_000_000)
        if isinstance(signal, FrameArrived)
    ]
    assert batch == [*range(20), "last", 4]
    assert filled.inbox.bytes == 0


async def test_a_link_is_made_again_only_once_the_session_has_got_through_half_of_its_inbox():
    filled = _Filled(resumes=True)
    waiting = asyncio.ensure_future(filled.inbox.has_capacity())
    filled.inbox.take(4, size=1_000_000)
    await asyncio.sleep(0)
    assert not waiting.done()
    filled.inbox.take(1, size=1_000_000)
    async with asyncio.timeout(PATIENCE):
        await waiting


async def test_small_frames_far_past_the_bound_drop_the_link_and_queued_ones_stay():
    filled = _Filled(resumes=False, size=10_000_000)
    for number in range(HARD_FRAMES + 5):
        filled.inbox.put_frame(Frame("event", {"n": number}), None)
    assert len(filled.inbox.take(2 * HARD_FRAMES, size=1_000_000)) == HARD_FRAMES
    assert len(filled.overflows) == 25


def _request() -> CancelOrdered:
    reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    return CancelOrdered(CallId("c"), None, reply)


async def test_requests_of_clients_are_refused_past_their_bound_and_those_given_up_leave_room():
    filled = _Filled(resumes=True)
    requests = [_request() for _ in range(MOST_REQUESTS)]
    for request in requests:
        filled.inbox.put(request)
    with pytest.raises(Overloaded):
        filled.inbox.put(_request())
    requests[0].reply.cancel()
    await asyncio.sleep(0)
    filled.inbox.put(_request())
    taken = filled.inbox.take(1_000, size=1_000_000)
    assert requests[0] not in taken
    assert sum(isinstance(signal, CancelOrdered) for signal in taken) == MOST_REQUESTS


async def test_only_a_signal_for_an_empty_inbox_fills_it() -> None:
    filled = _Filled(resumes=True)
    assert filled.times == 1
    batch = filled.inbox.take(100, size=1_000_000)
    assert filled.times == 1
    filled.inbox.put_back(batch[:2])
    filled.inbox.put(Tick())
    assert filled.times == 2
    request = _request()
    filled.inbox.take(100, size=1_000_000)
    filled.inbox.put(request)
    request.reply.cancel()
    await asyncio.sleep(0)
    filled.inbox.put(Tick())
    assert filled.times == 4


async def test_a_batch_ends_at_its_bytes_and_has_at_least_one_frame() -> None:
    filled = _Filled(resumes=False)
    size = filled.inbox.bytes // 20
    assert len(filled.inbox.take(100, size=4 * size)) == 4
    assert len(filled.inbox.take(100, size=1)) == 1
    filled.inbox.put(Tick())
    assert len(filled.inbox.take(3, size=100 * size)) == 3
    assert len(filled.inbox.take(100, size=100 * size)) == 20 - 4 - 1 - 3 + 1


async def test_requests_alone_are_taken_and_the_rest_stays_in_order() -> None:
    filled, request = _Filled(resumes=True), _request()
    filled.inbox.put(request)
    filled.inbox.put(Tick())
    assert filled.inbox.take_requests() == [request]
    assert filled.inbox.take_requests() == []
    batch = filled.inbox.take(100, size=1_000_000)
    assert [type(one) for one in batch] == [*([FrameArrived] * 10), Tick]

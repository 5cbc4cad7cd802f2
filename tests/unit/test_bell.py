"""Bells wake all who wait, once, and nobody who does not."""

import asyncio

import pytest

from gateway.runtime.feeds.wakeup import Ending, Wakeup, woken

LONG = 5.0


async def test_a_ring_wakes_all_who_wait() -> None:
    wakeup = Wakeup()
    waiting = [asyncio.create_task(woken(wakeup, within=LONG)) for _ in range(3)]
    await asyncio.sleep(0)
    wakeup.wake()
    async with asyncio.timeout(5):
        assert await asyncio.gather(*waiting) == [True] * 3


async def test_a_ring_that_nobody_waited_for_is_forgotten() -> None:
    wakeup = Wakeup()
    wakeup.wake()
    assert await woken(wakeup, within=0.01) is False


async def test_any_of_several_bells_is_enough_and_none_is_waited_for_afterwards() -> None:
    wakeup, ending = Wakeup(), Ending()
    waiting = asyncio.create_task(woken(wakeup, ending, within=LONG))
    await asyncio.sleep(0)
    assert not ending.is_set()
    ending.set()
    async with asyncio.timeout(5):
        assert await waiting is True
    assert ending.is_set()
    assert not wakeup.waiting
    assert not ending.waiting


async def test_two_rings_before_the_waiter_runs_are_one() -> None:
    wakeup, other = Wakeup(), Wakeup()
    waiting = asyncio.create_task(woken(wakeup, other, within=LONG))
    await asyncio.sleep(0)
    wakeup.wake()
    other.wake()
    assert await waiting is True


async def test_a_canceled_waiter_leaves_nothing_behind() -> None:
    wakeup = Wakeup()
    waiting = asyncio.create_task(woken(wakeup, within=LONG))
    await asyncio.sleep(0)
    assert len(wakeup.waiting) == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not wakeup.waiting
    wakeup.wake()


async def test_time_that_runs_out_right_behind_a_ring_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    wakeup = Wakeup()
    faults: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, fault: faults.append(fault))
    began = loop.time()
    monkeypatch.setattr(loop, "time", lambda: began)
    waiting = asyncio.create_task(woken(wakeup, within=0.002))
    await asyncio.sleep(0)
    loop.call_later(0.001, wakeup.wake)
    # Both are due when the loop looks again.
    monkeypatch.setattr(loop, "time", lambda: began + 0.01)
    assert await waiting is True
    await asyncio.sleep(0)
    assert faults == []

"""Bells wake all who wait, once, and nobody who does not."""

import asyncio

import pytest

from gateway.runtime.bell import Bell, Ending, heard

LONG = 5.0


async def test_a_ring_wakes_all_who_wait() -> None:
    bell = Bell()
    waiting = [asyncio.create_task(heard(bell, within=LONG)) for _ in range(3)]
    await asyncio.sleep(0)
    bell.ring()
    async with asyncio.timeout(5):
        assert await asyncio.gather(*waiting) == [True] * 3


async def test_a_ring_that_nobody_waited_for_is_forgotten() -> None:
    bell = Bell()
    bell.ring()
    assert await heard(bell, within=0.01) is False


async def test_any_of_several_bells_is_enough_and_none_is_waited_for_afterwards() -> None:
    bell, ending = Bell(), Ending()
    waiting = asyncio.create_task(heard(bell, ending, within=LONG))
    await asyncio.sleep(0)
    assert not ending.is_set()
    ending.set()
    async with asyncio.timeout(5):
        assert await waiting is True
    assert ending.is_set()
    assert not bell.waiting
    assert not ending.waiting


async def test_two_rings_before_the_waiter_runs_are_one() -> None:
    bell, other = Bell(), Bell()
    waiting = asyncio.create_task(heard(bell, other, within=LONG))
    await asyncio.sleep(0)
    bell.ring()
    other.ring()
    assert await waiting is True


async def test_a_canceled_waiter_leaves_nothing_behind() -> None:
    bell = Bell()
    waiting = asyncio.create_task(heard(bell, within=LONG))
    await asyncio.sleep(0)
    assert len(bell.waiting) == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not bell.waiting
    bell.ring()


async def test_time_that_runs_out_right_behind_a_ring_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    bell = Bell()
    faults: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, fault: faults.append(fault))
    began = loop.time()
    monkeypatch.setattr(loop, "time", lambda: began)
    waiting = asyncio.create_task(heard(bell, within=0.002))
    await asyncio.sleep(0)
    loop.call_later(0.001, bell.ring)
    # Both are due when the loop looks again.
    monkeypatch.setattr(loop, "time", lambda: began + 0.01)
    assert await waiting is True
    await asyncio.sleep(0)
    assert faults == []

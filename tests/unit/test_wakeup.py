"""A wake-up reaches all who wait, once, and nobody who does not."""

import asyncio
from collections.abc import Callable

import pytest

from gateway.runtime.wakeup import Ending, Waits, Wakeup, wait_any
from tests.pace import PATIENCE

LONG = 5.0


async def test_a_wakeup_wakes_all_who_wait() -> None:
    wakeup = Wakeup()
    waiting = [asyncio.create_task(wait_any(wakeup, within=LONG)) for _ in range(3)]
    await asyncio.sleep(0)
    wakeup.wake()
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*waiting) == [True] * 3


async def test_a_wakeup_that_nobody_waited_for_is_forgotten() -> None:
    wakeup = Wakeup()
    wakeup.wake()
    assert await wait_any(wakeup, within=0.01) is False


async def test_any_of_several_wakeups_is_enough_and_none_is_waited_for_afterwards() -> None:
    wakeup, ending = Wakeup(), Ending()
    waiting = asyncio.create_task(wait_any(wakeup, ending, within=LONG))
    await asyncio.sleep(0)
    assert not ending.happened
    ending.set()
    async with asyncio.timeout(PATIENCE):
        assert await waiting is True
    assert ending.happened
    assert not wakeup.waiting
    assert not ending.waiting


async def test_two_wakeups_before_the_waiter_runs_are_one() -> None:
    wakeup, other = Wakeup(), Wakeup()
    waiting = asyncio.create_task(wait_any(wakeup, other, within=LONG))
    await asyncio.sleep(0)
    wakeup.wake()
    other.wake()
    assert await waiting is True


async def test_a_canceled_waiter_leaves_nothing_behind() -> None:
    wakeup = Wakeup()
    waiting = asyncio.create_task(wait_any(wakeup, within=LONG))
    await asyncio.sleep(0)
    assert len(wakeup.waiting) == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not wakeup.waiting
    wakeup.wake()


async def test_time_that_runs_out_right_behind_a_wakeup_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    wakeup = Wakeup()
    faults: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, fault: faults.append(fault))
    began = loop.time()
    monkeypatch.setattr(loop, "time", lambda: began)
    waiting = asyncio.create_task(wait_any(wakeup, within=0.002))
    await asyncio.sleep(0)
    loop.call_later(0.001, wakeup.wake)
    # Both are due when the loop looks again.
    monkeypatch.setattr(loop, "time", lambda: began + 0.01)
    assert await waiting is True
    await asyncio.sleep(0)
    assert faults == []


class Timers:
    """The timers of the running loop, which ring when they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.armed: list[tuple[float, asyncio.TimerHandle]] = []
        self.now = 100.0
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(self._loop, "time", lambda: self.now)
        monkeypatch.setattr(self._loop, "call_later", self._call_later)
        self._rings: list[Callable[[], None]] = []

    def _call_later(self, delay: float, ring: Callable[[], None]) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.now + delay, ring, (), self._loop)
        self.armed.append((delay, handle))
        self._rings.append(ring)
        return handle

    def ring(self) -> None:
        self._rings[-1]()


async def test_who_waits_again_and_again_has_one_timer_and_waits_as_long_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wakeup, timers = Wakeup(), Timers(monkeypatch)
    waiting = Waits(wakeup, within=5)
    for _ in range(3):
        again = asyncio.create_task(waiting.wait_any())
        await asyncio.sleep(0)
        wakeup.wake()
        assert await again is True
    assert [delay for delay, _ in timers.armed] == [5]
    timers.now += 3
    again = asyncio.create_task(waiting.wait_any())
    await asyncio.sleep(0)
    timers.now += 2
    timers.ring()
    assert [delay for delay, _ in timers.armed] == [5, 3]
    assert not again.done()
    timers.now += 3
    timers.ring()
    assert await again is False


async def test_a_timer_that_rings_for_nobody_is_armed_again_for_who_waits_next(monkeypatch: pytest.MonkeyPatch) -> None:
    wakeup, timers = Wakeup(), Timers(monkeypatch)
    waiting = Waits(wakeup, within=5)
    for number in (1, 2):
        again = asyncio.create_task(waiting.wait_any())
        await asyncio.sleep(0)
        wakeup.wake()
        assert await again is True
        timers.ring()
        assert [delay for delay, _ in timers.armed] == [5] * number


async def test_who_waits_no_more_leaves_no_timer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    wakeup, timers = Wakeup(), Timers(monkeypatch)
    waiting = asyncio.create_task(wait_any(wakeup, within=5))
    await asyncio.sleep(0)
    wakeup.wake()
    assert await waiting is True
    assert [timer.cancelled() for _, timer in timers.armed] == [True]

"""Something that happens once, with several who wait."""

import asyncio

import pytest

from gateway.links.once import Once


async def test_everybody_who_waits_is_woken() -> None:
    once = Once()
    waiting = [asyncio.ensure_future(once.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not once.is_set()
    assert not any(task.done() for task in waiting)
    once.set()
    once.set()
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert once.is_set()


async def test_waiting_for_what_has_happened_returns_at_once() -> None:
    once = Once()
    once.set()
    await asyncio.wait_for(once.wait(), 5)
    assert once.future().done()


async def test_one_who_gives_up_takes_nothing_from_the_others() -> None:
    once = Once()
    patient, impatient = asyncio.ensure_future(once.wait()), asyncio.ensure_future(once.wait())
    await asyncio.sleep(0)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    once.set()
    await asyncio.wait_for(patient, 5)

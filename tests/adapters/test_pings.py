"""The pings of a websocket: whose answer proves what, and what comes of none."""

import asyncio
from datetime import timedelta

import pytest

from gateway.errors import LinkLost
from gateway.links.socketio.pings import Pings

LONG = timedelta(seconds=60)


async def test_an_answer_is_one_to_all_pings_before_it_and_to_none_behind() -> None:
    pings = Pings(LONG, lambda _: None)
    (_, first), (said, second), (_, third) = (pings.expect() for _ in range(3))
    pings.take(said)
    assert (first.done(), second.done(), third.done()) == (True, True, False)
    pings.end("done with it")
    assert isinstance(third.exception(), LinkLost)


@pytest.mark.parametrize("said", [b"", b"2", b"-1", b"one", b"9" * 20])
async def test_an_answer_that_nobody_has_asked_for_proves_nothing(said: bytes) -> None:
    pings = Pings(LONG, lambda _: None)
    _, answer = pings.expect()
    pings.take(said)
    assert not answer.done()
    pings.end("done with it")
    assert answer.exception() is not None


async def test_the_first_ping_that_is_not_answered_in_time_ends_the_link() -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    pings = Pings(timedelta(milliseconds=20), ended.set_result)
    for _ in range(3):
        pings.expect()[1].cancel()
    assert await asyncio.wait_for(ended, 5) == "no sign of the peer within 0.02 s"


async def test_a_link_whose_pings_were_answered_is_ended_by_none_of_them() -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    pings = Pings(timedelta(milliseconds=20), ended.set_result)
    said, _ = pings.expect()
    pings.take(said)
    Pings(timedelta(milliseconds=60), ended.set_result).expect()
    assert await asyncio.wait_for(ended, 5) == "no sign of the peer within 0.06 s"


async def test_a_ping_has_its_whole_time_whenever_others_were_answered() -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()
    pings = Pings(timedelta(milliseconds=60), ended.set_result)
    said, _ = pings.expect()
    pings.take(said)
    # Half of the time of the one that was answered.
    await asyncio.sleep(0.03)
    asked_at = loop.time()
    pings.expect()
    await asyncio.wait_for(ended, 5)
    assert loop.time() - asked_at >= 0.06

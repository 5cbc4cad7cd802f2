"""The room for large news: bytes of an event and its encoding, and news that followers share count once."""

import asyncio

from gateway.runtime.feeds.room import LARGE, Room
from gateway.runtime.views import News

SIZE = 2 * LARGE


def news(weight: int) -> News:
    made = News()
    made.weight = weight
    return made


async def test_large_news_count_with_their_encoding() -> None:
    room = Room(most=4 * SIZE)
    assert [room.takes(SIZE) for _ in range(3)] == [True, True, False]
    entering = asyncio.ensure_future(room.enter(SIZE))
    await asyncio.sleep(0)
    assert not entering.done()
    room.leave(SIZE)
    await entering
    assert not room.takes(SIZE // 2)
    room.leave(SIZE)
    room.leave(SIZE)
    assert [room.takes(SIZE) for _ in range(3)] == [True, True, False]


def test_news_that_many_followers_share_count_once_until_the_last_one_has_written_them() -> None:
    room, first, second = Room(most=2 * SIZE), news(SIZE), news(SIZE)
    assert [room.shares(first) for _ in range(3)] == [True, True, True]
    assert not room.shares(second)
    for _ in range(2):
        room.leave_shared(first)
        assert not room.shares(second)
    room.leave_shared(first)
    assert room.shares(second)
    room.leave_shared(second)
    assert room.shares(first)
    assert not room.shares(second)


def test_small_news_need_no_room() -> None:
    room, small = Room(most=2 * SIZE), news(LARGE)
    assert room.shares(news(SIZE))
    assert [room.shares(small) for _ in range(3)] == [True, True, True]
    room.leave_shared(small)
    assert not room.takes(1)

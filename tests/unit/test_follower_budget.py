"""The budget for large news: bytes of an event and its encoding; news that followers share count once."""

import asyncio

from gateway.runtime.feeds.follower_budget import LARGE, FollowerBudget
from gateway.runtime.views import News

SIZE = 2 * LARGE


def news(weight: int) -> News:
    made = News()
    made.weight = weight
    return made


async def test_large_news_count_with_their_encoding() -> None:
    budget = FollowerBudget(most=4 * SIZE)
    assert [budget.takes(SIZE) for _ in range(3)] == [True, True, False]
    entering = asyncio.ensure_future(budget.enter(SIZE))
    await asyncio.sleep(0)
    assert not entering.done()
    budget.leave(SIZE)
    await entering
    assert not budget.takes(SIZE // 2)
    budget.leave(SIZE)
    budget.leave(SIZE)
    assert [budget.takes(SIZE) for _ in range(3)] == [True, True, False]


def test_news_of_many_followers_count_once_until_the_last_one_has_written_them() -> None:
    budget, first, second = FollowerBudget(most=2 * SIZE), news(SIZE), news(SIZE)
    assert [budget.shares(first) for _ in range(3)] == [True, True, True]
    assert not budget.shares(second)
    for _ in range(2):
        budget.leave_shared(first)
        assert not budget.shares(second)
    budget.leave_shared(first)
    assert budget.shares(second)
    budget.leave_shared(second)
    assert budget.shares(first)
    assert not budget.shares(second)


def test_small_news_are_not_counted() -> None:
    budget, small = FollowerBudget(most=2 * SIZE), news(LARGE)
    assert budget.shares(news(SIZE))
    assert [budget.shares(small) for _ in range(3)] == [True, True, True]
    budget.leave_shared(small)
    assert not budget.takes(1)

"""The log that followers of a session read: each keeps a place of its own, and one that falls behind is told."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import pytest

from gateway.events import CallId, Envelope, Event, Live, ToolFinished, TypingChanged
from gateway.events.ids import EventId, SessionId
from gateway.events.weight import weight
from gateway.runtime.feeds.feed import Feed
from gateway.runtime.feeds.log import TAIL_BYTES
from gateway.runtime.views import NEWS_BYTES, News


def live(number: int, reason: str | None = None) -> Live:
    return Live(TypingChanged(typing=True, reason=reason), number)


def recorded(number: int, event: Event | None = None) -> Envelope:
    at = datetime(2026, 11, 20, tzinfo=UTC)
    return Envelope(EventId("e"), SessionId("s"), number, at, "from_runtime", event or TypingChanged(typing=True))


def finished(call: str) -> ToolFinished:
    return ToolFinished(native_call_id=call, tool="ask", outcome="success", call_id=CallId(call))


def read_all(feed: Feed, place: int) -> tuple[list[News], int, bool]:
    """Read everything behind a place; returns it, the last place, and whether some were missed."""
    read: list[News] = []
    missed = False
    while True:
        news, place, behind = feed.since(place)
        missed = missed or behind
        if news is not None:
            read.append(news)
        elif not behind:
            return read, place, missed


def numbers(feed: Feed, place: int) -> tuple[list[int], int, bool]:
    news, place, missed = read_all(feed, place)
    return [item.after_sequence for some in news for item in some.items if isinstance(item, Live)], place, missed


@pytest.fixture
def feed() -> Feed:
    return Feed(0, tail=3)


def test_a_follower_reads_what_came_since_its_place(feed: Feed) -> None:
    place = feed.join()
    assert numbers(feed, place) == ([], place, False)
    feed.tell(live(1))
    feed.tell(live(2))
    told, second, behind = numbers(feed, place)
    assert (told, behind) == ([1, 2], False)
    feed.tell(live(3))
    told, third, behind = numbers(feed, second)
    assert (told, behind) == ([3], False)
    assert numbers(feed, place) == ([1, 2, 3], third, False)
    assert numbers(feed, third) == ([], third, False)


def test_one_that_falls_behind_the_tail_is_told_and_gets_what_is_left(feed: Feed) -> None:
    first = place = feed.join()
    for number in range(3):
        feed.tell(live(number))
        told, place, behind = numbers(feed, place)
        assert (told, behind) == ([number], False)
    feed.tell(live(3))
    assert numbers(feed, place) == ([3], place + 1, False)
    assert numbers(feed, first) == ([1, 2, 3], place + 1, True)


def test_all_who_are_at_one_place_are_given_the_same_news(feed: Feed) -> None:
    places = [feed.join() for _ in range(3)]
    feed.extend([recorded(1), recorded(2)])
    feed.tell(live(2))
    assert len({id(feed.since(place)[0]) for place in places}) == 1
    news, _, _ = feed.since(places[0])
    assert news is not None
    assert (len(news.items), news.first, news.last) == (3, 1, 2)


def test_who_joins_is_told_nothing_of_what_was_before(feed: Feed) -> None:
    early = feed.join()
    feed.tell(live(1))
    late = feed.join()
    feed.tell(live(2))
    assert numbers(feed, late)[0] == [2]
    assert numbers(feed, early)[0] == [1, 2]


def test_news_are_never_added_to_once_somebody_has_read_them(feed: Feed) -> None:
    place = feed.join()
    feed.tell(live(1))
    news, later, _ = feed.since(place)
    assert news is not None
    feed.tell(live(2))
    assert len(news.items) == 1
    assert numbers(feed, later)[0] == [2]


def test_what_weighs_much_leaves_in_several_pieces() -> None:
    feed = Feed(0)
    place = feed.join()
    for number in range(10):
        feed.tell(live(number, "x" * (NEWS_BYTES // 4)))
    feed.tell(live(10, "x" * NEWS_BYTES))
    news, _, _ = read_all(feed, place)
    assert [len(some.items) for some in news] == [3, 3, 3, 1, 1]
    assert all(some.weight == sum(weight(item.event) for item in some.items) for some in news)


def test_the_log_is_bounded_by_bytes_and_even_one_that_is_too_large_goes() -> None:
    feed = Feed(0)
    place = feed.join()
    for number in range(10):
        feed.tell(live(number, "x" * (TAIL_BYTES // 4)))
    told, place, behind = numbers(feed, place)
    assert (told, behind) == ([7, 8, 9], True)
    feed.tell(live(10, "x" * TAIL_BYTES))
    assert numbers(feed, place)[0] == []
    feed.tell(live(11, "x" * TAIL_BYTES))
    feed.tell(live(12))
    assert numbers(feed, place)[0] == [12]


def test_all_read_the_journal_when_history_was_removed(feed: Feed) -> None:
    place = feed.join()
    feed.tell(live(1))
    feed.skip_to(7)
    assert numbers(feed, place) == ([], place + 2, True)
    feed.tell(live(7))
    assert numbers(feed, place) == ([7], place + 3, True)
    assert feed.last_sequence == 7


def test_without_followers_nothing_is_kept(feed: Feed) -> None:
    place = feed.join()
    feed.tell(live(1))
    feed.leave()
    assert feed.since(place)[0] is None
    feed.tell(live(2))
    assert numbers(feed, feed.join()) == ([], place + 1, False)
    feed.tell(live(3))
    assert numbers(feed, place + 1)[0] == [3]


def test_news_know_which_of_them_are_recorded() -> None:
    news = News([live(4), recorded(5), recorded(6), live(6)])
    assert (news.first, news.last, len(news.items)) == (5, 6, 4)
    assert (News([live(4)]).first, News([live(4)]).last) == (None, None)


async def test_who_watches_a_call_is_woken_by_its_outcome_and_by_nothing_else_of_the_session(feed: Feed) -> None:
    with feed.watching(CallId("mine")) as watch, feed.watching(CallId("mine")) as beside:
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        watch.waiting[waiter] = None
        feed.extend([recorded(1), recorded(2, finished("other"))])
        assert (waiter.done(), watch.outcome) == (False, None)
        feed.extend([recorded(3, finished("mine")), recorded(4)])
        assert waiter.done()
        assert watch.outcome == beside.outcome == finished("mine")
    with feed.watching(CallId("mine")) as later:
        assert later.outcome is None


@pytest.mark.parametrize("end", [Feed.close, partial(Feed.skip_to, sequence=9)])
async def test_who_watches_a_call_is_woken_to_look_where_nothing_more_is_told_here(
    feed: Feed, end: Callable[[Feed], None]
) -> None:
    with feed.watching(CallId("mine")) as watch:
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        watch.waiting[waiter] = None
        end(feed)
        assert (waiter.done(), watch.outcome) == (True, None)

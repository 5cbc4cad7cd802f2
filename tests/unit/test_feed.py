"""The tail that followers of a session read: each keeps a place of its own, and one that falls behind is told."""

import pytest

from gateway.events import Live, TypingChanged
from gateway.runtime.feeds.feed import Feed


def live(number: int) -> Live:
    return Live(TypingChanged(typing=True), number)


def numbers(feed: Feed, place: int) -> tuple[list[int], int, bool]:
    items, place, behind = feed.since(place)
    return [item.after_sequence for item in items if isinstance(item, Live)], place, behind


@pytest.fixture
def feed() -> Feed:
    return Feed(0, tail=3)


def test_a_follower_reads_what_came_since_its_place(feed: Feed) -> None:
    place = feed.join()
    assert numbers(feed, place) == ([], place, False)
    feed.tell(live(1))
    feed.tell(live(2))
    assert numbers(feed, place) == ([1, 2], place + 2, False)
    assert numbers(feed, place + 1) == ([2], place + 2, False)
    assert numbers(feed, place + 2) == ([], place + 2, False)


def test_one_that_falls_behind_the_tail_is_told_and_gets_what_is_left(feed: Feed) -> None:
    place = feed.join()
    for number in range(3):
        feed.tell(live(number))
    assert numbers(feed, place) == ([0, 1, 2], place + 3, False)
    feed.tell(live(3))
    assert numbers(feed, place) == ([1, 2, 3], place + 4, True)
    assert numbers(feed, place + 1) == ([1, 2, 3], place + 4, False)


def test_all_read_the_journal_when_history_was_removed(feed: Feed) -> None:
    place = feed.join()
    feed.tell(live(1))
    feed.skip_to(7)
    assert numbers(feed, place) == ([], place + 2, True)
    assert feed.last_sequence == 7


def test_without_followers_nothing_is_kept(feed: Feed) -> None:
    place = feed.join()
    feed.tell(live(1))
    feed.leave()
    assert feed.since(place)[0] == []
    feed.tell(live(2))
    assert numbers(feed, feed.join()) == ([], place + 1, False)

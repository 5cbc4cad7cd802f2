"""What a link remembers of its events: repeats, cursors, holes; for any order and any overlap."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from adapters.openhands.catchup import LOOKED_BACK, MAX_HELD, REMEMBERED, HistoryPage, Tracker, fill
from gateway.adapter.port import Frame
from gateway.errors import LinkLost
from gateway.testing.conformance.link import Collector
from tests.adapters.openhands.raw_openhands import null, state, thought

_NUMBERS = st.lists(st.integers(0, 30), max_size=60)


def ids(collector: Collector) -> list[int]:
    return [frame.payload["id"] for frame in collector.frames]


def event(number: int) -> Frame:
    return Frame("oh_event", thought(number))


@pytest.mark.requirement("OH17", "OH18")
@given(numbers=_NUMBERS)
def test_any_order_with_any_repeats_brings_each_event_once_and_a_cursor_that_never_falls(numbers: list[int]) -> None:
    collector = Collector()
    tracker = Tracker(collector, None)
    tracker.caught_up()
    for number in numbers:
        tracker.frame(event(number))
    assert ids(collector) == list(dict.fromkeys(numbers))
    cursors = [int(cursor or -1) for cursor in collector.cursors]
    assert cursors == sorted(cursors)
    assert not cursors or cursors[-1] == max(numbers)


@pytest.mark.requirement("OH18", "OH63")
@given(told=st.sets(st.integers(0, 30)), stored=st.sets(st.integers(0, 30)))
async def test_after_filling_everything_that_is_stored_has_come_once_by_its_number(
    told: set[int], stored: set[int]
) -> None:
    collector = Collector()
    tracker = Tracker(collector, None)
    # What the socket tells is in the store, too.
    store = sorted(told | stored)
    for number in told:
        tracker.frame(event(number))

    async def ask(start: int) -> HistoryPage:
        found = [number for number in store if number >= start]
        return HistoryPage(tuple(thought(number) for number in found[:7]), len(found) > 7)

    await fill(tracker, ask, since=0, resume=None)
    assert ids(collector) == []
    tracker.caught_up()
    assert ids(collector) == store
    assert collector.cursors == [str(number) for number in store]


@pytest.mark.requirement("OH18")
async def test_a_live_event_that_overtakes_the_replay_waits_for_what_the_store_fills_in() -> None:
    collector = Collector()
    tracker = Tracker(collector, None)

    async def ask(start: int) -> HistoryPage:
        assert start == 2
        return HistoryPage((thought(2), thought(3)), has_more=False)

    for number in (0, 1, 3):
        tracker.frame(event(number))
    await fill(tracker, ask, since=0, resume=None)
    tracker.caught_up()
    tracker.frame(event(5))
    tracker.frame(event(4))
    assert ids(collector) == [0, 1, 2, 3, 5, 4]


@pytest.mark.parametrize(("resume", "place"), [(None, "1"), (40, "40")])
def test_a_link_that_never_caught_up_gives_what_it_held_and_resumes_before_the_hole(
    resume: int | None, place: str
) -> None:
    collector = Collector()
    tracker = Tracker(collector, resume)
    for number in (5, 0, 1):
        tracker.frame(event(number))
    tracker.give_up()
    tracker.give_up()
    assert ids(collector) == [0, 1, 5]
    assert collector.cursors == [place] * 3


def test_what_is_held_back_is_bounded_by_number_and_by_bytes() -> None:
    collector = Collector()
    tracker = Tracker(collector, None)
    for number in range(LOOKED_BACK + 10):
        tracker.frame(event(number))
    assert ids(collector) == list(range(10))
    collector, large = Collector(), MAX_HELD // 4
    tracker = Tracker(collector, None)
    for number in range(7):
        tracker.frame(Frame("oh_event", {**thought(number), "extras": {"screenshot": "x" * large}}))
        tracker.frame(Frame("oh_event", {**thought(number), "extras": {"screenshot": "x" * large}}))
    assert ids(collector) == [0, 1, 2, 3]


def test_the_memory_of_repeats_is_bounded() -> None:
    collector = Collector()
    tracker = Tracker(collector, None)
    tracker.caught_up()
    for number in range(REMEMBERED + 1):
        tracker.frame(event(number))
    tracker.frame(event(REMEMBERED))
    assert len(collector.frames) == REMEMBERED + 1
    tracker.frame(event(0))
    assert len(collector.frames) == REMEMBERED + 2


@pytest.mark.requirement("OH64")
def test_a_long_replay_is_not_read_again_from_the_store() -> None:
    tracker = Tracker(Collector(), None)
    for number in (*range(5), *range(6, 1_000)):
        tracker.frame(event(number))
    assert tracker.first_gap(0) == 1_000
    tracker.frame(event(1_001))
    assert tracker.first_gap(0) == 1_000
    assert 1_001 - LOOKED_BACK < 1_000


@pytest.mark.requirement("OH64")
async def test_a_store_that_runs_away_is_a_lost_link() -> None:
    asked: list[int] = []

    async def ask(start: int) -> HistoryPage:
        asked.append(start)
        return HistoryPage((thought(start),), has_more=True)

    with pytest.raises(LinkLost, match="ahead"):
        await fill(Tracker(Collector(), None), ask, since=0, resume=None)
    assert asked == list(range(10))


@pytest.mark.requirement("OH15")
async def test_states_gone_by_nulls_and_recalls_stay_in_the_store() -> None:
    collector = Collector()
    tracker = Tracker(collector, None)
    tracker.frame(Frame("oh_event", state(3, "running")))
    recall: dict[str, Any] = {**thought(5), "action": "recall", "args": {}}

    async def ask(start: int) -> HistoryPage:
        del start
        return HistoryPage(
            (state(0, "loading"), null(1), thought(2), recall, state(6, "finished"), "junk"), has_more=False
        )

    await fill(tracker, ask, since=0, resume=None)
    tracker.caught_up()
    assert [frame.payload if isinstance(frame.payload, str) else frame.payload["id"] for frame in collector.frames] == [
        "junk",
        2,
        3,
        6,
    ]


@pytest.mark.requirement("OH14", "OH21")
def test_until_it_has_caught_up_a_link_never_moves_its_place_back() -> None:
    collector = Collector()
    tracker = Tracker(collector, 100)
    tracker.frame(event(51))
    tracker.caught_up()
    tracker.frame(event(52))
    assert collector.cursors == ["100", "52"]
    assert collector.is_caught_up

"""Time never runs backwards, ids sort in the order they were minted."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from gateway.runtime.system_clock import SystemClock, SystemIds

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class SetClock:
    """A clock that says what it is told."""

    def __init__(self) -> None:
        self.time = NOON

    def now(self) -> datetime:
        return self.time

    def timestamp(self) -> float:
        return self.time.timestamp()

    def monotonic(self) -> float:
        return self.time.timestamp()


def test_the_time_is_in_utc_and_right() -> None:
    now = SystemClock().now()
    assert now.tzinfo is UTC
    assert abs(now - datetime.now(UTC)) < timedelta(seconds=5)


@pytest.mark.parametrize("stalls_before", [True, False], ids=["before the read", "after the read"])
def test_a_stall_at_the_start_does_not_make_all_times_wrong(
    monkeypatch: pytest.MonkeyPatch, *, stalls_before: bool
) -> None:
    read, stalls = time.time, [0.2, 0.2]

    def read_slowly() -> float:
        at = read()
        # The stall is the fault itself.
        time.sleep(stalls.pop() if stalls else 0)
        return read() if stalls_before else at

    monkeypatch.setattr(time, "time", read_slowly)
    clock = SystemClock()
    assert not stalls
    assert abs(clock.timestamp() - read()) < 0.05


def test_a_step_of_the_wall_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before = clock.now()

    def yesterday() -> float:
        raise AssertionError("the wall clock was read again")

    monkeypatch.setattr(time, "time", yesterday)
    assert timedelta() <= clock.now() - before < timedelta(seconds=5)


def test_spans_are_measured_with_the_clock_of_the_event_loop() -> None:
    before = time.monotonic()
    assert before <= SystemClock().monotonic() <= time.monotonic()


@given(st.lists(st.integers(min_value=-5, max_value=5), min_size=2, max_size=50))
def test_ids_sort_in_the_order_of_minting_however_the_clock_moves(moves: list[int]) -> None:
    clock = SetClock()
    ids = SystemIds(clock)
    minted: list[str] = []
    for milliseconds in moves:
        clock.time += timedelta(milliseconds=milliseconds)
        minted.append(ids.event_id())
    assert minted == sorted(set(minted))
    assert {len(one) for one in minted} == {26}


def test_an_id_begins_with_its_time() -> None:
    early, late = SetClock(), SetClock()
    late.time += timedelta(seconds=1)
    # Another process that starts later mints greater ids.
    assert SystemIds(early).event_id() < SystemIds(late).event_id()


def test_two_processes_do_not_mint_the_same_id_at_the_same_time() -> None:
    clock = SetClock()
    assert len({SystemIds(clock).event_id() for _ in range(1_000)}) == 1_000


def test_ids_of_one_millisecond_count_up_by_one() -> None:
    ids = SystemIds(SetClock())
    numbers = [
        sum(CROCKFORD.index(letter) * 32**place for place, letter in enumerate(reversed(ids.event_id())))
        for _ in range(2_000)
    ]
    assert numbers == list(range(numbers[0], numbers[0] + 2_000))


def test_what_follows_the_time_is_drawn_once_and_counts_up_however_time_goes_on() -> None:
    clock = SetClock()
    ids = SystemIds(clock)
    letters = [ids.event_id()[10:]]
    for milliseconds in (0, 1, 5, -3, 40):
        clock.time += timedelta(milliseconds=milliseconds)
        letters.append(ids.event_id()[10:])
    numbers = [sum(CROCKFORD.index(one) * 32**place for place, one in enumerate(reversed(text))) for text in letters]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_tokens_are_long_url_safe_and_never_the_same() -> None:
    ids = SystemIds(SetClock())
    tokens = {ids.token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) >= 43 and token.replace("-", "").replace("_", "").isalnum() for token in tokens)

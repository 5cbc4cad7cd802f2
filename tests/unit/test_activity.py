"""The calls per minute are counted in the minute in which they start or end, and an hour of them is kept."""

from datetime import UTC, datetime, timedelta

from gateway.runtime.counters import MINUTES, Activity

START = datetime(2026, 11, 20, 12, 0, 30, tzinfo=UTC)


def minutes(activity: Activity, *, now: datetime) -> list[tuple[str, int, int, int]]:
    shown = activity.last(since=START, now=now)
    return [(f"{one.at:%H:%M:%S}", one.calls, one.failed, one.unknown) for one in shown]


def test_minutes_without_calls_are_zeros_from_the_start_on() -> None:
    activity = Activity()
    assert minutes(activity, now=START) == [("12:00:00", 0, 0, 0)]
    activity.started(START + timedelta(minutes=2))
    assert minutes(activity, now=START + timedelta(minutes=3)) == [
        ("12:00:00", 0, 0, 0),
        ("12:01:00", 0, 0, 0),
        ("12:02:00", 1, 0, 0),
        ("12:03:00", 0, 0, 0),
    ]


def test_a_call_counts_at_its_start_and_its_failure_at_its_end() -> None:
    activity, later = Activity(), START + timedelta(minutes=1)
    for _ in range(5):
        activity.started(START)
    activity.ended(later, "success", unknown=False, seconds=None)
    activity.ended(later, "canceled", unknown=False, seconds=None)
    activity.ended(later, "failure", unknown=False, seconds=None)
    activity.ended(later, "failure", unknown=True, seconds=None)
    activity.ended(later, "expired", unknown=True, seconds=None)
    assert minutes(activity, now=later) == [("12:00:00", 5, 0, 0), ("12:01:00", 0, 3, 2)]


def test_the_last_hour_is_shown_and_nothing_older_is_kept() -> None:
    activity, moments = Activity(), [START + timedelta(minutes=n) for n in range(3 * MINUTES)]
    for moment in moments:
        activity.started(moment)
    shown = minutes(activity, now=moments[-1])
    assert len(shown) == MINUTES
    assert {calls for _, calls, _, _ in shown} == {1}
    assert (shown[0][0], shown[-1][0]) == ("14:00:00", "14:59:00")
    # As if the clock had stood still: what is older than an hour is gone.
    assert minutes(activity, now=moments[MINUTES])[-1] == ("13:00:00", 0, 0, 0)


def test_an_hour_without_calls_is_all_zeros() -> None:
    activity = Activity()
    activity.started(START)
    shown = minutes(activity, now=START + timedelta(days=1))
    assert len(shown) == MINUTES
    assert not any(calls for _, calls, _, _ in shown)


def test_percentiles_are_those_of_the_calls_that_ended_in_the_last_hour() -> None:
    activity, now = Activity(), START + timedelta(hours=2)
    assert activity.percentiles(START) == (None, None)
    activity.ended(START, "success", unknown=False, seconds=1_000.0)
    activity.ended(now, "failure", unknown=False, seconds=None)
    assert activity.percentiles(START) == (1_000.0, 1_000.0)
    assert activity.percentiles(now) == (None, None)
    for number in range(100):
        activity.ended(now, "success", unknown=False, seconds=float(number))
    assert activity.percentiles(now) == (50.0, 95.0)

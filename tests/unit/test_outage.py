"""An unavailable store is logged once a minute for all that use it, and when it is over."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from structlog.testing import capture_logs
from structlog.typing import EventDict

from gateway.errors import EngineUnavailable
from gateway.store.outage import StoreOutage
from gateway.store.sqlite import SqliteEngine
from gateway.testing.conformance.engine_words import FakeClock

FOREVER = 3_600.0
FULL = EngineUnavailable("the disk is full")


def lines(act: Callable[[], None]) -> list[EventDict]:
    with capture_logs() as logs:
        act()
    return [line for line in logs if line["log_level"] != "debug"]


def test_the_failures_of_many_sessions_are_one_line() -> None:
    outage = StoreOutage(FakeClock(), again=FOREVER, quiet=0)

    def fail() -> None:
        for number in range(200):
            outage.failed(FULL, f"task {number % 7}")

    assert lines(fail) == [
        {"event": "store unavailable", "log_level": "error", "reason": "the disk is full", "task": "task 0"}
        | {"failures": 1, "seconds": 0}
    ]
    assert lines(outage.works) == [
        {"event": "store available again", "log_level": "warning", "failures": 200, "seconds": 0}
    ]
    assert lines(outage.works) == []
    assert [line["failures"] for line in lines(fail)] == [1]


def test_each_minute_has_a_line_with_the_number_of_failures() -> None:
    outage = StoreOutage(FakeClock(), again=0)

    def fail() -> None:
        for _ in range(3):
            outage.failed(FULL, "decision")

    found = lines(fail)
    assert [line["failures"] for line in found] == [1, 2, 3]


def test_a_new_reason_is_logged_at_once_but_not_without_limit() -> None:
    outage = StoreOutage(FakeClock(), again=FOREVER)
    reasons = [EngineUnavailable(f"reason {number}") for number in range(50)]

    def fail() -> None:
        for one in reasons:
            outage.failed(one, "decision")

    found = lines(fail)
    assert [line["reason"] for line in found] == [str(one) for one in reasons[:5]]


def test_a_store_that_has_just_failed_is_not_available_again() -> None:
    outage = StoreOutage(FakeClock(), quiet=FOREVER)
    outage.failed(FULL, "decision")
    assert lines(outage.works) == []


def test_an_outage_lasts_from_its_first_to_its_last_failure() -> None:
    clock = FakeClock()
    outage = StoreOutage(clock, again=FOREVER, quiet=3)
    outage.failed(FULL, "decision")
    clock.turn(timedelta(seconds=42))
    outage.failed(FULL, "decision")
    clock.turn(timedelta(seconds=2))
    assert lines(outage.works) == []
    clock.turn(timedelta(seconds=1))
    (over,) = lines(outage.works)
    assert (over["failures"], over["seconds"]) == (2, 42)


def test_each_store_has_its_own_outage(tmp_path: Path) -> None:
    one, other = (SqliteEngine(tmp_path / name, FakeClock()) for name in ("one.db", "two.db"))
    one.outage.failed(FULL, "decision")
    assert lines(other.outage.works) == []
    assert len(lines(lambda: other.outage.failed(FULL, "decision"))) == 1

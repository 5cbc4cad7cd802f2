"""What one test has seen of a fault; the table in README.md is made of it."""

from dataclasses import asdict, dataclass
from typing import Any

from tests.faults.judge import Verdict


@dataclass(slots=True)
class Observed:
    """The figures of one test, added up over its scenes."""

    scenes: int = 0
    calls: int = 0
    lost: int = 0
    different: int = 0
    wire: int = 0
    at_risk: int = 0
    repeats: int = 0
    """Results told and requests made more than once."""
    twice: int = 0
    """What somebody wanted once and a second call has done again, because nothing said that it was the same."""
    unknown: int = 0
    unapproved: int | None = None
    """Requests without an approval of a person, or with other arguments, where the test holds calls."""
    longest: float = 0.0
    """Seconds that something stood still, where the test measures it."""

    def verdict(self, verdict: Verdict) -> None:
        """Add what a judge has found."""
        self.scenes += 1
        self.calls += verdict.calls
        self.lost += verdict.lost
        self.different += verdict.different
        self.wire += verdict.wire
        self.at_risk += verdict.at_risk
        self.repeats += verdict.told_again + verdict.asked_again
        self.unknown += verdict.unknown

    def held(self, unapproved: int) -> None:
        """Add the requests of held calls that were not allowed so."""
        self.unapproved = (self.unapproved or 0) + unapproved

    def waited(self, seconds: float) -> None:
        """Keep the longest of several waits."""
        self.longest = max(self.longest, seconds)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class _Current:
    """The figures of the test that runs now; each worker process runs one test at a time."""

    def __init__(self) -> None:
        self.figures = Observed()


_current = _Current()


def begin() -> Observed:
    """Start the figures of a new test."""
    _current.figures = Observed()
    return _current.figures


def observed() -> Observed:
    """The figures of the test that runs."""
    return _current.figures


def note(verdict: Verdict) -> Verdict:
    """Count what a judge has found, before anybody is charged with it."""
    _current.figures.verdict(verdict)
    return verdict

"""Draws the calls and failures per minute as a small SVG bar chart. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 480, 72
_STEPS = (1, 2, 5)


@dataclass(frozen=True, slots=True)
class ChartColumn:
    """One minute: the heights of its calls and, within them, of its failures."""

    x: float
    width: float
    calls: float
    failures: float
    hint: str


@dataclass(frozen=True, slots=True)
class Chart:
    """The columns, and the value at the top of the axis."""

    columns: Sequence[ChartColumn]
    top: int
    total: int
    failed: int
    begins: float
    """The place of the first minute; the instance did not run before."""


def draw(minutes: Sequence[Mapping[str, Any]]) -> Chart:
    """Draw the last minutes, oldest first; a failure counts failed and unknown calls."""
    most = max((one["calls"] for one in minutes), default=0)
    top = _round_up(most)
    width = WIDTH / 60
    columns: list[ChartColumn] = []
    for number, one in enumerate(minutes[-60:], start=60 - len(minutes[-60:])):
        failures = min(one["calls"], one["failed"]) if one["calls"] else 0
        hint = f"{one['at'][11:16]} UTC: {one['calls']} calls, {one['failed']} failed"
        columns.append(
            ChartColumn(number * width, width - 1.5, HEIGHT * one["calls"] / top, HEIGHT * failures / top, hint)
        )
    return Chart(
        columns,
        top,
        sum(one["calls"] for one in minutes),
        sum(one["failed"] for one in minutes),
        WIDTH - width * len(minutes[-60:]),
    )


def _round_up(value: int) -> int:
    """Return the next 1, 2 or 5 times a power of ten."""
    size = 1
    while True:
        for step in _STEPS:
            if value <= step * size:
                return step * size
        size *= 10

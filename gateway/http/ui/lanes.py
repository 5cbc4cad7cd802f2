"""Draws the steps of a call as swim lanes: the geometry of an SVG with a broken time axis. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from gateway.http.ui.story import Lane, Step, Tone
from gateway.http.ui.text import duration

HEIGHT = 196
"""The height in pixels; horizontal places are percentages, so that texts keep their size."""
LANES: Mapping[Lane, int] = {"agent": 48, "gateway": 98, "backend": 148}
"""The vertical center of each lane."""
_LEFT, _ROOM = 1.0, 97.0
_BAR = 22
_NARROWEST = 3.4
"""The preferred minimum width between two moments."""
_LABEL = 8.0
"""The minimum distance of two labels of the axis."""
_CHARACTER = 0.75
"""The width of a character on a screen of 1,024 pixels."""
_MERGED = 0.002
"""Moments within these seconds share a place."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A span in a lane."""

    x: float
    y: float
    width: float
    height: float
    tone: Tone
    is_wait: bool
    label: str
    hint: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """A step from one lane to another, or a point if both are the same."""

    x: float
    y: float
    to: float
    tone: Tone
    hint: str

    @property
    def tip(self) -> str:
        """The points of the arrow's head, around the horizontal place."""
        down = 6 if self.to > self.y else -6
        return f"0,{self.to:g} -4,{self.to - down:g} 4,{self.to - down:g}"


@dataclass(frozen=True, slots=True)
class Tick:
    """A label of the time axis."""

    x: float
    label: str

    @property
    def anchor(self) -> str:
        """The end of the text that stands at the place."""
        return "end" if self.x > 90 else "start"


@dataclass(frozen=True, slots=True)
class Drawing:
    """The shapes of a drawing."""

    bars: Sequence[Bar]
    arrows: Sequence[Arrow]
    ticks: Sequence[Tick]
    breaks: Sequence[Tick]
    """Gaps that are drawn shorter than they were, with their durations."""


def draw(steps: Sequence[Step]) -> Drawing:
    """Place the steps on the lanes."""
    moments = sorted({at for step in steps for at in (step.at, step.ends)})
    places, breaks = _place(moments)
    bars: list[Bar] = []
    arrows: list[Arrow] = []
    for step in steps:
        x, y = places[step.at], LANES[step.lane]
        hint = f"{step.title}: {step.detail}" if step.detail else step.title
        if step.end is not None:
            width = max(0.4, places[step.end] - x)
            label = step.title if len(step.title) * _CHARACTER + 1 < width else ""
            hint = f"{hint} ({duration(step.end - step.at)})"
            bars.append(Bar(x, y - _BAR / 2, width, _BAR, step.tone, step.is_wait, label, hint))
            if step.lane == "backend":
                edge = y - _BAR / 2
                arrows.append(Arrow(x, LANES["gateway"], edge, "plain", hint))
                arrows.append(Arrow(x + width, edge, LANES["gateway"], step.tone, hint))
        else:
            arrows.append(Arrow(x, y, LANES[step.toward or step.lane], step.tone, hint))
    return Drawing(bars, arrows, _ticks(moments, places), breaks)


def _place(moments: Sequence[datetime]) -> tuple[Mapping[datetime, float], Sequence[Tick]]:
    """Place each moment on the axis; long gaps are drawn with the logarithm of their length."""
    gaps = [(after - before).total_seconds() for before, after in pairwise(moments)]
    apart = sum(gap > _MERGED for gap in gaps)
    least = min(_NARROWEST, _ROOM / max(1, apart))
    spare = _ROOM - least * apart
    weights = [math.log10(1 + gap * 1_000) if gap > _MERGED else 0.0 for gap in gaps]
    total_weight, total = sum(weights) or 1, sum(gaps) or 1
    x, places, breaks = _LEFT, {moments[0]: _LEFT} if moments else {}, list[Tick]()
    for after, gap, weight in zip(moments[1:], gaps, weights, strict=True):
        width = least + spare * weight / total_weight if weight else 0.0
        if gap >= 1 and width / _ROOM < gap / total / 2:
            breaks.append(Tick(x + width / 2, duration(gap)))
        x += width
        places[after] = x
    return places, breaks


def _ticks(moments: Sequence[datetime], places: Mapping[datetime, float]) -> Sequence[Tick]:
    ticks: list[Tick] = []
    for at in moments:
        x = places[at]
        if not ticks:
            ticks.append(Tick(x, "0"))
        elif x - ticks[-1].x >= _LABEL:
            ticks.append(Tick(x, f"+{duration(at - moments[0])}"))
    return ticks

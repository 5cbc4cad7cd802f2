"""Draws the steps of a call as swim lanes: the geometry of an SVG with a broken time axis. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from gateway.http.ui.story import Lane, StoryStep, Tone
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
_MERGED = 0.005
"""Moments within this part of the whole time share a place."""

Moment = tuple[datetime, bool]
"""A time, and whether the step follows another step at an unrecorded time."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A span in a lane."""

    x: float
    y: float
    width: float
    height: float
    tone: Tone
    is_wait: bool
    is_open: bool
    """Whether nothing came back."""
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
class AxisLabel:
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
    ticks: Sequence[AxisLabel]
    breaks: Sequence[AxisLabel]
    """Gaps that are drawn shorter than they were, with their durations."""


def draw(steps: Sequence[StoryStep]) -> Drawing:
    """Place the steps on the lanes."""
    moments = sorted({(at, step.follows) for step in steps for at in (step.at, step.ends)})
    places, breaks = _place(moments)
    bars: list[Bar] = []
    arrows: list[Arrow] = []
    for step in steps:
        x, y = places[step.at, step.follows], LANES[step.lane]
        hint = f"{step.title}: {step.detail}" if step.detail else step.title
        if step.end is not None:
            width = max(0.4, places[step.end, step.follows] - x)
            label = step.title if len(step.title) * _CHARACTER + 1 < width else ""
            hint = f"{hint} ({duration(step.end - step.at)})"
            bars.append(Bar(x, y - _BAR / 2, width, _BAR, step.tone, step.is_wait, step.is_open, label, hint))
            if step.lane == "backend":
                edge = y - _BAR / 2
                if not step.is_wait:
                    arrows.append(Arrow(x, LANES["gateway"], edge, "plain", hint))
                if not step.is_open:
                    arrows.append(Arrow(x + width, edge, LANES["gateway"], step.tone, hint))
        else:
            arrows.append(Arrow(x, y, LANES[step.toward or step.lane], step.tone, hint))
    return Drawing(bars, arrows, _ticks(moments, places), breaks)


def _place(moments: Sequence[Moment]) -> tuple[Mapping[Moment, float], Sequence[AxisLabel]]:
    """Place each moment on the axis; long gaps are drawn with the logarithm of their length."""
    gaps = [(after - before).total_seconds() for (before, _), (after, _) in pairwise(moments)]
    total = sum(gaps) or 1
    apart = [gap > _MERGED * total or follows for gap, (_, follows) in zip(gaps, moments[1:], strict=True)]
    least = min(_NARROWEST, _ROOM / max(1, sum(apart)))
    spare = _ROOM - least * sum(apart)
    weights = [math.log10(1 + gap * 1_000) if is_apart else 0.0 for gap, is_apart in zip(gaps, apart, strict=True)]
    total_weight = sum(weights) or 1
    x, places, breaks = _LEFT, {moments[0]: _LEFT} if moments else {}, list[AxisLabel]()
    for moment, gap, is_apart, weight in zip(moments[1:], gaps, apart, weights, strict=True):
        width = least + spare * weight / total_weight if is_apart else 0.0
        if gap >= 1 and width / _ROOM < gap / total / 2:
            breaks.append(AxisLabel(x + width / 2, duration(gap)))
        x += width
        places[moment] = x
    return places, breaks


def _ticks(moments: Sequence[Moment], places: Mapping[Moment, float]) -> Sequence[AxisLabel]:
    ticks: list[AxisLabel] = []
    for at, follows in moments:
        x = places[at, follows]
        if not ticks:
            ticks.append(AxisLabel(x, "0"))
        elif x - ticks[-1].x >= _LABEL and not follows:
            ticks.append(AxisLabel(x, f"+{duration(at - moments[0][0])}"))
    return ticks

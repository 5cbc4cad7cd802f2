"""Draws the steps of a call as swim lanes: the geometry of an SVG with a broken time axis. Pure."""

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
_NARROWEST = 5.0
"""The preferred minimum width between two moments."""
_LONGEST_WAIT = 3
"""A wait is cut to this multiple of the time that attempts took together."""
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
    """The text inside, with the duration; empty if there is no room."""
    beside: str
    """The duration, if it is not inside."""
    hint: str

    @property
    def middle(self) -> float:
        """The horizontal place of the text beside it."""
        return min(max(self.x + self.width / 2, _LEFT + 2), _LEFT + _ROOM - 2)


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
    """Waits that are drawn shorter than they were, with their durations."""


def draw(steps: Sequence[StoryStep]) -> Drawing:
    """Place the steps on the lanes."""
    moments = sorted({(at, step.follows) for step in steps for at in (step.at, step.ends)})
    places, breaks = _place(moments, steps)
    bars: list[Bar] = []
    arrows: list[Arrow] = []
    for step in steps:
        x, y = places[step.at, step.follows], LANES[step.lane]
        hint = f"{step.title}: {step.detail}" if step.detail else step.title
        if step.end is not None:
            width = max(0.4, places[step.end, step.follows] - x)
            took = duration(step.end - step.at)
            label = next((one for one in (f"{step.title}, {took}", took) if len(one) * _CHARACTER + 1 < width), "")
            beside, hint = "" if label else took, f"{hint} ({took})"
            bars.append(Bar(x, y - _BAR / 2, width, _BAR, step.tone, step.is_wait, step.is_open, label, beside, hint))
            if step.lane == "backend":
                edge = y - _BAR / 2
                if not step.is_wait:
                    arrows.append(Arrow(x, LANES["gateway"], edge, "plain", hint))
                if not step.is_open:
                    arrows.append(Arrow(x + width, edge, LANES["gateway"], step.tone, hint))
        else:
            arrows.append(Arrow(x, y, LANES[step.toward or step.lane], step.tone, hint))
    return Drawing(bars, arrows, _ticks(moments, places), breaks)


def _place(moments: Sequence[Moment], steps: Sequence[StoryStep]) -> tuple[Mapping[Moment, float], Sequence[AxisLabel]]:
    """Place each moment on a linear axis, on which each gap has a minimum width and long waits are cut."""
    pairs = list(pairwise(moments))
    gaps = [(after - before).total_seconds() for (before, _), (after, _) in pairs]
    spans = [(step.at, step.ends) for step in steps if step.end is not None and not step.is_wait]
    busy = [any(at <= before and after <= end for at, end in spans) for (before, _), (after, _) in pairs]
    worked = sum(gap for gap, is_busy in zip(gaps, busy, strict=True) if is_busy)
    longest = _LONGEST_WAIT * worked or max(gaps, default=0)
    drawn = [min(gap, longest) for gap in gaps]
    # Points that are close together share a place; a bar always has a width.
    apart = [
        gap > _MERGED * sum(drawn) or follows or (is_busy and gap > 0)
        for gap, is_busy, (_, (_, follows)) in zip(drawn, busy, pairs, strict=True)
    ]
    widths = _stretch(drawn, apart)
    x, places, breaks = _LEFT, {moments[0]: _LEFT} if moments else {}, list[AxisLabel]()
    for moment, gap, shown, width in zip(moments[1:], gaps, drawn, widths, strict=True):
        if shown < gap:
            breaks.append(AxisLabel(x + width / 2, f"{duration(gap)}, cut"))
        x += width
        places[moment] = x
    return places, breaks


def _stretch(gaps: Sequence[float], apart: Sequence[bool]) -> Sequence[float]:
    """Return widths that fill the room: linear, but none below the minimum; those that are not apart have none."""
    least = min(_NARROWEST, _ROOM / max(1, sum(apart)))
    wide, scale = [gap for gap, is_apart in zip(gaps, apart, strict=True) if is_apart], 0.0
    while wide:
        scale = (_ROOM - least * (sum(apart) - len(wide))) / (sum(wide) or 1)
        left = [gap for gap in wide if gap * scale > least]
        if len(left) == len(wide):
            break
        wide = left
    return [max(least, gap * scale) if is_apart else 0.0 for gap, is_apart in zip(gaps, apart, strict=True)]


def _ticks(moments: Sequence[Moment], places: Mapping[Moment, float]) -> Sequence[AxisLabel]:
    ticks: list[AxisLabel] = []
    for at, follows in moments:
        x = places[at, follows]
        if not ticks:
            ticks.append(AxisLabel(x, "0"))
        elif x - ticks[-1].x >= _LABEL and not follows:
            ticks.append(AxisLabel(x, f"+{duration(at - moments[0][0])}"))
    return ticks

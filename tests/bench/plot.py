"""Draws lines into a PNG: one panel under the other, all over the same axis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from PIL import Image, ImageDraw, ImageFont

from tests.bench.figures import digits

WIDTH = 1200
_HEIGHT = 240
_TOP = 50
_LEFT, _RIGHT = 90, 40
_HEAD, _FOOT = 28, 30
_INK, _FAINT, _PAPER = "#222222", "#dddddd", "#ffffff"
_COLORS = ("#1f6feb", "#d1621a", "#2a9d55", "#8e44ad", "#7f6a00")
_MARKS = 4
_TITLE = 150
"""Letters that a line of the title may have."""
_DOT = 3


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines that share a scale, by their names."""

    title: str
    lines: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """Where the values of all lines stand, and what is written below."""

    places: Sequence[float]
    ticks: Sequence[tuple[float, str]]
    dots: bool = False

    @classmethod
    def steps(cls, names: Sequence[str]) -> "Axis":
        """Stand at equal distances, each with its name and a dot."""
        return cls(range(len(names)), list(enumerate(names)), dots=True)

    @classmethod
    def times(cls, times: Sequence[float], unit: str) -> "Axis":
        """Stand where the times say, from 0 on."""
        span = max(times, default=0) or 1
        marks = [span * mark / _MARKS for mark in range(_MARKS + 1)]
        return cls(times, [(mark, f"{digits(mark)} {unit}") for mark in marks])


def draw(path: Path, panels: Sequence[Panel], axis: Axis, *, title: str) -> None:
    """Write the picture; all lines have a value for each place of the axis."""
    image = Image.new("RGB", (WIDTH, _TOP + _HEIGHT * len(panels) + 10), _PAPER)
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(13)
    pen.multiline_text((_LEFT, 10), "\n".join(wrap(title, _TITLE)), fill=_INK, font=font)
    for number, panel in enumerate(panels):
        _draw_panel(pen, panel, axis, top=_TOP + number * _HEIGHT)
    image.save(path)


def _draw_panel(pen: ImageDraw.ImageDraw, panel: Panel, axis: Axis, *, top: int) -> None:
    font = ImageFont.load_default(12)
    left, right, upper, lower = _LEFT, WIDTH - _RIGHT, top + _HEAD, top + _HEIGHT - _FOOT
    most = max((value for line in panel.lines.values() for value in line), default=0) or 1
    span = max([*axis.places, *(place for place, _ in axis.ticks)], default=0) or 1
    for mark in range(_MARKS + 1):
        y = lower - (lower - upper) * mark / _MARKS
        pen.line(((left, y), (right, y)), fill=_FAINT)
        pen.text((left - 8, y), digits(most * mark / _MARKS), fill=_INK, font=font, anchor="rm")
    for place, tick in axis.ticks:
        x = left + (right - left) * place / span
        pen.line(((x, upper), (x, lower)), fill=_FAINT)
        pen.text((x, lower + 4), tick, fill=_INK, font=font, anchor="mt")
    pen.text((left, top + 6), panel.title, fill=_INK, font=font)
    end = float(right)
    for color, (name, line) in zip(_COLORS, panel.lines.items(), strict=False):
        pen.text((end, top + 6), name, fill=color, font=font, anchor="ra")
        end -= pen.textlength(name, font=font) + 16
        points = [
            (left + (right - left) * at / span, lower - (lower - upper) * value / most)
            for at, value in zip(axis.places, line, strict=True)
        ]
        if len(points) > 1:
            pen.line(points, fill=color, width=2)
        for x, y in points if axis.dots else ():
            pen.ellipse((x - _DOT, y - _DOT, x + _DOT, y + _DOT), fill=color)

"""Draws lines over time into a PNG: one panel under the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from PIL import Image, ImageDraw, ImageFont

from tests.bench.figures import digits

WIDTH = 1200
_HEIGHT = 190
_TOP = 50
_LEFT, _RIGHT = 90, 30
_HEAD, _FOOT = 28, 24
_INK, _FAINT, _PAPER = "#222222", "#dddddd", "#ffffff"
_COLORS = ("#1f6feb", "#d1621a", "#2a9d55")
_MARKS = 4
_TITLE = 150
"""Letters that a line of the title may have."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines that share a scale, by their names."""

    title: str
    lines: Mapping[str, Sequence[float]]


def draw(path: Path, panels: Sequence[Panel], *, times: Sequence[float], unit: str, title: str) -> None:
    """Write the picture; all lines have a value for each of the times."""
    image = Image.new("RGB", (WIDTH, _TOP + _HEIGHT * len(panels) + 10), _PAPER)
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(13)
    pen.multiline_text((_LEFT, 10), "\n".join(wrap(title, _TITLE)), fill=_INK, font=font)
    for number, panel in enumerate(panels):
        _draw_panel(pen, panel, times, top=_TOP + number * _HEIGHT, unit=unit)
    image.save(path)


def _draw_panel(pen: ImageDraw.ImageDraw, panel: Panel, times: Sequence[float], *, top: int, unit: str) -> None:
    font = ImageFont.load_default(12)
    left, right, upper, lower = _LEFT, WIDTH - _RIGHT, top + _HEAD, top + _HEIGHT - _FOOT
    most = max((value for line in panel.lines.values() for value in line), default=0) or 1
    span = max(times, default=0) or 1
    for mark in range(_MARKS + 1):
        y = lower - (lower - upper) * mark / _MARKS
        pen.line(((left, y), (right, y)), fill=_FAINT)
        pen.text((left - 8, y), digits(most * mark / _MARKS), fill=_INK, font=font, anchor="rm")
        x = left + (right - left) * mark / _MARKS
        pen.text(
            (x, lower + 4),
            f"{digits(span * mark / _MARKS)} {unit}",
            fill=_INK,
            font=font,
            anchor="rt" if mark else "lt",
        )
    pen.text((left, top + 6), panel.title, fill=_INK, font=font)
    place = float(right)
    for color, (name, line) in zip(_COLORS, panel.lines.items(), strict=False):
        pen.text((place, top + 6), name, fill=color, font=font, anchor="ra")
        place -= pen.textlength(name, font=font) + 16
        points = [
            (left + (right - left) * at / span, lower - (lower - upper) * value / most)
            for at, value in zip(times, line, strict=True)
        ]
        if len(points) > 1:
            pen.line(points, fill=color, width=2)

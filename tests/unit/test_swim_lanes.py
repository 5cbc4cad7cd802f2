"""The swim lanes of a call: linear, with the duration of each bar and a mark where a wait is cut."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from gateway.http.ui.lanes import Drawing, draw
from gateway.http.ui.story import StoryStep
from gateway.http.ui.text import duration

START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def steps_of(*spans: tuple[str, float]) -> list[StoryStep]:
    """Make steps one after another: attempts, waits before them, and moments without an end."""
    made, at = [StoryStep(START, "agent", "requested", toward="gateway")], START
    for kind, seconds in spans:
        end = at + timedelta(seconds=seconds)
        if kind == "moment":
            made.append(StoryStep(end, "gateway", "moment"))
        else:
            lane = "backend" if kind == "attempt" else "gateway"
            made.append(StoryStep(at, lane, kind, end=end, is_wait=kind == "wait"))
        at = end
    made.append(StoryStep(at, "gateway", "Outcome recorded", toward="agent"))
    return made


def widths(drawing: Drawing) -> list[float]:
    return [bar.width for bar in drawing.bars]


def test_bars_are_as_long_as_their_times() -> None:
    short, long = widths(draw(steps_of(("attempt", 0.3), ("attempt", 1.2))))
    assert long / short == pytest.approx(4)
    assert short + long == pytest.approx(97)


def test_a_short_bar_has_a_minimum_width_and_the_others_stay_linear() -> None:
    drawing = draw(steps_of(("attempt", 0.001), ("attempt", 0.074), ("attempt", 1.2), ("attempt", 2.4)))
    assert widths(drawing)[:2] == [pytest.approx(5), pytest.approx(5)]
    assert widths(drawing)[3] / widths(drawing)[2] == pytest.approx(2)
    assert drawing.breaks == []


def test_a_long_wait_is_cut_and_marked_with_its_time() -> None:
    drawing = draw(steps_of(("attempt", 0.04), ("wait", 7_380), ("attempt", 0.04)))
    assert [one.label for one in drawing.breaks] == ["2 h 3 min, cut"]
    first, wait, last = drawing.bars
    assert wait.x < drawing.breaks[0].x < wait.x + wait.width
    assert (first.width, last.width) == (pytest.approx(wait.width / 6), pytest.approx(wait.width / 6))
    assert "2 h 3 min" in wait.label


@pytest.mark.parametrize("kind", ["wait", "attempt"])
def test_what_is_not_long_beside_the_attempts_or_is_one_is_not_cut(kind: str) -> None:
    seconds = 2.9 if kind == "wait" else 7_200
    assert draw(steps_of(("attempt", 0.5), (kind, seconds), ("attempt", 0.5))).breaks == []


def test_a_call_without_an_attempt_is_not_cut() -> None:
    drawing = draw(steps_of(("moment", 7_200), ("moment", 0.001)))
    assert (drawing.breaks, drawing.bars) == ([], [])
    assert draw([]).ticks == []


SPANS = st.tuples(st.sampled_from(["attempt", "wait", "moment"]), st.floats(0, 10_000))


@given(st.lists(SPANS, max_size=12))
def test_every_bar_has_its_time_and_a_place_in_order(spans: Sequence[tuple[str, float]]) -> None:
    drawing = draw(steps_of(*spans))
    timed = [(kind, seconds) for kind, seconds in spans if kind != "moment"]
    assert len(drawing.bars) == len(timed)
    for (_, seconds), bar in zip(timed, drawing.bars, strict=True):
        assert duration(timedelta(seconds=seconds)) in (bar.label or bar.beside)
        assert 0.4 <= bar.width <= 97.01
        assert 0 < bar.middle < 100
    assert all(one.x <= other.x + 1e-9 for one, other in pairwise(drawing.bars))
    assert all(1 <= arrow.x <= 98.5 for arrow in drawing.arrows)
    cut = {one.label.removesuffix(", cut") for one in drawing.breaks}
    assert cut <= {duration(timedelta(seconds=seconds)) for kind, seconds in spans if kind != "attempt"}

"""Columns share a terminal's width: cut where they may be, then left out, the least needed first."""

from typing import get_args

import pytest
from hypothesis import given, strategies as st

from gateway.cli.lists import age_of, short
from gateway.cli.looking import CallStanding
from gateway.cli.tables import Column, fit
from gateway.cli.waiting import shortest
from gateway.store.call import CallState

COLUMNS = (Column("name", least=8), Column("state"), Column("why", least=6, spare=1), Column("id", spare=2))
NATURAL = (20, 7, 30, 36)


@pytest.mark.parametrize(
    ("width", "widths"),
    [
        (200, {0: 20, 1: 7, 2: 30, 3: 36}),
        (99, {0: 20, 1: 7, 2: 30, 3: 36}),
        (98, {0: 20, 1: 7, 2: 29, 3: 36}),
        (63, {0: 8, 1: 7, 2: 6, 3: 36}),
        (62, {0: 20, 1: 7, 2: 30}),
        (30, {0: 13, 1: 7, 2: 6}),
        (24, {0: 15, 1: 7}),
        (17, {0: 8, 1: 7}),
        (3, {0: 8, 1: 7}),
    ],
)
def test_a_narrow_terminal_first_cuts_and_then_leaves_out(width: int, widths: dict[int, int]) -> None:
    assert fit(COLUMNS, NATURAL, width) == widths


@given(st.lists(st.integers(1, 60), min_size=4, max_size=4), st.integers(17, 300))
def test_what_is_shown_has_room(natural: list[int], width: int) -> None:
    state = min(natural[1], 7)
    widths = fit(COLUMNS, [natural[0], state, *natural[2:]], width)
    assert sum(widths.values()) + 2 * (len(widths) - 1) <= width
    assert {0, 1} <= set(widths)
    assert widths[1] == state


def test_calls_can_be_listed_by_each_state() -> None:
    assert set(CallStanding) == set(get_args(CallState))


def test_ids_are_as_short_as_tells_them_apart() -> None:
    assert shortest([]) == 8
    assert shortest(["b1d5781e-1", "a1d5781e-1"]) == 8
    assert shortest(["b1d5781e-1x", "b1d5781e-2x"]) == 10
    assert shortest(["b1d5781e-1", "b1d5781e-1"]) == 8
    assert shortest(["b1d5781e-1", "b1d5781e-12"]) == 11
    assert short("b1d5781e-1111") == "b1d5781e…"
    assert short("b1d5781e") == "b1d5781e"


@pytest.mark.parametrize("moment", [None, "", "soon", "2026-11-20T12:00:00", 7])
def test_an_age_that_nobody_can_read_is_no_failure(moment: object) -> None:
    assert age_of(moment) == "?"

"""Columns share a terminal's width: cut where they may be, then left out, the least needed first."""

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from gateway.cli.calls import CallStanding
from gateway.cli.tables import Column, fit_columns
from gateway.cli.terminal import age_of
from gateway.store.call import CallState, certainly_did_not_run

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
    assert fit_columns(COLUMNS, NATURAL, width) == widths


@given(st.lists(st.integers(1, 60), min_size=4, max_size=4), st.integers(17, 300))
def test_what_is_shown_has_room(natural: list[int], width: int) -> None:
    state = min(natural[1], 7)
    widths = fit_columns(COLUMNS, [natural[0], state, *natural[2:]], width)
    assert sum(widths.values()) + 2 * (len(widths) - 1) <= width
    assert {0, 1} <= set(widths)
    assert widths[1] == state


def test_calls_can_be_listed_by_each_state() -> None:
    assert set(CallStanding) == set(get_args(CallState))


@pytest.mark.parametrize(
    ("ago", "shown"), [(0, "0s ago"), (119, "119s ago"), (120, "2m ago"), (7_200, "2h ago"), (172_800, "2d ago")]
)
def test_an_age_is_rounded_down(ago: int, shown: str) -> None:
    assert age_of(datetime.now(UTC) - timedelta(seconds=ago)) == shown


@pytest.mark.parametrize(
    ("members", "sure"),
    [
        ({"error": "executor answered 401 Unauthorized: no signature"}, True),
        ({"error": "executor answered 404 Not Found"}, True),
        ({"error": "executor answered 302 Found; redirects are not followed"}, True),
        ({"error": "executor answered 200 OK with an HTML page"}, False),
        ({"error": "no card is left"}, False),
        ({"error": "executor answered 4010"}, False),
        ({"error": "executor answered 409 Conflict"}, False),
        ({"error": "executor answered 422 Unprocessable Entity"}, False),
        ({"error": "executor answered 401 Unauthorized", "attempt": 2}, False),
        ({"error": None}, False),
        ({"error": "Unknown tool: ask", "attempt": 0}, True),
        ({"error": "executor answered 503 Service Unavailable (after 3 attempts)", "dead": True}, True),
        ({"error": "outcome unknown: executor answered 500", "unknown": True, "dead": True}, False),
        ({"error": "executor answered 401 Unauthorized", "unknown": True}, False),
    ],
)
def test_only_calls_that_no_executor_took_certainly_did_not_run(members: dict[str, Any], *, sure: bool) -> None:
    standing: dict[str, Any] = {"attempt": 1, "unknown": False, "dead": False, "error": None, **members}
    assert certainly_did_not_run(**standing) is sure

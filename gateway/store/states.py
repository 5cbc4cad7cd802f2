"""Groups of states as conditions in SQL, word for word as in the indexes on them, so that those are used. Pure.

What is in none of the groups is of a newer release, and stays as it is.
"""

from collections.abc import Iterable
from typing import get_args

from gateway.store.apply import DEAD_STATES
from gateway.store.call import OPEN_STATES, TRANSITIONS
from gateway.store.step import NEWER, InteractionState, SendState


def _any_of(states: Iterable[str]) -> str:
    return f"({', '.join(repr(state) for state in states)})"


_GOOD_SENDS = _any_of(state for state in get_args(SendState) if state not in DEAD_STATES)
_DEAD_SENDS = _any_of(state for state in get_args(SendState) if state in DEAD_STATES)

OPEN_CALL = f"state IN {_any_of(OPEN_STATES)}"
NEWER_CALL = f"state NOT IN {_any_of(TRANSITIONS)}"
PENDING = "state = 'pending'"
DEAD_SEND = f"state IN {_DEAD_SENDS}"
NEWER_SEND = f"state NOT IN {_GOOD_SENDS} AND state NOT IN {_DEAD_SENDS}"
LISTED = f"state NOT IN {_GOOD_SENDS} OR (state = 'pending' AND reason = '{NEWER}')"
"""Outbound rows that wait for an operator: those whose fate is not good, and those that only a newer release can go on
with."""
WAITING = "state = 'waiting'"
NEWER_INTERACTION = f"state NOT IN {_any_of(get_args(InteractionState))}"

"""Groups of states as conditions in SQL, word for word as in the indexes on them, so that those are used. Pure."""

from collections.abc import Iterable
from typing import get_args

from gateway.store.apply import DEAD_STATES
from gateway.store.call import OPEN_STATES
from gateway.store.step import SendState


def _any_of(states: Iterable[str]) -> str:
    return f"({', '.join(repr(state) for state in states)})"


OPEN_CALL = f"state IN {_any_of(OPEN_STATES)}"
PENDING = "state = 'pending'"
DEAD_SEND = f"state IN {_any_of(state for state in get_args(SendState) if state in DEAD_STATES)}"
"""Outbound rows that wait for an operator."""
WAITING = "state = 'waiting'"
UNHEARD = "unheard_since IS NOT NULL AND finished_at IS NOT NULL"
"""The held calls that have ended and whose callers have not received the outcome."""
MOOT_HELD = "state = 'moot' AND call_id IS NOT NULL"
"""Questions about held calls that ended without an answer."""

"""Decides which events a sweep may remove, oldest first over all sessions. Pure.

History stays contiguous: only the oldest events of a session go, up to its floor, the first event that
an open call, a pending send or a waiting question still needs.
"""

import heapq
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from gateway.events import SessionId
from gateway.store.records import whole_micros
from gateway.store.rows import RetentionPolicy


class SessionHistory(NamedTuple):
    """What a sweep must know of one session; only sessions with events left have one."""

    session_id: SessionId
    closed: bool
    first_seq: int
    last_seq: int
    floor: int
    """No event from here on may go."""
    oldest_at: int


class Item(NamedTuple):
    """One event as a sweep sees it."""

    seq: int
    recorded_at: int
    size: int


class RemovedRows(NamedTuple):
    """What cutting sessions removed: events, and by target the copies among them that were still to be delivered."""

    events: int
    copies: Counter[str]


class Cut(NamedTuple):
    """The events of a session that may go: from `first_seq` up to, without, `until`."""

    first_seq: int
    until: int


Chosen = tuple[dict[SessionId, Cut], bool]
"""What each session may lose, and whether the budget ran out."""

PORTION = 500
"""Events that one transaction erases or removes, so that steps never wait long behind it."""

_CHUNK = 200


def consider(
    shelves: Sequence[SessionHistory], policy: RetentionPolicy, *, now: int, total: int, budget: int
) -> Generator[tuple[SessionId, int, int], Sequence[Item], Chosen]:
    """Choose the events to remove.

    Yields (session, first sequence, limit) and expects the items from there to be sent.
    """
    closed_before = now - whole_micros(policy.closed_age)
    open_before = now - whole_micros(policy.open_age)
    over = total - policy.max_bytes
    by_id = {shelf.session_id: shelf for shelf in shelves}
    heap = [(shelf.oldest_at, shelf.session_id, shelf.first_seq) for shelf in shelves]
    heapq.heapify(heap)
    ahead: dict[SessionId, list[Item]] = {}
    cuts: dict[SessionId, Cut] = {}
    while heap:
        recorded_at, session_id, seq = heapq.heappop(heap)
        shelf = by_id[session_id]
        aged = recorded_at < (closed_before if shelf.closed else open_before)
        crowded = not shelf.closed and seq <= shelf.last_seq - policy.open_events
        if seq >= shelf.floor or not (aged or crowded or over > 0):
            continue
        if budget == 0:
            return cuts, True
        items = ahead.get(session_id) or [*reversed((yield session_id, seq, _CHUNK))]
        if not items:
            continue
        over -= items.pop().size
        budget -= 1
        cuts[session_id] = Cut(shelf.first_seq, seq + 1)
        items = items or [*reversed((yield session_id, seq + 1, _CHUNK))]
        ahead[session_id] = items
        if items:
            heapq.heappush(heap, (items[-1].recorded_at, session_id, items[-1].seq))
    return cuts, False


def portions(cuts: Mapping[SessionId, Cut]) -> list[dict[SessionId, int]]:
    """Split what a sweep chose into transactions of a bearable size."""
    parts: list[dict[SessionId, int]] = []
    room = 0
    for session_id, whole in cuts.items():
        at = whole.first_seq
        while at < whole.until:
            if room == 0:
                parts.append({})
                room = PORTION
            reached = min(whole.until, at + room)
            room -= reached - at
            parts[-1][session_id] = at = reached
    return parts


def add_up(parts: Iterable[RemovedRows]) -> RemovedRows:
    """Add up what several cuts removed."""
    events, copies = 0, Counter[str]()
    for part in parts:
        events += part.events
        copies.update(part.copies)
    return RemovedRows(events, copies)

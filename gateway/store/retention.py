"""Decides which events a sweep may remove, oldest first over all sessions. Pure.

The history of a session stays contiguous: a sweep removes only its oldest events, up to its floor. The floor is the
first event that an open call, a pending send or a waiting question still needs.
"""

import heapq
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from gateway.events import SessionId
from gateway.store.records import whole_micros
from gateway.store.rows import RetentionPolicy


class SessionHistory(NamedTuple):
    """The facts about one session that a sweep needs; sessions without events have none."""

    session_id: SessionId
    closed: bool
    first_seq: int
    last_seq: int
    floor: int
    """The first event that must stay, and all after it."""
    oldest_at: int


class Item(NamedTuple):
    """The facts about one event that a sweep needs."""

    seq: int
    recorded_at: int
    size: int


class RemovedRows(NamedTuple):
    """The number of removed events, and of undelivered copies removed with them, by target."""

    events: int
    copies: Counter[str]


class Cut(NamedTuple):
    """The events of a session that may be removed: from `first_seq` up to and excluding `until`."""

    first_seq: int
    until: int


Chosen = tuple[dict[SessionId, Cut], bool]
"""The cut of each session, and whether the budget ran out."""

BATCH = 500
"""Events that one transaction erases or removes, so that steps never wait long for it."""

_CHUNK = 200


def consider(
    shelves: Sequence[SessionHistory], policy: RetentionPolicy, *, now: int, total: int, budget: int
) -> Generator[tuple[SessionId, int, int], Sequence[Item], Chosen]:
    """Choose the events to remove.

    Yields (session, first sequence, limit) and expects the items from that sequence in return.
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
    """Split the cuts of a sweep into transactions of at most `BATCH` events."""
    parts: list[dict[SessionId, int]] = []
    room = 0
    for session_id, whole in cuts.items():
        at = whole.first_seq
        while at < whole.until:
            if room == 0:
                parts.append({})
                room = BATCH
            reached = min(whole.until, at + room)
            room -= reached - at
            parts[-1][session_id] = at = reached
    return parts


def add_up(parts: Iterable[RemovedRows]) -> RemovedRows:
    """Add up the removed rows of several cuts."""
    events, copies = 0, Counter[str]()
    for part in parts:
        events += part.events
        copies.update(part.copies)
    return RemovedRows(events, copies)

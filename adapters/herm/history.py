"""Reads the stored history of a session: every page, sorted, without known events."""

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from adapters.herm import wire
from adapters.herm.options import HermOptions
from gateway.errors import LinkLost
from gateway.events.frozen import frozen
from gateway.events.weight import weight
from gateway.links.rest import RestClient, refusal
from gateway.strict_json import Malformed

_HEAVY = 256 * 1024
"""After an event above this weight, other tasks get their turn; weighing it may take a millisecond."""


@frozen
class Event:
    """One received event and its place."""

    payload: Any
    place: wire.Place
    size: int = 0
    """Bytes of its text, if it arrived alone."""
    written: bytes | None = None
    """See `Frame.written`."""


@dataclass(frozen=True, slots=True)
class History:
    """The durable events after the last known one, in order, and the ids of all listed events."""

    events: tuple[Event, ...]
    ids: tuple[str, ...]
    highest: int
    """The highest sequence listed, of all events; -1 without any."""


async def read_history(
    client: RestClient, path: str, *, options: HermOptions, after: int | None, largest: int
) -> History:
    """List all events; only a complete list is returned, because a failed page may contain an answer.

    Raises:
        LinkLost: a page failed, or the history has too many pages or more than `largest` bytes.
        LinkRefused: the server refused.
    """
    found: list[Event] = []
    ids: list[str] = []
    highest, size = -1, 0
    cursors: set[str] = set()
    cursor: str | None = None
    for _ in range(options.list_pages):
        page = await _read_page(client, path, _query(options, after, cursor), options)
        for payload in page.events:
            wire.check_protocol(payload)
        places = [wire.place_of(payload) for payload in page.events]
        ids.extend(place.event_id for place in places if place.event_id is not None)
        highest = max(highest, *(place.sequence or -1 for place in places), -1)
        news = [
            Event(payload, place)
            for payload, place in zip(page.events, places, strict=True)
            # Live events are not part of the history.
            if not place.is_live and (after is None or place.sequence is None or place.sequence > after)
        ]
        found.extend(news)
        for event in news:
            bytes_of_event = weight(event.payload)
            size += bytes_of_event
            if bytes_of_event > _HEAVY:
                await asyncio.sleep(0)
        if size > largest:
            raise LinkLost(f"the history has more than {largest} bytes")
        # A repeated cursor would loop forever.
        if page.cursor is None or page.cursor in cursors or _has_passed(places, after):
            return History(_sorted(found), tuple(ids), highest)
        cursor = page.cursor
        cursors.add(cursor)
    raise LinkLost(f"the history is longer than {options.list_pages} pages of {options.list_limit} events")


async def _read_page(client: RestClient, path: str, query: dict[str, str], options: HermOptions) -> wire.Page:
    answer = await client.get(path, query, within=options.list_timeout)
    if not 200 <= answer.status < 300:
        raise refusal(answer, client.mask)
    page = wire.read_page(answer.body)
    if page is None:
        reason = f": {answer.body.reason}" if isinstance(answer.body, Malformed) else ""
        raise LinkLost(client.mask(f"{answer.where}, but the response is not a list of events{reason}"))
    return page


def _query(options: HermOptions, after: int | None, cursor: str | None) -> dict[str, str]:
    query: dict[str, str] = {}
    if options.limit_parameter:
        query[options.limit_parameter] = str(options.list_limit)
    if options.after_parameter and after is not None:
        query[options.after_parameter] = str(after)
    if cursor is not None:
        query[options.cursor_parameter] = cursor
    return query


def _has_passed(places: list[wire.Place], after: int | None) -> bool:
    """Whether a list that starts with the newest event has reached the known ones."""
    numbers = [place.sequence for place in places if place.sequence is not None]
    falls = len(numbers) > 1 and all(above > below for above, below in pairwise(numbers))
    return falls and after is not None and numbers[-1] <= after


def _sorted(found: list[Event]) -> tuple[Event, ...]:
    """Sort by sequence without duplicates; an event without a sequence follows its predecessor."""
    keyed: list[tuple[int, Event]] = []
    known: set[str] = set()
    last = -1
    for event in found:
        if event.place.event_id is not None:
            if event.place.event_id in known:
                continue
            known.add(event.place.event_id)
        if event.place.sequence is not None:
            last = event.place.sequence
        keyed.append((last, event))
    return tuple(event for _, event in sorted(keyed, key=lambda one: one[0]))

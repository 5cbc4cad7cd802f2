"""Reads the stored history of a session: every page, sorted, without what is known already."""

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
"""Behind an event that takes more than this, others get their turn; to weigh it may take a millisecond."""


@frozen
class Event:
    """One event as it came, and where it stands."""

    payload: Any
    place: wire.Place
    size: int = 0
    """Bytes of its text, where it came alone."""
    written: bytes | None = None
    """As for a frame."""


@dataclass(frozen=True, slots=True)
class History:
    """The durable events after the one last known, in their order, and the ids of all that were listed."""

    events: tuple[Event, ...]
    ids: tuple[str, ...]
    highest: int
    """The highest sequence listed, of events known and not; -1 where none was."""


async def read_history(
    client: RestClient, path: str, *, options: HermOptions, after: int | None, largest: int
) -> History:
    """List everything; only a complete list is returned, since an answer may be on the page that failed.

    Raises:
        LinkLost: a page cannot be had now, or there are too many, or more than the `largest` number of bytes.
        LinkRefused: the server said no.
    """
    found: list[Event] = []
    ids: list[str] = []
    highest, size = -1, 0
    cursors: set[str] = set()
    cursor: str | None = None
    for _ in range(options.list_pages):
        page = await _read_page(client, path, _query(options, after, cursor), options)
        places = [wire.place_of(payload) for payload in page.events]
        ids.extend(place.event_id for place in places if place.event_id is not None)
        highest = max(highest, *(place.sequence or -1 for place in places), -1)
        news = [
            Event(payload, place)
            for payload, place in zip(page.events, places, strict=True)
            # What was only live is history no more.
            if not place.is_live and (after is None or place.sequence is None or place.sequence > after)
        ]
        found.extend(news)
        for event in news:
            heavy = weight(event.payload)
            size += heavy
            if heavy > _HEAVY:
                await asyncio.sleep(0)
        if size > largest:
            raise LinkLost(f"the history takes more than {largest} bytes")
        # A cursor that comes again would lead around for ever.
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
        raise LinkLost(client.mask(f"{answer.where}, but what was answered is no list of events{reason}"))
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
    """Whether a list that shows the newest first has come down to what is known."""
    numbers = [place.sequence for place in places if place.sequence is not None]
    falls = len(numbers) > 1 and all(above > below for above, below in pairwise(numbers))
    return falls and after is not None and numbers[-1] <= after


def _sorted(found: list[Event]) -> tuple[Event, ...]:
    """Sort by sequence, each event once; one without a number stays behind the event before it."""
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

"""Adds `linked_to` to recorded actions of a runtime that were later identified as calls."""

from collections.abc import Sequence
from contextlib import suppress

from gateway.errors import Truncated
from gateway.events import CallId, CallLinked, Envelope, SessionId, ToolFinished, ToolRequested
from gateway.events.frozen import replace
from gateway.store.port import Engine

_LOOKAHEAD = 100
"""Events after a page that are searched for the links of its last actions."""


async def with_links(
    engine: Engine, session_id: SessionId, page: Sequence[Envelope], *, more: bool
) -> Sequence[Envelope]:
    """Complete `linked_to` on a page of history; `more` says whether events may follow the page."""
    under_way = {one.sequence for one in page if _is_unlinked(one)}
    if not under_way:
        return page
    links = _links(page)
    if more and under_way.difference(links, [one.caused_by for one in page if isinstance(one.event, ToolFinished)]):
        # Events that were removed since the first read contain no link.
        with suppress(Truncated):
            links |= _links(await engine.read(session_id, after=page[-1].sequence, limit=_LOOKAHEAD))
    return [replace(one, linked_to=links[one.sequence]) if one.sequence in links else one for one in page]


def _is_unlinked(one: Envelope) -> bool:
    return one.linked_to is None and isinstance(one.event, ToolRequested) and one.event.runs_in == "runtime"


def _links(envelopes: Sequence[Envelope]) -> dict[int, CallId]:
    """Map the sequences of actions to calls; only links made by the gateway count."""
    return {
        one.caused_by: CallId(one.event.call_id)
        for one in envelopes
        if isinstance(one.event, CallLinked) and one.origin is None and one.caused_by is not None
    }

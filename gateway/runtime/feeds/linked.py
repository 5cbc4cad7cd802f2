"""Shows actions of the runtime's own as the calls that they turned out to be after they were recorded."""

from collections.abc import Sequence
from contextlib import suppress

from gateway.errors import Truncated
from gateway.events import CallId, CallLinked, Envelope, SessionId, ToolFinished, ToolRequested
from gateway.events.frozen import replace
from gateway.store.port import Engine

_BEHIND = 100
"""Events behind a page in which is looked for what an action at its end has turned out to be."""


async def with_links(
    engine: Engine, session_id: SessionId, page: Sequence[Envelope], *, more: bool
) -> Sequence[Envelope]:
    """Complete `linked_to` on a page of history; `more` says whether something may stand behind it."""
    under_way = {one.sequence for one in page if _is_unlinked(one)}
    if not under_way:
        return page
    links = _links(page)
    if more and under_way.difference(links, [one.caused_by for one in page if isinstance(one.event, ToolFinished)]):
        # What is removed between two looks had been no answer.
        with suppress(Truncated):
            links |= _links(await engine.read(session_id, after=page[-1].sequence, limit=_BEHIND))
    return [replace(one, linked_to=links[one.sequence]) if one.sequence in links else one for one in page]


def _is_unlinked(one: Envelope) -> bool:
    return one.linked_to is None and isinstance(one.event, ToolRequested) and one.event.runs_in == "runtime"


def _links(envelopes: Sequence[Envelope]) -> dict[int, CallId]:
    """Find which action is which call; only the gateway itself says so."""
    return {
        one.caused_by: CallId(one.event.call_id)
        for one in envelopes
        if isinstance(one.event, CallLinked) and one.origin is None and one.caused_by is not None
    }

"""Loads the whole history of a call, with several reads of the store."""

from gateway.errors import Truncated
from gateway.events import Envelope
from gateway.runtime.views import CallHistory
from gateway.store.call import Call
from gateway.store.port import Engine

_PAGE = 500
_MOST_PAGES = 20


async def load_history(engine: Engine, row: Call) -> CallHistory:
    """Collect all events and deliveries of a call, from its request up to a bounded number of events later."""
    found: list[Envelope] = []
    after = row.request_sequence - 1
    for _ in range(_MOST_PAGES):
        try:
            page = await engine.read(row.session_id, after=after, limit=_PAGE)
        except Truncated as exc:
            after = exc.first_sequence - 1
            continue
        found.extend(envelope for envelope in page if _belongs_to(envelope, row))
        if len(page) < _PAGE:
            break
        after = page[-1].sequence
    outcome = row.outcome_sequence
    sends = () if outcome is None else await engine.sends_of(row.session_id, outcome)
    return CallHistory(row, tuple(found), tuple(sends))


def _belongs_to(envelope: Envelope, row: Call) -> bool:
    event = envelope.event
    if getattr(event, "call_id", None) == row.call_id or envelope.sequence == row.request_sequence:
        return True
    return event.kind == "delivery.settled" and getattr(event, "sequence", None) == row.outcome_sequence

"""Loads the whole history of a call, with several reads of the store."""

from gateway.errors import Truncated
from gateway.events import Envelope
from gateway.runtime.views import CallHistory
from gateway.store.call import Call
from gateway.store.port import Engine

_KINDS = frozenset(
    {
        "approval.asked", "approval.given", "tool.canceled", "call.progressed", "call.linked", "outcome.ignored",
        "context.updated", "delivery.settled",
    }
)  # fmt: skip
"""The kinds between the request of a call and its outcome, and after it; requests of other calls are not read."""
_SEARCHED = 10_000


async def load_history(engine: Engine, row: Call) -> CallHistory:
    """Collect all events and deliveries of a call, from its request up to a bounded number of events later."""
    found = await _read_one(engine, row, row.request_sequence)
    after: int | None = row.request_sequence
    while after is not None and after < row.request_sequence + _SEARCHED:
        try:
            page, after = await engine.read_kinds(row.session_id, _KINDS, after=after)
        except Truncated as exc:
            after = exc.first_sequence - 1
            continue
        found += [envelope for envelope in page if _belongs_to(envelope, row)]
    if row.outcome_sequence is None:
        return CallHistory(row, tuple(found), ())
    found += await _read_one(engine, row, row.outcome_sequence)
    sends = await engine.sends_of(row.session_id, row.outcome_sequence)
    return CallHistory(row, tuple(sorted(found, key=lambda one: one.sequence)), tuple(sends))


async def _read_one(engine: Engine, row: Call, sequence: int) -> list[Envelope]:
    try:
        return await engine.read(row.session_id, after=sequence - 1, limit=1)
    except Truncated:
        return []


def _belongs_to(envelope: Envelope, row: Call) -> bool:
    event = envelope.event
    if getattr(event, "call_id", None) == row.call_id:
        return True
    return event.kind == "delivery.settled" and getattr(event, "sequence", None) == row.outcome_sequence

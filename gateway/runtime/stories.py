"""Questions that need more than one look into the store: a call's whole story, and what ended dead."""

from collections.abc import Sequence

from gateway.envelope import Envelope
from gateway.errors import InvalidRequest, Truncated
from gateway.ports.engine import CallFilter, CallRow, Engine, Page, SendRow
from gateway.runtime.views import CallStory

_PAGE = 500
_MOST_PAGES = 20


async def tell_story(engine: Engine, row: CallRow) -> CallStory:
    """Collect everything on record about a call, looking a bounded way behind its request."""
    found: list[Envelope] = []
    after = row.request_sequence - 1
    for _ in range(_MOST_PAGES):
        try:
            page = await engine.read(row.session_id, after=after, limit=_PAGE)
        except Truncated as exc:
            after = exc.first_sequence - 1
            continue
        found.extend(envelope for envelope in page if _tells_of(envelope, row))
        if len(page) < _PAGE:
            break
        after = page[-1].sequence
    outcome = row.outcome_sequence
    sends = () if outcome is None else await engine.sends_of(row.session_id, outcome)
    return CallStory(row, tuple(found), tuple(sends))


def _tells_of(envelope: Envelope, row: CallRow) -> bool:
    event = envelope.event
    if getattr(event, "call_id", None) == row.call_id or envelope.sequence == row.request_sequence:
        return True
    return event.kind == "delivery.settled" and getattr(event, "sequence", None) == row.outcome_sequence


async def list_dead_letters(engine: Engine, page: Page) -> tuple[Sequence[CallRow | SendRow], str | None]:
    """List calls whose outcome is unknown, then sends that will not be tried again.

    Raises:
        InvalidRequest: the cursor is not of this list.
    """
    kind, _, cursor = (page.after or "c:").partition(":")
    if kind not in {"c", "s"}:
        raise InvalidRequest("this cursor is not from a list of dead letters", pointer="after")
    if kind == "c":
        calls, following = await engine.calls(CallFilter(unknown=True), Page(page.limit, cursor or None))
        if following is not None or len(calls) >= page.limit:
            return calls, f"c:{following}" if following is not None else "s:"
        sends, following = await engine.dead_sends(Page(page.limit - len(calls)))
        return [*calls, *sends], None if following is None else f"s:{following}"
    sends, following = await engine.dead_sends(Page(page.limit, cursor or None))
    return sends, None if following is None else f"s:{following}"

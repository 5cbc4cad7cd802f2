"""The request body of a post, and the receipt for its response."""

from typing import Any, Literal

from adapters.herm import wire
from gateway.adapter.port import Receipt
from gateway.errors import LinkLost
from gateway.links.masking import Mask
from gateway.links.rest import RestAnswer

_SETTLED = frozenset({404, 409, 410})
_LATER = frozenset({401, 402, 403, 425, 429})
"""The event is valid but was not accepted; the next link sends it again."""
_ELSEWHERE = frozenset({301, 302, 307, 308})
"""Redirects before the request was processed; a 303 may follow its processing."""
_UNCLEAR = 408
_OVERLOADED = 503


def body_of(event: Any, form: Literal["events", "single", "list"]) -> Any:
    """Wrap one event as the body of a post; each event has its own request and response."""
    match form:
        case "events":
            return {"events": [event]}
        case "list":
            return [event]
        case "single":
            return event


def receipt_for(
    kind: str, answer: RestAnswer, *, busy_statuses: tuple[int, ...], busy_codes: tuple[str, ...], mask: Mask
) -> Receipt:
    """Return the receipt for a response to a post of an event of type `kind`.

    Raises:
        LinkLost: the event must be sent again, or its result is unknown.
    """
    status, code = answer.status, answer.code
    reason = _reason(kind, answer, mask)
    if 200 <= status < 300:
        if answer.is_page:
            # A proxy's page: the next link checks the history for the event.
            raise LinkLost(f"HTTP {status} with an HTML page instead of a response")
        return Receipt("delivered")
    if status in _LATER | _ELSEWHERE or (status == _OVERLOADED and answer.retry_after is not None):
        raise LinkLost(reason, unsent=True)
    if status >= 500 or status < 400 or status == _UNCLEAR:
        raise LinkLost(reason)
    if kind in wire.ANSWERS and status in _SETTLED:
        return Receipt("moot", reason)
    if kind in wire.HINTS:
        return Receipt("moot", reason)
    if kind == wire.USER_MESSAGE and not wire.means_absent(code):
        says_busy = wire.means_busy(code) or code in busy_codes
        if status in busy_statuses or (status in {400, 422} and says_busy):
            return Receipt("busy", reason)
    return Receipt("refused", reason)


def _reason(kind: str, answer: RestAnswer, mask: Mask) -> str:
    again = f" (Retry-After: {answer.retry_after[:40]})" if answer.retry_after else ""
    # An error message may quote the secret that was sent.
    parts = [] if kind in wire.SECRETS else [answer.code, answer.message]
    words = ": ".join(part for part in parts if part)
    return mask(f"HTTP {answer.status}{again}" + (f": {words}" if words else ""))[:300]

"""W3C trace contexts of turns, calls and attempts, derived from their ids. Pure.

Every instance derives the same ids, so the spans of retries, redrives and takeovers form one trace.
"""

import re
from datetime import datetime
from functools import lru_cache
from hashlib import sha256

from gateway.events import CallId, SessionId
from gateway.events.frozen import frozen, replace
from gateway.store.call import Call

NO_SPAN = "0" * 16
"""The parent of a root span; no valid span has this id."""

_NO_TRACE = "0" * 32
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_STATE_MEMBER = re.compile(r"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]", re.ASCII)
_LONGEST_STATE = 512
_MOST_MEMBERS = 32
_KEPT = 1_024
"""Places that are derived or read once for all calls of a turn."""


@frozen
class TraceContext:
    """A place in a trace: the next span there is a child of `parent`."""

    trace_id: str
    parent: str = NO_SPAN
    sampled: bool = True
    """Whether spans of this trace are exported."""
    state: str = ""
    """The caller's `tracestate`."""

    def __str__(self) -> str:
        """Write it as the value of a `traceparent` header."""
        return f"00-{self.trace_id}-{self.parent}-{'01' if self.sampled else '00'}"

    def below(self, span_id: str) -> "TraceContext":
        """Return the place below a span of the same trace."""
        return replace(self, parent=span_id)

    def record(self) -> str:
        """Write it for the store: the `traceparent`, and after a space the `tracestate`."""
        return f"{self} {self.state}" if self.state else str(self)


def read_traceparent(given: object, state: object = None) -> TraceContext | None:
    """Read a `traceparent` of a caller; None if it is not valid (W3C Trace Context, 3.2).

    A `tracestate` that is not valid, or is longer than 512 characters, is ignored.
    """
    context = _read(given)
    return None if context is None or context.parent == NO_SPAN else replace(context, state=_read_state(state))


@lru_cache(_KEPT)
def turn_context(session_id: SessionId, first_sequence: int, ratio: float) -> TraceContext:
    """Return the place below the span of a turn."""
    trace_id = _digest(f"turn {session_id} {first_sequence}")[:32]
    return TraceContext(trace_id, _turn_span(trace_id), is_sampled(trace_id, ratio))


def key_context(key: str, ratio: float = 1.0) -> TraceContext:
    """Return the root of the trace of a call without a caller's context and without a turn."""
    trace_id = _digest(key)[:32]
    return TraceContext(trace_id, NO_SPAN, is_sampled(trace_id, ratio))


def context_of(call: Call) -> TraceContext:
    """Return the place that a call got when it was opened; calls of releases before 0.3 have none on record."""
    return _read_record(call.trace or "") or key_context(call.idempotency_key)


def call_span(call_id: CallId) -> str:
    """Return the id of a call's own span."""
    return _digest(f"call {call_id}")[:16]


def attempt_span(call_id: CallId, attempt: int, *, unsent_at: datetime | None = None) -> str:
    """Return the id of the span of an attempt, which its webhook carries; the number of an unsent one is used again."""
    number = f"{attempt}" if unsent_at is None else f"{attempt} {unsent_at.isoformat()}"
    return _digest(f"attempt {number} {call_id}")[:16]


def place_of_request(call: Call, caller: TraceContext | None) -> TraceContext:
    """Return the place of the MCP request that opened a call: below its caller's span, else below the turn's."""
    if caller is not None:
        return caller
    context = context_of(call)
    is_root = context.trace_id == key_context(call.idempotency_key).trace_id
    return context.below(NO_SPAN if is_root else _turn_span(context.trace_id))


def attempt_context(call: Call) -> TraceContext:
    """Return the trace context that the webhook of the current attempt of a call carries."""
    return context_of(call).below(attempt_span(call.call_id, call.attempt))


def is_sampled(trace_id: str, ratio: float) -> bool:
    """Decide whether a trace is exported; every instance decides alike."""
    return ratio >= 1 or int(trace_id[16:], 16) < ratio * 2**64


def _read(given: object) -> TraceContext | None:
    found = _TRACEPARENT.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        return None
    version, trace_id, parent, flags, more = found.groups()
    if trace_id == _NO_TRACE or (version == "00" and more is not None):
        return None
    return TraceContext(trace_id, parent, bool(int(flags, 16) & 1))


@lru_cache(_KEPT)
def _read_record(written: str) -> TraceContext | None:
    parent, _, state = written.partition(" ")
    context = _read(parent)
    return None if context is None else replace(context, state=state)


def _read_state(given: object) -> str:
    if not isinstance(given, str) or len(given) > _LONGEST_STATE:
        return ""
    members = [member for part in given.split(",") if (member := part.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    is_valid = len(keys) == len(members) <= _MOST_MEMBERS and all(map(_STATE_MEMBER.fullmatch, members))
    return ",".join(members) if is_valid else ""


def _turn_span(trace_id: str) -> str:
    return _digest(trace_id)[:16]


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()

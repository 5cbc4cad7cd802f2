"""The rows that engines keep, one named tuple per table with the table's columns in order. Pure.

Times are whole microseconds since 1970, truths are 0 or 1: what every database stores without loss.
"""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from gateway.errors import InvalidRequest
from gateway.events import CallId, Direction, EventId, InteractionId, SessionId
from gateway.store.rows import CallRow, InteractionRow
from gateway.store.step import NEWER, CallState, InteractionState, Lane, SendState

LISTED = f"state NOT IN ('pending', 'delivered', 'moot') OR (state = 'pending' AND reason = '{NEWER}')"
"""Which outbound rows wait for an operator, in SQL: those whose fate is not good, and those that only a newer release
can go on with. Word for word as the index on them, so that it is used."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Head(NamedTuple):
    """What must be known of a session to write to it."""

    session_id: SessionId
    runtime: str
    state: str
    last_seq: int
    min_seq: int
    fence: int
    size: int
    """Bytes of event bodies left, for retention."""


class EventRecord(NamedTuple):
    """One event; `body` is None once it is erased."""

    session_id: SessionId
    seq: int
    event_id: EventId
    kind: str
    direction: Direction
    dedupe_key: str | None
    recorded_at: int
    body: bytes | None
    about: bytes | None


class CallRecord(NamedTuple):
    """One call; bodies are in its events."""

    call_id: CallId
    session_id: SessionId
    runtime: str
    native_call_id: str
    n: int
    tool: str
    args_sha: str
    state: CallState
    attempt: int
    created_at: int
    deadline_at: int
    request_seq: int
    executor: str | None
    key: str | None
    due_at: int | None
    canceling_until: int | None
    outcome_seq: int | None
    outcome_sha: str | None
    unknown: int
    error: str | None
    redrive_of: CallId | None
    deliver: int
    finished_at: int | None
    dead: int
    late: int
    progressed: int


class SendRecord(NamedTuple):
    """One outbound row."""

    session_id: SessionId
    seq: int
    target: str
    lane: Lane
    state: SendState
    attempt: int
    due_at: int | None
    reason: str | None
    created_at: int

    @property
    def listed(self) -> bool:
        """Whether it waits for an operator, as `LISTED` says."""
        if self.state == "pending":
            return self.reason == NEWER
        return self.state not in {"delivered", "moot"}


class SendMove(NamedTuple):
    """What an outbound row becomes, and which; in the order the UPDATE wants."""

    state: SendState
    attempt: int
    due_at: int | None
    reason: str | None
    session_id: SessionId
    seq: int
    target: str


class SnapshotRecord(NamedTuple):
    """A session's memory, written down."""

    session_id: SessionId
    snapshot: bytes
    keep_from: int | None


class AnswerRecord(NamedTuple):
    """The remembered answer to an API write."""

    scope: str
    key: str
    request_sha: str
    response: bytes
    expires_at: int


class InteractionRecord(NamedTuple):
    """One question to a person."""

    interaction_id: InteractionId
    session_id: SessionId
    kind: str
    state: InteractionState
    request_seq: int
    expires_at: int | None
    answered_by: str | None


class InteractionMove(NamedTuple):
    """A change of a question already on record; in the order the UPDATE wants."""

    state: InteractionState
    expires_at: int | None
    answered_by: str | None
    interaction_id: InteractionId
    session_id: SessionId


def micros(moment: datetime) -> int:
    """Count the microseconds from 1970 to an aware datetime, exactly.

    Raises:
        InvalidRequest: it has no time zone.
    """
    try:
        span = moment - _EPOCH
    except TypeError as exc:
        raise InvalidRequest(f"{moment.isoformat()} has no time zone, so nobody knows when it is") from exc
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def whole_micros(span: timedelta) -> int:
    """Count the microseconds of a span."""
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def micros_or_none(moment: datetime | None) -> int | None:
    return None if moment is None else micros(moment)


def moment(count: int) -> datetime:
    """Turn microseconds since 1970 back into a datetime in UTC."""
    return _EPOCH + timedelta(microseconds=count)


def moment_or_none(count: int | None) -> datetime | None:
    return None if count is None else moment(count)


def call_row(record: CallRecord) -> CallRow:
    """Show a stored call as the port does."""
    return CallRow(
        call_id=record.call_id,
        session_id=record.session_id,
        runtime=record.runtime,
        native_call_id=record.native_call_id,
        n=record.n,
        tool=record.tool,
        args_sha=record.args_sha,
        state=record.state,
        attempt=record.attempt,
        created_at=moment(record.created_at),
        deadline_at=moment(record.deadline_at),
        request_sequence=record.request_seq,
        executor=record.executor,
        key=record.key,
        due_at=moment_or_none(record.due_at),
        canceling_until=moment_or_none(record.canceling_until),
        outcome_sequence=record.outcome_seq,
        outcome_sha=record.outcome_sha,
        unknown=bool(record.unknown),
        error=record.error,
        redrive_of=record.redrive_of,
        deliver=bool(record.deliver),
        finished_at=moment_or_none(record.finished_at),
        dead=bool(record.dead),
        late=bool(record.late),
        progressed=record.progressed,
    )


def interaction_row(record: InteractionRecord) -> InteractionRow:
    """Show a stored question as the port does."""
    return InteractionRow(
        interaction_id=record.interaction_id,
        session_id=record.session_id,
        kind=record.kind,
        state=record.state,
        request_sequence=record.request_seq,
        expires_at=moment_or_none(record.expires_at),
        answered_by=record.answered_by,
    )

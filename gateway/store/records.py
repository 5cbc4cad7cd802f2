"""The rows that engines store: one named tuple per table, with its columns in order. Pure.

Times are whole microseconds since 1970 and booleans are 0 or 1, because every database stores these without loss.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from gateway.errors import InvalidRequest
from gateway.events import CallId, Direction, Envelope, EventId, InteractionId, SessionId
from gateway.store.call import Call
from gateway.store.rows import InteractionRow, Send
from gateway.store.step import InteractionState, Lane, SendState

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Head(NamedTuple):
    """The columns of a session that a write needs."""

    session_id: SessionId
    runtime: str
    state: str
    last_seq: int
    min_seq: int
    fence: int
    size: int
    """Bytes of the stored events, for retention."""


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

    @property
    def size(self) -> int:
        """The stored bytes of the event."""
        return len(self.body or b"") + len(self.about or b"")


CALL_COLUMNS = (
    "call_id", "session_id", "runtime", "native_call_id", "n", "tool", "args_sha", "state", "attempt", "created_at",
    "deadline_at", "request_seq", "executor", "key", "due_at", "canceling_until", "outcome_seq", "outcome_sha",
    "unknown", "error", "redrive_of", "deliver", "finished_at", "dead", "late", "progressed", "attempts", "trace",
    "rule", "place", "binding", "held_at", "arguments_seq", "approved_sha", "unheard_since",
)  # fmt: skip
"""The columns of a call, in the order of its members."""
CALL_MOVE_COLUMNS = (
    "state", "attempt", "deadline_at", "due_at", "canceling_until", "outcome_seq", "outcome_sha", "unknown", "error",
    "finished_at", "dead", "late", "progressed", "attempts", "executor", "rule", "place", "binding", "held_at",
    "arguments_seq", "approved_sha", "unheard_since", "call_id",
)  # fmt: skip
"""The columns that a change of a call writes, then its key, in the order of the UPDATE."""
_CALL_TIMES = [
    CALL_COLUMNS.index(name)
    for name in ("created_at", "deadline_at", "due_at", "canceling_until", "finished_at", "held_at", "unheard_since")
]
_CALL_TRUTHS = [CALL_COLUMNS.index(name) for name in ("unknown", "deliver", "dead", "late")]


SendRow = tuple[SessionId, int, str, Lane, SendState, int, int | None, str | None, int]
SEND_COLUMNS = ("session_id", "seq", "target", "lane", "state", "attempt", "due_at", "reason", "created_at")
"""The columns of a send; its content is in its event."""
_SEND_STATE = SEND_COLUMNS.index("state")
SendChangeRow = tuple[SendState, int, int | None, str | None, SessionId, int, str]
SEND_CHANGE_COLUMNS = ("state", "attempt", "due_at", "reason", "session_id", "seq", "target")
"""The columns that a change of a send writes, then its key, in the order of the UPDATE."""


class SnapshotRecord(NamedTuple):
    """The encoded memory of a session."""

    session_id: SessionId
    snapshot: bytes


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
    call_id: CallId | None = None


class InteractionMove(NamedTuple):
    """A change of a recorded question, in the order of the UPDATE."""

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
        raise InvalidRequest(f"{moment.isoformat()} has no time zone") from exc
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


def call_row(call: Call) -> tuple[int | str | None, ...]:
    """Encode a call as its row."""
    return (
        call.call_id,
        call.session_id,
        call.runtime,
        call.native_call_id,
        call.n,
        call.tool,
        call.args_sha,
        call.state,
        call.attempt,
        micros(call.created_at),
        micros(call.deadline_at),
        call.request_sequence,
        call.executor,
        call.key,
        None if call.due_at is None else micros(call.due_at),
        None if call.canceling_until is None else micros(call.canceling_until),
        call.outcome_sequence,
        call.outcome_sha,
        int(call.unknown),
        call.error,
        call.redrive_of,
        int(call.deliver),
        None if call.finished_at is None else micros(call.finished_at),
        int(call.dead),
        int(call.late),
        call.progressed,
        call.attempts,
        call.trace,
        call.rule,
        call.place,
        call.binding,
        None if call.held_at is None else micros(call.held_at),
        call.arguments_sequence,
        call.approved_sha,
        None if call.unheard_since is None else micros(call.unheard_since),
    )


def call_move_row(call: Call) -> tuple[int | str | None, ...]:
    """Encode a changed call as the values of its UPDATE."""
    return (
        call.state,
        call.attempt,
        micros(call.deadline_at),
        None if call.due_at is None else micros(call.due_at),
        None if call.canceling_until is None else micros(call.canceling_until),
        call.outcome_sequence,
        call.outcome_sha,
        int(call.unknown),
        call.error,
        None if call.finished_at is None else micros(call.finished_at),
        int(call.dead),
        int(call.late),
        call.progressed,
        call.attempts,
        call.executor,
        call.rule,
        call.place,
        call.binding,
        None if call.held_at is None else micros(call.held_at),
        call.arguments_sequence,
        call.approved_sha,
        None if call.unheard_since is None else micros(call.unheard_since),
        call.call_id,
    )


def call_from(row: Sequence[Any]) -> Call:
    """Decode a call from its row."""
    members = list(row[: len(CALL_COLUMNS)])
    for place in _CALL_TIMES:
        members[place] = moment_or_none(members[place])
    for place in _CALL_TRUTHS:
        members[place] = bool(members[place])
    return Call(*members)


def send_from(row: Sequence[Any], envelope: Envelope) -> Send:
    """Decode a send from its row and its event."""
    session_id, sequence, target, lane, state, attempt, due_at, reason, created_at = row[: len(SEND_COLUMNS)]
    due = moment_or_none(due_at)
    return Send(session_id, sequence, target, lane, state, attempt, due, reason, envelope, moment(created_at))


def send_row_after(row: Sequence[Any], change: Sequence[Any]) -> tuple[Any, ...]:
    """Return the row of a send after a change."""
    return (*row[:_SEND_STATE], *change[:4], *row[_SEND_STATE + 4 :])


def interaction_row(record: InteractionRecord) -> InteractionRow:
    """Decode a stored question into the port's type."""
    return InteractionRow(
        interaction_id=record.interaction_id,
        session_id=record.session_id,
        kind=record.kind,
        state=record.state,
        request_sequence=record.request_seq,
        expires_at=moment_or_none(record.expires_at),
        answered_by=record.answered_by,
        call_id=record.call_id,
    )

"""Decides the rows that a step writes: checks its expectations, numbers its events, builds the rows. Pure.

All engines use this module, so they behave alike. An engine provides the stored rows as `Known` and collects the new
ones in `Writes`, which later steps of the same batch read. A failed step leaves `Writes` unchanged.
"""

from collections.abc import Collection, Sequence
from datetime import UTC
from typing import Protocol

import orjson

from gateway.errors import Fenced, InvalidRequest, NotFound, Repeated, Stale
from gateway.events import CallId, Direction, Envelope, SessionId
from gateway.events.frozen import replace
from gateway.store.call import Call, Open, Settle, changed, opened as open_call, sequence_of
from gateway.store.records import (
    AnswerRecord,
    EventRecord,
    Head,
    InteractionMove,
    InteractionRecord,
    SendChangeRow,
    SendRow,
    SnapshotRecord,
    micros,
    micros_or_none,
    moment,
)
from gateway.store.step import (
    Committed,
    Enqueue,
    InteractionChange,
    Keep,
    SendChange,
    Step,
)

CLOSED = "closed"
"""The state of a closed session."""

DEAD_STATES: frozenset[str] = frozenset({"refused", "unknown", "dead"})
"""Outbound rows that wait for an operator."""

_MOST = 2**63
DedupeKey = tuple[SessionId, Direction, str]
_NO_EVENTS: tuple[tuple[Envelope, ...], Sequence[EventRecord], set[DedupeKey], int] = ((), (), set(), 0)
_NO_CALLS: tuple[dict[CallId, Call], Sequence[CallId]] = ({}, ())


class Known(Protocol):
    """The stored rows before this batch."""

    def head(self, session_id: SessionId, /) -> Head | None: ...
    def call(self, call_id: CallId, /) -> Call | None: ...
    def seen(self, key: DedupeKey) -> bool: ...


class Writes:
    """The rows that the steps of one batch write, in the order of the decisions."""

    __slots__ = (
        "answers", "calls", "cursors", "events", "heads", "interactions", "keys", "now", "opened", "send_changes",
        "sends", "snapshots", "time",
    )  # fmt: skip

    def __init__(self, now: int) -> None:
        self.now = now
        """The time of the batch in microseconds; `time` is the same as a datetime."""
        self.time = moment(now)
        self.heads: dict[SessionId, Head] = {}
        """Every changed session, as it is after the batch."""
        self.cursors: dict[SessionId, str] = {}
        self.snapshots: dict[SessionId, SnapshotRecord] = {}
        self.events: list[EventRecord] = []
        self.keys: set[DedupeKey] = set()
        self.opened: list[CallId] = []
        self.calls: dict[CallId, Call] = {}
        """Every changed call, as it is after the batch; those in `opened` are new."""
        self.sends: list[SendRow] = []
        self.send_changes: list[SendChangeRow] = []
        self.interactions: list[InteractionRecord | InteractionMove] = []
        self.answers: list[AnswerRecord] = []
        """Answers to keep; an unexpired one that is kept already stays."""


def decide(step: Step, events: Sequence[EventRecord], *, known: Known, writes: Writes) -> Committed:
    """Add the rows of a step to `writes`; return the commit.

    Raises:
        NotFound: no such session.
        Stale: an expectation fails (Fenced: the fence), a call to open exists, or a call to change is not open.
        Repeated: an event's dedupe_key is on record already, or twice in the step.
        InvalidRequest: an index points at no event of the step.
    """
    session_id = step.session_id
    head = writes.heads.get(session_id) or known.head(session_id)
    if head is None:
        raise NotFound(f"no session {session_id!r}")
    before = head.last_seq
    if step.fence is not None and step.fence != head.fence:
        raise Fenced(f"session {session_id!r} has fence {head.fence}, not {step.fence}")
    if step.last_sequence is not None and step.last_sequence != before:
        raise Stale(f"session {session_id!r} is at sequence {before}, not {step.last_sequence}")
    sequence = before + len(events)
    numbers = range(before + 1, sequence + 1)
    # Most steps have few of these parts, and this is the writer's busiest path.
    envelopes, records, keys, size = _number(step, events, numbers, known, writes) if events else _NO_EVENTS
    calls, opened = _change_calls(step, head, numbers, known=known, writes=writes) if step.calls else _NO_CALLS
    interactions = _interactions(step.interactions, session_id) if step.interactions else ()
    answers = [_answer(keep, session_id, numbers) for keep in step.keeps] if step.keeps else ()
    changes = _send_changes(step.send_changes, session_id, sequence) if step.send_changes else ()
    sends = _sends(step.sends, session_id, numbers, writes.now) if step.sends else ()

    # From here on nothing fails.
    state = step.state or head.state
    writes.heads[session_id] = Head(
        session_id, head.runtime, state, sequence, head.min_seq, head.fence, head.size + size
    )
    if step.cursor is not None:
        writes.cursors[session_id] = step.cursor
    if step.snapshot is not None:
        writes.snapshots[session_id] = SnapshotRecord(session_id, step.snapshot)
    writes.events += records
    writes.keys |= keys
    writes.calls |= calls
    writes.opened += opened
    writes.sends += sends
    writes.interactions += interactions
    writes.send_changes += changes
    writes.answers += answers
    return Committed(envelopes, sequence, size)


def begin(first: Envelope, session_id: SessionId, state: str) -> Step:
    """Return the step that opens or reopens a session."""
    return Step(session_id=session_id, events=(first,), state=state)


def _number(
    step: Step, records: Sequence[EventRecord], numbers: Sequence[int], known: Known, writes: Writes
) -> tuple[tuple[Envelope, ...], Sequence[EventRecord], set[DedupeKey], int]:
    """Number the events of a step; return them, their rows, their keys and their size in bytes."""
    session_id, size = step.session_id, 0
    keys: set[DedupeKey] = set()
    repeats: list[str] = []
    given: list[int] = []
    for new, record in zip(step.events, records, strict=True):
        given.append(new.sequence)
        size += len(record.body or b"") + len(record.about or b"")
        if new.dedupe_key is not None:
            key = (session_id, new.direction, new.dedupe_key)
            if key in keys or key in writes.keys or known.seen(key):
                repeats.append(new.dedupe_key)
            keys.add(key)
    if repeats:
        raise Repeated(session_id, repeats)
    if given == [*numbers]:
        return step.events, records, keys, size
    if any(given):
        raise Stale(f"session {session_id!r} is at sequence {numbers[0] - 1}, and the events say otherwise")
    fresh = zip(step.events, numbers, strict=True)
    envelopes = tuple([replace(event, session_id=session_id, sequence=number) for event, number in fresh])
    kept = zip(records, numbers, strict=True)
    return envelopes, [record._replace(session_id=session_id, seq=number) for record, number in kept], keys, size


def _change_calls(
    step: Step, head: Head, numbers: Sequence[int], *, known: Known, writes: Writes
) -> tuple[dict[CallId, Call], Sequence[CallId]]:
    calls: dict[CallId, Call] = {}
    opened: list[CallId] = []
    session_id, time = head.session_id, writes.time
    for change in step.calls:
        call_id = change.call_id
        call = calls.get(call_id) or writes.calls.get(call_id) or known.call(call_id)
        if isinstance(change, Open):
            fresh = replace(
                change.call,
                session_id=session_id,
                runtime=head.runtime,
                created_at=time,
                # The request's event has them.
                arguments=None,
                written=None,
                size=0,
            )
            after = open_call(call, fresh, change.request_index, now=time, numbers=numbers)
            opened.append(call_id)
        else:
            after = changed(call, change, now=time, numbers=numbers)
            if after.session_id != session_id:
                raise Stale(f"call {call_id!r} is another session's")
        calls[call_id] = after
        if isinstance(change, Settle):
            # It has no time and no number of its own.
            continue
        for moment_ in (after.deadline_at, after.due_at, after.canceling_until):
            # Refuses a time without a zone.
            if moment_ is not None and moment_.tzinfo is not UTC:
                micros(moment_)
        _check_numbers(after.n, after.attempt, after.request_sequence, after.progressed)
    return calls, opened


def _check_numbers(*numbers: int) -> None:
    """Refuse numbers that no column can store, before the step changes `Writes`."""
    if max(numbers) >= _MOST or min(numbers) < -_MOST:
        raise InvalidRequest(f"the step cannot be kept: one of {numbers} is too large")


def _answer(keep: Keep, session_id: SessionId, numbers: Sequence[int]) -> AnswerRecord:
    shown = {"session_id": session_id, "sequences": [sequence_of(index, numbers) for index in keep.events]}
    return AnswerRecord(keep.scope, keep.key, keep.request_sha, orjson.dumps(shown), micros(keep.expires_at))


def _sends(
    sends: Sequence[Enqueue], session_id: SessionId, numbers: Sequence[int], created_at: int
) -> Collection[SendRow]:
    found: dict[tuple[int, str], SendRow] = {}
    for send in sends:
        sequence, target = sequence_of(send.event_index, numbers), send.target
        if (sequence, target) not in found:
            due_at = None if send.due_at is None else micros(send.due_at)
            start = (send.lane, "pending", send.attempt, due_at, None, created_at)
            found[sequence, target] = (session_id, sequence, target, *start)
    return found.values()


def _send_changes(changes: Sequence[SendChange], session_id: SessionId, last: int) -> list[SendChangeRow]:
    rows: list[SendChangeRow] = []
    for change in changes:
        due_at, place = micros_or_none(change.due_at), (session_id, change.sequence, change.target)
        _check_numbers(change.sequence, change.attempt)
        # An event that does not exist yet cannot have been sent, so its change is dropped.
        if change.sequence <= last:
            rows.append((change.state, change.attempt, due_at, change.reason, *place))
    return rows


def _interactions(
    changes: Sequence[InteractionChange], session_id: SessionId
) -> list[InteractionRecord | InteractionMove]:
    records: list[InteractionRecord | InteractionMove] = []
    for change in changes:
        expires_at = micros_or_none(change.expires_at)
        _check_numbers(change.request_sequence or 0)
        if change.request_sequence is None:
            records.append(
                InteractionMove(change.state, expires_at, change.answered_by, change.interaction_id, session_id)
            )
        else:
            records.append(
                InteractionRecord(
                    change.interaction_id,
                    session_id,
                    change.kind,
                    change.state,
                    change.request_sequence,
                    expires_at,
                    change.answered_by,
                    change.call_id,
                )
            )
    return records

"""Decides what a step writes: checks its expectations, numbers its events, names the rows. Pure.

Every engine asks here, so that they agree. An engine gives `Known` (what is already kept) and collects in
`Writes`, where later steps of the same batch see what earlier ones decided. A step that fails leaves
`Writes` untouched.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Protocol

import orjson

from gateway.errors import Fenced, InvalidRequest, NotFound, Repeated, Stale
from gateway.events import CallId, Direction, Envelope, SessionId
from gateway.events.frozen import replace
from gateway.store.call import Call, Open, changed, sequence_of
from gateway.store.records import (
    AnswerRecord,
    EventRecord,
    Head,
    InteractionMove,
    InteractionRecord,
    SnapshotRecord,
    micros,
    micros_or_none,
    moment,
)
from gateway.store.rows import Send
from gateway.store.step import (
    CallOpen,
    Committed,
    Enqueue,
    Fence,
    InteractionChange,
    Keep,
    LastSequence,
    SendChange,
    Step,
)

CLOSED = "closed"
"""The state of a session that has ended for us."""

DEAD_STATES: frozenset[str] = frozenset({"refused", "unknown", "dead"})
"""Outbound rows that wait for an operator."""

_MOST = 2**63
_NO_CALLS: tuple[dict[CallId, Call], list[CallId]] = ({}, [])
DedupeKey = tuple[SessionId, Direction, str]


class Known(Protocol):
    """What the store held before this batch."""

    def head(self, session_id: SessionId) -> Head | None: ...
    def call(self, call_id: CallId) -> Call | None: ...
    def seen(self, key: DedupeKey) -> bool: ...


@dataclass(slots=True)
class Writes:
    """What the steps of one batch write, in the order it was decided."""

    heads: dict[SessionId, Head] = field(default_factory=dict[SessionId, Head])
    """Every session touched, as it stands after the batch."""
    cursors: dict[SessionId, str] = field(default_factory=dict[SessionId, str])
    snapshots: dict[SessionId, SnapshotRecord] = field(default_factory=dict[SessionId, SnapshotRecord])
    events: list[EventRecord] = field(default_factory=list[EventRecord])
    keys: set[DedupeKey] = field(default_factory=set[DedupeKey])
    opened: list[CallId] = field(default_factory=list[CallId])
    calls: dict[CallId, Call] = field(default_factory=dict[CallId, Call])
    """Every call touched, as it stands after the batch; those in `opened` are new."""
    sends: list[Send] = field(default_factory=list[Send])
    send_changes: list[tuple[SessionId, SendChange]] = field(default_factory=list[tuple[SessionId, SendChange]])
    interactions: list[InteractionRecord | InteractionMove] = field(
        default_factory=list[InteractionRecord | InteractionMove]
    )
    answers: list[AnswerRecord] = field(default_factory=list[AnswerRecord])
    """Answers to keep; one that is kept already and has not expired stays."""


def decide(step: Step, events: Sequence[EventRecord], *, now: int, known: Known, writes: Writes) -> Committed:
    """Add what a step writes to `writes`, and say what will be committed.

    Raises:
        NotFound: no such session.
        Stale: an expectation fails (Fenced where it is the fence), a call to open exists, or one to change is not open.
        Repeated: an event's dedupe_key is on record already, or twice in the step.
        InvalidRequest: an index points at no event of the step.
    """
    session_id = step.session_id
    head = writes.heads.get(session_id) or known.head(session_id)
    if head is None:
        raise NotFound(f"no session {session_id!r}")
    _expect(step, head, known=known, writes=writes)
    sequence = head.last_seq + len(events)
    numbers = range(head.last_seq + 1, sequence + 1)
    # Most steps have only some of what follows, and this is the writer's busiest path.
    keys = _keys(step, known=known, writes=writes) if events else ()
    envelopes, records = _number(step, events, numbers) if events else ((), ())
    calls, opened = _change_calls(step, head, numbers, now=now, known=known, writes=writes) if step.calls else _NO_CALLS
    interactions = _interactions(step.interactions, session_id) if step.interactions else ()
    answers = [_answer(keep, session_id, numbers) for keep in step.keeps] if step.keeps else ()
    for change in step.send_changes:
        micros_or_none(change.due_at)
        _check_numbers(change.sequence, change.attempt)
    if step.keep_from is not None:
        _check_numbers(step.keep_from)
    sends = _sends(step.sends, envelopes, numbers, now=now) if step.sends else ()

    # From here on nothing fails.
    size = head.size
    for record in records:
        size += record.size
    writes.events += records
    state = step.state or head.state
    writes.heads[session_id] = Head(session_id, head.runtime, state, sequence, head.min_seq, head.fence, size)
    if step.cursor is not None:
        writes.cursors[session_id] = step.cursor
    if step.snapshot is not None:
        writes.snapshots[session_id] = SnapshotRecord(session_id, step.snapshot, step.keep_from)
    if keys:
        writes.keys |= keys
    if calls:
        writes.calls.update(calls)
        writes.opened += opened
    writes.sends += sends
    writes.interactions += interactions
    # Of an event that is not there yet nothing has been sent, whatever comes to be written under its number.
    writes.send_changes += [(session_id, change) for change in step.send_changes if change.sequence <= sequence]
    writes.answers += answers
    return Committed(envelopes, sequence)


def _number(
    step: Step, records: Sequence[EventRecord], numbers: Sequence[int]
) -> tuple[tuple[Envelope, ...], Sequence[EventRecord]]:
    given = [event.sequence for event in step.events]
    if given == [*numbers]:
        return step.events, records
    if any(given):
        raise Stale(f"session {step.session_id!r} is at sequence {numbers[0] - 1}, and the events say otherwise")
    session_id = step.session_id
    fresh = zip(step.events, numbers, strict=True)
    envelopes = [replace(event, session_id=session_id, sequence=number) for event, number in fresh]
    kept = zip(records, numbers, strict=True)
    return tuple(envelopes), [record._replace(session_id=session_id, seq=number) for record, number in kept]


def begin(first: Envelope, session_id: SessionId, state: str) -> Step:
    """Say what opening a session, or opening it again, writes about it."""
    return Step(session_id=session_id, events=(first,), state=state)


def _expect(step: Step, head: Head, *, known: Known, writes: Writes) -> None:
    for expectation in step.expects:
        # The usual ones first, and without capture patterns, which cost several times as much.
        match expectation:
            case LastSequence():
                if expectation.sequence != head.last_seq:
                    wanted = expectation.sequence
                    raise Stale(f"session {head.session_id!r} is at sequence {head.last_seq}, not {wanted}")
            case CallOpen():
                call_id, attempt = expectation.call_id, expectation.attempt
                call = writes.calls.get(call_id) or known.call(call_id)
                if call is None or not call.is_open:
                    raise Stale(f"call {call_id!r} is not open")
                if attempt is not None and attempt != call.attempt:
                    raise Stale(f"call {call_id!r} is at attempt {call.attempt}, not {attempt}")
            case Fence():
                if expectation.fence != head.fence:
                    raise Fenced(f"session {head.session_id!r} has fence {head.fence}, not {expectation.fence}")


def _keys(step: Step, *, known: Known, writes: Writes) -> set[DedupeKey]:
    keys: set[DedupeKey] = set()
    repeats: list[str] = []
    for new in step.events:
        if new.dedupe_key is not None:
            key = (step.session_id, new.direction, new.dedupe_key)
            if key in keys or key in writes.keys or known.seen(key):
                repeats.append(new.dedupe_key)
            keys.add(key)
    if repeats:
        raise Repeated(step.session_id, repeats)
    return keys


def _change_calls(
    step: Step, head: Head, numbers: Sequence[int], *, now: int, known: Known, writes: Writes
) -> tuple[dict[CallId, Call], list[CallId]]:
    calls: dict[CallId, Call] = {}
    opened: list[CallId] = []
    time = moment(now)
    for change in step.calls:
        call_id = change.call_id
        call = calls.get(call_id) or writes.calls.get(call_id) or known.call(call_id)
        after = changed(call, change, now=time, numbers=numbers)
        if isinstance(change, Open):
            # What it was asked is in its event.
            after = replace(after, session_id=head.session_id, runtime=head.runtime, arguments=None, size=0)
            opened.append(call_id)
        elif after.session_id != head.session_id:
            raise Stale(f"call {call_id!r} is another session's")
        _check_kept(after)
        calls[call_id] = after
    return calls, opened


def _check_kept(call: Call) -> None:
    for time in (call.deadline_at, call.due_at, call.canceling_until):
        # Of another zone or of none, which is refused.
        if time is not None and time.tzinfo is not UTC:
            micros(time)
    _check_numbers(call.n, call.attempt, call.request_sequence, call.progressed)


def _check_numbers(*numbers: int) -> None:
    """Refuse what no column holds, while the step can still be refused."""
    for number in numbers:
        if not -_MOST <= number < _MOST:
            raise InvalidRequest(f"the step cannot be kept: {number} is too large")


def _answer(keep: Keep, session_id: SessionId, numbers: Sequence[int]) -> AnswerRecord:
    shown = {"session_id": session_id, "sequences": [sequence_of(index, numbers) for index in keep.events]}
    return AnswerRecord(keep.scope, keep.key, keep.request_sha, orjson.dumps(shown), micros(keep.expires_at))


def _sends(sends: Sequence[Enqueue], envelopes: Sequence[Envelope], numbers: Sequence[int], *, now: int) -> list[Send]:
    found: dict[tuple[int, str], Send] = {}
    created_at = moment(now)
    for send in sends:
        sequence = sequence_of(send.event_index, numbers)
        event = envelopes[send.event_index]
        if (sequence, send.target) not in found:
            found[sequence, send.target] = Send(
                event.session_id, sequence, send.target, send.lane, "pending", 0, None, None, event, created_at
            )
    return list(found.values())


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
                )
            )
    return records

"""A host call: its stored fields, its states, and the table of allowed changes. Pure.

The core applies the table before a commit and every store during it; nothing else changes a call.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import Any, Literal

from dragoman.models.states import AnswerTo as AnswerTo, CallState as CallState
from gateway.errors import InvalidRequest, Stale
from gateway.events import CallId, Origin, OutcomeKind, SessionId
from gateway.events.frozen import frozen, replace
from gateway.events.response import Response
from gateway.store.attempts import CallAttempt, begin, end, read

CALLER = "caller"
"""The origin adapter of calls from outside the runtime, and the prefix of their native call ids."""
GATEWAY = "gateway"
"""The origin adapter of the questions about held calls, and of their answers."""


MOST_UNHEARD = 100
"""The number of unreceived outcomes that a conversation may be told; only the newest count."""


@frozen
class Call:
    """A host call from its request to the end; bodies are in the events it points to."""

    call_id: CallId
    session_id: SessionId
    runtime: str
    native_call_id: str
    n: int
    tool: str
    args_sha: str
    state: CallState
    attempt: int
    created_at: datetime
    deadline_at: datetime
    request_sequence: int
    executor: str | None = None
    key: str | None = None
    """The idempotency key if it is not the call_id (a redrive of another call)."""
    due_at: datetime | None = None
    canceling_until: datetime | None = None
    outcome_sequence: int | None = None
    outcome_sha: str | None = None
    unknown: bool = False
    """Whether the tool may have run unnoticed: in an attempt so far, or, after the end, by the reason of the end."""
    error: str | None = None
    redrive_of: CallId | None = None
    deliver: bool = True
    """Whether the outcome goes to the runtime."""
    finished_at: datetime | None = None
    dead: bool = False
    """Whether it waits for an operator: it ended without an answer of its executor, and was not redriven."""
    late: bool = False
    """Whether a different outcome came after its end, which is on record; another one is not recorded any more."""
    progressed: int = 0
    """The recorded progress in bytes; each report counts as at least `PROGRESS_COST`."""
    attempts: str | None = None
    """The attempts as JSON; None if `attempts_of` derives them from the other members."""
    trace: str | None = None
    """The `traceparent`, with zeros for the parent of a root, and after a space the `tracestate`; None: derived."""
    rule: str | None = None
    """The hash of the route that holds the call or has held it; None if no person is asked about it."""
    place: str | None = None
    """The place of that route in the configuration, such as `routes[2]`."""
    binding: str | None = None
    """What a person allows, or has allowed."""
    held_at: datetime | None = None
    """When a person was asked about it last."""
    arguments_sequence: int | None = None
    """The event with its arguments: what a person was asked last, or has allowed; None: its request."""
    approved_sha: str | None = None
    """The fingerprint of the arguments that a person has allowed; `args_sha` stays that of the request."""
    unheard_since: datetime | None = None
    """When the caller of a held call last waited for its outcome, which it has not received; None if it has, if the
    outcome was told to the conversation, and of all other calls."""
    arguments: Mapping[str, Any] | None = field(default=None, compare=False)
    """The arguments of an open call; None in lists, and if the request is unreadable. Not a column."""
    size: int = field(default=0, compare=False)
    """The size of the arguments in bytes. Not a column."""
    origin: Origin | None = field(default=None, compare=False)
    """The origin of the events of an open call from outside. Not a column."""
    written: bytes | None = field(default=None, compare=False, repr=False)
    """The arguments as compact JSON, if their reader wrote them. Not a column."""
    edited: bool = field(default=False, compare=False)
    """Whether a person has changed the arguments. Not a column."""
    warned: bool = field(default=False, compare=False)
    """Whether the question about it has a warning, so that only people answer it. Not a column."""
    waits: bool = field(default=False, compare=False)
    """Whether an accepted call waits for a slot to be sent again; an answer ends that. Not a column."""

    @property
    def idempotency_key(self) -> str:
        """The key every attempt carries."""
        return self.key or self.call_id

    @property
    def trace_id(self) -> str | None:
        """The id of its trace; None if its trace context is not on record."""
        return None if self.trace is None else self.trace.split("-")[1]

    @property
    def answer_to(self) -> AnswerTo:
        """The recipient of the outcome: the runtime, the caller from outside, or `none` for a silent redrive."""
        if self.deliver:
            return "runtime"
        return "caller" if self.redrive_of is None else "none"

    @property
    def is_the_runtimes(self) -> bool:
        """Whether the runtime made the call, so that its native id refers to this call."""
        return self.deliver and self.redrive_of is None

    @property
    def started_at(self) -> datetime | None:
        """The start of the first attempt, if one is on record."""
        return next((one.started_at for one in attempts_of(self)), None)

    @property
    def is_open(self) -> bool:
        """Whether it still waits for its outcome."""
        return self.state in OPEN_STATES


@frozen
class Open:
    """A new call: `held` if a person is asked, `dispatched` with attempt 1 if it may leave at once, else `queued`.

    The store adds the time and the session.
    """

    call: Call
    request_index: int | None = None
    """The index of its tool.requested in the same step; None if `request_sequence` refers to an earlier one."""

    @property
    def call_id(self) -> CallId:
        """The call that is opened."""
        return self.call.call_id


@frozen
class Hold:
    """A call that was never sent waits for a person; or a held one waits for another answer, under another rule."""

    call_id: CallId
    executor: str
    rule: str
    place: str
    binding: str
    held_at: datetime
    deadline_at: datetime
    """The end of the time to answer."""
    arguments_sequence: int
    """The event that asks, with the arguments."""
    arguments: Mapping[str, Any] = field(repr=False)
    size: int
    edited: bool = False


@frozen
class Approve:
    """A person allows a held call: it waits for its executor, and its deadline starts."""

    call_id: CallId
    executor: str
    binding: str
    deadline_at: datetime
    arguments_sequence: int
    """The event of the answer, with the arguments."""
    approved_sha: str
    arguments: Mapping[str, Any] = field(repr=False)
    size: int
    edited: bool = False


@frozen
class Claim:
    """A queued call leaves now, as attempt `attempt`; or an accepted one is sent again, and stays accepted."""

    call_id: CallId
    attempt: int
    due_at: datetime | None = None
    """Of an accepted call: when it is sent again after this."""


@frozen
class Accept:
    """The executor promised an outcome (202); the call waits until `deadline_at`."""

    call_id: CallId
    deadline_at: datetime
    due_at: datetime | None = None
    """When the request is sent again, unless there is a sign of life before; None: never."""
    sent: bool = True
    """False: the attempt to send it again was certainly not sent, and its number is used again."""
    ended: bool = True
    """Whether an attempt ended; False if only the times of an accepted call change."""
    waits: bool = False
    """Whether the call waits for a slot to be sent again."""
    response: Response | None = None
    reason: str | None = None
    """Why an attempt to send it again brought nothing new."""
    unsure: bool = False
    """Whether that attempt may have done the work."""


@frozen
class Requeue:
    """Try again at `due_at`."""

    call_id: CallId
    due_at: datetime
    reason: str
    unsure: bool = False
    """Whether the executor may have done the work already; once so, it stays so until the call ends."""
    sent: bool = True
    """False: the attempt was certainly not sent, and its number is used again."""
    response: Response | None = None


@frozen
class MarkCanceling:
    """Somebody canceled: first answer wins until `until`."""

    call_id: CallId
    until: datetime
    reason: str | None = None
    """Why, with who canceled: the error of the call if no answer comes."""


@frozen
class Settle:
    """The call has its one outcome; `outcome_index` is its tool.finished in the same step."""

    call_id: CallId
    state: CallState
    outcome_sha: str
    outcome_index: int | None
    unknown: bool = False
    error: str | None = None
    dead: bool = False
    """Whether it ended without an answer of its executor, so that it waits for an operator."""
    response: Response | None = None
    elsewhere: bool = False
    """Whether the runtime reported an outcome of another client."""


@frozen
class Redriven:
    """A dead call was tried again as another one, so it waits for an operator no more; it may have ended long ago.

    Of many at once one succeeds, the others are Stale.
    """

    call_id: CallId


@frozen
class Dismissed:
    """An operator has left a dead call as it is, so it waits for one no more; it may have ended long ago.

    Of many at once, those that redrive it included, one succeeds, the others are Stale.
    """

    call_id: CallId


@frozen
class CameLate:
    """A different outcome of an ended call is on record; of many at once one succeeds, the others are Stale."""

    call_id: CallId


@frozen
class Listened:
    """The caller of a held call has waited for its outcome; of many that received it, one succeeds."""

    call_id: CallId
    until: datetime | None = None
    """The end of its wait without the outcome; None: it has received the outcome, or is told of it."""


@frozen
class Progressed:
    """A progress report of an executor; `size` counts towards the limit of one call."""

    call_id: CallId
    size: int
    due_at: datetime | None = None
    """As of `Accept`; None leaves it as it is."""


CallChange = (
    CameLate
    | Listened
    | Progressed
    | Open
    | Hold
    | Approve
    | Claim
    | Accept
    | Requeue
    | MarkCanceling
    | Settle
    | Redriven
    | Dismissed
)

Signal = Literal[
    "hold", "approve", "claim", "accept", "requeue", "cancel", "progress", "settle", "clear", "late", "listen"
]

_SIGNALS: Mapping[type[CallChange], Signal] = {
    Hold: "hold",
    Approve: "approve",
    Claim: "claim",
    Accept: "accept",
    Requeue: "requeue",
    MarkCanceling: "cancel",
    Progressed: "progress",
    Settle: "settle",
    Redriven: "clear",
    Dismissed: "clear",
    CameLate: "late",
    Listened: "listen",
}

BORN: frozenset[CallState] = frozenset({"held", "queued", "dispatched"})
"""The states that a call may begin in; one whose rule asks a person begins as `held`, and no other does."""

SETTLED: Mapping[OutcomeKind, CallState] = {
    "success": "succeeded",
    "failure": "failed",
    "canceled": "canceled",
    "expired": "expired",
}
"""The state that each outcome leads to."""
_ENDS = frozenset(SETTLED.values())

TRANSITIONS: Mapping[str, Mapping[Signal, frozenset[CallState]]] = {
    "held": {
        "hold": frozenset({"held"}),
        "approve": frozenset({"queued"}),
        "listen": frozenset({"held"}),
        "settle": _ENDS,
    },
    "queued": {
        "hold": frozenset({"held"}),
        "claim": frozenset({"dispatched"}),
        "cancel": frozenset({"queued"}),
        "progress": frozenset({"queued"}),
        "listen": frozenset({"queued"}),
        "settle": _ENDS,
    },
    "dispatched": {
        "accept": frozenset({"accepted"}),
        "requeue": frozenset({"queued"}),
        "cancel": frozenset({"dispatched"}),
        "progress": frozenset({"dispatched"}),
        "listen": frozenset({"dispatched"}),
        "settle": _ENDS,
    },
    "accepted": {
        "claim": frozenset({"accepted"}),
        "accept": frozenset({"accepted"}),
        "cancel": frozenset({"accepted"}),
        "progress": frozenset({"accepted"}),
        "listen": frozenset({"accepted"}),
        "settle": _ENDS,
    },
    "succeeded": {
        "clear": frozenset({"succeeded"}),
        "late": frozenset({"succeeded"}),
        "listen": frozenset({"succeeded"}),
    },
    "failed": {"clear": frozenset({"failed"}), "late": frozenset({"failed"}), "listen": frozenset({"failed"})},
    "canceled": {"clear": frozenset({"canceled"}), "late": frozenset({"canceled"})},
    "expired": {"clear": frozenset({"expired"}), "late": frozenset({"expired"}), "listen": frozenset({"expired"})},
}
"""The state machine: allowed changes by state. A settled call keeps its outcome, whatever comes later.

Only a call that was never sent can be held. A held one succeeds only by an outcome that another client gave.
The core and the stores change a call only through `changed`.
"""

_USUAL = frozenset({None, Response(200), Response(204)})
"""The responses that contain the outcome, and none."""

_TURNED_AWAY = re.compile(r"executor answered (3[0-9]{2}|40[1345]|41[35])\b")
"""The error of a call whose executor rejected the request with a bare status."""

OPEN_STATES: tuple[str, ...] = tuple(state for state, ways in TRANSITIONS.items() if "settle" in ways)


def changed(call: Call | None, change: CallChange, *, now: datetime, numbers: Sequence[int]) -> Call:
    """Return a call after a change; `call` is None if it does not exist; `numbers` are the step's sequences.

    Raises:
        Stale: the change is not allowed in the state of the call.
        InvalidRequest: an index is not an event of the step.
    """
    if isinstance(change, Open):
        return opened(call, change.call, change.request_index, now=now, numbers=numbers)
    if call is None:
        raise Stale(f"call {change.call_id!r} is not there, which no {_SIGNALS[type(change)]} can follow")
    after = state_after(call, change)
    if isinstance(change, Settle):
        index = change.outcome_index
        return replace(
            call,
            state=after,
            due_at=None,
            outcome_sequence=None if index is None else sequence_of(index, numbers),
            outcome_sha=change.outcome_sha,
            unknown=change.unknown,
            error=change.error,
            finished_at=now,
            # A canceled call has no listener.
            unheard_since=None if after == "canceled" else call.unheard_since,
            dead=change.dead,
            attempts=_attempts_after(call, change, now),
        )
    match change:
        case Hold() | Approve():
            return _asked_about(call, change, after)
        case Claim():
            written = begin(call.attempts, change.attempt, now)
            attempt, due_at = change.attempt, change.due_at
            return replace(call, state=after, attempt=attempt, due_at=due_at, attempts=written, waits=False)
        case Accept():
            return replace(
                call,
                state=after,
                attempt=call.attempt - (not change.sent),
                deadline_at=change.deadline_at,
                due_at=change.due_at,
                attempts=_attempts_after(call, change, now) if change.ended else call.attempts,
                waits=change.waits,
            )
        case Requeue():
            return replace(
                call,
                state=after,
                attempt=call.attempt - (not change.sent),
                due_at=change.due_at,
                error=change.reason,
                unknown=change.unsure or call.unknown,
                attempts=_attempts_after(call, change, now),
            )
        case MarkCanceling():
            return replace(call, state=after, canceling_until=change.until, error=change.reason or call.error)
        case Progressed():
            due_at = change.due_at or call.due_at
            return replace(call, state=after, progressed=call.progressed + change.size, due_at=due_at)
        case CameLate() | Redriven() | Dismissed() | Listened():
            return _noted(call, change)


def _noted(call: Call, change: CameLate | Redriven | Dismissed | Listened) -> Call:
    """Return a call after a change that leaves its state as it is, and of which one of many succeeds."""
    match change:
        case CameLate():
            if call.late:
                raise Stale(f"a late outcome of call {call.call_id!r} is on record already")
            return replace(call, late=True)
        case Listened():
            if call.unheard_since is None or (change.until is None and call.finished_at is None):
                raise Stale(f"the outcome of call {call.call_id!r} does not wait to be received")
            return replace(call, unheard_since=change.until)
        case Redriven() | Dismissed():
            if not call.dead:
                raise Stale(f"call {call.call_id!r} waits for no operator")
            return replace(call, dead=False)


def _asked_about(call: Call, change: Hold | Approve, after: CallState) -> Call:
    """Return a call after a question to a person about it, or after the answer that allows it."""
    call = replace(
        call,
        state=after,
        executor=change.executor,
        due_at=None,
        binding=change.binding,
        deadline_at=change.deadline_at,
        arguments_sequence=change.arguments_sequence,
        arguments=change.arguments,
        written=None,
        size=change.size,
        edited=change.edited,
    )
    if isinstance(change, Approve):
        return replace(call, approved_sha=change.approved_sha)
    unheard = call.unheard_since or (change.held_at if call.answer_to == "caller" else None)
    return replace(call, rule=change.rule, place=change.place, held_at=change.held_at, unheard_since=unheard)


def _attempts_after(call: Call, change: Accept | Requeue | Settle, now: datetime) -> str | None:
    """Write the end of the running attempt into the attempts of a call."""
    written = call.attempts
    if written is None:
        if call.state != "dispatched" or call.attempt != 1:
            return None
        if isinstance(change, Settle) and change.response in _USUAL:
            return None
        # It left when it was opened.
        written = begin(None, 1, call.created_at)
    match change:
        case Settle():
            return end(written, now, response=change.response, reason=change.error, unsure=change.unknown)
        case Accept() | Requeue():
            return end(
                written,
                now,
                response=change.response,
                reason=change.reason,
                unsure=change.unsure,
                sent=change.sent,
                due_at=change.due_at,
            )


def attempts_of(call: Call) -> tuple[CallAttempt, ...]:
    """Return the attempts of a call, oldest first; a release before 0.3 recorded only the last one's number.

    A call that left when it was opened and whose first attempt brought the outcome has no record of it.
    """
    if call.attempts is not None:
        return read(call.attempts)
    if call.attempt != 1:
        return ()
    return (CallAttempt(1, call.created_at, call.finished_at, reason=call.error, unsure=call.unknown),)


def certainly_did_not_run(*, unknown: bool, dead: bool, attempt: int, error: str | None) -> bool:
    """Return whether a failed call's tool certainly did not run, because no executor accepted its request."""
    if unknown:
        return False
    if dead or attempt == 0:
        return True
    # An earlier attempt may have run; 400, 409 and 422 may come from the tool itself.
    return attempt == 1 and _TURNED_AWAY.match(error or "") is not None


def state_after(call: Call, change: CallChange) -> CallState:
    """Say which state a change leads to.

    Raises:
        Stale: the change is not allowed in the state of the call.
    """
    signal = _SIGNALS[type(change)]
    allowed = TRANSITIONS[call.state].get(signal)
    if not allowed:
        raise Stale(f"call {change.call_id!r} is {call.state}, which no {signal} can follow")
    if isinstance(change, Settle):
        if change.state not in allowed:
            raise Stale(f"call {call.call_id!r} is {call.state} and cannot be settled as {change.state}")
        if call.state == "held" and change.state == "succeeded" and not change.elsewhere:
            raise Stale(f"call {call.call_id!r} waits for a person and has not run")
        return change.state
    if isinstance(change, Hold) and call.attempt > 0:
        raise Stale(f"call {call.call_id!r} was sent already")
    (after,) = allowed
    return after


def opened(known: Call | None, call: Call, index: int | None, *, now: datetime, numbers: Sequence[int]) -> Call:
    """Return a new call whose request is the step's event of this index; `known` is an existing call.

    Raises:
        Stale: the call exists, or cannot start in its state: `held` if its rule asks a person, and only then.
        InvalidRequest: the index is not an event of the step, or the call has no request.
    """
    if known is not None:
        raise Stale(f"call {call.call_id!r} exists")
    if call.state not in BORN:
        raise Stale(f"call {call.call_id!r} cannot begin as {call.state}")
    if (call.state == "held") is not (call.rule is not None):
        raise Stale(f"call {call.call_id!r} cannot begin as {call.state} under the rule {call.rule!r}")
    sequence = call.request_sequence if index is None else sequence_of(index, numbers)
    if sequence < 1:
        raise InvalidRequest(f"call {call.call_id!r} points at no request")
    finished_at = None if call.state in OPEN_STATES else now
    if (call.created_at, call.request_sequence, call.finished_at) == (now, sequence, finished_at):
        return call
    return replace(call, created_at=now, request_sequence=sequence, finished_at=finished_at)


def sequence_of(index: int, numbers: Sequence[int]) -> int:
    """Say under which sequence an event of a step stands.

    Raises:
        InvalidRequest: the index points at none.
    """
    if not 0 <= index < len(numbers):
        raise InvalidRequest(f"index {index} points at none of the step's {len(numbers)} events")
    return numbers[index]

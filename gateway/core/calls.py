"""How calls are tried, wait and end. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Literal

from gateway.adapter.port import Encoded
from gateway.core.adapt import expressible_outcome
from gateway.core.binding import digest_of
from gateway.core.effects import Dispatch, Queue, Release, Transmit, canceled_data
from gateway.core.holding import end_question, refuse_held, review, with_notice
from gateway.core.nulls import Fitted
from gateway.core.session import TURN, USUAL_RETRY, Policy, RetryPolicy, RuntimeContext, StepBuilder, send
from gateway.core.trace_context import attempt_context
from gateway.core.unheard import note_unheard
from gateway.errors import CannotExpress, Conflict, Overloaded, TooLarge
from gateway.events import (
    CallId,
    CallProgressed,
    ContextUpdate,
    ContextUpdated,
    Loss,
    Outcome,
    OutcomeIgnored,
    ToolFinished,
    ToolRequested,
)
from gateway.events.frozen import frozen
from gateway.events.response import Response
from gateway.events.weight import weight
from gateway.executors.port import Accepted, Answer, Answered, NeverSent, NotProcessed, Replied, Uncertain
from gateway.store.call import (
    SETTLED,
    Accept,
    Call,
    CameLate,
    Claim,
    MarkCanceling,
    Progressed,
    Requeue,
    Settle,
)
from gateway.store.step import RUNTIME, Enqueue

MOST_IGNORED = 16 * 1024
"""Bytes of a late outcome that are kept; of a larger one only size and hash are."""
PROGRESS_COST = 1024
"""Bytes that a report of progress counts at least."""
_NO_OUTCOME = "the executor answered with something that is no outcome"
_LOOK_AGAIN = timedelta(seconds=10)
"""The pause before the next try to repeat an accepted call."""
OVERLOADED = "The gateway is overloaded; try again later."


_UNSAID = Encoded(())
"""The reason on the delivery of an outcome that the runtime does not get."""
_SHORT = 32
"""Digits of a hash that are kept."""
Unanswered = Replied | Accepted | NotProcessed | Uncertain
"""How an attempt that was sent can end without an outcome."""


def fingerprint(tool: str, arguments: dict[str, Any]) -> str:
    """Hash a request, to distinguish a reused id with other arguments from a repeat."""
    return digest_of([tool, arguments])[:_SHORT]


def outcome_fingerprint(outcome: Outcome) -> str:
    """Hash an outcome, to distinguish a repeat from a different outcome."""
    return digest_of([outcome.outcome, outcome.result, outcome.error])[:_SHORT]


def outcome_digest(outcome: Outcome) -> str:
    """Hash an outcome for comparison with a backend's record: SHA-256 of [result, error] as JSON."""
    return digest_of([outcome.result, outcome.error])


@frozen
class End:
    """The call ends with this."""

    answered: Answered
    dead: bool = False
    """Whether the executor never responded, so that an operator may redrive the call."""


@frozen
class Retry:
    """The call is tried again."""

    due_at: datetime
    reason: str
    unsure: bool
    """Whether this attempt may have done the work."""
    response: Response | None = None


@frozen
class Wait:
    """The executor accepted; its outcome comes by callback."""

    deadline_at: datetime
    response: Response | None = None


def failure(error: str, *, unknown: bool = False, response: Response | None = None) -> Answered:
    """Make a failure that the agent can read, because of a response if there was one."""
    return Answered(outcome=Outcome(outcome="failure", error=error, unknown=unknown), synthetic=True, response=response)


CANCELED = "Canceled by an operator."
"""The error of a call that an operator cancels without a reason."""


def cancellation(error: str) -> Answered:
    """Return the outcome of a call that ended without its executor."""
    return Answered(outcome=Outcome(outcome="canceled", error=error), synthetic=True)


def turned_away(reason: str, *, tried: bool = False, unsure: bool = False) -> Answered:
    """Return the failure of a call whose executor gets no request now; an earlier attempt may have reached it."""
    what = "giving up on this call" if tried else "the tool was not called"
    return failure(f"{reason}; {what}, retry later", unknown=unsure)


def no_executor(name: str | None, *, unknown: bool) -> Answered:
    """Return the failure of a call whose executor is not configured; an earlier attempt may have reached it."""
    what = "the tool may have run" if unknown else "the tool was not called"
    return failure(f"executor {name!r} is no longer configured; {what}", unknown=unknown)


def judge(answer: Unanswered, call: Call, policy: RetryPolicy, *, now: datetime, jitter: float) -> End | Retry | Wait:
    """Decide the result of a response without an outcome (gateway/executors/README.md#answers)."""
    match answer:
        case Accepted(response):
            return Wait(now + policy.accepted_deadline, response)
        case NotProcessed(reason, retry_after, response=response):
            wait, unknown, again = retry_after or policy.delay(call.attempt, jitter), False, True
        case Uncertain(reason, response=response):
            wait, unknown, again = policy.delay(call.attempt, jitter), True, policy.idempotent
        case Replied():
            reason, response = _NO_OUTCOME, None
            wait, unknown, again = policy.delay(call.attempt, jitter), True, policy.idempotent
    if not again:
        text = f"{reason}; the tool may have run and was not tried again"
        return End(failure(text, unknown=True, response=response), dead=True)
    if call.attempt >= policy.attempts:
        text = f"{reason} (after {call.attempt} attempts)"
        return End(failure(text, unknown=unknown or call.unknown, response=response), dead=True)
    if now + wait >= call.deadline_at:
        text = f"{reason} (no time left for another attempt)"
        return End(failure(text, unknown=unknown or call.unknown, response=response), dead=True)
    return Retry(now + wait, reason, unknown, response)


def silent_from(policy: RetryPolicy, call: Call, now: datetime) -> datetime | None:
    """Return when an accepted call without a sign of life is sent again; None: never."""
    may_repeat = policy.idempotent and call.attempt < policy.attempts and call.canceling_until is None
    return now + policy.accepted_silence if may_repeat else None


def send_again(builder: StepBuilder, call: Call) -> None:
    """Send an accepted call without a sign of life again under the same key, if a repeat is harmless."""
    executor, policy = call.executor or "", builder.runtime.policy.executors.get(call.executor or "")
    if policy is None or not policy.idempotent or call.arguments is None or call.canceling_until is not None:
        builder.change_call(Accept(call.call_id, call.deadline_at, ended=False))
    elif builder.take_slot(executor):
        _repeat(builder, call, policy)
    else:
        look_at = builder.now + _LOOK_AGAIN
        builder.change_call(Accept(call.call_id, call.deadline_at, look_at, ended=False, waits=True))
        builder.effects.append(Queue(call.call_id, executor))


def _repeat(builder: StepBuilder, call: Call, policy: RetryPolicy) -> None:
    """Send an accepted call again; it holds a slot."""
    later = call.attempt + 1 < policy.attempts
    builder.change_call(Claim(call.call_id, call.attempt + 1, builder.now + policy.accepted_silence if later else None))
    builder.effects.append(Dispatch(builder.calls[call.call_id]))


def _repeated(builder: StepBuilder, call: Call, answer: Answer) -> None:
    """Apply the response to a repeat of an accepted call: only an outcome ends the call."""
    policy = builder.runtime.policy.executors.get(call.executor or "", USUAL_RETRY)
    match answer:
        case Answered(without_outcome=False):
            settle(builder, call, answer, under_way=False)
        case Accepted(response):
            due_at = silent_from(policy, call, builder.now)
            builder.change_call(Accept(call.call_id, call.deadline_at, due_at, response=response))
        case NeverSent(reason):
            due_at = builder.now + min(_LOOK_AGAIN, policy.accepted_silence)
            builder.change_call(Accept(call.call_id, call.deadline_at, due_at, sent=False, reason=reason))
        case _:
            # It stays accepted; when it is sent again is on record already, and later only if the executor asks for it.
            _note_repeat(builder, call, answer)


def _note_repeat(builder: StepBuilder, call: Call, answer: Answered | Replied | NotProcessed | Uncertain) -> None:
    """Record the response to a repeat of an accepted call that brought nothing new."""
    match answer:
        case Answered(outcome=Outcome(error=reason), response=response):
            pass
        case NotProcessed(reason, response=response) | Uncertain(reason, response=response):
            pass
        case Replied():
            reason, response = _NO_OUTCOME, None
    due_at, unsure = call.due_at, isinstance(answer, Uncertain | Replied)
    if due_at is not None and isinstance(answer, NotProcessed) and answer.retry_after is not None:
        due_at = max(due_at, builder.now + answer.retry_after)
    builder.change_call(Accept(call.call_id, call.deadline_at, due_at, response=response, reason=reason, unsure=unsure))


def repeat(builder: StepBuilder, call_id: CallId) -> None:
    """Send the request of an accepted call again, as an operator orders.

    Raises:
        Conflict: the call is not accepted, or a second request might do harm.
    """
    call = builder.calls.get(call_id)
    if call is None:
        raise Conflict("the call has ended meanwhile; redrive it as an ended one")
    policy = builder.runtime.policy.executors.get(call.executor or "")
    if call.state != "accepted":
        raise Conflict(f"the call is still open ({call.state}); only an accepted or an ended one can be redriven")
    if policy is None:
        raise Conflict(f"executor {call.executor!r} is no longer configured")
    if not policy.idempotent:
        raise Conflict(
            f"executor {call.executor!r} has accepted the call and is not idempotent: a second request could do the "
            "work twice. Wait for its callback, or cancel the call"
        )
    if call.canceling_until is not None:
        raise Conflict("the call is being canceled")
    if call.arguments is None:
        raise Conflict("the arguments of this call cannot be read any more")
    send_again(builder, call)


def answered(builder: StepBuilder, call_id: CallId, attempt: int, answer: Answer, *, jitter: float) -> bool:
    """Apply the response of one attempt; False if the call has ended."""
    call = builder.calls.get(call_id)
    if call is None:
        return False
    if call.state == "held":
        # It has not been sent since it is held.
        return True
    if call.state == "accepted" and call.attempt == attempt:
        _repeated(builder, call, answer)
        return True
    is_current = call.attempt == attempt and call.state == "dispatched"
    if isinstance(answer, Answered):
        if is_current or answer.outcome.outcome == "success":
            settle(builder, call, answer, under_way=not is_current)
        return True
    if not is_current:
        return True
    policy = builder.runtime.policy.executors.get(call.executor or "", USUAL_RETRY)
    if isinstance(answer, NeverSent):
        _not_sent(builder, call, answer.reason, pause=policy.delay(1, jitter))
        return True
    match judge(answer, call, policy, now=builder.now, jitter=jitter):
        case End(result, dead):
            settle(builder, call, result, ended_as="dead" if dead else "answered", under_way=False)
        case Wait(deadline_at, response):
            due_at = silent_from(policy, call, builder.now)
            builder.change_call(Accept(call_id, deadline_at, due_at, response=response))
        case Retry() if call.canceling_until is not None:
            settle(builder, call, cancellation(call.error or CANCELED), under_way=False)
        case Retry(due_at, reason, unsure, response):
            builder.change_call(Requeue(call_id, due_at, reason, unsure=unsure, response=response))
            builder.effects.append(Queue(call_id, call.executor or "", due_at))
    return True


def _not_sent(builder: StepBuilder, call: Call, reason: str, *, pause: timedelta) -> None:
    """Requeue a call whose attempt was certainly not sent: it does not count, and the call waits for its executor."""
    executor, due_at = call.executor or "", builder.now + pause
    canceled = cancellation(call.error or CANCELED)
    builder.change_call(Requeue(call.call_id, due_at, reason, sent=False))
    call, missing = builder.calls[call.call_id], builder.refusal(executor)
    if call.canceling_until is not None:
        settle(builder, call, canceled, under_way=False)
    elif executor not in builder.runtime.policy.executors:
        settle(builder, call, no_executor(executor, unknown=call.unknown), ended_as="dead", under_way=False)
    elif missing is not None:
        told = turned_away(missing, tried=call.attempt > 0, unsure=call.unknown)
        settle(builder, call, told, ended_as="dead", under_way=False)
    elif due_at >= call.deadline_at:
        told = failure(f"{reason} (no time left for another attempt)", unknown=call.unknown)
        settle(builder, call, told, ended_as="dead", under_way=False)
    else:
        builder.effects.append(Queue(call.call_id, executor, due_at))


def outcome(builder: StepBuilder, call_id: CallId, answered: Answered) -> bool:
    """Apply an outcome from a callback or the API; False if the call has ended.

    Raises:
        CallHeld: the call waits for a person.
    """
    call = builder.calls.get(call_id)
    if call is None:
        return False
    refuse_held(call)
    settle(builder, call, answered)
    return True


def late_outcome(builder: StepBuilder, row: Call, answered: Answered) -> None:
    """Record one late outcome for an ended call; of a large one only the size and the hash."""
    if builder.known.get(row.call_id, row).late:
        return
    outcome = answered.outcome
    size = weight([outcome.result, outcome.error])
    small = size <= MOST_IGNORED
    ignored = OutcomeIgnored(
        native_call_id=row.native_call_id,
        call_id=row.call_id,
        outcome=outcome.outcome,
        result=outcome.result if small else None,
        error=outcome.error if small else None,
        reason=f"the call had already {row.state}",
        size=None if small else size,
        sha256=None if small else outcome_digest(outcome),
    )
    builder.apply(ignored, "to_runtime", caused_by=row.request_sequence)
    builder.change_call(CameLate(row.call_id), ended=builder.known.get(row.call_id, row))


def progressed(builder: StepBuilder, call_id: CallId, data: dict[str, Any]) -> bool:
    """Record the progress of a call; False if the call has ended.

    Raises:
        TooLarge: the progress of the call exceeds its limit.
        CallHeld: the call waits for a person.
    """
    call = builder.calls.get(call_id)
    if call is None:
        return False
    refuse_held(call)
    size = max(weight(data), PROGRESS_COST)
    if call.progressed + size > builder.runtime.policy.progress:
        raise TooLarge(
            f"one call may report {builder.runtime.policy.progress} bytes of progress in all (limits.progress)"
        )
    due_at = None
    if call.state == "accepted" and call.due_at is not None:
        policy = builder.runtime.policy.executors.get(call.executor or "", USUAL_RETRY)
        # Its backend may have asked for a longer pause.
        due_at = max(call.due_at, builder.now + policy.accepted_silence)
    builder.change_call(Progressed(call_id, size, due_at))
    event = CallProgressed(native_call_id=call.native_call_id, call_id=call_id, data=data)
    builder.apply(event, "to_runtime", caused_by=call.request_sequence)
    return True


def claim(builder: StepBuilder, call_id: CallId) -> bool:
    """Start a waiting call in a free slot; False if the call no longer waits, or now waits for a person.

    Before its first attempt the routes are asked again, because they may have changed.
    """
    call = builder.calls.get(call_id)
    if call is None or call.deadline_at <= builder.now or call.canceling_until is not None:
        return False
    if call.state == "accepted":
        policy = builder.runtime.policy.executors.get(call.executor or "")
        if policy is None or not policy.idempotent or not call.waits or call.arguments is None:
            return False
        _repeat(builder, call, policy)
        return True
    if call.state != "queued":
        return False
    verdict = True if call.attempt > 0 else review(builder, call)
    if isinstance(verdict, Answered):
        settle(builder, call, verdict, under_way=False)
    if verdict is not True:
        return False
    builder.change_call(Claim(call_id, call.attempt + 1))
    builder.effects.append(Dispatch(builder.calls[call_id]))
    return True


def turn_away(builder: StepBuilder, call_id: CallId, reason: str) -> None:
    """End a call that waits for an unavailable executor."""
    call = builder.calls.get(call_id)
    if call is not None and call.state == "queued":
        told = turned_away(reason, tried=call.attempt > 0, unsure=call.unknown)
        settle(builder, call, told, ended_as="dead")


def cancel(builder: StepBuilder, call_id: CallId, *, reason: str | None) -> bool:
    """Cancel a call from outside: notify the executor, whose response still counts for a grace period."""
    call = builder.calls.get(call_id)
    if call is None:
        return False
    text = reason or CANCELED
    if call.state in {"held", "queued"}:
        settle(builder, call, cancellation(text), tell_reason=text)
    elif call.canceling_until is None:
        builder.change_call(MarkCanceling(call_id, builder.now + builder.runtime.policy.cancel_grace, text))
        _release(builder, call, canceled_data(builder.base, call, reason=text), stop=False)
    return True


def settle(
    builder: StepBuilder,
    call: Call,
    answered: Answered,
    *,
    tell_reason: str | None = None,
    ended_as: Literal["answered", "dead", "moot"] = "answered",
    under_way: bool = True,
) -> None:
    """End a call: context updates, then its outcome, then the deliveries.

    A `dead` call ended without a response and waits for an operator; the runtime does not get the outcome of a
    `moot` one. A call that is `under_way` may wait for a slot or for its executor. The question about a held call is
    moot, unless it was ended otherwise before.
    """
    outcome = answered.outcome
    if outcome.outcome != "success" and (outcome.unknown or not outcome.error):
        error = outcome.error or "The tool failed and gave no reason."
        # In words, since no protocol has a member for it.
        outcome = outcome.model_copy(update={"error": f"outcome unknown: {error}" if outcome.unknown else error})
    if call.state == "held":
        end_question(builder, call)
    elif call.edited:
        outcome = with_notice(outcome, call)
    is_callers, sends = call.answer_to == "caller", call.deliver and ended_as != "moot"
    inside, losses = answered.updates, ()
    if inside and not is_callers and "context.updated" in builder.runtime.capabilities.accepts:
        inside, losses = (), _tell_updates(builder, call, answered.updates, sends=sends)
    succeeded = outcome.outcome == "success"
    wakes = outcome.outcome != "canceled" if answered.wakes_agent is None else answered.wakes_agent
    finished = ToolFinished(
        native_call_id=call.native_call_id,
        tool=call.tool,
        outcome=outcome.outcome,
        result=outcome.result if succeeded else None,
        error=outcome.error,
        wakes_agent=wakes,
        unknown=outcome.unknown,
        call_id=call.call_id,
        updates=inside,
    )
    written = answered.written if succeeded and outcome.result is answered.outcome.result else None
    told, said = (finished, _UNSAID) if is_callers else expressible_outcome(finished, builder.runtime.codec, written)
    sequence = builder.apply(
        told,
        "to_runtime",
        origin=call.origin,
        caused_by=call.request_sequence,
        losses=losses + said.losses,
        written=written if told.result is outcome.result else None,
        synthetic=answered.synthetic,
    ).sequence
    index = len(builder.events) - 1
    if call.unheard_since is not None:
        note_unheard(builder, call, told, sequence)
    builder.change_call(
        Settle(
            call.call_id,
            SETTLED[outcome.outcome],
            # A hash of the given outcome, so that a repeat is recognized.
            outcome_fingerprint(answered.outcome),
            index,
            outcome.unknown,
            outcome.error,
            # An operator decides about an unknown outcome, whatever its source.
            ended_as == "dead" or outcome.unknown,
            answered.response,
        )
    )
    if sends:
        builder.sends.append(Enqueue(index, RUNTIME))
        builder.effects.append(Transmit(sequence, "turn", told.kind, said.frames, call.request_sequence))
    if not under_way or call.state == "held":
        return
    told_off = canceled_data(builder.base, call, reason=tell_reason) if tell_reason and call.attempt > 0 else None
    _release(builder, call, told_off)


def _release(builder: StepBuilder, call: Call, tell: dict[str, Any] | None, *, stop: bool = True) -> None:
    trace = None if tell is None else attempt_context(call)
    builder.effects.append(Release(call.call_id, call.executor, tell, call.idempotency_key, stop, trace))


def _tell_updates(
    builder: StepBuilder, call: Call, updates: Iterable[ContextUpdate], *, sends: bool
) -> tuple[Loss, ...]:
    """Record the context updates before the outcome; return the losses."""
    losses: list[Loss] = []
    for place, update in enumerate(updates):
        event = ContextUpdated(
            name=update.name, context=update.context, description=update.description, call_id=call.call_id
        )
        try:
            send(builder, event, TURN if sends else None, caused_by=call.request_sequence)
        except CannotExpress as exc:
            losses.append(Loss(how="dropped", path=f"/updates/{place}{exc.path}", note=exc.reason))
    return tuple(losses)


def fit_arguments(runtime: RuntimeContext, event: ToolRequested) -> Fitted:
    """Fit a call's arguments to its tool; the result has a problem text for the agent if they are refused."""
    if event.problem is not None:
        return Fitted(event.arguments, problem=event.problem)
    return runtime.policy.fit_arguments(event.tool, event.arguments)


def not_routed(policy: Policy, tool: str) -> str:
    """Write the text for the agent whose tool has no route."""
    return f"The tool {tool!r} is not available here." if tool in policy.declared else f"Unknown tool: {tool}"


def fit_call(runtime: RuntimeContext, event: ToolRequested, executor: str | None) -> Fitted:
    """Fit a call's arguments to its tool; the result has a problem text for the agent if no executor can get it."""
    if event.problem is None and executor is None:
        return Fitted(event.arguments, problem=not_routed(runtime.policy, event.tool))
    return fit_arguments(runtime, event)


def exceeds_limits(builder: StepBuilder, size: int) -> bool:
    """Return whether one more call exceeds the limits on open calls; a single call may have any size."""
    if len(builder.calls) >= builder.runtime.policy.open_calls:
        return True
    return bool(builder.calls) and size + builder.open_bytes > builder.runtime.policy.open_bytes


def check_limits(builder: StepBuilder, size: int) -> None:
    """Check whether the session may have one more open call.

    Raises:
        Overloaded: too many calls are open.
    """
    if exceeds_limits(builder, size):
        raise Overloaded("the session has too many open calls; try again when some have ended")


def end_elsewhere(builder: StepBuilder, call: Call, event: ToolFinished) -> None:
    """End a call whose outcome came from elsewhere; the last recorded event is that outcome."""
    outcome = event.as_outcome()
    builder.change_call(
        Settle(
            call_id=call.call_id,
            state=SETTLED[outcome.outcome],
            outcome_sha=outcome_fingerprint(outcome),
            outcome_index=len(builder.events) - 1,
            error=outcome.error,
            elsewhere=True,
        )
    )
    if call.state == "held":
        end_question(builder, call)
        return
    _release(builder, call, canceled_data(builder.base, call, reason="Another client has answered this call."))

"""Decides about the lifecycle of a session: its link, deliveries, timers, restarts, its end. Pure."""

from collections.abc import Sequence
from datetime import datetime

from gateway.core.adapt import hydration, place_of
from gateway.core.calls import CANCELED, cancellation, failure, no_executor, send_again, settle, silent_from
from gateway.core.confirmations import confirm, recover as recover_message
from gateway.core.effects import Queue, Transmit
from gateway.core.holding import (
    Restored,
    ask_again,
    ask_executor,
    end_question,
    no_longer_routed,
    out_of_time,
    remind,
    reminders_of,
    ruling_of,
)
from gateway.core.interactions import ask_new_executors, expire
from gateway.core.routing import Ruling
from gateway.core.session import USUAL_RETRY, Policy, Priority, RetryPolicy, RuntimeContext, StepBuilder, send
from gateway.core.state import Remembered, SessionView, overdue_at
from gateway.core.telling import tell, tell_due
from gateway.events import (
    DeliverySettled,
    Envelope,
    FaultReported,
    InteractionId,
    LinkChanged,
    Outcome,
    SessionClosed,
    SessionMoved,
)
from gateway.events.frozen import replace
from gateway.executors.port import Answered
from gateway.store.call import Accept, Call, Requeue
from gateway.store.step import InteractionChange, SendChange, SendState

UNREADABLE = "The request cannot be read by this release of the gateway, so it was not carried out again."


def hydrates(runtime: RuntimeContext, memory: Remembered) -> bool:
    """Return whether a fresh link gets the last context without a new event."""
    return runtime.options.hydrate and memory.context is not None


def link(builder: StepBuilder, changed: LinkChanged, *, state_waits: bool = False) -> None:
    """Record a change of the link; send the last context over a fresh one, unless a newer context waits."""
    builder.apply(changed, "from_runtime")
    builder.start = replace(builder.start, since=builder.now if changed.state == "up" else None)
    posted = [effect.state for effect in builder.effects if isinstance(effect, Transmit) and effect.state is not None]
    state_waits = state_waits or any(place_of(said.event) == "first" for said in posted)
    if changed.state != "up" or state_waits or not hydrates(builder.runtime, builder.memory):
        return
    update = hydration(builder.memory)
    if update is not None:
        send(builder, update, _FIRST, caused_by=builder.last_sequence, synthetic=True)


_FIRST = Priority("urgent", "first")
_ATTEMPTED = frozenset({"delivered", "refused", "unknown"})
"""The final states of sends that had started."""
GATEWAY_FAULT = "gateway.fault"
"""The code of a `fault.reported` about the gateway itself."""


def report_fault(builder: StepBuilder, sequence: int, reason: str | None) -> None:
    """Record that the gateway itself failed to send an event."""
    message = reason or "an event could not be sent"
    builder.apply(FaultReported(code=GATEWAY_FAULT, message=message), "from_runtime", caused_by=sequence)


def delivery(
    builder: StepBuilder,
    sequence: int,
    target: str,
    state: SendState,
    *,
    reason: str | None,
    answers: InteractionId | None = None,
) -> None:
    """Set the final state of an outbound row, and record every state except plain success.

    If the row is moot, the question to a person that it `answers` is moot too: the runtime did not wait for the answer.
    """
    if answers is not None and state == "moot":
        builder.interactions.append(InteractionChange(answers, "moot"))
    attempt = int(state in _ATTEMPTED)
    builder.send_changes.append(SendChange(sequence, target, state, attempt, reason=reason))
    match state:
        case "refused" | "moot" | "unknown" | "dead":
            settled = DeliverySettled(sequence=sequence, target=target, state=state, reason=reason)
            builder.apply(settled, "to_runtime", caused_by=sequence)
        case _:
            pass


def close(builder: StepBuilder, *, reason: str | None) -> None:
    """Close the session and end all its calls, confirmations and questions."""
    for call in list(builder.calls.values()):
        text = "The session was closed."
        settle(builder, call, cancellation(text), tell_reason=text, ended_as="moot")
    builder.apply(SessionClosed(reason=reason), "to_runtime")


def tick(builder: StepBuilder) -> None:
    """End expired calls, confirmations, questions and turns, and repeat accepted calls that are due."""
    runtime = builder.runtime
    now = builder.now
    for call in list(builder.calls.values()):
        if call.canceling_until is not None and call.canceling_until <= now:
            settle(builder, call, cancellation(call.error or CANCELED))
        elif call.state == "held" and call.deadline_at <= now:
            end_question(builder, call, "expired")
            settle(builder, call, out_of_time(call))
        elif call.deadline_at <= now:
            waited = (now - call.created_at).total_seconds()
            why = f" ({call.error})" if call.state == "queued" and call.error else ""
            error = f"The tool {call.tool!r} gave no answer within {waited:.0f} s{why}."
            unknown = call.unknown or (call.state != "queued" and call.attempt > 0)
            expired = Answered(Outcome(outcome="expired", error=error, unknown=unknown), synthetic=True)
            settle(builder, call, expired, tell_reason="The deadline has passed.", ended_as="dead")
        elif call.state == "accepted" and call.due_at is not None and call.due_at <= now:
            send_again(builder, call)
    if runtime.policy.approvals.remind:
        remind(builder)
    if builder.unheard:
        tell(builder)
    for waiting in builder.memory.confirmations:
        if waiting.posted_at + runtime.options.confirm_timeout <= now:
            waited = runtime.options.confirm_timeout.total_seconds()
            confirm(builder, waiting, failure(f"delivery not known: nothing confirmed it within {waited:g} s"))
    expire(builder)
    overdue = overdue_at(builder.start, runtime.options.start_wait)
    if overdue is not None and overdue <= now:
        builder.start = replace(builder.start, state="overdue")
    due = _turn_end_due(runtime, builder.view) if runtime.capabilities.turns == "inferred" else None
    if due is not None and due <= now:
        builder.apply(SessionMoved(state="idle", reason="inferred: nothing more happened"), "from_runtime")


def next_due(runtime: RuntimeContext, view: SessionView) -> datetime | None:
    """Return when `tick` is due next; None if nothing waits."""
    memory, able, options = view.memory, runtime.capabilities, runtime.options
    times = [
        call.deadline_at if call.canceling_until is None else min(call.deadline_at, call.canceling_until)
        for call in view.calls.values()
    ]
    times += [call.due_at for call in view.calls.values() if call.due_at is not None and call.state == "accepted"]
    if runtime.policy.approvals.remind:
        times += [
            at for one in view.calls.values() for at in reminders_of(runtime.policy.approvals, one, view.reminded_at)
        ]
    if view.unheard:
        times += [tell_due(runtime.policy.approvals, one) for one in view.unheard.values()]
    if memory.confirmations:
        times += [waiting.posted_at + options.confirm_timeout for waiting in memory.confirmations]
    if memory.asked:
        times += [asked.asked_at + runtime.policy.interaction_timeout for asked in memory.asked]
    if (overdue := overdue_at(view.start, options.start_wait)) is not None:
        times.append(overdue)
    if able.turns == "inferred" and (ends := _turn_end_due(runtime, view)) is not None:
        times.append(ends)
    return min(times, default=None)


def _turn_end_due(runtime: RuntimeContext, view: SessionView) -> datetime | None:
    """Return when an inferred turn ends without further events; None while a call of the runtime is open."""
    memory = view.memory
    if not memory.running or memory.active_at is None:
        return None
    if view.calls and any(call.answer_to != "caller" for call in view.calls.values()):
        return None
    active_at = memory.active_at if view.touched_at is None else max(memory.active_at, view.touched_at)
    late = active_at + runtime.options.turn_timeout
    return late if memory.quiet_at is None else min(late, memory.quiet_at + runtime.options.turn_quiet)


def recover(builder: StepBuilder, messages: Sequence[Envelope] = (), restored: Restored | None = None) -> None:
    """Resume or end the work that was in progress when the last process ended.

    `messages` are the agent's messages that were not confirmed yet. What a person was asked before the store was
    `restored` is asked again, since the call may have run after the backup.
    """
    for call in list(builder.calls.values()):
        if call.state == "accepted":
            # Its outcome arrives by callback, even if the executor is no longer configured.
            policy = builder.runtime.policy.executors.get(call.executor or "", USUAL_RETRY)
            if call.due_at is None and (due_at := silent_from(policy, call, builder.now)) is not None:
                # Accepted by a release, or with a configuration, that would never have repeated it.
                builder.change_call(Accept(call.call_id, call.deadline_at, due_at, ended=False))
            continue
        policy = builder.runtime.policy.executors.get(call.executor or "")
        unknown = call.unknown or call.state == "dispatched"
        if call.state == "held" and call.arguments is not None:
            # A person may still allow it, and the routes are asked again then.
            if restored is not None and (call.arguments_sequence or 0) <= restored.up_to:
                _ask_after_restore(builder, call, ruling_of(builder, call.tool, call.arguments), restored)
            else:
                ask_executor(builder, call)
            continue
        if call.arguments is None:
            settle(builder, call, failure(UNREADABLE, unknown=unknown), ended_as="dead")
        elif policy is None:
            settle(builder, call, no_executor(call.executor, unknown=unknown), ended_as="dead")
        elif call.state == "queued":
            builder.effects.append(Queue(call.call_id, call.executor or "", call.due_at))
        elif call.state == "dispatched":
            _recover_dispatched(builder, call, policy)
    posted = {message.sequence: message for message in messages}
    for waiting in builder.memory.confirmations:
        recover_message(builder, waiting, posted.get(waiting.sequence))


def rerouted(builder: StepBuilder, before: Policy) -> None:
    """Send the open questions to executors that a reload has added."""
    for call in builder.calls.values():
        if call.state == "held":
            ask_executor(builder, call, before)
    if builder.live:
        ask_new_executors(builder, before)


def _ask_after_restore(builder: StepBuilder, call: Call, found: Ruling | Answered | None, restored: Restored) -> None:
    if isinstance(found, Ruling):
        ask_again(builder, call, found, warning=restored.warning)
    else:
        settle(builder, call, no_longer_routed(call) if found is None else found)


def _recover_dispatched(builder: StepBuilder, call: Call, policy: RetryPolicy) -> None:
    may_repeat = policy.idempotent and call.attempt < policy.attempts
    if may_repeat and call.canceling_until is not None:
        settle(builder, call, cancellation(call.error or CANCELED))
    elif may_repeat:
        reason = "the gateway restarted, or another one took over, while the executor worked"
        builder.change_call(Requeue(call.call_id, builder.now, reason, unsure=True))
        builder.effects.append(Queue(call.call_id, call.executor or "", builder.now))
    else:
        so_far = f"after {call.attempt} attempts" if policy.idempotent else "it was not tried again"
        text = f"the gateway restarted, or another one took over, while the tool may have been running; {so_far}"
        settle(builder, call, failure(text, unknown=True), ended_as="dead")

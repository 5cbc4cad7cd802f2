"""What the surroundings mean for a session: its link, deliveries, time, restarts, its end. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from gateway.core import calls as life
from gateway.core.adapt import hydration
from gateway.core.contexts import place_of
from gateway.core.council import Council
from gateway.core.decision import Building
from gateway.core.effects import Queue, Transmit
from gateway.core.interactions import expire
from gateway.core.memory import Remembered
from gateway.core.messages import confirm, recover as recover_message
from gateway.core.outcomes import settle
from gateway.core.saying import say
from gateway.core.starting import NEVER_SENT, overdue_at
from gateway.core.state import OpenCall, SessionView, turn_end_due
from gateway.envelope import (
    DeliverySettled,
    Envelope,
    FaultReported,
    LinkChanged,
    Outcome,
    SessionClosed,
    SessionMoved,
)
from gateway.ports.executor import Answered
from gateway.ports.step import RUNTIME, Requeue, SendChange, SendState

UNREADABLE = "The request cannot be read by this release of the gateway, so it was not carried out again."


def hydrates(council: Council, memory: Remembered) -> bool:
    """Whether a fresh link is told the last context although nobody posts one."""
    wanted = council.capabilities.hydrates if council.options.hydrate is None else council.options.hydrate
    return wanted and memory.context is not None


def link(council: Council, build: Building, changed: LinkChanged, *, state_waits: bool = False) -> None:
    """Our connection changed; a fresh one is told the last context first, unless a state waits to be told anyway."""
    build.record(changed, "from_runtime")
    build.start = replace(build.start, since=build.now if changed.state == "up" else None)
    posted = [effect.state for effect in build.effects if isinstance(effect, Transmit) and effect.state is not None]
    state_waits = state_waits or any(place_of(said.event) == "first" for said in posted)
    if changed.state != "up" or state_waits or not hydrates(council, build.memory):
        return
    update = hydration(build.memory)
    if update is not None:
        say(council, build, update, caused_by=build.last_sequence, lane="urgent", place="first")


GATEWAY_FAULT = "gateway.fault"
"""The code of a `fault.reported` that is about the gateway itself."""


def delivery(
    build: Building, sequence: int, target: str, state: SendState, *, reason: str | None, fault: bool = False
) -> None:
    """An outbound row has met its fate; what is not plain success is put on record."""
    if fault:
        message = reason or "an event could not be sent"
        build.record(FaultReported(code=GATEWAY_FAULT, message=message), "from_runtime", caused_by=sequence)
    build.change_send(SendChange(sequence=sequence, target=target, state=state, reason=reason))
    match state:
        case "refused" | "moot" | "unknown" | "dead":
            settled = DeliverySettled(sequence=sequence, target=target, state=state, reason=reason)
            build.record(settled, "to_runtime", caused_by=sequence)
        case _:
            pass


def held(build: Building, sequences: Iterable[int]) -> None:
    """Mark outbound rows as never sent, so that a later process may send them; one that has an echo was sent."""
    waiting = {said.sequence for said in build.memory.unechoed}
    for sequence in sequences:
        if sequence in waiting:
            build.change_send(SendChange(sequence=sequence, target=RUNTIME, state="pending", reason=NEVER_SENT))


def close(council: Council, build: Building, *, reason: str | None) -> None:
    """The session ends for us: nothing of it may hang."""
    for call in list(build.calls.values()):
        text = "The session was closed."
        settle(council, build, call, Answered(Outcome(outcome="canceled", error=text)), tell_reason=text, moot=True)
    build.record(SessionClosed(reason=reason), "to_runtime")


def tick(council: Council, build: Building) -> None:
    """Time has passed: end what is over."""
    now = build.now
    for call in list(build.calls.values()):
        if call.canceling_until is not None and call.canceling_until <= now:
            settle(council, build, call, Answered(Outcome(outcome="canceled", error="Canceled by an operator.")))
        elif call.deadline_at <= now:
            waited = (now - call.created_at).total_seconds()
            error = f"The tool {call.tool!r} gave no answer within {waited:.0f} s."
            unknown = call.unsure or (call.state != "queued" and call.attempt > 0)
            expired = Answered(Outcome(outcome="expired", error=error, unknown=unknown))
            settle(council, build, call, expired, tell_reason="The deadline has passed.", dead=True)
    for waiting in build.memory.confirmations:
        if waiting.posted_at + council.options.confirm_timeout <= now:
            confirm(council, build, waiting, life.failure("not confirmed in time"))
    expire(council, build)
    overdue = overdue_at(build.start, council.options.start_wait) if council.capabilities.starts_deaf else None
    if overdue is not None and overdue <= now:
        build.start = replace(build.start, state="overdue")
    due = turn_end_due(build.view, quiet=council.options.turn_quiet, timeout=council.options.turn_timeout)
    if due is not None and due <= now and council.capabilities.turns == "inferred":
        build.record(SessionMoved(state="idle", reason="inferred: nothing more happened"), "from_runtime")


def next_due(council: Council, view: SessionView) -> datetime | None:
    """Say when `tick` has something to do."""
    times = [call.deadline_at for call in view.calls.values()]
    times += [call.canceling_until for call in view.calls.values() if call.canceling_until is not None]
    times += [waiting.posted_at + council.options.confirm_timeout for waiting in view.memory.confirmations]
    times += [asked.asked_at + council.policy.interaction_timeout for asked in view.memory.asked]
    overdue = overdue_at(view.start, council.options.start_wait) if council.capabilities.starts_deaf else None
    times += [overdue] if overdue is not None else []
    if council.capabilities.turns == "inferred":
        due = turn_end_due(view, quiet=council.options.turn_quiet, timeout=council.options.turn_timeout)
        times += [due] if due is not None else []
    return min(times, default=None)


def recover(council: Council, build: Building, messages: Sequence[Envelope] = ()) -> None:
    """After a restart: what was under way when the last process ended is taken up again or ended.

    `messages` are those of the agent that were not confirmed yet.
    """
    for call in list(build.calls.values()):
        policy = council.policy.executors.get(call.executor or "")
        if not call.readable and call.state != "accepted":
            lost = life.failure(UNREADABLE, unknown=call.unsure or call.state == "dispatched")
            settle(council, build, call, lost, dead=True)
        elif policy is None:
            gone = life.failure(f"The tool {call.tool!r} is no longer available here.", unknown=call.unsure)
            settle(council, build, call, gone, dead=True)
        elif call.state == "queued":
            build.effects.append(Queue(call.call_id, call.executor or "", call.due_at))
        elif call.state == "dispatched":
            _recover_dispatched(council, build, call, policy)
    posted = {message.sequence: message for message in messages}
    for waiting in build.memory.confirmations:
        recover_message(council, build, waiting, posted.get(waiting.sequence))


def _recover_dispatched(council: Council, build: Building, call: OpenCall, policy: life.RetryPolicy) -> None:
    if policy.idempotent and call.attempt < policy.attempts:
        reason = "the gateway restarted while the executor worked"
        build.change_call(Requeue(call.call_id, build.now, reason, unsure=True))
        build.effects.append(Queue(call.call_id, call.executor or "", build.now))
    else:
        text = "outcome unknown: the gateway restarted while the tool may have been running; it was not tried again"
        settle(council, build, call, life.failure(text, unknown=True), dead=True)

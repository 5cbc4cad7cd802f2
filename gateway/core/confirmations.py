"""Messages of a burst: each is delivered, then confirmed to the runtime within its time. Pure."""

from collections.abc import Mapping
from typing import Any, cast

from gateway.adapter.port import ConfirmationRule, Confirmer
from gateway.core.adapt import CORRECTION, full_context
from gateway.core.bounds import KEPT_BYTES
from gateway.core.calls import OVERLOADED, failure
from gateway.core.effects import Ask, AwaitCopy, ask_data
from gateway.core.fold import fold
from gateway.core.routing import Routes
from gateway.core.session import TURN, Priority, StepBuilder, begin_turn, send
from gateway.core.state import MOST_CONFIRMATIONS, Confirmation, Remembered
from gateway.errors import CannotExpress, Conflict
from gateway.events import (
    ContextUpdated,
    Draft,
    Envelope,
    Event,
    EventId,
    Loss,
    MessageConfirmed,
    MessagePosted,
    ToolCanceled,
    TypingChanged,
)
from gateway.events.weight import weight
from gateway.executors.port import Answer, Answered, Replied

_EXCERPT = 500
MESSAGE = "message.posted"


def burst_message(builder: StepBuilder, draft: Draft, event: MessagePosted) -> None:
    assert event.burst is not None
    known = builder.memory.confirmation(event.burst.call, event.burst.index)
    if known is not None:
        return
    for call, index, fate in builder.memory.confirmed:
        if (call, index) == (event.burst.call, event.burst.index):
            _confirm_again(builder, event, fate)
            return
    begin_turn(builder)
    others = builder.memory.confirmations
    size = sum([other.size for other in others]) + weight(event)
    full = len(others) >= MOST_CONFIRMATIONS - 1 or (bool(others) and size > KEPT_BYTES)
    new = builder.apply(event, "from_runtime", draft=draft)
    waiting = builder.memory.confirmation(event.burst.call, event.burst.index)
    assert waiting is not None
    if full:
        confirm(builder, waiting, failure(OVERLOADED))
        return
    match _confirmer(builder):
        case "executor", str(name):
            _ask(builder, waiting, event, executor=name, key=new.event_id)
        case "copied", str(name):
            _await_copy(builder, waiting, name)
        case "client", _:
            pass
        case "recorded", _:
            confirm(builder, waiting, Replied({}), synthetic=True)
        case by, _:
            confirm(builder, waiting, failure(f"no route leads the message to what confirms it (`confirm: {by}`)"))


def find_confirmer(
    rule: ConfirmationRule | None, routes: Routes, *, runtime: str, labels: Mapping[str, str]
) -> tuple[Confirmer, str | None]:
    """Find what confirms an agent's messages, and the name of the executor or destination.

    The name is None if no route leads to one.
    """
    by = None if rule is None else rule.by
    if by in {None, "executor"}:
        route = routes.executor_for(runtime=runtime, kind=MESSAGE, labels=labels)
        if route is not None or by is not None:
            return "executor", None if route is None else route.executor
    if rule is not None and by in {None, "copied"}:
        # A glob also matches in the route of an audit log, which delivers nothing to people.
        named = routes.copies_by_name(runtime=runtime, kind=MESSAGE, labels=labels)
        name = rule.destination or (named[0] if len(named) == 1 else None)
        if name is not None or by is not None:
            return "copied", name
    return by or "recorded", None


def _confirmer(builder: StepBuilder) -> tuple[Confirmer, str | None]:
    runtime = builder.runtime
    return find_confirmer(
        runtime.options.confirmation, runtime.policy.routes, runtime=runtime.name, labels=builder.memory.labels
    )


def recover(builder: StepBuilder, waiting: Confirmation, message: Envelope | None) -> None:
    """After a restart, wait on for a client or a copy, and route a message again if a repeat is harmless.

    Otherwise its delivery is unknown.
    """
    match _confirmer(builder):
        case "client", _:
            return
        case "copied", str(name):
            _await_copy(builder, waiting, name)
            return
        case "executor", str(name) if message is not None:
            policy = builder.runtime.policy.executors.get(name)
            if policy is not None and policy.idempotent:
                _ask(builder, waiting, message.event, executor=name, key=message.event_id)
                return
        case _:
            pass
    text = "unknown: the gateway restarted before the delivery was known"
    confirm(builder, waiting, failure(text, unknown=True))


def aborted(memory: Remembered, event: Event) -> tuple[Confirmation, ...]:
    """Return the unconfirmed messages of the burst that the agent aborts with this event."""
    match event:
        case ToolCanceled(native_call_id=call) | TypingChanged(reason="canceled", native_call_id=call):
            # A typing event without a call concerns the only burst.
            return tuple(waiting for waiting in memory.confirmations if call in {None, waiting.call})
        case _:
            return ()


def end_burst(builder: StepBuilder, event: Event) -> None:
    """End the wait for a client or a copy if the agent aborts the burst.

    The reply of an executor is still recorded, since the executor delivers the message itself.
    """
    if (waits := aborted(builder.memory, event)) and _confirmer(builder)[0] != "executor":
        for waiting in waits:
            reason = "the agent aborted the burst"
            event = MessageConfirmed(native_call_id=waiting.call, index=waiting.index, delivered=False, error=reason)
            _record_unsent(builder, waiting, event, f"not sent: {reason}", synthetic=True)


def _confirm_again(builder: StepBuilder, event: MessagePosted, fate: bool | str) -> None:
    """Confirm a repeated message as before, without a second delivery."""
    assert event.burst is not None
    rule = builder.runtime.options.confirmation
    if rule is None:
        return
    delivered = fate is True
    error = None if delivered else fate or "the message could not be delivered"
    again = MessageConfirmed(
        native_call_id=event.burst.call,
        index=event.burst.index,
        delivered=delivered,
        error=error,
        context=full_context(builder.memory, builder.runtime.options.history_key) if delivered else None,
    )
    send(builder, again, Priority("turn", leave_before=builder.now + rule.within), caused_by=None, synthetic=True)


def replied(builder: StepBuilder, sequence: int, answer: Answer) -> None:
    """Apply the reply to a routed message."""
    waiting = next((c for c in builder.memory.confirmations if c.sequence == sequence), None)
    if waiting is not None:
        confirm(builder, waiting, answer)


def confirmed_by_client(builder: StepBuilder, event: MessageConfirmed) -> int:
    waiting = builder.memory.confirmation(event.native_call_id, event.index)
    if waiting is None:
        reason = f"no message {event.index} of call {event.native_call_id!r} waits for a confirmation"
        by = _confirmer(builder)[0]
        raise Conflict(reason if by == "client" else f"{reason}; the runtime has `confirm: {by}`, not `client`")
    reply: dict[str, Any] = {"delivered": event.delivered, "error": event.error, "context": event.context}
    confirm(builder, waiting, Replied({key: value for key, value in reply.items() if value is not None}))
    return builder.last_sequence


def _await_copy(builder: StepBuilder, waiting: Confirmation, destination: str) -> None:
    deadline_at = waiting.posted_at + builder.runtime.options.confirm_timeout
    builder.effects.append(AwaitCopy(builder.base.session_id, waiting.sequence, destination, deadline_at))


def _ask(builder: StepBuilder, waiting: Confirmation, event: Event, *, executor: str, key: str) -> None:
    deadline_at = waiting.posted_at + builder.runtime.options.confirm_timeout
    data = ask_data(
        builder.base, event, protocol=builder.runtime.protocol, labels=builder.memory.labels, deadline_at=deadline_at
    )
    builder.effects.append(
        Ask(
            sequence=waiting.sequence,
            key=key,
            kind=event.kind,
            executor=executor,
            data=data,
            deadline_at=deadline_at,
        )
    )


def confirm(builder: StepBuilder, waiting: Confirmation, answer: Answer, *, synthetic: bool = False) -> None:
    synthetic = synthetic or (isinstance(answer, Answered) and answer.synthetic)
    delivered, error, context = read_confirmation(answer)
    event = MessageConfirmed(native_call_id=waiting.call, index=waiting.index, delivered=delivered, error=error)
    rule = builder.runtime.options.confirmation
    if rule is None:
        note = "not sent: this protocol takes no confirmations"
        _record_unsent(builder, waiting, event, note, synthetic=synthetic)
        return
    if builder.now - waiting.posted_at >= rule.within:
        # The runtime has stopped waiting and assumes delivery; only the true context can still be sent.
        note = f"not sent: the runtime waits {rule.within.total_seconds():g} s at most"
        _record_unsent(builder, waiting, event, note, synthetic=synthetic)
        correct(builder, caused_by=waiting.sequence)
        return
    if delivered:
        sequence = builder.last_sequence + 1
        said = Envelope(EventId(""), builder.base.session_id, sequence, builder.now, "to_runtime", event)
        after = fold(builder.memory, said)
        newest = full_context(after, builder.runtime.options.history_key) if context is None else context
        event = event.model_copy(update={"context": newest})
    priority = Priority("turn", leave_before=waiting.posted_at + rule.within)
    try:
        send(builder, event, priority, caused_by=waiting.sequence, synthetic=synthetic)
    except CannotExpress as exc:
        bare = event.model_copy(update={"context": None, "error": event.error and event.error[:_EXCERPT]})
        loss = Loss(how="dropped", path="/context", note=exc.reason)
        losses = (loss,)
        send(builder, bare, priority, caused_by=waiting.sequence, losses=losses, synthetic=synthetic)


def _record_unsent(
    builder: StepBuilder, waiting: Confirmation, event: MessageConfirmed, note: str, *, synthetic: bool
) -> None:
    loss = Loss(how="dropped", path="", note=note)
    builder.apply(event, "to_runtime", caused_by=waiting.sequence, losses=(loss,), synthetic=synthetic)


def correct(builder: StepBuilder, *, caused_by: int) -> None:
    """Send the conversation so far without waking the runtime, because it no longer waits for the confirmation."""
    if (
        builder.runtime.options.history_key is not None
        and full_context(builder.memory, builder.runtime.options.history_key) is not None
    ):
        words = "Conversation so far. A message was confirmed too late."
        given = dict(builder.memory.context or {})
        correction = ContextUpdated(name=CORRECTION, context=given, description=words)
        send(builder, correction, TURN, caused_by=caused_by, synthetic=True)


def read_confirmation(answer: Answer) -> tuple[bool, str | None, dict[str, Any] | None]:
    """Parse `{"delivered", "error", "context"}`; anything but a clear yes is a no, with a text."""
    match answer:
        case Replied(reply):
            delivered, error, context = reply.get("delivered", True), reply.get("error"), reply.get("context")
            if not isinstance(delivered, bool):
                return False, f"the backend answered delivered={delivered!r:.50}; true or false is allowed", None
            text = error if isinstance(error, str) else None
            if not delivered:
                return False, text or "the backend did not deliver the message", None
            return True, None, cast("dict[str, Any]", context) if isinstance(context, dict) else None
        case Answered(outcome):
            return False, outcome.error or "the backend did not confirm the message", None
        case _:
            return False, "the backend did not confirm the message", None

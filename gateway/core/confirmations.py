"""Messages of a burst: the backend delivers each, then each is confirmed to the runtime within its time. Pure."""

from typing import Any, cast

from gateway.core.adapt import CORRECTION, full_context
from gateway.core.calls import OVERLOADED, failure
from gateway.core.effects import Ask, ask_data
from gateway.core.fold import fold
from gateway.core.session import TURN, Priority, StepBuilder, begin_turn, send
from gateway.core.state import MOST_CONFIRMATIONS, Confirmation
from gateway.errors import CannotExpress, Conflict
from gateway.events import ContextUpdated, Draft, Envelope, Event, EventId, Loss, MessageConfirmed, MessagePosted
from gateway.executors.port import Answer, Answered, Replied

_EXCERPT = 500


def burst_message(builder: StepBuilder, draft: Draft, event: MessagePosted) -> None:
    assert event.burst is not None
    known = builder.memory.confirmation(event.burst.call, event.burst.index)
    if known is not None:
        return
    for call, index, delivered in builder.memory.confirmed:
        if (call, index) == (event.burst.call, event.burst.index):
            _confirm_again(builder, event, delivered=delivered)
            return
    begin_turn(builder)
    full = len(builder.memory.confirmations) >= MOST_CONFIRMATIONS - 1
    new = builder.apply(event, "from_runtime", draft=draft)
    route = builder.runtime.policy.routes.executor_for(
        runtime=builder.runtime.name, kind=event.kind, labels=builder.memory.labels
    )
    waiting = builder.memory.confirmation(event.burst.call, event.burst.index)
    assert waiting is not None
    if full:
        confirm(builder, waiting, failure(OVERLOADED))
    elif route is not None:
        _ask(builder, waiting, event, executor=route.executor, key=new.event_id)
    else:
        confirm(builder, waiting, Replied({}), synthetic=True)


def recover(builder: StepBuilder, waiting: Confirmation, message: Envelope | None) -> None:
    """After a restart, route a message again if a repeat is harmless; otherwise its delivery is unknown."""
    route = builder.runtime.policy.routes.executor_for(
        runtime=builder.runtime.name, kind="message.posted", labels=builder.memory.labels
    )
    policy = builder.runtime.policy.executors.get(route.executor) if route is not None else None
    if message is not None and route is not None and policy is not None and policy.idempotent:
        _ask(builder, waiting, message.event, executor=route.executor, key=message.event_id)
    else:
        text = "unknown: the gateway restarted before the delivery was known"
        confirm(builder, waiting, failure(text, unknown=True))


def _confirm_again(builder: StepBuilder, event: MessagePosted, *, delivered: bool) -> None:
    """Confirm a repeated message as before, without a second delivery."""
    assert event.burst is not None
    limit = builder.runtime.capabilities.confirms_messages
    if limit is None:
        return
    error = None if delivered else "the message could not be delivered"
    again = MessageConfirmed(
        native_call_id=event.burst.call,
        index=event.burst.index,
        delivered=delivered,
        error=error,
        context=full_context(builder.memory, builder.runtime.options.history_key) if delivered else None,
    )
    send(builder, again, Priority("turn", leave_before=builder.now + limit), caused_by=None, synthetic=True)


def replied(builder: StepBuilder, sequence: int, answer: Answer) -> None:
    """Apply the reply to a routed message."""
    waiting = next((c for c in builder.memory.confirmations if c.sequence == sequence), None)
    if waiting is not None:
        confirm(builder, waiting, answer)


def confirmed_by_client(builder: StepBuilder, event: MessageConfirmed) -> int:
    waiting = builder.memory.confirmation(event.native_call_id, event.index)
    if waiting is None:
        raise Conflict(f"no message {event.index} of call {event.native_call_id!r} waits for a confirmation")
    reply: dict[str, Any] = {"delivered": event.delivered, "error": event.error, "context": event.context}
    confirm(builder, waiting, Replied({key: value for key, value in reply.items() if value is not None}))
    return builder.last_sequence


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
    limit = builder.runtime.capabilities.confirms_messages
    if limit is None:
        note = "not sent: this protocol takes no confirmations"
        loss = Loss(how="dropped", path="", note=note)
        builder.apply(event, "to_runtime", caused_by=waiting.sequence, losses=(loss,), synthetic=synthetic)
        return
    if builder.now - waiting.posted_at >= limit:
        # The runtime has stopped waiting and assumes delivery; only the true context can still be sent.
        note = f"not sent: the runtime waits {limit.total_seconds():g} s at most"
        loss = Loss(how="dropped", path="", note=note)
        builder.apply(event, "to_runtime", caused_by=waiting.sequence, losses=(loss,), synthetic=synthetic)
        correct(builder, caused_by=waiting.sequence)
        return
    if delivered:
        sequence = builder.last_sequence + 1
        said = Envelope(EventId(""), builder.base.session_id, sequence, builder.now, "to_runtime", event)
        after = fold(builder.memory, said)
        newest = full_context(after, builder.runtime.options.history_key) if context is None else context
        event = event.model_copy(update={"context": newest})
    priority = Priority("turn", leave_before=waiting.posted_at + limit)
    try:
        send(builder, event, priority, caused_by=waiting.sequence, synthetic=synthetic)
    except CannotExpress as exc:
        bare = event.model_copy(update={"context": None, "error": event.error and event.error[:_EXCERPT]})
        loss = Loss(how="dropped", path="/context", note=exc.reason)
        losses = (loss,)
        send(builder, bare, priority, caused_by=waiting.sequence, losses=losses, synthetic=synthetic)


def correct(builder: StepBuilder, *, caused_by: int) -> None:
    """Send the conversation so far without waking the runtime, because it no longer waits for the confirmation."""
    if (
        builder.runtime.options.history_key is not None
        and full_context(builder.memory, builder.runtime.options.history_key) is not None
    ):
        words = "What was said so far; a message was confirmed too late."
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

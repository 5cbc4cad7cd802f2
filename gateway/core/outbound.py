"""Decides about events that API clients post, adapted to the runtime. Pure."""

from gateway.core.adapt import adapt
from gateway.core.calls import cancellation, settle
from gateway.core.confirmations import confirmed_by_client
from gateway.core.interactions import give
from gateway.core.session import TURN, Priority, StepBuilder, begin_turn, send
from gateway.core.state import HELD
from gateway.errors import CannotExpress, Conflict, Inexpressible
from gateway.events import (
    ApprovalGiven,
    ContextUpdated,
    Event,
    MessageConfirmed,
    MessagePosted,
    QuestionAnswered,
    SecretSupplied,
    TurnInterrupted,
    TurnSteered,
)
from gateway.store.step import Lane


def post(builder: StepBuilder, event: Event, *, by: str) -> int:
    """Record and send an event of an API client; `by` is the name of its key. Return the event's sequence.

    Raises:
        Inexpressible: this runtime has no equivalent.
        Conflict: the session is closed.
    """
    if builder.memory.closed:
        raise Conflict("the session is closed")
    try:
        match event:
            case MessageConfirmed():
                return confirmed_by_client(builder, event)
            case TurnInterrupted():
                sequence = pass_on(builder, event, lane="urgent")
                native = event.kind in builder.runtime.capabilities.accepts
                for call in [c for c in builder.calls.values() if c.redrive_of is None or c.state == "held"]:
                    reason = event.reason or "The turn was interrupted."
                    canceled = cancellation(reason)
                    settle(builder, call, canceled, tell_reason=reason, ended_as="moot" if native else "answered")
                return sequence
            case ApprovalGiven() | QuestionAnswered() | SecretSupplied():
                return give(builder, event, by=by)
            case MessagePosted() | ContextUpdated(wakes_agent=True):
                return pass_on(builder, event, lane="new_work")
            case _:
                return pass_on(builder, event, lane="turn")
    except CannotExpress as exc:
        raise Inexpressible(exc.reason, path=exc.path) from exc


def pass_on(
    builder: StepBuilder, event: Event, *, lane: Lane, caused_by: int | None = None, synthetic: bool = False
) -> int:
    """Record and send an event, adapted to the runtime; return its sequence.

    Raises:
        CannotExpress: this runtime has no equivalent.
    """
    adapted = adapt(event, builder.memory, builder.runtime.capabilities, history=builder.runtime.options.history_key)
    if isinstance(adapted.event, TurnSteered):
        # A hint is for the running turn, so it must not wait for its end.
        lane = "turn"
    if adapted.holds:
        builder.apply(event, "to_runtime", caused_by=caused_by, losses=adapted.losses, synthetic=synthetic)
        return builder.last_sequence
    if getattr(adapted.event, "wakes_agent", False):
        begin_turn(builder)
    if adapted.event.kind == event.kind:
        priority = Priority(lane)
        return send(builder, adapted.event, priority, caused_by=caused_by, losses=adapted.losses, synthetic=synthetic)
    apart = isinstance(event, ContextUpdated) and isinstance(adapted.event, MessagePosted) and event.message is not None
    held = tuple(loss for loss in adapted.losses if loss.note == HELD)
    builder.apply(event, "to_runtime", caused_by=caused_by, losses=held, synthetic=synthetic)
    sequence = builder.last_sequence
    if adapted.first is not None:
        send(builder, adapted.first, TURN, caused_by=sequence, synthetic=True)
        builder.add_losses(sequence, builder.events[-1].losses)
    losses = tuple(loss for loss in adapted.losses if loss not in held)
    priority = Priority("new_work" if apart else lane)
    # The client sees this envelope. The paths of an extracted message are relative to it.
    part = "/message" if apart else ""
    try:
        send(builder, adapted.event, priority, caused_by=sequence, losses=losses, synthetic=True)
    except CannotExpress as exc:
        # A path in an event of another kind does not exist in the posted one.
        raise CannotExpress(exc.reason, path=part + exc.path if apart else "") from exc
    builder.add_losses(
        sequence, [loss.model_copy(update={"path": part + loss.path}) for loss in builder.events[-1].losses]
    )
    return sequence

"""What clients post through the API, said in a way the runtime understands. Pure."""

from gateway.core.adapt import adapt
from gateway.core.council import Council
from gateway.core.decision import Building
from gateway.core.interactions import give
from gateway.core.memory import HELD
from gateway.core.messages import confirmed_by_client
from gateway.core.outcomes import settle
from gateway.core.saying import begin_turn, say
from gateway.envelope import (
    ApprovalGiven,
    ContextUpdated,
    Event,
    MessageConfirmed,
    MessagePosted,
    Outcome,
    QuestionAnswered,
    SecretSupplied,
    TurnInterrupted,
    TurnSteered,
)
from gateway.errors import CannotExpress, Conflict, Inexpressible
from gateway.ports.executor import Answered
from gateway.ports.step import Lane


def post(council: Council, build: Building, event: Event, *, by: str) -> int:
    """Take an event of an API client, `by` the name of its key; returns the sequence it is on record under.

    Raises:
        Inexpressible: this runtime cannot be told so.
        Conflict: the session is closed.
    """
    if build.memory.closed:
        raise Conflict("the session is closed")
    try:
        match event:
            case MessageConfirmed():
                return confirmed_by_client(council, build, event)
            case TurnInterrupted():
                sequence = _pass_on(council, build, event, lane="urgent")
                native = event.kind in council.capabilities.accepts
                for call in [c for c in build.calls.values() if c.redrive_of is None]:
                    reason = event.reason or "The turn was interrupted."
                    canceled = Answered(Outcome(outcome="canceled", error=reason))
                    settle(council, build, call, canceled, tell_reason=reason, moot=native)
                return sequence
            case ApprovalGiven() | QuestionAnswered() | SecretSupplied():
                return give(council, build, event, by=by)
            case MessagePosted() | ContextUpdated(wakes_agent=True):
                return _pass_on(council, build, event, lane="new_work")
            case _:
                return _pass_on(council, build, event, lane="turn")
    except CannotExpress as exc:
        raise Inexpressible(exc.reason) from exc


def _pass_on(council: Council, build: Building, event: Event, *, lane: Lane) -> int:
    adapted = adapt(event, build.memory, council.capabilities)
    if isinstance(adapted.event, TurnSteered):
        # A hint is for the turn that runs, so it must not wait for its end.
        lane = "turn"
    if adapted.holds:
        build.record(event, "to_runtime", losses=adapted.losses)
        return build.last_sequence
    if getattr(adapted.event, "wakes_agent", False):
        begin_turn(council, build)
    if adapted.event.kind == event.kind:
        return say(council, build, adapted.event, caused_by=None, lane=lane, losses=adapted.losses)
    apart = isinstance(event, ContextUpdated) and isinstance(adapted.event, MessagePosted) and event.message is not None
    held = tuple(loss for loss in adapted.losses if loss.note == HELD)
    build.record(event, "to_runtime", losses=held)
    sequence = build.last_sequence
    if adapted.first is not None:
        say(council, build, adapted.first, caused_by=sequence, lane="turn")
        build.add_losses(sequence, build.events[-1].losses)
    losses = tuple(loss for loss in adapted.losses if loss not in held)
    say(council, build, adapted.event, caused_by=sequence, lane="new_work" if apart else lane, losses=losses)
    # Whoever has posted it is shown this envelope. Where a message was taken out of it, places are counted from there.
    part = "/message" if apart else ""
    build.add_losses(sequence, [loss.model_copy(update={"path": part + loss.path}) for loss in build.events[-1].losses])
    return sequence

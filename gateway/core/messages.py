"""Messages of a burst: delivered by the backend, then confirmed index by index, in time. Pure."""

from typing import Any, cast

from gateway.core import calls as life
from gateway.core.adapt import full_context
from gateway.core.contexts import CORRECTION
from gateway.core.council import Council
from gateway.core.decision import Building
from gateway.core.effects import Ask
from gateway.core.folding import fold
from gateway.core.memory import MOST_CONFIRMATIONS, Confirmation
from gateway.core.requests import ask_data
from gateway.core.routing import Matched
from gateway.core.saying import begin_turn, say, witness
from gateway.envelope import (
    ContextUpdated,
    Draft,
    Envelope,
    Event,
    EventId,
    Loss,
    MessageConfirmed,
    MessagePosted,
)
from gateway.errors import CannotExpress, Conflict
from gateway.ports.executor import Answer, Answered, Replied
from gateway.ports.step import NewEvent

_EXCERPT = 500


def burst_message(council: Council, build: Building, draft: Draft, event: MessagePosted) -> None:
    assert event.burst is not None
    known = build.memory.confirmation(event.burst.call, event.burst.index)
    if known is not None:
        return
    for call, index, delivered in build.memory.confirmed:
        if (call, index) == (event.burst.call, event.burst.index):
            _confirm_again(council, build, event, delivered=delivered)
            return
    begin_turn(council, build)
    full = len(build.memory.confirmations) >= MOST_CONFIRMATIONS - 1
    _, event_id = witness(council, build, draft, event)
    route = council.policy.routes.executor_for(runtime=council.runtime, kind=event.kind, labels=build.memory.labels)
    waiting = build.memory.confirmation(event.burst.call, event.burst.index)
    assert waiting is not None
    if full:
        confirm(council, build, waiting, life.failure(life.OVERLOADED))
    elif isinstance(route, Matched):
        _ask(council, build, waiting, event, executor=route.executor, key=event_id)
    else:
        confirm(council, build, waiting, Replied({}))


def recover(council: Council, build: Building, waiting: Confirmation, message: Envelope | None) -> None:
    """After a restart: ask again about a message where that does no harm; else whether it arrived is unknown."""
    route = council.policy.routes.executor_for(
        runtime=council.runtime, kind="message.posted", labels=build.memory.labels
    )
    policy = council.policy.executors.get(route.executor) if isinstance(route, Matched) else None
    if message is not None and isinstance(route, Matched) and policy is not None and policy.idempotent:
        _ask(council, build, waiting, message.event, executor=route.executor, key=message.event_id)
    else:
        text = "unknown: the gateway restarted before the delivery was known"
        confirm(council, build, waiting, life.failure(text, unknown=True))


def _confirm_again(council: Council, build: Building, event: MessagePosted, *, delivered: bool) -> None:
    """A message that was confirmed came again: it is not delivered twice, only confirmed as before."""
    assert event.burst is not None
    limit = council.capabilities.confirms_messages
    if limit is None:
        return
    error = None if delivered else "the message could not be delivered"
    again = MessageConfirmed(
        native_call_id=event.burst.call,
        index=event.burst.index,
        delivered=delivered,
        error=error,
        context=full_context(build.memory) if delivered else None,
    )
    say(council, build, again, caused_by=None, lane="turn", leave_before=build.now + limit)


def replied(council: Council, build: Building, sequence: int, answer: Answer) -> None:
    """Take the reply about a routed message."""
    waiting = next((c for c in build.memory.confirmations if c.sequence == sequence), None)
    if waiting is not None:
        confirm(council, build, waiting, answer)


def confirmed_by_client(council: Council, build: Building, event: MessageConfirmed) -> int:
    waiting = build.memory.confirmation(event.native_call_id, event.index)
    if waiting is None:
        raise Conflict(f"no message {event.index} of call {event.native_call_id!r} waits for a confirmation")
    reply: dict[str, Any] = {"delivered": event.delivered, "error": event.error, "context": event.context}
    confirm(council, build, waiting, Replied({key: value for key, value in reply.items() if value is not None}))
    return build.last_sequence


def _ask(council: Council, build: Building, waiting: Confirmation, event: Event, *, executor: str, key: str) -> None:
    deadline_at = waiting.posted_at + council.options.confirm_timeout
    data = ask_data(build.base, event, protocol=council.protocol, labels=build.memory.labels, deadline_at=deadline_at)
    build.effects.append(
        Ask(
            sequence=waiting.sequence,
            key=key,
            kind=event.kind,
            executor=executor,
            data=data,
            deadline_at=deadline_at,
        )
    )


def confirm(council: Council, build: Building, waiting: Confirmation, answer: Answer) -> None:
    delivered, error, context = read_confirmation(answer)
    event = MessageConfirmed(native_call_id=waiting.call, index=waiting.index, delivered=delivered, error=error)
    limit = council.capabilities.confirms_messages
    if limit is None:
        note = "not sent: this protocol takes no confirmations"
        loss = Loss(how="dropped", path="", note=note)
        build.record(event, "to_runtime", caused_by=waiting.sequence, losses=(loss,))
        return
    if build.now - waiting.posted_at >= limit:
        # The runtime has gone on and believes the message delivered; only the true state can still be told.
        note = f"not sent: the runtime waits {limit.total_seconds():g} s at most"
        loss = Loss(how="dropped", path="", note=note)
        build.record(event, "to_runtime", caused_by=waiting.sequence, losses=(loss,))
        correct(council, build, caused_by=waiting.sequence)
        return
    if delivered:
        after = fold(build.memory, NewEvent(EventId(""), event, "to_runtime", build.now), build.last_sequence + 1)
        event = event.model_copy(update={"context": context if context is not None else full_context(after)})
    until = waiting.posted_at + limit
    try:
        say(council, build, event, caused_by=waiting.sequence, lane="turn", leave_before=until)
    except CannotExpress as exc:
        bare = event.model_copy(update={"context": None, "error": event.error and event.error[:_EXCERPT]})
        loss = Loss(how="dropped", path="/context", note=exc.reason)
        say(council, build, bare, caused_by=waiting.sequence, lane="turn", losses=(loss,), leave_before=until)


def correct(council: Council, build: Building, *, caused_by: int) -> None:
    """Tell the runtime what was said so far, without waking it, where it no longer waits to hear it."""
    if full_context(build.memory) is not None:
        words = "What was said so far; a message was confirmed too late."
        given = dict(build.memory.context or {})
        correction = ContextUpdated(name=CORRECTION, context=given, description=words)
        say(council, build, correction, caused_by=caused_by, lane="turn")


def read_confirmation(answer: Answer) -> tuple[bool, str | None, dict[str, Any] | None]:
    """Read `{"delivered", "error", "context"}`; anything that is no clear yes is a no, with a text."""
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

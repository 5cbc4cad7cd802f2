"""Adapts events to the kinds that a runtime's protocol supports, with the newest context. Pure."""

from collections.abc import Collection, Sequence, Set as AbstractSet
from typing import Any

import orjson

from gateway.adapter.port import Capabilities, Codec, Encoded
from gateway.core.bounds import with_held
from gateway.core.effects import Place, Transmit
from gateway.core.state import HELD, Remembered
from gateway.errors import CannotExpress
from gateway.events import (
    ApprovalGiven,
    ContextUpdated,
    Draft,
    Event,
    Loss,
    MessageConfirmed,
    MessagePosted,
    QuestionAnswered,
    Text,
    ToolFinished,
    TurnInterrupted,
    TurnSteered,
    text_of,
)
from gateway.events.frozen import frozen, replace
from gateway.store.rows import Send

_ERROR_LIMIT = 8_000
_RESULT_LIMITS = (800_000, 400_000, 200_000, 60_000)
"""Lengths for a result that is too long: the first one that the protocol accepts is used."""
HYDRATION = "hydration"
MESSAGE_UPDATE = "new-message"
STEER_UPDATE = "steer"
INTERRUPT_UPDATE = "interrupt"
CORRECTION = "message-correction"
RENEWED = "told with the newest state, since its own was older"
REPLACED = "a newer context replaces it"


@frozen
class Adapted:
    """An event of a kind that the runtime accepts, and the losses of the change."""

    event: Event
    losses: tuple[Loss, ...] = ()
    holds: bool = False
    """The event is only recorded; the next message carries it."""
    first: ContextUpdated | None = None
    """The context to send before it."""


def equivalent_kind(kind: str, accepts: AbstractSet[str]) -> str | None:
    """Return the kind that `adapt` sends for a client's event; None if there is none.

    While a turn runs, a context becomes a hint instead of a message if the runtime accepts hints.
    """
    match kind:
        case _ if kind in accepts:
            return kind
        case "message.posted" | "turn.steered" | "turn.interrupted" if "context.updated" in accepts:
            return "context.updated"
        case "context.updated" | "turn.steered" if "message.posted" in accepts:
            return "message.posted"
        case _:
            return None


def adapt(event: Event, memory: Remembered, capabilities: Capabilities, *, history: str | None) -> Adapted:
    """Turn an event that goes to a runtime into a kind it accepts.

    A context that replaces the last one gets the conversation under the key `history`; None adds none.

    Raises:
        CannotExpress: the runtime has no equivalent.
    """
    accepts = capabilities.accepts
    match event:
        case ContextUpdated(message=MessagePosted() as message) if message.kind in accepts:
            return _message_apart(event, message, memory, capabilities)
        case ContextUpdated() if event.kind in accepts:
            return complete_context(event, memory, capabilities, history)
        case MessagePosted() if event.kind in accepts:
            return _with_held(event, memory)
        case _ if event.kind in accepts:
            return Adapted(event)
        case MessagePosted() if "context.updated" in accepts:
            return _message_as_context(event, memory, capabilities, history)
        case ContextUpdated() if "turn.steered" in accepts and memory.running:
            note = "the runtime has no context; the description was given as a hint"
            return Adapted(TurnSteered(text=_describe(event)), (Loss(how="narrowed", path="", note=note),))
        case ContextUpdated(wakes_agent=False) if "message.posted" in accepts:
            held = Loss(how="narrowed", path="", note=HELD)
            return Adapted(event, (held, *_displaced(event, memory)), holds=True)
        case ContextUpdated() if "message.posted" in accepts:
            note = "the runtime has no context; it was posted as a message"
            message = MessagePosted(content=(Text(text=_describe(event)),), wakes_agent=event.wakes_agent)
            return _with_held(message, memory, (Loss(how="narrowed", path="", note=note),))
        case TurnSteered(text=text) if "context.updated" in accepts:
            return _words_as_context(STEER_UPDATE, text, memory, capabilities, history)
        case TurnSteered(text=text) if "message.posted" in accepts:
            note = "the runtime cannot be steered; the hint was posted as a message"
            message = MessagePosted(content=(Text(text=text),))
            return _with_held(message, memory, (Loss(how="narrowed", path="", note=note),))
        case TurnInterrupted(reason=reason) if "context.updated" in accepts:
            words = "Stop what you are doing." + (f" {reason}" if reason else "")
            return _words_as_context(INTERRUPT_UPDATE, words, memory, capabilities, history)
        case _:
            raise CannotExpress(f"the runtime does not support {event.kind!r}")


def _message_apart(
    event: ContextUpdated, message: MessagePosted, memory: Remembered, capabilities: Capabilities
) -> Adapted:
    """Send the message of a context as a message, after the rest of the context."""
    said = message.model_copy(update={"wakes_agent": event.wakes_agent})
    rest = event.model_copy(update={"message": None, "wakes_agent": False})
    if event.kind in capabilities.accepts:
        note = "moved out of a context; the rest of the context was sent first"
        return Adapted(said, (Loss(how="narrowed", path="", note=note),), first=rest)
    if rest.context or rest.description:
        memory = replace(memory, context=rest.context, held=(*memory.held, rest.description or rest.name))
    return _with_held(said, memory, (Loss(how="narrowed", path="", note=HELD),))


def complete_context(
    event: ContextUpdated, memory: Remembered, capabilities: Capabilities, history: str | None
) -> Adapted:
    """Add the conversation to a context that replaces the last one, unless the backend included it."""
    if history is None or not capabilities.replaces_context or not memory.history or history in event.context:
        return Adapted(event)
    context = {**event.context, history: "\n".join(memory.history)}
    note = "added by the gateway, because the runtime replaces its context with each update"
    added = Loss(how="invented", path=f"/context/{history}", note=note)
    return Adapted(event.model_copy(update={"context": context}), (added,))


def full_context(memory: Remembered, history: str | None) -> dict[str, Any] | None:
    """Build the complete current context, with the conversation under the key `history`; None if there is neither."""
    lines = memory.history if history is not None else ()
    if memory.context is None and not lines:
        return None
    context = dict(memory.context or {})
    if history is not None and lines and history not in context:
        context[history] = "\n".join(lines)
    return context


def hydration(memory: Remembered) -> ContextUpdated | None:
    """Return the silent update that sends the last context over a new link; None if there is no context."""
    if memory.context is None:
        return None
    return ContextUpdated(
        name=HYDRATION, context=dict(memory.context), description="The current state.", wakes_agent=False
    )


def _message_as_context(
    event: MessagePosted, memory: Remembered, capabilities: Capabilities, history: str | None
) -> Adapted:
    who = event.author.name or event.author.id or event.author.role
    update = ContextUpdated(
        name=MESSAGE_UPDATE,
        context=dict(memory.context or {}),
        description=f'{who} sent a message: "{text_of(event.content)}"',
        wakes_agent=event.wakes_agent,
        message=event,
    )
    completed = complete_context(update, memory, capabilities, history)
    return Adapted(completed.event, completed.losses)


def _words_as_context(
    name: str, words: str, memory: Remembered, capabilities: Capabilities, history: str | None
) -> Adapted:
    update = ContextUpdated(name=name, context=dict(memory.context or {}), description=words, wakes_agent=True)
    completed = complete_context(update, memory, capabilities, history)
    note = f"this runtime has no {name}; sent as a context update that wakes the agent"
    return Adapted(completed.event, (*completed.losses, Loss(how="narrowed", path="", note=note)))


def _with_held(event: MessagePosted, memory: Remembered, losses: tuple[Loss, ...] = ()) -> Adapted:
    """Prepend the contexts since the last message to this one."""
    if not memory.held:
        return Adapted(event, losses)
    facts = orjson.dumps(dict(memory.context)).decode() if memory.context else ""
    words = "\n".join(part for part in (*memory.held, facts) if part)
    return Adapted(event.model_copy(update={"content": (Text(text=words), *event.content)}), losses)


def _displaced(event: ContextUpdated, memory: Remembered) -> Sequence[Loss]:
    """Return the loss of older contexts, which no longer fit beside this one until the next message."""
    count = len(memory.held) + 1 - len(with_held(memory.held, event.description or event.name))
    return [Loss(how="dropped", path="", note=f"older contexts that waited with this one: {count}")] if count else []


def _describe(event: ContextUpdated) -> str:
    facts = orjson.dumps(event.context).decode() if event.context else ""
    return "\n".join(part for part in (event.description or event.name, facts) if part)


def expressible_outcome(
    finished: ToolFinished, codec: Codec, written: bytes | None = None
) -> tuple[ToolFinished, Encoded]:
    """Encode an outcome in the first form that the protocol supports; the last form always works.

    The forms are: unchanged, the result as bounded JSON text, a short failure. Each step down is a Loss. `written` is
    the result as JSON, if known.
    """
    if finished.error is not None and len(finished.error) > _ERROR_LIMIT:
        finished = finished.model_copy(update={"error": finished.error[:_ERROR_LIMIT] + " …"})
    try:
        return finished, codec.encode(Draft(finished, written=written))
    except CannotExpress as exc:
        reason, path = exc.reason, exc.path
    if finished.outcome == "success":
        cut = Loss(how="narrowed", path="/result", note=reason)
        text = finished.result if isinstance(finished.result, str) else orjson.dumps(finished.result).decode()
        for limit in _RESULT_LIMITS:
            if limit > len(text) and limit != _RESULT_LIMITS[-1]:
                continue
            bounded = finished.model_copy(update={"result": _bounded(text, limit)})
            try:
                said = codec.encode(Draft(bounded))
            except CannotExpress as exc:
                reason, path = exc.reason, exc.path
            else:
                return bounded, Encoded(said.frames, (cut, *said.losses))
    short = finished.model_copy(
        update={
            "outcome": "failure",
            "result": None,
            "error": "The tool has answered, but its answer cannot be told in this protocol.",
            "context": None,
            "updates": (),
        }
    )
    said = codec.encode(Draft(short))
    return short, Encoded(said.frames, (Loss(how="narrowed", path=path or "", note=reason), *said.losses))


def _bounded(text: str, limit: int) -> str:
    """Cut a text to a number of UTF-16 units of its JSON form, which is how the strictest known limit counts."""
    if _units(text) <= limit:
        return text
    low, high = 0, min(len(text), limit)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _units(text[:middle]) <= limit else (low, middle - 1)
    return f"{text[:low]} … [cut by the gateway: {low} of {len(text)} characters]"


def _units(text: str) -> int:
    return len(orjson.dumps(text).decode().encode("utf-16-le")) // 2


def carries_state(event: Event, capabilities: Capabilities) -> bool:
    """Return whether an event carries a context that replaces the previous one."""
    if not capabilities.replaces_context:
        return False
    return isinstance(event, ContextUpdated) or (isinstance(event, MessageConfirmed) and event.context is not None)


def needs_attempt(event: Event, capabilities: Capabilities) -> bool:
    """Return whether the row of an event must have attempt 1 on record before the event is sent.

    This holds for events whose repeat a runtime would take as new, and for contexts that wake the agent.
    After a restart a row with attempt 0 is sent, and a row with attempt 1 may have been sent.
    """
    match event:
        case ToolFinished() | MessageConfirmed() | ApprovalGiven() | QuestionAnswered():
            return False
        case ContextUpdated():
            return event.wakes_agent
        case TurnInterrupted():
            return capabilities.turns != "signalled"
        case _:
            return True


def renew(item: Transmit, memory: Remembered, codec: Codec, history: str | None) -> Transmit:
    """Encode an item with a replacing context again with the newest one; return the item if it has that already.

    Raises:
        CannotExpress: the protocol cannot express the newest context.
    """
    said, newest = item.state, full_context(memory, history)
    if said is None or newest is None or not isinstance(said.event, ContextUpdated | MessageConfirmed):
        return item
    if said.event.context == newest:
        return item
    said = replace(said, event=said.event.model_copy(update={"context": newest}))
    return replace(item, frames=codec.encode(said).frames, state=said, renewed=True)


def replaced(rows: Sequence[Send], *, asked_again: Collection[int]) -> frozenset[int]:
    """Return the rows that a newer one replaces: all but the newest silent context and the newest bare wake.

    Contexts of clients take precedence over those that the gateway made.
    """
    plain = [row for row in rows if is_plain(row.envelope.event)]
    wakes = [row for row in rows if _is_bare(row.envelope.event) and _wakes(row.envelope.event)]
    given = [row for row in plain if not _is_ours(row)] or plain
    kept = {max(row.sequence for row in group) for group in (given, wakes) if group}
    return frozenset(row.sequence for row in (*plain, *wakes)) - kept - frozenset(asked_again)


def place_of(event: Event) -> Place:
    """Return the place of an event on a fresh link: a wake before the outcomes would cancel their calls."""
    match event:
        case ContextUpdated(call_id=None, wakes_agent=wakes):
            return "wakes" if wakes else "first"
        case MessagePosted():
            return "wakes"
        case _:
            return "before_wakes"


def _is_bare(event: Event) -> bool:
    return isinstance(event, ContextUpdated) and event.call_id is None and event.message is None


def is_plain(event: Event) -> bool:
    """Return whether an event sends the context over a fresh link without waking the agent."""
    return _is_bare(event) and not _wakes(event)


def _wakes(event: Event) -> bool:
    return isinstance(event, ContextUpdated) and event.wakes_agent


def _is_ours(row: Send) -> bool:
    event = row.envelope.event
    said_by_us = isinstance(event, ContextUpdated) and event.name in {HYDRATION, CORRECTION}
    return said_by_us and row.envelope.caused_by is not None

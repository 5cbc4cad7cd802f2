"""The state that replaces what a runtime knew before: what carries one, its newest form, its place on a link. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from gateway.adapter.port import Capabilities, Codec
from gateway.core.adapt import HYDRATION, full_context
from gateway.core.effects import Place, Transmit
from gateway.core.memory import Remembered
from gateway.events import ContextUpdated, Event, MessageConfirmed, MessagePosted
from gateway.store.rows import SendRow

CORRECTION = "message-correction"
RENEWED = "told with the newest state, since its own was older"
REPLACED = "a newer context replaces it"


def carries_state(event: Event, capabilities: Capabilities) -> bool:
    """Whether an event tells a state that takes the place of the one told before."""
    if not capabilities.replaces_context:
        return False
    return isinstance(event, ContextUpdated) or (isinstance(event, MessageConfirmed) and event.context is not None)


def renew(item: Transmit, memory: Remembered, codec: Codec) -> Transmit:
    """Write what carries a state anew with the newest one; the same item where it says just that.

    Raises:
        CannotExpress: the protocol does not take the newest state.
    """
    said, newest = item.state, full_context(memory)
    if said is None or newest is None or not isinstance(said.event, ContextUpdated | MessageConfirmed):
        return item
    if said.event.context == newest:
        return item
    said = replace(said, event=said.event.model_copy(update={"context": newest}))
    return replace(item, frames=codec.encode(said).frames, state=said, renewed=True)


def tells_state(rows: Sequence[SendRow]) -> bool:
    """Whether one of these rows tells a fresh link the state without waking anybody, so that nothing else need to."""
    return any(_is_plain(row.envelope.event) for row in rows)


def replaced(rows: Sequence[SendRow], *, asked_again: Collection[int]) -> frozenset[int]:
    """Name the rows whose whole meaning is in another one: of states the newest counts, and of wakes without a message.

    What somebody posted is preferred to what the gateway says of its own accord.
    """
    plain = [row for row in rows if _is_plain(row.envelope.event)]
    wakes = [row for row in rows if _is_bare(row.envelope.event) and _wakes(row.envelope.event)]
    given = [row for row in plain if not _is_ours(row)] or plain
    kept = {max(row.sequence for row in group) for group in (given, wakes) if group}
    return frozenset(row.sequence for row in (*plain, *wakes)) - kept - frozenset(asked_again)


def place_of(event: Event) -> Place:
    """Say when a fresh link is told of an event: a wake before the outcomes would cancel their calls."""
    match event:
        case ContextUpdated(call_id=None, wakes_agent=wakes):
            return "wakes" if wakes else "first"
        case MessagePosted():
            return "wakes"
        case _:
            return "before_wakes"


def _is_bare(event: Event) -> bool:
    return isinstance(event, ContextUpdated) and event.call_id is None and event.message is None


def _is_plain(event: Event) -> bool:
    return _is_bare(event) and not _wakes(event)


def _wakes(event: Event) -> bool:
    return isinstance(event, ContextUpdated) and event.wakes_agent


def _is_ours(row: SendRow) -> bool:
    event = row.envelope.event
    said_by_us = isinstance(event, ContextUpdated) and event.name in {HYDRATION, CORRECTION}
    return said_by_us and row.envelope.caused_by is not None

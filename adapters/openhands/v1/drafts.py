"""Makes drafts of native events, each with its identity. Pure."""

from typing import Any

from adapters.openhands.v1 import wire
from gateway.events import Draft, Event, Loss, Opaque, ThoughtShared
from gateway.strict_json import unknown_fields

REASONING, THOUGHT, BLOCKED = "#reasoning", "#thought", "#blocked"
"""Suffixes of the native ids of further drafts of one event: the dedupe key of each must differ."""


def stored(
    native: wire.StoredEvent,
    event: Event,
    losses: tuple[Loss, ...] = (),
    *,
    suffix: str = "",
    correlation: str | None = None,
    echo: bool = False,
) -> Draft:
    """Make the draft of a stored event."""
    return Draft(
        event,
        native_id=native.id + suffix,
        native_time=native.timestamp,
        correlation=correlation,
        losses=losses,
        echo=echo,
    )


def reasoning_of(native: wire.StoredEvent, text: str | None, suffix: str = REASONING) -> tuple[Draft, ...]:
    """Make the draft of the reasoning of an event, if it has any."""
    return (stored(native, ThoughtShared(text=text), suffix=suffix),) if text else ()


def opaque(event: dict[str, Any], losses: tuple[Loss, ...] = ()) -> Draft:
    """Make the draft of an event that is kept as it is, without secrets."""
    time = event.get("timestamp")
    return Draft(
        Opaque(channel=wire.EVENTS, payload=wire.without_secrets(event)),
        native_id=wire.event_id_of(event),
        native_time=time if isinstance(time, str) and len(time) <= wire.TIME_LENGTH else None,
        losses=losses,
    )


def silent(payload: dict[str, Any], channel: str = wire.EVENTS) -> Draft:
    """Make the draft of a message that is not worth a record; only followers see it."""
    return Draft(Opaque(channel=channel, payload=wire.without_secrets(payload)), live=True)


def unknown_of(native: wire.Wire, path: str = "") -> tuple[Loss, ...]:
    """List the unknown members of a message; an absent one may be null."""
    extra = native.model_extra
    return unknown_fields({name: value for name, value in extra.items() if value is not None}, path) if extra else ()


def unread(native: wire.Wire, *names: str, path: str = "") -> tuple[Loss, ...]:
    """List the members that have no equivalent, unless they are empty."""
    return tuple(
        Loss(how="dropped", path=f"{path}/{name}", note="no equivalent") for name in names if getattr(native, name)
    )

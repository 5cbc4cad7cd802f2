"""Selects the channel of an event and wraps it in the envelope of lists and streams. Pure."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

from adapters.herm import wire
from gateway.adapter.checks import dropped as dropped_members
from gateway.adapter.port import Encoded, Frame
from gateway.events import Draft, Envelope, Loss
from gateway.events.frozen import frozen

dropped = partial(dropped_members, note="Herm has no field for it")


@frozen
class NativeEvent:
    """One native event without its envelope, and its losses."""

    payload: dict[str, Any]
    losses: tuple[Loss, ...] = ()


def comes_from_runtime(item: Draft | Envelope) -> bool:
    """Whether an event of a kind with both directions comes from the runtime; our own drafts have no native id."""
    if isinstance(item, Envelope):
        return item.direction == "from_runtime"
    return not item.echo and item.native_id is not None


def wrap(item: Draft | Envelope, native: NativeEvent) -> Encoded:
    """Encode a client's event bare; encode all other events and a client's echoes in an envelope."""
    is_echo = isinstance(item, Draft) and item.echo
    if native.payload["type"] in wire.USER_TYPES and not is_echo:
        return Encoded((Frame(wire.EVENTS, native.payload),), native.losses)
    live = isinstance(item, Draft) and item.live
    if isinstance(item, Draft):
        wrapped = wire.envelope(
            native.payload,
            event_id=item.native_id,
            sequence=item.native_sequence,
            created_at=item.native_time,
            live=live,
        )
    else:
        wrapped = wire.envelope(
            native.payload,
            event_id=item.event_id,
            session_id=item.session_id,
            sequence=item.sequence,
            created_at=_write_time(item.recorded_at),
            live=False,
        )
    return Encoded((Frame(wire.STREAM, wrapped),), native.losses)


def _write_time(moment: datetime) -> str:
    utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")

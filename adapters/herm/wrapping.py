"""Decides on which channel an event travels, and puts the wrapper of lists and streams around it. Pure."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

from adapters.herm import wire
from gateway.adapter.checks import dropped as dropped_members
from gateway.adapter.port import Encoded, Frame
from gateway.events import Draft, Envelope, Loss
from gateway.events.frozen import frozen

dropped = partial(dropped_members, note="Herm has no place for it")


@frozen
class Said:
    """One event in native words, without its wrapper, and what it leaves out."""

    payload: dict[str, Any]
    losses: tuple[Loss, ...] = ()


def comes_from_runtime(item: Draft | Envelope) -> bool:
    """Whether a kind that travels both ways is the runtime's own here; a draft of ours has no native id yet."""
    if isinstance(item, Envelope):
        return item.direction == "from_runtime"
    return not item.echo and item.native_id is not None


def wrap(item: Draft | Envelope, said: Said) -> Encoded:
    """Post a client's event bare; show everything else, and what comes back of a client's, in an envelope."""
    is_echo = isinstance(item, Draft) and item.echo
    if said.payload["type"] in wire.USER_TYPES and not is_echo:
        return Encoded((Frame(wire.EVENTS, said.payload),), said.losses)
    live = isinstance(item, Draft) and item.live
    if isinstance(item, Draft):
        wrapped = wire.envelope(
            said.payload,
            event_id=item.native_id,
            sequence=item.native_sequence,
            created_at=item.native_time,
            live=live,
        )
    else:
        wrapped = wire.envelope(
            said.payload,
            event_id=item.event_id,
            session_id=item.session_id,
            sequence=item.sequence,
            created_at=_write_time(item.recorded_at),
            live=False,
        )
    return Encoded((Frame(wire.STREAM, wrapped),), said.losses)


def _write_time(moment: datetime) -> str:
    utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")

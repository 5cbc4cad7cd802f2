"""Turns events into the bytes that engines keep, and rows back into envelopes. Pure.

The event is written once, by pydantic and with every member, so that free-form values come back exactly
as they were (null members, NUL characters, large integers). What goes with it (origin, cause, losses,
raw) is a second, smaller JSON object, absent where there is nothing to say.
"""

import json
import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import orjson
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from gateway.engines.rows import EventRecord, SendRecord, micros, moment, moment_or_none
from gateway.envelope import EVENT, Envelope, Loss, Opaque, Origin
from gateway.errors import EngineUnusable, InvalidRequest
from gateway.ports.rows import SendRow
from gateway.ports.step import NewEvent
from gateway.ports.values import LONG, is_simple

ERASED = "erased"
"""The channel of the opaque event that an erased one reads back as."""


class Encoded(NamedTuple):
    """An event ready to be kept."""

    new: NewEvent
    recorded_at: int
    body: bytes
    about: bytes | None


def encode_event(new: NewEvent) -> Encoded:
    """Write an event and what goes with it as bytes; a secret becomes asterisks.

    Raises:
        InvalidRequest: it holds what JSON cannot say (lone surrogates, NaN, nesting without end) or a naive time.
    """
    try:
        body = new.event.__pydantic_serializer__.to_json(new.event)
        about = _about(new)
    except (PydanticSerializationError, ValueError, TypeError) as exc:
        raise InvalidRequest(f"{new.event.kind} {new.event_id!r} cannot be kept: {exc}") from exc
    # pydantic writes what is not finite as these texts; only then is the costly search for real ones worth it,
    # and looking for them in a long body only where it is not long because of a text or two.
    suspect = len(body) <= LONG or not is_simple(new.event.__dict__)
    if suspect and (b'NaN"' in body or b'Infinity"' in body) and not _is_finite(new.event.model_dump()):
        raise InvalidRequest(f"{new.event.kind} {new.event_id!r} cannot be kept: it holds NaN or Infinity")
    return Encoded(new, micros(new.recorded_at), body, about)


def _about(new: NewEvent) -> bytes | None:
    about: dict[str, Any] = {}
    if new.origin is not None:
        about["origin"] = new.origin
    if new.caused_by is not None:
        about["caused_by"] = new.caused_by
    if new.losses:
        about["losses"] = [loss.model_dump() for loss in new.losses]
    if new.raw is not None:
        if not _is_finite(new.raw):
            raise ValueError("its raw frame holds NaN or Infinity")
        about["raw"] = new.raw
    return orjson.dumps(about) if about else None


def _is_finite(value: Any) -> bool:
    waiting: list[Any] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                return False
        elif isinstance(item, dict):
            waiting.extend(cast("dict[Any, Any]", item).values())
        elif isinstance(item, list | tuple):
            waiting.extend(cast("Iterable[Any]", item))
    return True


def decode_envelope(record: EventRecord) -> Envelope:
    """Build the envelope of a kept event again.

    Raises:
        EngineUnusable: the bytes are not of an event that this release knows.
    """
    about: dict[str, Any] = orjson.loads(record.about) if record.about else {}
    origin = about.get("origin")
    return Envelope(
        event_id=record.event_id,
        session_id=record.session_id,
        sequence=record.seq,
        recorded_at=moment(record.recorded_at),
        direction=record.direction,
        event=_decode_event(record),
        origin=None if origin is None else Origin(**origin),
        caused_by=about.get("caused_by"),
        losses=tuple(Loss(**loss) for loss in about.get("losses", ())),
        raw=about.get("raw"),
    )


def _decode_event(record: EventRecord) -> Any:
    if record.body is None:
        return Opaque(channel=ERASED, payload={"kind": record.kind})
    try:
        return EVENT.validate_json(record.body)
    except ValidationError:
        # pydantic writes deeper nesting than it reads; the standard library reads all of it.
        try:
            return EVENT.validate_python(json.loads(record.body))
        except (ValidationError, ValueError, RecursionError) as exc:
            raise EngineUnusable(
                f"event {record.seq} of session {record.session_id!r} ({record.kind}) cannot be read: "
                "run the release that wrote it, or a newer one, or restore a backup"
            ) from exc


def strip_about(about: bytes | None) -> bytes | None:
    """Leave origin and cause, and drop what may quote a body: losses and the raw frame."""
    if about is None:
        return None
    members: dict[str, Any] = orjson.loads(about)
    kept = {name: members[name] for name in ("origin", "caused_by") if name in members}
    return orjson.dumps(kept) if kept else None


def send_row(record: SendRecord, event: EventRecord) -> SendRow:
    """Show an outbound row with its envelope, as the port does."""
    return SendRow(
        session_id=record.session_id,
        sequence=record.seq,
        target=record.target,
        lane=record.lane,
        state=record.state,
        attempt=record.attempt,
        due_at=moment_or_none(record.due_at),
        reason=record.reason,
        envelope=decode_envelope(event),
    )


def write_cursor(*position: int | str) -> str:
    """Hide a place in a list behind an opaque text that is safe in URLs."""
    return urlsafe_b64encode(orjson.dumps(position)).decode().rstrip("=")


def read_cursor(cursor: str, *types: type) -> tuple[Any, ...]:
    """Read a place that `write_cursor` wrote.

    Raises:
        InvalidRequest: the text is not a cursor of this list.
    """
    try:
        position: Any = orjson.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError as exc:
        raise InvalidRequest("the cursor is not one that this list gave out", pointer="after") from exc
    if not isinstance(position, list) or [type(part) for part in cast("list[Any]", position)] != list(types):
        raise InvalidRequest("the cursor is not one that this list gave out", pointer="after")
    return tuple(cast("list[Any]", position))

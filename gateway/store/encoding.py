"""Turns events into the bytes that engines keep, and rows back into envelopes. Pure.

The event is written once, around what is written of it already or by pydantic, so that free-form values come back
exactly as they were (null members, NUL characters, large integers). What goes with it (origin, cause, link, losses)
is a second, smaller JSON object, absent where there is nothing to say.
"""

import json
import math
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal, cast

import orjson
from orjson import Fragment
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from gateway.errors import InvalidRequest
from gateway.events import EVENT, UNKNOWN_KIND, CallId, Envelope, Event, Loss, Opaque, Origin
from gateway.events.envelope import is_own, write_around
from gateway.store.records import EventRecord, micros, moment

ERASED = "erased"
"""The channel of the opaque event that an erased one reads back as."""
NOTHING_LEFT = "the session was erased"
"""The reason on outbound rows whose event was erased before it left."""


_ORIGIN = frozenset(Origin.__annotations__)
_NATIVE = [name for name in Origin.__annotations__ if name not in {"adapter", "protocol"}]
"""What only some runtimes say of what they say."""
_LONGEST_LOSS = 500
UNREADABLE_LOSS = "a loss in a form that this release does not know"

ListName = Literal["sessions", "calls", "sends", "interactions"]
_MARKS: dict[ListName, bytes] = {"sessions": b" ", "calls": b"\t", "sends": b"\r", "interactions": b"\n"}
"""What stands behind the place in a cursor of each list.

JSON reads white space over, and so do the releases that named no list: a client may page across replicas of both.
"""
_FOREIGN = "the cursor is not one that this list gave out"


def encode_event(new: Envelope) -> EventRecord:
    """Write an event as the row that is kept of it; a secret becomes asterisks.

    Raises:
        InvalidRequest: it holds what JSON cannot say (lone surrogates, NaN, nesting without end) or a naive time.
    """
    try:
        body = write_around(new.event, new.written) or new.event.__pydantic_serializer__.to_json(new.event)
        about = _about(new)
    except (PydanticSerializationError, ValueError, TypeError) as exc:
        raise InvalidRequest(f"{new.event.kind} {new.event_id!r} cannot be kept: {exc}") from exc
    # pydantic writes what is not finite as these texts; only then is the costly search for real ones worth it.
    if new.written is None and (b'NaN"' in body or b'Infinity"' in body) and not _is_finite(new.event.model_dump()):
        raise InvalidRequest(f"{new.event.kind} {new.event_id!r} cannot be kept: it holds NaN or Infinity")
    return EventRecord(
        new.session_id,
        new.sequence,
        new.event_id,
        new.event.kind,
        new.direction,
        new.dedupe_key,
        micros(new.recorded_at),
        body,
        about,
    )


def _about(new: Envelope) -> bytes | None:
    about: dict[str, Any] = {}
    if new.origin is not None:
        about["origin"] = Fragment(_write_origin(new.origin))
    if new.caused_by is not None:
        about["caused_by"] = new.caused_by
    if new.linked_to is not None:
        about["linked_to"] = new.linked_to
    if new.synthetic != is_own(new.event.kind, new.direction, new.origin):
        about["synthetic"] = new.synthetic
    if new.losses:
        about["losses"] = [loss.model_dump() for loss in new.losses]
    return orjson.dumps(about) if about else None


# That of frames without an id of their own is the same each time.
@lru_cache(256)
def _write_origin(origin: Origin) -> bytes:
    # What it does not have is not written: there is one with nearly every event of a runtime.
    members: dict[str, Any] = {"adapter": origin.adapter, "protocol": origin.protocol}
    for name in _NATIVE:
        value = getattr(origin, name)
        if value is not None:
            members[name] = value
    return orjson.dumps(members)


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
    """Build the envelope of a kept event again; whatever its bytes are, it can be read.

    An event of a kind or form that this release does not know reads back as opaque.
    """
    about = _read_about(record.about) if record.about else {}
    event, stored_kind = _decode_event(record)
    origin, synthetic = _read_origin(about.get("origin")), about.get("synthetic")
    caused_by, losses, linked_to = about.get("caused_by"), about.get("losses"), about.get("linked_to")
    return Envelope(
        event_id=record.event_id,
        session_id=record.session_id,
        sequence=record.seq,
        recorded_at=moment(record.recorded_at),
        direction=record.direction,
        event=event,
        origin=origin,
        caused_by=caused_by if isinstance(caused_by, int) else None,
        losses=tuple([_read_loss(loss) for loss in cast("list[Any]", losses)]) if isinstance(losses, list) else (),
        stored_kind=stored_kind,
        dedupe_key=record.dedupe_key,
        linked_to=CallId(linked_to) if isinstance(linked_to, str) else None,
        synthetic=is_own(record.kind, record.direction, origin) if synthetic is None else bool(synthetic),
    )


def _decode_event(record: EventRecord) -> tuple[Any, str | None]:
    if record.body is None:
        return Opaque(channel=ERASED, payload={"kind": record.kind}), None
    try:
        return EVENT.validate_json(record.body), None
    except ValidationError:
        pass
    try:
        # pydantic writes deeper nesting than it reads; the standard library reads all of it.
        payload: Any = json.loads(record.body, parse_constant=str)
        # Lone surrogates could be shown to nobody.
        json.dumps(payload, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        kept = b64encode(record.body).decode()
        return Opaque(channel=UNKNOWN_KIND, payload={"kind": record.kind, "base64": kept}), record.kind
    try:
        return EVENT.validate_python(payload), None
    except (ValidationError, RecursionError):
        return Opaque(channel=UNKNOWN_KIND, payload=payload), record.kind


def _read_about(about: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(about)
    except orjson.JSONDecodeError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _read_origin(told: Any) -> Origin | None:
    if not isinstance(told, dict):
        return None
    members = cast("dict[str, Any]", told)
    try:
        return Origin(**members)
    except TypeError:
        # Without an origin it would be an event of our own making.
        least: dict[str, Any] = {"adapter": "", "protocol": ""}
        return Origin(**(least | {name: value for name, value in members.items() if name in _ORIGIN}))


def _read_loss(told: Any) -> Loss:
    try:
        return Loss.model_validate(told)
    except ValidationError:
        said = orjson.dumps(told).decode()[:_LONGEST_LOSS]
        return Loss(how="narrowed", path="", note=f"{UNREADABLE_LOSS}: {said}")


def is_erased(event: Event) -> bool:
    """Whether this is what an erased event reads back as, so that there is nothing left to say."""
    match event:
        case Opaque(channel=channel, payload={"kind": str(), **more}):
            return channel == ERASED and not more
        case _:
            return False


def strip_about(about: bytes | None) -> bytes | None:
    """Leave origin, cause and link, and drop the losses, which may quote a body."""
    if about is None:
        return None
    members = _read_about(about)
    kept = {name: members[name] for name in ("origin", "caused_by", "linked_to", "synthetic") if name in members}
    return orjson.dumps(kept) if kept else None


def write_cursor(of: ListName, *position: int | str) -> str:
    """Hide a list and a place in it behind an opaque text that is safe in URLs."""
    return urlsafe_b64encode(orjson.dumps(position) + _MARKS[of]).decode().rstrip("=")


def read_cursor(cursor: str, of: ListName, *types: type) -> tuple[Any, ...]:
    """Read a place that `write_cursor` wrote; one that an earlier release wrote names no list, and is read in any.

    Raises:
        InvalidRequest: the text is not a cursor of this list.
    """
    try:
        written = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        position: Any = orjson.loads(written)
    except ValueError as exc:
        raise InvalidRequest(_FOREIGN, pointer="after") from exc
    is_of_list = written[len(written.rstrip()) :] in {b"", _MARKS[of]}
    fits = isinstance(position, list) and [type(part) for part in cast("list[Any]", position)] == list(types)
    if not (is_of_list and fits):
        raise InvalidRequest(_FOREIGN, pointer="after")
    return tuple(cast("list[Any]", position))

"""Encodes events as the bytes that engines store, and decodes rows into envelopes. Pure.

The event is encoded once, around its existing JSON or by pydantic, so that free-form values are preserved exactly (null
members, NUL characters, large integers). Origin, cause, link, losses and a kept native frame are a second JSON object,
which is absent if they are empty.
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
from pydantic_core import PydanticSerializationError, from_json

from gateway.errors import InvalidRequest
from gateway.events import EVENT, UNKNOWN_KIND, CallId, Envelope, Event, Loss, Opaque, Origin
from gateway.events.envelope import is_own, write_around
from gateway.events.frozen import replace
from gateway.store.records import EventRecord, micros, moment

ERASED = "erased"
"""The channel of the opaque event that replaces an erased one."""
OWN_CHANNELS = frozenset({ERASED, UNKNOWN_KIND})
"""The channels of opaque events that only the gateway makes; readers recognize them by it."""
EXCERPT = 8 * 1024
"""The bytes of a body or its facts that an excerpt contains."""
NOTHING_LEFT = "the session was erased"
"""The reason on outbound rows whose event was erased before it was sent."""


_ORIGIN = frozenset(Origin.__annotations__)
_NATIVE = [name for name in Origin.__annotations__ if name not in {"adapter", "protocol"}]
"""The optional members of an origin, which only some runtimes provide."""
_LONGEST_LOSS = 500
UNREADABLE_LOSS = "a loss in a form that this release does not know"

ListName = Literal["sessions", "calls", "sends", "interactions"]
_MARKS: dict[ListName, bytes] = {"sessions": b" ", "calls": b"\t", "sends": b"\r", "interactions": b"\n"}
"""The suffix that identifies the list of a cursor.

JSON ignores white space, and so do releases that named no list, so a client may page across replicas of both.
"""
FOREIGN_CURSOR = "the cursor is not one that this list gave out"


def encode_event(new: Envelope) -> EventRecord:
    """Encode an event as its row; a secret becomes asterisks.

    Raises:
        InvalidRequest: JSON cannot express it (lone surrogates, NaN, endless nesting), or it has a naive time.
    """
    try:
        body = write_around(new.event, new.written) or new.event.__pydantic_serializer__.to_json(new.event)
        about = _about(new)
    except (PydanticSerializationError, ValueError, TypeError) as exc:
        raise InvalidRequest(f"{new.event.kind} {new.event_id!r} cannot be kept: {exc}") from exc
    # pydantic writes non-finite numbers as these texts. Only then is the expensive search for real ones needed.
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
    if new.native is not None:
        # Stored as text, because most reads do not parse the frame.
        about["native"] = new.native.decode()
    return orjson.dumps(about) if about else None


# Frames without an id share one origin.
@lru_cache(256)
def _write_origin(origin: Origin) -> bytes:
    # Nearly every event of a runtime has an origin, so absent members are omitted.
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
    """Decode the envelope of a stored event; this succeeds for any bytes.

    An event of a kind or form that this release does not know becomes opaque.
    """
    about = _read_about(record.about) if record.about else {}
    event, stored_kind = _decode_event(record)
    origin, synthetic = _read_origin(about.get("origin")), about.get("synthetic")
    caused_by, losses, linked_to = about.get("caused_by"), about.get("losses"), about.get("linked_to")
    native = about.get("native")
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
        native=native.encode() if isinstance(native, str) else None,
        stored_kind=stored_kind,
        dedupe_key=record.dedupe_key,
        linked_to=CallId(linked_to) if isinstance(linked_to, str) else None,
        synthetic=is_own(record.kind, record.direction, origin) if synthetic is None else bool(synthetic),
    )


def decode_excerpt(record: EventRecord) -> Envelope:
    """Decode an event whose columns were cut after `EXCERPT` bytes.

    A cut event becomes opaque; its payload has the members and the beginning of the text before the cut.
    """
    body, about = record.body or b"", record.about or b""
    if len(about) == EXCERPT:
        facts = read_part(about)
        facts.pop("native", None)
        record = record._replace(about=json.dumps(facts).encode())
    if len(body) == EXCERPT:
        cut = Opaque(channel=UNKNOWN_KIND, payload={**read_part(body), "kind": record.kind})
        return replace(decode_envelope(record._replace(body=None)), event=cut, stored_kind=record.kind)
    return decode_envelope(record)


def read_part(written: bytes) -> dict[str, Any]:
    """Read the beginning of a JSON object."""
    try:
        found = from_json(written, allow_partial="trailing-strings")
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _decode_event(record: EventRecord) -> tuple[Any, str | None]:
    if record.body is None:
        return Opaque(channel=ERASED, payload={"kind": record.kind}), None
    try:
        return EVENT.validate_json(record.body), None
    except ValidationError:
        pass
    try:
        # pydantic writes deeper nesting than it reads; the standard library reads any depth.
        payload: Any = json.loads(record.body, parse_constant=str)
        # Lone surrogates cannot be encoded in a response.
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
        # An event without an origin would count as the gateway's own.
        least: dict[str, Any] = {"adapter": "", "protocol": ""}
        return Origin(**(least | {name: value for name, value in members.items() if name in _ORIGIN}))


def _read_loss(told: Any) -> Loss:
    try:
        return Loss.model_validate(told)
    except ValidationError:
        said = orjson.dumps(told).decode()[:_LONGEST_LOSS]
        return Loss(how="narrowed", path="", note=f"{UNREADABLE_LOSS}: {said}")


def is_erased(event: Event) -> bool:
    """Return whether this event was erased, so that it has no content."""
    match event:
        case Opaque(channel=channel, payload={"kind": str(), **more}):
            return channel == ERASED and not more
        case _:
            return False


def strip_about(about: bytes | None) -> bytes | None:
    """Keep origin, cause and link, and drop the losses, which may quote a body, and the native frame."""
    if about is None:
        return None
    members = _read_about(about)
    kept = {name: members[name] for name in ("origin", "caused_by", "linked_to", "synthetic") if name in members}
    return orjson.dumps(kept) if kept else None


def write_cursor(of: ListName, *position: int | str) -> str:
    """Encode a list and a position in it as an opaque, URL-safe text."""
    return urlsafe_b64encode(orjson.dumps(position) + _MARKS[of]).decode().rstrip("=")


def read_cursor(cursor: str, of: ListName, *types: type) -> tuple[Any, ...]:
    """Decode a cursor of `write_cursor`; a cursor of an earlier release names no list and is valid for any list.

    Raises:
        InvalidRequest: the text is not a cursor of this list.
    """
    try:
        written = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        position: Any = orjson.loads(written)
    except ValueError as exc:
        raise InvalidRequest(FOREIGN_CURSOR, pointer="after") from exc
    is_of_list = written[len(written.rstrip()) :] in {b"", _MARKS[of]}
    fits = isinstance(position, list) and [type(part) for part in cast("list[Any]", position)] == list(types)
    if not (is_of_list and fits):
        raise InvalidRequest(FOREIGN_CURSOR, pointer="after")
    return tuple(cast("list[Any]", position))

"""The `id` of an event in a stream over sessions: its position in the store and a digest of the filters. Pure."""

import re
from hashlib import sha256

import orjson

from gateway.errors import InvalidRequest
from gateway.store.rows import FROM_THE_START, EventFilter, Position

_FORM = re.compile(r"([0-9a-f]{1,15})\.([0-9a-f]{1,15})\.([0-9a-f]{1,15})\.([0-9a-f]{8})")


def mark_of(which: EventFilter) -> str:
    """Return a short digest of the filters, so that an `id` resumes no stream with other ones."""
    members = (which.session_id, which.runtime, sorted(which.labels.items()), sorted(which.kinds))
    return sha256(orjson.dumps(members)).hexdigest()[:8]


def write_position(position: Position, mark: str) -> bytes:
    """Write an `id`."""
    return b"%x.%x.%x.%b" % (*position, mark.encode())


def read_position(given: str, mark: str, *, parameter: str) -> Position:
    """Parse an `id`; `parameter` is the place where the client sent it.

    Raises:
        InvalidRequest: it is no `id`, or it belongs to a stream with other filters.
    """
    if given == "0":
        return FROM_THE_START
    found = _FORM.fullmatch(given)
    if found is None:
        raise InvalidRequest(f"{given[:50]!r} is not an `id` of this stream", pointer=parameter)
    major, part, row, given_mark = found.groups()
    if given_mark != mark:
        text = "the `id` belongs to a stream with other filters; send the same filters, or start without it"
        raise InvalidRequest(text, pointer=parameter)
    return int(major, 16), int(part, 16), int(row, 16)

"""Positions in streams and lists: a place, the generation of the store, and in a stream over sessions a digest of the
filters. Pure.

A position may outlive its store: a restored one has other events at the same places, under another generation.
"""

import re
from hashlib import sha256

import orjson

from gateway.errors import Gone, InvalidRequest
from gateway.store.encoding import FOREIGN_CURSOR
from gateway.store.rows import FROM_THE_START, EventFilter, Generation, Position

_GENERATION = r"[0-9a-f]{12}"
_IN_ALL = re.compile(rf"([0-9a-f]{{1,15}})\.([0-9a-f]{{1,15}})\.([0-9a-f]{{1,15}})\.({_GENERATION})\.([0-9a-f]{{8}})")
_IN_SESSION = re.compile(rf"([0-9]{{1,19}})(?:\.({_GENERATION}))?", re.ASCII)
_IN_LIST = re.compile(rf"([A-Za-z0-9_:-]{{1,500}})\.({_GENERATION})")
_LATER = re.compile(r"v[0-9]{1,4}\.[!-~]{1,250}")
"""The form of later releases, if they change it: the store was restored, because no release opens a newer one."""
_FROM_LATER = "later"
_LARGEST = 2**63 - 1


def mark_of(which: EventFilter) -> str:
    """Return a short digest of the filters, so that an `id` resumes no stream with other ones."""
    members = (which.session_id, which.runtime, sorted(which.labels.items()), sorted(which.kinds))
    return sha256(orjson.dumps(members)).hexdigest()[:8]


def write_in_all(position: Position, generation: str, mark: str) -> bytes:
    """Write the `id` of an event in a stream over sessions."""
    return b"%x.%x.%x.%b.%b" % (*position, generation.encode(), mark.encode())


def read_in_all(given: str, own: Generation, mark: str, *, parameter: str) -> tuple[Position, bool]:
    """Return the position to continue at, and whether the `id` is of another generation.

    Raises:
        InvalidRequest: it is no `id`, or it belongs to a stream with other filters; `parameter` contains it.
    """
    if given == "0":
        return FROM_THE_START, False
    if _LATER.fullmatch(given):
        return FROM_THE_START, True
    found = _IN_ALL.fullmatch(given)
    if found is None:
        raise _no_position(given, parameter)
    *numbers, generation, given_mark = found.groups()
    if given_mark != mark:
        text = "the `id` belongs to a stream with other filters; send the same filters, or start without it"
        raise InvalidRequest(text, pointer=parameter)
    major, part, row = (int(number, 16) for number in numbers)
    if own.is_own(generation):
        return (major, part, row), False
    return own.place_in_all(generation, (major, part, row)), True


def read_in_session(given: str, *, parameter: str) -> tuple[int, str | None]:
    """Return the sequence and the generation of a position; a sequence alone has none.

    Raises:
        InvalidRequest: it is neither; `parameter` contains it.
    """
    if _LATER.fullmatch(given):
        return 0, _FROM_LATER
    found = _IN_SESSION.fullmatch(given)
    if found is None or int(found[1]) > _LARGEST:
        raise _no_position(given, parameter)
    return int(found[1]), found[2]


def write_in_list(cursor: str | None, generation: str) -> str | None:
    """Write the `next` of a list."""
    return None if cursor is None else f"{cursor}.{generation}"


def read_in_list(given: str, own: Generation) -> str:
    """Return the cursor of a `next`.

    Raises:
        InvalidRequest: the text is none.
        Gone: the store was restored since.
    """
    found = _IN_LIST.fullmatch(given)
    if _LATER.fullmatch(given) or (found is not None and not own.is_own(found[2])):
        raise Gone("the store was restored after this page; list again without `after`")
    if found is None:
        raise InvalidRequest(FOREIGN_CURSOR, pointer="after")
    return found[1]


def _no_position(given: str, parameter: str) -> InvalidRequest:
    return InvalidRequest(f"{given[:50]!r} is not an `id` of this stream", pointer=parameter)

"""The ids of sessions, calls, events and interactions. Pure."""

from functools import lru_cache
from hashlib import sha1
from typing import Any, NewType

SessionId = NewType("SessionId", str)
CallId = NewType("CallId", str)
EventId = NewType("EventId", str)
InteractionId = NewType("InteractionId", str)

_NAMESPACE = bytes.fromhex("6d3f1c7e5b0a5d8e9c559f0b3a1d7e42")

_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""Each hex digit with its two upper bits replaced by the UUID variant."""


def call_id(*, runtime: str, native_session_id: str, native_call_id: str, n: int = 0) -> CallId:
    """Return the permanent id of a call: uuid5 of runtime, native session, native call and the reuse count `n`.

    `n` counts the reuse of one native id with another tool or other arguments.
    """
    hashed = _start_hash("call", runtime, native_session_id).copy()
    hashed.update(_join(native_call_id, str(n)))
    return CallId(_as_uuid(hashed.hexdigest()))


def session_id(*, runtime: str, native_session_id: str) -> SessionId:
    """Return the id of a session; attaching to the same native session twice gives the same id."""
    return SessionId(_uuid_of("session", runtime, native_session_id))


def interaction_id(*, session: str, native_id: str, n: int) -> InteractionId:
    """Return the id of an interaction; `n` is the sequence of the event that asked."""
    return InteractionId(_uuid_of("interaction", session, native_id, str(n)))


def instance_id(token: str) -> str:
    """Return the id of a process's lease, from a random token."""
    return _uuid_of("instance", token)


# Any: the standard library has no public type of a hash.
@lru_cache(1024)
def _start_hash(*parts: str) -> Any:
    return sha1(_NAMESPACE + _join(*parts), usedforsecurity=False)


def _uuid_of(*parts: str) -> str:
    return _as_uuid(sha1(_NAMESPACE + _join(*parts), usedforsecurity=False).hexdigest())


def _join(*parts: str) -> bytes:
    # Length prefixes keep ("a", "bc") and ("ab", "c") apart. A lone surrogate cannot be UTF-8, so it is escaped.
    joined = ""
    for part in parts:
        joined += f"{len(part)}:{part}"
    return joined.encode("utf-8", "backslashreplace")


def _as_uuid(text: str) -> str:
    # The bits that make it a version 5 UUID (RFC 9562, section 5.5).
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"


_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(one + other for one in _CROCKFORD for other in _CROCKFORD)
_TIME_SHIFTS = tuple(range(40, -1, -10))
_ENTROPY_SHIFTS = tuple(range(70, -1, -10))


def ulid_time(milliseconds: int) -> str:
    """Return the first ten characters of a ULID: 48 bits of time, in sort order."""
    return "".join([_PAIRS[(milliseconds >> shift) & 1023] for shift in _TIME_SHIFTS])


def ulid_entropy(number: int) -> str:
    """Return the other sixteen characters of a ULID: 80 bits."""
    return "".join([_PAIRS[(number >> shift) & 1023] for shift in _ENTROPY_SHIFTS])

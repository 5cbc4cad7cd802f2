"""Parses JSON of a peer strictly: limits the depth, and rejects integers that would be rounded. Pure."""

from typing import Any

from gateway.strict_json import Unreadable, read_and_write

_TEXTS = {
    "members": "with {}",
    "syntax": "that is not JSON",
    "depth": "{}",
    "integer": "with a whole number beyond 64 bits",
    "memory": "that {}",
}


def read_json(body: bytes) -> tuple[Any, bytes | None]:
    """Parse a body; return the value and its compact JSON, as `read_and_write` does.

    Raises:
        ValueError: with a text that completes "a body ..." and never quotes the body.
    """
    try:
        return read_and_write(body)
    except Unreadable as exc:
        raise ValueError(_TEXTS[exc.fault].format(exc)) from exc

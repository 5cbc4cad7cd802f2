"""Reads JSON from a peer strictly: nothing too deep, no number that would be rounded. Pure."""

from typing import Any

from gateway.strict_json import Unreadable, read_and_write

_SAID = {
    "members": "with {}",
    "syntax": "that is not JSON",
    "depth": "{}",
    "integer": "with a whole number beyond 64 bits",
    "memory": "that {}",
}


def read_json(body: bytes) -> tuple[Any, bytes | None]:
    """Parse a body; beside the value is its compact JSON, as `read_and_write` has it.

    Raises:
        ValueError: with a text that completes "a body ..." and never quotes the body.
    """
    try:
        return read_and_write(body)
    except Unreadable as exc:
        raise ValueError(_SAID[exc.fault].format(exc)) from exc

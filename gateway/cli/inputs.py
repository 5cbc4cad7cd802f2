"""Reads texts and JSON from options, files and stdin."""

import sys
from pathlib import Path
from typing import Any, cast

from gateway.cli.errors import Misused
from gateway.errors import OperatorError

MOST_BYTES = 4 * 1024**2


def read_source(given: str) -> bytes:
    """Read a file, or stdin for `-`.

    Raises:
        OperatorError: the input is too large. OSError: the file is not readable.
    """
    if given == "-":
        raw = sys.stdin.buffer.read(MOST_BYTES + 1)
    else:
        with Path(given).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise OperatorError(f"{given}: more than {MOST_BYTES:,} bytes")
    return raw


def read_text(given: str | None) -> str | None:
    """Return the text itself, or stdin for `-`."""
    return read_source("-").decode(errors="replace").rstrip("\n") if given == "-" else given


def parse_object(text: str, option: str) -> dict[str, Any]:
    """Parse the JSON object of an option.

    Raises:
        Misused: the text is not a JSON object.
    """
    from gateway.http.body import parse_json
    from gateway.http.errors import Refused

    try:
        value = parse_json(text.encode(errors="surrogateescape"), unique=True)
    except Refused as exc:
        raise Misused(f"{option}: {exc}") from exc
    if not isinstance(value, dict):
        raise Misused(f"{option} must be a JSON object")
    return cast("dict[str, Any]", value)

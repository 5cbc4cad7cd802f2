"""Answers in JSON, and the one way values become JSON. Pure."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, cast

import orjson
from starlette.responses import Response


def dump(value: Any) -> bytes:
    """Write JSON in one line."""
    try:
        return orjson.dumps(value, default=_plain)
    except TypeError:
        # orjson refuses lone surrogates and integers beyond 64 bits, which old records may hold.
        return json.dumps(value, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    """Say what JSON has no word for."""
    match value:
        case Mapping():
            return dict(cast("Mapping[str, Any]", value))
        case frozenset():
            return sorted(cast("frozenset[str]", value))
        case timedelta():
            return f"{value.total_seconds():g}s"
        case datetime():
            return value.isoformat()
        case _:
            raise TypeError(f"{type(value).__name__} is not written as JSON")


class Reply(Response):
    """An answer with a JSON value."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dump(content)


def listing(rows: list[Any], after: str | int | None) -> Reply:
    """Answer with one page of a list and where the next one begins."""
    return Reply({"data": rows, "next": after})

"""JSON responses and the JSON encoder. Pure."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, cast

import orjson
from starlette.responses import Response


def dump(value: Any) -> bytes:
    """Encode a value as JSON on one line."""
    try:
        return orjson.dumps(value, default=_plain)
    except TypeError:
        # orjson refuses lone surrogates and integers beyond 64 bits, which old records may contain.
        return json.dumps(value, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    """Convert a value that JSON cannot express."""
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
            raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


class Reply(Response):
    """A JSON response."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dump(content)


def listing(rows: list[Any], after: str | None) -> Reply:
    """Return one page of a list; `after` is the cursor of the next page."""
    return Reply({"data": rows, "next": after})

"""An answer as status, bytes and headers, and the one way values become JSON. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.responses import Response


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer, before it is a response of any framework; this form can be kept and sent again."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})

    def response(self) -> Response:
        """Make the response to send."""
        return Response(self.body, self.status, dict(self.headers))


def dump(value: Any) -> bytes:
    """Write JSON in one line."""
    try:
        return orjson.dumps(value)
    except TypeError:
        # orjson refuses lone surrogates and integers beyond 64 bits, which old records may hold.
        return json.dumps(value, separators=(",", ":")).encode()


def reply(value: Any, status: int = 200, **headers: str) -> Reply:
    """Answer with a JSON value."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Reply(status, dump(value), {"content-type": "application/json", **named})


def listing(rows: list[Any], after: str | int | None) -> Reply:
    """Answer with one page of a list and where the next one begins."""
    return reply({"data": rows, "next": after})

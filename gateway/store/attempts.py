"""The recorded attempts of a call, as the compact JSON of their column. Pure."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

import orjson

from gateway.events.frozen import frozen
from gateway.events.response import Response

OLDEST = 10
"""The number of first attempts that are kept; of the others only the `NEWEST`."""
NEWEST = 40
LONGEST_REASON = 300


@frozen
class CallAttempt:
    """One request to an executor."""

    n: int
    """Its number; a request that was not sent uses up none."""
    started_at: datetime
    ended_at: datetime | None = None
    """None while it runs, or if its end was lost."""
    status: int | None = None
    """The HTTP status of the response."""
    reason: str | None = None
    unsure: bool = False
    """Whether the executor may have done the work, although it did not say so."""
    sent: bool = True
    due_at: datetime | None = None
    """When the next attempt was due."""
    content_type: str | None = None
    body: str | None = None
    """The beginning of the response, unless it brought the outcome."""


_TIMES = ("started_at", "ended_at", "due_at")


def begin(written: str | None, n: int, at: datetime) -> str:
    """Add an attempt that starts now."""
    attempts: list[dict[str, Any]] = [] if written is None else orjson.loads(written)
    if len(attempts) >= OLDEST + NEWEST:
        del attempts[OLDEST]
    attempts.append({"n": n, "started_at": at})
    return _write(attempts)


def end(
    written: str, at: datetime, *, reason: str | None, response: Response | None, **facts: int | datetime | None
) -> str:
    """Add the end of the last attempt, unless it is known already; `facts` are further members of `CallAttempt`."""
    attempts: list[dict[str, Any]] = orjson.loads(written)
    last = attempts[-1]
    if "ended_at" in last:
        return written
    last["ended_at"] = at
    if reason is not None:
        # No engine stores a lone surrogate.
        last["reason"] = reason[:LONGEST_REASON].encode(errors="replace").decode()
    if response is not None:
        last.update({name: value for name, value in asdict(response).items() if value})
    last.update({name: fact for name, fact in facts.items() if fact is not None})
    return _write(attempts)


def read(written: str) -> tuple[CallAttempt, ...]:
    """Read the attempts, oldest first."""
    return tuple(CallAttempt(**_with_times(one)) for one in orjson.loads(written))


def _with_times(members: dict[str, Any]) -> dict[str, Any]:
    return members | {name: datetime.fromisoformat(members[name]) for name in _TIMES if name in members}


def _write(attempts: list[dict[str, Any]]) -> str:
    return orjson.dumps(attempts).decode()

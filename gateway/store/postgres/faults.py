"""Classifies PostgreSQL errors by cause: the connection, a conflict, the server or the step. Pure."""

import re
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from gateway.clock import describe_stall
from gateway.errors import DragomanError, EngineUnavailable, InvalidRequest


class ConnectionLost(EngineUnavailable):
    """The connection is lost; its uncommitted work is rolled back."""


class ReadOnly(EngineUnavailable):
    """The server is read-only, perhaps because another server has become the primary."""


class Again(EngineUnavailable):
    """The server rolled the transaction back for a temporary reason, so it can be retried."""


class RowHeld(Again):
    """Another transaction locked a row or table for longer than a statement waits."""


_LOST = frozenset(
    {
        "25P03",  # the server closed the connection with its idle transaction
        "26000", "42P05", "0A000",  # a pooler or a migration invalidated a prepared statement
        "53300", "57P01", "57P02", "57P03", "57P04", "57P05",
    }
)  # fmt: skip
_AGAIN = frozenset({"40001", "40P01", "57014"})
_HELD = "55P03"
_OF_THE_STEP = ("22", "23", "54")

_FIXES = {
    "25006": "the server is read-only: point engine.dsn at the primary",
    "28000": "check the user and pg_hba.conf of the server",
    "28P01": "check the user and the password in engine.dsn",
    "3D000": "create the database with `createdb`, or change the name in engine.dsn",
    "3F000": "restore the schema from a backup, or restart the gateway with an empty one",
    "42501": "grant the gateway's user the rights on the schema (it must own its tables)",
    "42P01": "restore the tables from a backup, or restart the gateway with empty ones",
    "55P03": "another transaction has locked these rows: find it with pg_blocking_pids() and end it",
    "53100": "the server's disk is full: free some space",
    "53200": "the server is out of memory",
    "53300": "the server has no connection left: raise its max_connections, or lower engine.connections",
}


def place_of(dsn: str) -> str:
    """Return the server and database of a DSN without its secrets."""
    parts = urlsplit(dsn)
    hosts = parts.netloc.rpartition("@")[2]
    query = parse_qs(parts.query)
    hosts = hosts or ",".join(query.get("host", ())) or "the default host"
    database = unquote(parts.path.lstrip("/")) or ",".join(query.get("dbname", query.get("database", ())))
    return f"PostgreSQL at {hosts}, database {database or 'of the same name as the user'}"


def translate(exc: BaseException, place: str) -> DragomanError:
    """Translate an error of asyncpg; the text quotes no value."""
    # Only the first line, because the others quote rows.
    reason = (str(exc).splitlines() or [""])[0] or type(exc).__name__
    code = getattr(exc, "sqlstate", None) if isinstance(exc, asyncpg.PostgresError) else None
    error: DragomanError
    if isinstance(code, str) and code in _AGAIN:
        error = Again(f"{place}: {reason}")
    elif code == _HELD:
        error = RowHeld(f"{place}: {reason}; {_FIXES[_HELD]}")
    elif isinstance(exc, UnicodeError | OverflowError) or (isinstance(code, str) and code.startswith(_OF_THE_STEP)):
        error = InvalidRequest(f"the step cannot be stored: {_without_values(reason)}")
    elif code is None or code in _LOST or code.startswith("08"):
        fix = _FIXES.get(code or "", "check that the server is running and reachable over the network")
        error = ConnectionLost(f"{place} cannot be reached: {reason}; {fix}")
    else:
        kind = ReadOnly if code == "25006" else EngineUnavailable
        error = kind(f"{place}: {reason}; {_FIXES.get(code, 'see the log of the server')}")
    error.__cause__ = exc
    return error


def unanswered(place: str, seconds: float, *, late: float) -> ConnectionLost:
    """Make the error for a connection that was dropped after a timeout, which fired `late` seconds too late."""
    why = describe_stall(late) or (
        "the server hangs, or another transaction holds the rows; find it with pg_blocking_pids()"
    )
    return ConnectionLost(f"{place}: no response within {seconds:g} s; {why}")


def _without_values(reason: str) -> str:
    # asyncpg quotes the value that it could not encode.
    return re.sub(r"(?s)(invalid input for query argument \$\d+): .*", r"\1", reason)

"""Says whose fault a failure of PostgreSQL is: the connection's, the moment's, the server's or the step's. Pure."""

import re
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from gateway.errors import DragomanError, EngineUnavailable, InvalidRequest


class ConnectionLost(EngineUnavailable):
    """The connection is gone, and with it what it was doing, as far as that had not been committed."""


class ReadOnly(EngineUnavailable):
    """The server takes no writes, perhaps because another one is the primary by now."""


class Again(EngineUnavailable):
    """The server undid the transaction for reasons of the moment, and asks for another try."""


class RowHeld(Again):
    """Somebody else held a row, or a table, for longer than a statement waits."""


_LOST = frozenset(
    {
        "25P03",  # the server ended an idle transaction, and the connection with it
        "26000", "42P05", "0A000",  # a pooler or a migration made a prepared statement useless
        "53300", "57P01", "57P02", "57P03", "57P04", "57P05",
    }
)  # fmt: skip
_AGAIN = frozenset({"40001", "40P01", "57014"})
_HELD = "55P03"
_OF_THE_STEP = ("22", "23", "54")

_MENDS = {
    "25006": "the server only reads: point engine.dsn at the primary",
    "28000": "check the user and pg_hba.conf of the server",
    "28P01": "check the user and the password in engine.dsn",
    "3D000": "make the database with `createdb`, or change the name in engine.dsn",
    "3F000": "restore the schema from a backup, or restart the gateway to begin anew",
    "42501": "give the gateway's user the rights on the schema (it must own its tables)",
    "42P01": "restore the tables from a backup, or restart the gateway to begin anew",
    "55P03": "another transaction holds what is to be written: pg_blocking_pids() says whose, end it",
    "53100": "the server's disk is full: make room there",
    "53200": "the server is out of memory",
    "53300": "the server has no connection left: raise its max_connections, or lower engine.connections",
}


def place_of(dsn: str) -> str:
    """Name the server and database of a DSN, and nothing secret."""
    parts = urlsplit(dsn)
    hosts = parts.netloc.rpartition("@")[2]
    query = parse_qs(parts.query)
    hosts = hosts or ",".join(query.get("host", ())) or "the default host"
    database = unquote(parts.path.lstrip("/")) or ",".join(query.get("dbname", query.get("database", ())))
    return f"PostgreSQL at {hosts}, database {database or 'of the same name as the user'}"


def translate(exc: BaseException, place: str) -> DragomanError:
    """Say a failure of asyncpg in words of ours; no text of it quotes a value."""
    # What follows the first line quotes rows.
    reason = (str(exc).splitlines() or [""])[0] or type(exc).__name__
    code = getattr(exc, "sqlstate", None) if isinstance(exc, asyncpg.PostgresError) else None
    error: DragomanError
    if isinstance(code, str) and code in _AGAIN:
        error = Again(f"{place}: {reason}")
    elif code == _HELD:
        error = RowHeld(f"{place}: {reason}; {_MENDS[_HELD]}")
    elif isinstance(exc, UnicodeError | OverflowError) or (isinstance(code, str) and code.startswith(_OF_THE_STEP)):
        error = InvalidRequest(f"the step cannot be kept: {_without_values(reason)}")
    elif code is None or code in _LOST or code.startswith("08"):
        mend = _MENDS.get(code or "", "check that the server runs and that the network lets us through")
        error = ConnectionLost(f"{place} cannot be reached: {reason}; {mend}")
    else:
        kind = ReadOnly if code == "25006" else EngineUnavailable
        error = kind(f"{place}: {reason}; {_MENDS.get(code, 'see the log of the server')}")
    error.__cause__ = exc
    return error


def unanswered(place: str, seconds: float) -> ConnectionLost:
    """Say that a connection was given up, as nobody knows why there is no answer."""
    why = "does the server hang, or does another transaction hold what was asked for? pg_blocking_pids() says whose"
    return ConnectionLost(f"{place}: no answer came within {seconds:g} s; {why}")


def _without_values(reason: str) -> str:
    # asyncpg quotes what it could not encode.
    return re.sub(r"(?s)(invalid input for query argument \$\d+): .*", r"\1", reason)

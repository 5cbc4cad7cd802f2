"""One connection to PostgreSQL. Each wait has a deadline; after a missed deadline the connection is discarded.

The code does not depend on the server's session state, so PgBouncer in transaction mode works. Settings are made inside
transactions. Statements are prepared by name only on a direct connection.

PostgreSQL's texts cannot contain NUL. It is written as DLE 0, and DLE itself as DLE 1.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import asyncpg

from dragoman.postgres_dsn import asyncpg_dsn
from gateway.errors import EngineUnusable
from gateway.guard import guard_call
from gateway.store.postgres.faults import ConnectionLost, ReadOnly, place_of, translate, unanswered
from gateway.store.postgres.tuning import PRODUCTION, PostgresTuning
from gateway.store.questions.question import write_references

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
"""The timeout of a statement; the server's own timeout is shorter (see `store.BEGIN`)."""
_CLOSE_SECONDS = 2.0
_STATEMENTS = 200
_BROKEN = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""The errors of asyncpg if a connection fails; the last one if the server closes it during a protocol step."""

_NUL, _ESCAPE = "\x00", "\x10"


@dataclass(slots=True)
class Address:
    """The DSN and schema of a server, its waiting times, and whether the connection is direct."""

    dsn: str
    schema: str
    tuning: PostgresTuning = PRODUCTION
    direct: bool = False
    """Whether there is no pooler in between; checked for each new connection."""

    @property
    def place(self) -> str:
        return place_of(self.dsn)

    def name(self, statement: str) -> str:
        """Write a statement for PostgreSQL: rows refer to a session by its id, and `@events` is in the schema."""
        written = write_references(statement, key="{}", name="{}", column="session_id")
        return written.replace("@", f'"{self.schema}".')


class Connection:
    """A connection; `lost` becomes True when it is closed."""

    def __init__(self, connection: "asyncpg.Connection[Any]", address: Address) -> None:
        self.raw = connection
        self.address = address
        self._named: dict[str, str] = {}
        self._answered_at = 0.0
        self._gave_up_after: float | None = None
        self._late = 0.0
        """Seconds by which the timeout fired too late."""
        """The exceeded timeout in seconds, if this side has discarded the connection."""

    def answered_within(self, seconds: float) -> bool:
        """Return whether the connection is open and the server responded within the last `seconds`."""
        return not self.lost and asyncio.get_running_loop().time() - self._answered_at < seconds

    @property
    def lost(self) -> bool:
        return self.raw.is_closed()

    async def run(self, script: str, *, seconds: float = ANSWER_SECONDS) -> str:
        """Run statements without parameters in one round trip; return the status of the last one.

        Raises:
            ConnectionLost, Again, EngineUnavailable, InvalidRequest.
        """
        timer = self._deadline(seconds)
        try:
            return await self.raw.execute(self.address.name(script))
        except Exception as exc:
            raise self._to_error(exc) from exc
        except BaseException:
            self.drop()
            raise
        finally:
            timer.cancel()

    async def ask(self, statement: str, *values: object, seconds: float = ANSWER_SECONDS) -> Sequence[Any]:
        """Run one statement; return its rows.

        Raises:
            ConnectionLost, Again, EngineUnavailable, InvalidRequest.
        """
        timer = self._deadline(seconds)
        try:
            rows = await self.raw.fetch(self._name(statement), *map(_write_value, values))
            self._answered_at = asyncio.get_running_loop().time()
            return [_read_row(row) for row in rows]
        except Exception as exc:
            raise self._to_error(exc) from exc
        except BaseException:
            # The caller was canceled. The pending response would be taken for that of the next statement.
            self.drop()
            raise
        finally:
            timer.cancel()

    async def listen(self, channel: str, receive: Callable[[str], None]) -> None:
        """Call `receive` with each payload of a channel; requires a direct connection.

        Raises:
            ConnectionLost, EngineUnavailable.
        """

        def listener(_connection: object, _pid: object, _channel: object, payload: object) -> None:
            receive(str(payload))

        timer = self._deadline(ANSWER_SECONDS)
        try:
            await self.raw.add_listener(channel, listener)
        except Exception as exc:
            raise self._to_error(exc) from exc
        finally:
            timer.cancel()

    def fail(self, reason: str) -> ConnectionLost:
        """Discard the connection; return the error to raise."""
        self.drop()
        return ConnectionLost(f"{self.address.place}: {reason}")

    def drop(self) -> None:
        """Discard the connection at once, even during a statement."""
        self.raw.terminate()

    async def close(self) -> None:
        """Close the connection gracefully."""
        try:
            await self.raw.close(timeout=_CLOSE_SECONDS)
        except _BROKEN:
            self.drop()

    def _deadline(self, seconds: float) -> asyncio.TimerHandle:
        # asyncpg's own timeouts send a cancel request, which must never reach a COMMIT: a COMMIT that waits for its
        # replica would be reported as done.
        loop = asyncio.get_running_loop()
        return loop.call_later(seconds, guard_call("postgres link", self._give_up), seconds, loop.time() + seconds)

    def _give_up(self, seconds: float, due: float) -> None:
        self._gave_up_after, self._late = seconds, asyncio.get_running_loop().time() - due
        self.drop()

    def _to_error(self, exc: Exception) -> Exception:
        if self._gave_up_after is not None:
            return unanswered(self.address.place, self._gave_up_after, late=self._late)
        error = translate(exc, self.address.place)
        # After a failover the host name resolves to another server, so reconnect.
        if isinstance(error, ConnectionLost | ReadOnly):
            self.drop()
        return error

    def _name(self, statement: str) -> str:
        # Caches only the few statements with parameters; scripts contain values.
        named = self._named.get(statement)
        if named is None:
            named = self._named[statement] = self.address.name(statement)
        return named


async def connect(address: Address) -> Connection:
    """Open a connection.

    Raises:
        ConnectionLost: the server cannot be reached now.
        EngineUnavailable: the server refused the connection.
        EngineUnusable: the DSN is invalid.
    """
    try:
        connection = await _open(address)
        if await _is_direct(connection) is not address.direct:
            connection.terminate()
            address.direct = not address.direct
            connection = await _open(address)
            # For its settings; behind an address that alternates, the next connection decides again.
            await _is_direct(connection)
    except (ValueError, TypeError) as exc:
        raise EngineUnusable(
            f"the DSN of {address.place} is invalid: write postgresql://user:password@host:5432/database"
        ) from exc
    except _BROKEN as exc:
        raise translate(exc, address.place) from exc
    return Connection(connection, address)


async def _open(address: Address) -> "asyncpg.Connection[Any]":
    cache_size = _STATEMENTS if address.direct else 0
    dsn = asyncpg_dsn(address.dsn, system_certificates=ssl.get_default_verify_paths().cafile)
    return await asyncpg.connect(dsn, timeout=CONNECT_SECONDS, statement_cache_size=cache_size)


_IS_DIRECT = "SELECT CASE pg_backend_pid() WHEN $1 THEN set_config('jit', 'off', false) END"


async def _is_direct(connection: "asyncpg.Connection[Any]") -> bool:
    """Return whether there is no pooler in between: the responding backend is the connected one.

    Also turns off the server's JIT for a direct connection: compiling a read takes longer than the read.
    """
    timer = asyncio.get_running_loop().call_later(CONNECT_SECONDS, guard_call("postgres link", connection.terminate))
    try:
        return await connection.fetchval(_IS_DIRECT, connection.get_server_pid()) == "off"
    except BaseException:
        connection.terminate()
        raise
    finally:
        timer.cancel()


def write_text(text: str) -> str:
    """Escape NUL and DLE, because PostgreSQL cannot store NUL."""
    if _NUL in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPE + "1").replace(_NUL, _ESCAPE + "0")
    return text


def _read_text(text: str) -> str:
    return text.replace(_ESCAPE + "0", _NUL).replace(_ESCAPE + "1", _ESCAPE)


def _write_value(value: Any) -> Any:
    match value:
        case str():
            return write_text(value)
        case list() | tuple() if any(_is_odd(one) for one in cast("Sequence[Any]", value)):
            return [_write_value(one) for one in cast("Sequence[Any]", value)]
        case _:
            return value


def _is_odd(value: Any) -> bool:
    return value.__class__ is str and (_NUL in value or _ESCAPE in value)


def _read_row(row: Any) -> Any:
    for value in row:
        if value.__class__ is list or (value.__class__ is str and _ESCAPE in value):
            return _read_value(tuple(row))
    return row


def _read_value(value: Any) -> Any:
    match value:
        case str():
            return _read_text(value) if _ESCAPE in value else value
        case list():
            return [_read_value(one) for one in cast("Sequence[Any]", value)]
        case tuple():
            return tuple(_read_value(one) for one in cast("Sequence[Any]", value))
        case _:
            return value

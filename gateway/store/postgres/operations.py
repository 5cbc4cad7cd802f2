"""The operator's commands for a PostgreSQL schema: migrate, dump, bump fences, copy."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from dragoman.postgres_dsn import is_of_libpq
from gateway.errors import EngineUnusable, OperatorError
from gateway.store.copy import PAGE, TABLES, Row, Table, Value
from gateway.store.postgres.connection import Address, Connection, connect
from gateway.store.postgres.leases import INSTANCES
from gateway.store.postgres.schema import check, migrate, reached
from gateway.store.postgres.tables import NEWEST, RENEW
from gateway.store.questions.question import Question
from gateway.store.roster import RESTORED
from gateway.store.rows import Instance

_LONG = 3_600.0
"""The timeout in seconds of a statement over a whole table."""
_BEGIN = """
BEGIN ISOLATION LEVEL REPEATABLE READ; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '10s';
SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL synchronous_commit = on
"""
_LIVING = "SELECT count(*) FROM @instances WHERE expires_at > clock_timestamp()"
_TYPES = "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = $1"
_COUNT_ON = """
SELECT setval(pg_get_serial_sequence('@{table}', 'id'), (SELECT coalesce(max(id), 0) + 1 FROM @{table}), false)
"""


async def schema_of(address: Address) -> int:
    """Return the schema number of the tables; 0 if there are none yet.

    Raises:
        EngineUnusable, EngineUnavailable, SchemaTooNew: as in the engine.
    """
    async with _open_link(address) as link:
        return await reached(link) or 0


@dataclass(frozen=True, slots=True)
class Examined:
    """The state of a server, read without any change."""

    found: Mapping[str, str]
    """Its settings; problems have keys that start with `warning `."""
    number: int
    """The schema number of its tables; 0 if there are none yet."""
    instances: Sequence[Instance]


async def examine(address: Address) -> Examined:
    """Read the settings, the schema and the instances of a server.

    Raises:
        EngineUnusable, EngineUnavailable, SchemaTooNew: as in the engine.
    """
    async with _open_link(address) as link:
        found = await check(link)
        number = await reached(link) or 0
        rows = await link.ask(INSTANCES) if number == NEWEST else ()
        return Examined(found, number, [Instance(*row) for row in rows])


async def bring_up_to_date(address: Address) -> tuple[int, int]:
    """Migrate; return the schema numbers before and after.

    Raises:
        EngineUnusable, EngineUnavailable, SchemaTooNew: as in the engine.
    """
    async with _open_link(address) as link:
        before = await reached(link) or 0
        await migrate(link)
        return before, NEWEST


async def bump_fences(address: Address) -> int:
    """Give every session a new fence and no owner; return the number of sessions.

    Raises:
        OperatorError: a gateway is running.
        EngineUnusable: there are no tables.
        EngineUnavailable: the server does not respond, or its sessions are in use.
    """
    async with _open_link(address) as link:
        if not await reached(link):
            raise EngineUnusable(f"{_place(address)} has no tables")
        await migrate(link)
        async with _lock_out_writers(link):
            # No lease is valid. The rows of expired leases stay, so that none can be renewed.
            await link.run(f"{RENEW}, fence = fence + {RESTORED}, owner = NULL", seconds=_LONG)
            ((count,),) = await link.ask("SELECT count(*) FROM @sessions", seconds=_LONG)
            await link.run("COMMIT", seconds=_LONG)
    return count


class PostgresSide:
    """A schema as source or target of a transfer; its gateways are stopped."""

    def __init__(self, link: Connection, types: dict[tuple[str, str], str]) -> None:
        self._link = link
        self._types = types
        self.place = _place(link.address)

    async def count(self, table: Table) -> int:
        ((count,),) = await self._link.ask(f"SELECT count(*) FROM @{table.name}", seconds=_LONG)
        return count

    async def pages(self, table: Table) -> AsyncIterator[Sequence[Row]]:
        columns, key = ", ".join(table.columns), ", ".join(table.key)
        marks = ", ".join(f"${place}" for place in range(1, len(table.key) + 1))
        places = [table.columns.index(name) for name in table.key]
        where, last = "", tuple[Value, ...]()
        while True:
            text = f"SELECT {columns} FROM @{table.name} {where} ORDER BY {key} LIMIT {PAGE}"
            page = Question(text, last, list[Row], sized=table.sized)
            found = await self._link.ask(page.for_postgres, *page.values, seconds=_LONG)
            rows = page.read_postgres([tuple(row) for row in found])
            if not rows:
                return
            yield rows
            where, last = f"WHERE ({key}) > ({marks})", tuple(rows[-1][place] for place in places)

    async def put(self, table: Table, rows: Sequence[Row]) -> None:
        columns = ", ".join(table.columns)
        arrays = ", ".join(
            f"${place}::{self._types[table.name, name]}[]" for place, name in enumerate(table.columns, 1)
        )
        await self._link.ask(
            f"INSERT INTO @{table.name} ({columns}) OVERRIDING SYSTEM VALUE SELECT * FROM unnest({arrays})",
            *(list(column) for column in zip(*rows, strict=True)),
            seconds=_LONG,
        )

    async def generation(self) -> str:
        ((name,),) = await self._link.ask("SELECT name FROM @generation")
        return name

    async def keep(self, generation: str) -> None:
        await self._link.run(RENEW, seconds=_LONG)
        await self._link.ask("UPDATE @generation SET previous = $1, backup_at = NULL", generation)
        for table in TABLES:
            if "id" in table.columns:
                await self._link.run(_COUNT_ON.format(table=table.name), seconds=_LONG)
        await self._link.run("COMMIT", seconds=_LONG)


@asynccontextmanager
async def postgres_side(address: Address, *, filled: bool) -> AsyncGenerator[PostgresSide]:
    """Open a schema to read or fill it, and lock out other writers.

    Raises:
        OperatorError: a gateway is running.
        EngineUnusable: a source has the schema of an earlier release.
        EngineUnavailable: the server does not respond, or its sessions are in use.
    """
    async with _open_link(address) as link:
        if filled and (await reached(link) or 0) < NEWEST:
            raise EngineUnusable(f"{_place(address)} is not up to date: run `dragoman migrate` with its configuration")
        await migrate(link)
        types = {(table, column): kind for table, column, kind in await link.ask(_TYPES, address.schema)}
        async with _lock_out_writers(link):
            yield PostgresSide(link, types)


def dump_command(address: Address, file: Path) -> str:
    """Return the command that backs up a schema, without the password."""
    return f"pg_dump --format=custom --schema={address.schema} --file={quote(str(file))} {_open_dsn(address)}"


def restore_command(address: Address, file: Path) -> str:
    """Return the command that restores this backup."""
    return (
        f"pg_restore --clean --if-exists --single-transaction --dbname={_open_dsn(address)} {quote(str(file))}"
        " && dragoman restore --bump-fences"
    )


def _open_dsn(address: Address) -> str:
    parts = urlsplit(address.dsn)
    login, at, hosts = parts.netloc.rpartition("@")
    options = [(name, value) for name, value in parse_qsl(parts.query) if is_of_libpq(name) and "password" not in name]
    query = urlencode(options, safe="/")
    return quote(urlunsplit((parts.scheme, login.partition(":")[0] + at + hosts, parts.path, query, "")))


def _place(address: Address) -> str:
    return f"{address.place}, schema {address.schema}"


@asynccontextmanager
async def _open_link(address: Address) -> AsyncGenerator[Connection]:
    link = await connect(address)
    try:
        yield link
    finally:
        await link.close()


@asynccontextmanager
async def _lock_out_writers(link: Connection) -> AsyncGenerator[None]:
    """Begin a transaction that locks out all other writers; it is rolled back with its connection."""
    # Also checked before locking, because a waiting lock request blocks running gateways.
    await _refuse_living(link)
    await link.run(_BEGIN)
    await link.run("LOCK TABLE @sessions, @instances IN EXCLUSIVE MODE", seconds=15)
    await _refuse_living(link)
    yield


async def _refuse_living(link: Connection) -> None:
    ((living,),) = await link.ask(_LIVING)
    if living:
        raise OperatorError(
            f"{_place(link.address)} is in use by {living} running gateway{'' if living == 1 else 's'}: stop them first"
        )

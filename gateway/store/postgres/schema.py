"""Migrates the tables of a PostgreSQL schema, and checks that the server's settings are safe."""

import zlib
from datetime import timedelta

from gateway.errors import EngineUnavailable, EngineUnusable
from gateway.store.numbers import check_number
from gateway.store.port import Report, report_nothing
from gateway.store.postgres.connection import Connection
from gateway.store.postgres.tables import FIRST, MIGRATIONS, NEWEST, OURS

OLDEST = 140_000
"""The oldest supported server_version_num."""

_LOCK = "SELECT pg_advisory_xact_lock($1)"
_IS_OURS = """
SELECT CASE WHEN to_regclass($1) IS NOT NULL THEN true WHEN EXISTS (
    SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $2
) THEN false END
"""
"""False for the tables of another program, NULL if there are none. One statement, because another gateway
may commit its migration between two."""
_VERSION = f"SELECT max(n) FROM @{OURS}"
_ALIVE = "SELECT instance FROM @instances WHERE expires_at > clock_timestamp() ORDER BY instance"
_MIGRATION_SECONDS = 600.0

FORGET_FOREIGN = "DELETE FROM @written WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
"""Forgets transactions of another server, which a dump has restored here."""

_SETTINGS = """
SELECT current_setting('server_version'), current_setting('server_version_num')::int, current_setting('fsync'),
    current_setting('full_page_writes'), (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'),
    current_setting('transaction_read_only'), pg_is_in_recovery(), current_setting('synchronous_standby_names'),
    (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming')
"""

_OLDEST_TRANSACTION = """
SELECT pid, application_name, usename, state, extract(epoch FROM clock_timestamp() - xact_start)::bigint
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    AND coalesce(backend_xmin, backend_xid) IS NOT NULL AND xact_start < clock_timestamp() - make_interval(secs => $1)
ORDER BY xact_start LIMIT 1
"""


async def check(link: Connection) -> dict[str, str]:
    """Read the server's settings for an operator; problems have keys that start with `warning `.

    Raises:
        EngineUnusable: the server is too old or read-only.
        EngineUnavailable: the server does not respond.
    """
    (row,) = await link.ask(_SETTINGS)
    version, number, fsync, full_pages, commits, read_only, standby, names, replicas = row
    place = link.address.place
    if number < OLDEST:
        raise EngineUnusable(f"{place} runs PostgreSQL {version}: upgrade it to 14 or newer")
    if standby or read_only == "on":
        why = "is a standby" if standby else "is read-only (default_transaction_read_only)"
        raise EngineUnusable(f"{place} {why}: point engine.dsn at a writable primary")
    found = {"version": version, "synchronous_commit": commits, "replicas": str(replicas)}
    if fsync != "on":
        found["warning fsync"] = "fsync is off: a crash of the server's machine may lose or corrupt the database"
    if full_pages != "on":
        found["warning full_page_writes"] = "full_page_writes is off: a crash of the server's machine may corrupt pages"
    if commits in {"off", "local"}:
        found["warning synchronous_commit"] = (
            "synchronous_commit is off for this role; the gateway turns it on for its own writes"
            if commits == "off"
            else "synchronous_commit is local for this role: a failover may lose acknowledged writes"
        )
    if replicas and not names:
        found["warning synchronous_standby_names"] = (
            f"{replicas} replicas are attached and none is synchronous: a failover may lose acknowledged writes;"
            " name one in synchronous_standby_names"
        )
    # Transactions of other roles are visible only with pg_read_all_stats.
    for pid, application, role, state, age in await link.ask(_OLDEST_TRANSACTION, link.address.tuning.old):
        found["warning old transaction"] = (
            f"process {pid} (application {application!r}, role {role!r}, {state}) has had a transaction open for"
            f" {timedelta(seconds=age)}; meanwhile vacuum cannot remove dead rows, which slows everything down. End it"
            f" with SELECT pg_terminate_backend({pid}), and prevent others with idle_in_transaction_session_timeout on"
            " its role"
        )
    return found


async def migrate(link: Connection, report: Report = report_nothing) -> None:
    """Create or migrate the schema; several processes may do this at once.

    Raises:
        EngineUnusable: the schema contains tables of another program, or cannot be created.
        SchemaTooNew: a newer release has migrated it.
        EngineUnavailable: the server does not respond, or a gateway of an older release holds a lease.
    """
    if await reached(link) == NEWEST:
        return
    schema = link.address.schema
    await link.run("BEGIN ISOLATION LEVEL READ COMMITTED")
    try:
        report("waiting for the migration by another gateway", 0)
        await link.ask(_LOCK, _number(schema), seconds=_MIGRATION_SECONDS)
        done = await reached(link)
        script: list[str] = []
        if done is None:
            # `IF NOT EXISTS` would require the permission to create schemas even if it exists.
            if not await link.ask("SELECT 1 FROM pg_namespace WHERE nspname = $1", schema):
                script.append(f'CREATE SCHEMA "{schema}"')
            script.append(f"CREATE TABLE @{OURS} (n bigint PRIMARY KEY, at timestamptz NOT NULL)")
        last = done or FIRST - 1
        for number, statements in enumerate(MIGRATIONS[last - FIRST + 1 :], start=last + 1):
            script += statements
            script.append(f"INSERT INTO @{OURS} (n, at) VALUES ({number}, clock_timestamp())")
        if script:
            if done:
                # Prevents an instance from acquiring a lease during the migration.
                await link.run("LOCK TABLE @instances IN EXCLUSIVE MODE", seconds=_MIGRATION_SECONDS)
                await _refuse_live(link)
            for number, statement in enumerate(script):
                report(f"migration to {NEWEST}", number / len(script))
                await link.run(statement, seconds=_MIGRATION_SECONDS)
        await link.run("COMMIT")
    except BaseException:
        # The server rolls the transaction back when the connection ends.
        link.drop()
        raise


async def _refuse_live(link: Connection) -> None:
    alive = [instance for (instance,) in await link.ask(_ALIVE)]
    if alive:
        raise EngineUnavailable(
            f"gateways of an older release use the schema {link.address.schema!r} of {link.address.place}"
            f" ({', '.join(alive)}): stop them before the migration"
        )


async def reached(link: Connection) -> int | None:
    """Return the number of the last migration of the tables; None if there are none.

    Raises:
        EngineUnusable: the schema contains tables of another program, or of release 0.2.0 or earlier.
        SchemaTooNew: a newer release has migrated it.
    """
    schema, place = link.address.schema, link.address.place
    ((is_ours,),) = await link.ask(_IS_OURS, link.address.name(f"@{OURS}"), schema)
    if is_ours is None:
        return None
    if not is_ours:
        raise EngineUnusable(
            f"the schema {schema!r} of {place} contains tables of another program: set engine.schema to another name"
        )
    ((found,),) = await link.ask(_VERSION)
    done: int = found or 0
    check_number(f"{place}, schema {schema!r},", done, first=FIRST, newest=NEWEST)
    return done


def _number(schema: str) -> int:
    # The prefix avoids conflicts with advisory locks of other programs in the same database.
    return (0x4472676D << 32) | zlib.crc32(schema.encode())

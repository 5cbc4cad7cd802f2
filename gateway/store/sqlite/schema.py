"""Opens a SQLite database the way the gateway needs it, and brings its tables up to date.

Tables and columns are those that the questions in `gateway/store/questions/` ask for, here as in PostgreSQL. Migrations
are numbered by their place in the list, only go forward and are never changed once released. `PRAGMA user_version` is
the number of the last one a file has had; a release refuses a file with a higher number than its own.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import TypeVar

from gateway.errors import EngineUnusable, SchemaTooNew
from gateway.store.sqlite.log import replay
from gateway.store.sqlite.tuning import PRODUCTION, SqliteTuning

T = TypeVar("T")

# "Drgm", so that `file` and we can tell our databases from others.
APPLICATION = 0x4472676D

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE sessions (
            id INTEGER PRIMARY KEY,
            session_id TEXT NOT NULL UNIQUE,
            runtime TEXT NOT NULL,
            protocol TEXT NOT NULL,
            native_id TEXT NOT NULL,
            state TEXT NOT NULL,
            labels TEXT NOT NULL,
            last_seq INTEGER NOT NULL,
            min_seq INTEGER NOT NULL,
            fence INTEGER NOT NULL,
            size INTEGER NOT NULL,
            cursor TEXT,
            opened_at INTEGER NOT NULL,
            updated_at INTEGER NOT NULL,
            UNIQUE (runtime, native_id)
        ) STRICT
        """,
        # Apart from sessions, because SQLite writes a whole row anew whenever any column changes.
        "CREATE TABLE snapshots (session_id TEXT PRIMARY KEY, snapshot BLOB NOT NULL) STRICT",
        # In order of arrival, not of session: a batch over many sessions then fills few pages instead of touching many.
        """
        CREATE TABLE events (
            session_id TEXT NOT NULL,
            seq INTEGER NOT NULL,
            event_id TEXT NOT NULL,
            kind TEXT NOT NULL,
            direction TEXT NOT NULL,
            dedupe_key TEXT,
            recorded_at INTEGER NOT NULL,
            body BLOB,
            about BLOB,
            PRIMARY KEY (session_id, seq)
        ) STRICT
        """,
        """
        CREATE UNIQUE INDEX events_once ON events (session_id, direction, dedupe_key)
        WHERE dedupe_key IS NOT NULL
        """,
        """
        CREATE TABLE calls (
            id INTEGER PRIMARY KEY,
            call_id TEXT NOT NULL UNIQUE,
            session_id TEXT NOT NULL,
            runtime TEXT NOT NULL,
            native_call_id TEXT NOT NULL,
            n INTEGER NOT NULL,
            tool TEXT NOT NULL,
            args_sha TEXT NOT NULL,
            state TEXT NOT NULL,
            attempt INTEGER NOT NULL,
            created_at INTEGER NOT NULL,
            deadline_at INTEGER NOT NULL,
            request_seq INTEGER NOT NULL,
            executor TEXT,
            key TEXT,
            due_at INTEGER,
            canceling_until INTEGER,
            outcome_seq INTEGER,
            outcome_sha TEXT,
            unknown INTEGER NOT NULL,
            error TEXT,
            redrive_of TEXT,
            deliver INTEGER NOT NULL,
            finished_at INTEGER
        ) STRICT
        """,
        "CREATE INDEX calls_native ON calls (session_id, native_call_id, n) WHERE redrive_of IS NULL",
        "CREATE INDEX calls_open ON calls (session_id) WHERE state IN ('queued', 'dispatched', 'accepted')",
        """
        CREATE TABLE outbound (
            session_id TEXT NOT NULL,
            seq INTEGER NOT NULL,
            target TEXT NOT NULL,
            lane TEXT NOT NULL,
            state TEXT NOT NULL,
            attempt INTEGER NOT NULL,
            due_at INTEGER,
            reason TEXT,
            created_at INTEGER NOT NULL,
            PRIMARY KEY (session_id, seq, target)
        ) STRICT, WITHOUT ROWID
        """,
        "CREATE INDEX outbound_pending ON outbound (target, session_id, seq) WHERE state = 'pending'",
        """
        CREATE INDEX outbound_dead ON outbound (created_at, session_id, seq, target)
        WHERE state IN ('refused', 'unknown', 'dead')
        """,
        """
        CREATE TABLE interactions (
            id INTEGER PRIMARY KEY,
            interaction_id TEXT NOT NULL UNIQUE,
            session_id TEXT NOT NULL,
            kind TEXT NOT NULL,
            state TEXT NOT NULL,
            request_seq INTEGER NOT NULL,
            expires_at INTEGER,
            answered_by TEXT
        ) STRICT
        """,
        "CREATE INDEX interactions_of ON interactions (session_id, id)",
        "CREATE INDEX interactions_waiting ON interactions (session_id) WHERE state = 'waiting'",
        """
        CREATE TABLE idempotency (
            scope TEXT NOT NULL,
            key TEXT NOT NULL,
            request_sha TEXT NOT NULL,
            response BLOB NOT NULL,
            expires_at INTEGER NOT NULL,
            PRIMARY KEY (scope, key)
        ) STRICT
        """,
        "CREATE INDEX idempotency_expiry ON idempotency (expires_at)",
        "CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
        "CREATE TABLE probe (id INTEGER PRIMARY KEY CHECK (id = 1), tried_at INTEGER NOT NULL) STRICT",
    ),
    (
        "ALTER TABLE sessions ADD COLUMN owner TEXT",
        "CREATE INDEX sessions_owned ON sessions (owner, runtime) WHERE state <> 'closed'",
    ),
    (
        "ALTER TABLE calls ADD COLUMN dead INTEGER NOT NULL DEFAULT 0",
        "UPDATE calls SET dead = 1 WHERE unknown = 1",
        "CREATE INDEX calls_dead ON calls (id) WHERE dead = 1",
    ),
    (
        "CREATE TABLE schema_version (n INTEGER PRIMARY KEY, readable_from INTEGER NOT NULL) STRICT",
        # Events from here on must stay: a newer release folds them anew.
        "ALTER TABLE snapshots ADD COLUMN keep_from INTEGER",
        "CREATE INDEX snapshots_keep ON snapshots (session_id, keep_from) WHERE keep_from IS NOT NULL",
        # What only a newer release knows how to go on with is kept and listed; nearly always there is none.
        "DROP INDEX outbound_dead",
        """
        CREATE INDEX outbound_listed ON outbound (created_at, session_id, seq, target)
        WHERE state NOT IN ('pending', 'delivered', 'moot')
            OR (state = 'pending' AND reason = 'written by a newer release')
        """,
        """
        CREATE INDEX calls_newer ON calls (session_id, request_seq)
        WHERE state NOT IN ('queued', 'dispatched', 'accepted', 'succeeded', 'failed', 'canceled', 'expired')
        """,
        """
        CREATE INDEX interactions_newer ON interactions (session_id, request_seq)
        WHERE state NOT IN ('waiting', 'answered', 'expired', 'moot')
        """,
    ),
    (
        # Whether a different outcome came after the end, and what was recorded of progress, in bytes.
        "ALTER TABLE calls ADD COLUMN late INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE calls ADD COLUMN progressed INTEGER NOT NULL DEFAULT 0",
    ),
    (
        # What commits append to, and what is spread over the other tables later.
        "CREATE TABLE steps (id INTEGER PRIMARY KEY, part BLOB NOT NULL) STRICT",
        # What `readable_from` is once the log is empty again; NULL where it is so now.
        "ALTER TABLE schema_version ADD COLUMN settled INTEGER",
    ),
    (
        # Release 0.2.0 finds no `readable_from` here any more and refuses the database.
        "DROP TABLE schema_version",
        "DROP INDEX snapshots_keep",
        "ALTER TABLE snapshots DROP COLUMN keep_from",
        "DROP INDEX calls_newer",
        "DROP INDEX interactions_newer",
        # A row that waited for a newer release becomes a dead letter.
        """
        UPDATE outbound SET state = 'dead', due_at = NULL
        WHERE state = 'pending' AND reason = 'written by a newer release'
        """,
        "DROP INDEX outbound_listed",
        """
        CREATE INDEX outbound_dead ON outbound (created_at, session_id, seq, target)
        WHERE state IN ('refused', 'unknown', 'dead')
        """,
    ),
    (
        # A pending event to the runtime may have been sent, except one that 0.2.0 marked as not sent.
        """
        UPDATE outbound SET attempt = 1
        WHERE target = 'runtime' AND state = 'pending' AND reason IS NOT 'held: the runtime has not started yet'
        """,
        "UPDATE outbound SET reason = NULL WHERE target = 'runtime' AND state = 'pending'",
    ),
)

_CHECKPOINT_BYTES = 32 * 1024 * 1024


def open_writer(
    path: Path, *, tuning: SqliteTuning = PRODUCTION, replayed: Callable[[int], object] = lambda _: None
) -> sqlite3.Connection:
    """Open the one connection that writes: WAL, each commit on disk before it returns, tables up to date.

    A statement waits `tuning.lock` seconds for another connection. `replayed` gets the number of steps that a killed
    process left in the log.

    Raises:
        EngineUnusable: the file is not a database of ours, or cannot be opened or written.
        SchemaTooNew: a newer release has migrated it.
    """
    connection = None
    try:
        connection = _connect(path, lock=tuning.lock)
        _check_ours(connection, path)
        # Only a new file takes it: what a commit appends is small, and a page is the least that it writes.
        connection.execute("PRAGMA page_size = 2048")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise EngineUnusable(f"the file system of {str(path)!r} cannot hold a write-ahead log: use a local disk")
        connection.execute(f"PRAGMA synchronous = {tuning.synchronous}")
        # What is freed is overwritten, or erased texts could still be read out of the file.
        connection.execute("PRAGMA secure_delete = ON")
        # Fewer, larger checkpoints write each page of the file less often; the log is cut back after a burst.
        page_size = connection.execute("PRAGMA page_size").fetchone()[0]
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_BYTES // page_size}")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        steps = _replay(connection)
        _migrate(connection)
        if steps:
            replayed(steps)
    except sqlite3.Error as exc:
        if connection is not None:
            connection.close()
        raise EngineUnusable(
            f"cannot use {str(path)!r} as database ({exc}): check that it is a database of Dragoman, "
            "that the gateway's user may write it and its folder, and that the disk has space"
        ) from exc
    except (EngineUnusable, SchemaTooNew):
        if connection is not None:
            connection.close()
        raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a connection that only reads, from whatever thread, one at a time."""
    # It never makes a file, where the database was taken away.
    connection = _connect(f"{path.absolute().as_uri()}?mode=rw", lock=PRODUCTION.lock, any_thread=True)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _connect(place: Path | str, *, lock: float, any_thread: bool = False) -> sqlite3.Connection:
    # What sqlite3 writes as it is, but looks for an adapter of each time; with one it does not look far.
    for kind in (bytes, NoneType):
        sqlite3.register_adapter(kind, _as_it_is)
    connection = sqlite3.connect(
        place,
        uri=isinstance(place, str),
        timeout=lock,
        isolation_level=None,
        check_same_thread=not any_thread,
        cached_statements=256,
    )
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cache_size = -16384")
    return connection


def _as_it_is(value: T) -> T:
    return value


def _check_ours(connection: sqlite3.Connection, path: Path) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION and (application or version or tables):
        raise EngineUnusable(f"{str(path)!r} is a database of another program: give engine.path another file name")
    refuse_newer(connection, path)


def refuse_newer(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a database with a newer schema.

    Raises:
        SchemaTooNew: a newer release has migrated it.
    """
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        raise SchemaTooNew(
            f"{str(path)!r} has schema {version} and this release supports up to {len(MIGRATIONS)}: "
            "run the newer release, or restore the backup from before the upgrade"
        )


def _replay(connection: sqlite3.Connection) -> int:
    """Put the steps of a killed process into the tables before any migration changes these; returns the number."""
    logged = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'steps'").fetchone()
    return replay(connection) if logged else 0


def _migrate(connection: sqlite3.Connection) -> None:
    done = connection.execute("PRAGMA user_version").fetchone()[0]
    for number, statements in enumerate(MIGRATIONS[done:], start=done + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

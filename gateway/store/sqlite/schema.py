"""Opens a SQLite database with the settings that the gateway needs, and migrates its tables.

Migrations are numbered from `FIRST`, only go forward and are never changed once released. `PRAGMA user_version` is the
number of the last one that a file has had.
"""

import sqlite3
from pathlib import Path
from types import NoneType
from typing import TypeVar

from gateway.errors import EngineUnusable, SchemaTooNew
from gateway.store.numbers import check_number
from gateway.store.port import Report, report_nothing
from gateway.store.sqlite.tuning import PRODUCTION, SqliteTuning

T = TypeVar("T")

# "Drgm", so that `file` and the gateway recognize its databases.
APPLICATION = 0x4472676D

FIRST = 11
"""The number of the first migration below; a database with a lower one is refused."""

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
            owner TEXT,
            size INTEGER NOT NULL,
            cursor TEXT,
            opened_at INTEGER NOT NULL,
            updated_at INTEGER NOT NULL,
            UNIQUE (runtime, native_id)
        ) STRICT
        """,
        # The sessions of an owner, the sessions without one, and their numbers: leases.
        "CREATE INDEX sessions_owned ON sessions (owner, runtime) WHERE state <> 'closed'",
        # In every other table `session_id` is `sessions.id`.
        # Separate from sessions, because SQLite rewrites a whole row when any column changes.
        "CREATE TABLE snapshots (session_id INTEGER PRIMARY KEY, snapshot BLOB NOT NULL) STRICT",
        # Rows in order of arrival: a batch over many sessions fills few pages instead of changing many. The id is the
        # position of a stream over sessions. The unique key serves `read` and all that follows an event.
        """
        CREATE TABLE events (
            id INTEGER PRIMARY KEY,
            session_id INTEGER NOT NULL,
            seq INTEGER NOT NULL,
            event_id TEXT NOT NULL,
            kind TEXT NOT NULL,
            direction TEXT NOT NULL,
            dedupe_key TEXT,
            recorded_at INTEGER NOT NULL,
            body BLOB,
            about BLOB,
            UNIQUE (session_id, seq)
        ) STRICT
        """,
        # The check for repeated events in each batch.
        """
        CREATE UNIQUE INDEX events_once ON events (session_id, direction, dedupe_key)
        WHERE dedupe_key IS NOT NULL
        """,
        # The unique call_id serves `call` and each change of a call; the id is the order of lists.
        """
        CREATE TABLE calls (
            id INTEGER PRIMARY KEY,
            call_id TEXT NOT NULL UNIQUE,
            session_id INTEGER NOT NULL,
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
            finished_at INTEGER,
            dead INTEGER NOT NULL,
            late INTEGER NOT NULL,
            progressed INTEGER NOT NULL,
            attempts TEXT,
            trace TEXT
        ) STRICT
        """,
        # `latest_reuse`. Few ids are used again; an index of all took a random page for each call.
        "CREATE INDEX calls_reused ON calls (session_id, native_call_id, n) WHERE n > 0 AND redrive_of IS NULL",
        # `open_calls`, `count_open_calls`, lists of open calls, and the events that retention keeps.
        "CREATE INDEX calls_open ON calls (session_id) WHERE state IN ('queued', 'dispatched', 'accepted')",
        # Lists of dead and of unknown calls.
        "CREATE INDEX calls_dead ON calls (id) WHERE dead = 1",
        "CREATE INDEX calls_unknown ON calls (id) WHERE unknown = 1",
        # The primary key serves `sends_of` and each change of a send.
        """
        CREATE TABLE outbound (
            session_id INTEGER NOT NULL,
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
        # `pending_sends`, `next_send_due`, and the events that retention keeps.
        "CREATE INDEX outbound_pending ON outbound (target, session_id, seq) WHERE state = 'pending'",
        # `dead_sends`, newest first.
        """
        CREATE INDEX outbound_dead ON outbound (created_at, session_id, seq, target)
        WHERE state IN ('refused', 'unknown', 'dead')
        """,
        # The unique interaction_id serves `interaction` and each change.
        """
        CREATE TABLE interactions (
            id INTEGER PRIMARY KEY,
            interaction_id TEXT NOT NULL UNIQUE,
            session_id INTEGER NOT NULL,
            kind TEXT NOT NULL,
            state TEXT NOT NULL,
            request_seq INTEGER NOT NULL,
            expires_at INTEGER,
            answered_by TEXT
        ) STRICT
        """,
        # `interactions` of one session.
        "CREATE INDEX interactions_of ON interactions (session_id)",
        # `interactions` that wait, and the events that retention keeps.
        "CREATE INDEX interactions_waiting ON interactions (session_id) WHERE state = 'waiting'",
        # The primary key serves `recall`.
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
        # The removal of expired answers.
        "CREATE INDEX idempotency_expiry ON idempotency (expires_at)",
        "CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
        "CREATE TABLE probe (id INTEGER PRIMARY KEY CHECK (id = 1), tried_at INTEGER NOT NULL) STRICT",
    ),
    (
        # The name of this history, part of every position. The generation `previous` has the same events up to the id
        # `shared`, and in each session up to the sequence `shared_seq`.
        "CREATE TABLE generation (name TEXT NOT NULL, previous TEXT, shared INTEGER NOT NULL) STRICT",
        "INSERT INTO generation (name, shared) VALUES (lower(hex(randomblob(6))), 0)",
        "ALTER TABLE sessions ADD COLUMN shared_seq INTEGER NOT NULL DEFAULT 0",
    ),
    (
        # The row of a session is written with one event in `TAIL`, because each commit writes whole pages. This is the
        # row with the events that follow its `last_seq`.
        """
        CREATE VIEW current_sessions AS
        SELECT s.id, s.session_id, s.runtime, s.protocol, s.native_id, s.state, s.labels, s.min_seq, s.fence, s.owner,
            s.cursor, s.opened_at, s.shared_seq,
            max(s.last_seq, coalesce((SELECT max(seq) FROM events WHERE session_id = s.id), 0)) AS last_seq,
            s.size + coalesce((
                SELECT sum(coalesce(length(body), 0) + coalesce(length(about), 0))
                FROM events WHERE session_id = s.id AND seq > s.last_seq
            ), 0) AS size,
            max(s.updated_at, coalesce((
                SELECT recorded_at FROM events WHERE session_id = s.id ORDER BY seq DESC LIMIT 1
            ), 0)) AS updated_at
        FROM sessions s
        """,
    ),
    (
        # The indexes of open rows contain only listed rows, see `questions/listed.py`.
        "ALTER TABLE calls ADD COLUMN listed INTEGER NOT NULL DEFAULT 0",
        "UPDATE calls SET listed = 1 WHERE state IN ('queued', 'dispatched', 'accepted')",
        "DROP INDEX calls_open",
        """
        CREATE INDEX calls_open ON calls (session_id)
        WHERE listed = 1 AND state IN ('queued', 'dispatched', 'accepted')
        """,
        "ALTER TABLE outbound ADD COLUMN listed INTEGER NOT NULL DEFAULT 0",
        "UPDATE outbound SET listed = 1 WHERE state <> 'delivered'",
        "DROP INDEX outbound_pending",
        "CREATE INDEX outbound_pending ON outbound (target, session_id, seq) WHERE listed = 1 AND state = 'pending'",
        "CREATE TABLE listed_up_to (call INTEGER NOT NULL, event INTEGER NOT NULL) STRICT",
        """
        INSERT INTO listed_up_to (call, event)
        VALUES (coalesce((SELECT max(id) FROM calls), 0), coalesce((SELECT max(id) FROM events), 0))
        """,
    ),
    (
        # The approval of a call by a person: see the members of `Call`.
        "ALTER TABLE calls ADD COLUMN rule TEXT",
        "ALTER TABLE calls ADD COLUMN place TEXT",
        "ALTER TABLE calls ADD COLUMN binding TEXT",
        "ALTER TABLE calls ADD COLUMN held_at INTEGER",
        "ALTER TABLE calls ADD COLUMN arguments_seq INTEGER",
        "ALTER TABLE calls ADD COLUMN approved_sha TEXT",
        "ALTER TABLE interactions ADD COLUMN call_id TEXT",
        # The equal calls that were canceled before a held one.
        "CREATE INDEX interactions_moot ON interactions (session_id) WHERE state = 'moot' AND call_id IS NOT NULL",
        "DROP INDEX calls_open",
        """
        CREATE INDEX calls_open ON calls (session_id)
        WHERE listed = 1 AND state IN ('held', 'queued', 'dispatched', 'accepted')
        """,
        # The time of the newest event in the backup that was restored.
        "ALTER TABLE generation ADD COLUMN backup_at INTEGER",
    ),
    (
        "ALTER TABLE calls ADD COLUMN unheard_since INTEGER",
        "CREATE INDEX calls_unheard ON calls (session_id) WHERE unheard_since IS NOT NULL AND finished_at IS NOT NULL",
    ),
)

NEWEST = FIRST + len(MIGRATIONS) - 1
"""The number of the schema of this release."""

RENEW = (
    """
    UPDATE generation SET previous = name, name = lower(hex(randomblob(6))),
        shared = coalesce((SELECT max(id) FROM events), 0),
        backup_at = (SELECT recorded_at FROM events ORDER BY id DESC LIMIT 1)
    """,
    """
    UPDATE sessions SET shared_seq = (SELECT c.last_seq FROM current_sessions c WHERE c.id = sessions.id)
    """,
)
"""Begins a new generation: from here on, the history differs from the one that clients have seen."""

RENAME = "UPDATE generation SET name = lower(hex(randomblob(6)))"
"""Begins another new generation in a copy that was made with one: it shares the same events with the original."""

_CHECKPOINT_BYTES = 16 * 1024 * 1024


def open_writer(
    path: Path, *, tuning: SqliteTuning = PRODUCTION, report: Report = report_nothing
) -> sqlite3.Connection:
    """Open the one connection that writes: WAL, each commit on disk before it returns, tables migrated.

    A statement waits `tuning.lock` seconds for another connection.

    Raises:
        EngineUnusable: the file is not a database of ours, has an older schema than `FIRST`, or cannot be opened or
            written.
        SchemaTooNew: a newer release has migrated it.
    """
    connection = None
    try:
        connection = _connect(path, lock=tuning.lock)
        _check_ours(connection, path)
        # Applies to a new file only. A commit writes whole pages, so small pages write less.
        connection.execute("PRAGMA page_size = 2048")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise EngineUnusable(f"the file system of {str(path)!r} cannot hold a write-ahead log: use a local disk")
        connection.execute(f"PRAGMA synchronous = {tuning.synchronous}")
        # Freed pages are overwritten; otherwise erased texts could still be read from the file.
        connection.execute("PRAGMA secure_delete = ON")
        # A checkpoint halts the commits: a larger one for longer, smaller ones write more pages in total. The log is
        # truncated after a burst.
        page_size = connection.execute("PRAGMA page_size").fetchone()[0]
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_BYTES // page_size}")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        _migrate(connection, report)
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
    """Open a connection that only reads, for one thread at a time."""
    # mode=rw never creates a file if the database was removed.
    connection = _connect(f"{path.absolute().as_uri()}?mode=rw", lock=PRODUCTION.lock, any_thread=True)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _connect(place: Path | str, *, lock: float, any_thread: bool = False) -> sqlite3.Connection:
    # sqlite3 writes these types unchanged, but searches for an adapter each time; a registered one ends the search.
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
    if version:
        check_number(str(path), version, first=FIRST, newest=NEWEST)


def _migrate(connection: sqlite3.Connection, report: Report) -> None:
    last = connection.execute("PRAGMA user_version").fetchone()[0] or FIRST - 1
    for number, statements in enumerate(MIGRATIONS[last - FIRST + 1 :], start=last + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for done, statement in enumerate(statements):
                report(f"migration {number} of {NEWEST}", done / len(statements))
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

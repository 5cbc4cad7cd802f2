"""The tables in PostgreSQL, as numbered migrations that are never changed once released. Pure.

A table is written as `@events`; `Address.name` inserts the schema. Sorted texts have the collation "C", so that every
engine sorts alike. Bodies are bytea, because text cannot contain NUL.
"""

_TEXT = 'text COLLATE "C"'
_BUSY = "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 1"
"""Frequent vacuum for tables with frequent updates; otherwise their dead rows slow down every query."""

FIRST = 7
"""The number of the first migration below; a schema with a lower one is refused."""

_NAME = "left(replace(gen_random_uuid()::text, '-', ''), 12)"

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # Owner and fence are in the row that every commit updates. The fill factor leaves space for its next versions.
        f"""
        CREATE TABLE @sessions (
            id bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
            session_id {_TEXT} PRIMARY KEY,
            runtime {_TEXT} NOT NULL,
            protocol text NOT NULL,
            native_id {_TEXT} NOT NULL,
            state text NOT NULL,
            labels text NOT NULL,
            last_seq bigint NOT NULL,
            min_seq bigint NOT NULL,
            fence bigint NOT NULL,
            owner {_TEXT},
            size bigint NOT NULL,
            cursor text,
            opened_at bigint NOT NULL,
            updated_at bigint NOT NULL,
            UNIQUE (runtime, native_id)
        ) WITH (fillfactor = 70, {_BUSY})
        """,
        "CREATE INDEX sessions_owned ON @sessions (owner, id) WHERE state <> 'closed'",
        f"CREATE TABLE @snapshots (session_id {_TEXT} PRIMARY KEY, snapshot bytea NOT NULL)",
        f"""
        CREATE TABLE @events (
            session_id {_TEXT} NOT NULL,
            seq bigint NOT NULL,
            event_id text NOT NULL,
            kind text NOT NULL,
            direction text NOT NULL,
            dedupe_key {_TEXT},
            recorded_at bigint NOT NULL,
            body bytea,
            about bytea,
            PRIMARY KEY (session_id, seq)
        )
        """,
        """
        CREATE UNIQUE INDEX events_once ON @events (session_id, direction, dedupe_key)
        WHERE dedupe_key IS NOT NULL
        """,
        f"""
        CREATE TABLE @calls (
            id bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
            call_id {_TEXT} PRIMARY KEY,
            session_id {_TEXT} NOT NULL,
            runtime {_TEXT} NOT NULL,
            native_call_id {_TEXT} NOT NULL,
            n bigint NOT NULL,
            tool text NOT NULL,
            args_sha text NOT NULL,
            state text NOT NULL,
            attempt bigint NOT NULL,
            created_at bigint NOT NULL,
            deadline_at bigint NOT NULL,
            request_seq bigint NOT NULL,
            executor text,
            key text,
            due_at bigint,
            canceling_until bigint,
            outcome_seq bigint,
            outcome_sha text,
            unknown bigint NOT NULL,
            error text,
            redrive_of text,
            deliver bigint NOT NULL,
            finished_at bigint,
            dead bigint NOT NULL,
            -- Whether a different outcome arrived after the end; the recorded progress in bytes.
            late bigint NOT NULL,
            progressed bigint NOT NULL,
            -- The end by the server's clock; `finished_at` is by the clock of the writing gateway.
            ended_at timestamptz,
            attempts text,
            trace text
        ) WITH (fillfactor = 80, {_BUSY})
        """,
        # `latest_reuse`. Few ids are used again; an index of all took a random page for each call.
        "CREATE INDEX calls_reused ON @calls (session_id, native_call_id, n) WHERE n > 0 AND redrive_of IS NULL",
        "CREATE INDEX calls_open ON @calls (session_id, id) WHERE state IN ('queued', 'dispatched', 'accepted')",
        "CREATE INDEX calls_unknown ON @calls (id) WHERE unknown = 1",
        "CREATE INDEX calls_dead ON @calls (id) WHERE dead = 1",
        f"""
        CREATE TABLE @outbound (
            session_id {_TEXT} NOT NULL,
            seq bigint NOT NULL,
            target {_TEXT} NOT NULL,
            lane text NOT NULL,
            state text NOT NULL,
            attempt bigint NOT NULL,
            due_at bigint,
            reason text,
            created_at bigint NOT NULL,
            PRIMARY KEY (session_id, seq, target)
        ) WITH (fillfactor = 80, {_BUSY})
        """,
        "CREATE INDEX outbound_pending ON @outbound (target, session_id, seq) WHERE state = 'pending'",
        """
        CREATE INDEX outbound_dead ON @outbound (created_at, session_id, seq, target)
        WHERE state IN ('refused', 'unknown', 'dead')
        """,
        f"""
        CREATE TABLE @interactions (
            id bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
            interaction_id {_TEXT} PRIMARY KEY,
            session_id {_TEXT} NOT NULL,
            kind text NOT NULL,
            state text NOT NULL,
            request_seq bigint NOT NULL,
            expires_at bigint,
            answered_by text
        )
        """,
        "CREATE INDEX interactions_of ON @interactions (session_id, id)",
        "CREATE INDEX interactions_waiting ON @interactions (session_id) WHERE state = 'waiting'",
        f"""
        CREATE TABLE @idempotency (
            scope {_TEXT} NOT NULL,
            key {_TEXT} NOT NULL,
            request_sha text NOT NULL,
            response bytea NOT NULL,
            expires_at bigint NOT NULL,
            PRIMARY KEY (scope, key)
        )
        """,
        "CREATE INDEX idempotency_expiry ON @idempotency (expires_at)",
        f"CREATE TABLE @notes (name {_TEXT} PRIMARY KEY, value text NOT NULL)",
        f"""
        CREATE TABLE @instances (
            instance {_TEXT} PRIMARY KEY,
            url text NOT NULL,
            expires_at timestamptz NOT NULL
        ) WITH (fillfactor = 50, {_BUSY})
        """,
        f"CREATE TABLE @holds (name {_TEXT} PRIMARY KEY, instance {_TEXT} NOT NULL)",
        # One row per transaction, kept while its fate may be queried (`once`).
        f"""
        CREATE TABLE @commits (
            token {_TEXT} PRIMARY KEY,
            fate text NOT NULL,
            asked bigint NOT NULL,
            at timestamptz NOT NULL
        ) WITH ({_BUSY})
        """,
        "CREATE TABLE @probe (id bigint PRIMARY KEY CHECK (id = 1), tried_at timestamptz NOT NULL)",
        # The events of each transaction, as ranges of sequences in sessions: the position of a stream over sessions.
        """
        CREATE TABLE @written (
            xid bigint PRIMARY KEY,
            at timestamptz NOT NULL,
            sessions text[] NOT NULL,
            firsts bigint[] NOT NULL,
            lasts bigint[] NOT NULL
        )
        """,
    ),
    (
        # The name of this history, part of every position. The generation `previous` has the same events up to the
        # transaction `shared`, and in each session up to the sequence `shared_seq`.
        "CREATE TABLE @generation (name text NOT NULL, previous text, shared bigint NOT NULL)",
        f"INSERT INTO @generation (name, shared) VALUES ({_NAME}, 0)",
        "ALTER TABLE @sessions ADD COLUMN shared_seq bigint NOT NULL DEFAULT 0",
    ),
    (
        # The approval of a call by a person: see the members of `Call`.
        """
        ALTER TABLE @calls ADD COLUMN rule text, ADD COLUMN place text, ADD COLUMN binding text,
            ADD COLUMN held_at bigint, ADD COLUMN arguments_seq bigint, ADD COLUMN approved_sha text
        """,
        "ALTER TABLE @interactions ADD COLUMN call_id text",
        "CREATE INDEX interactions_moot ON @interactions (session_id, id) WHERE state = 'moot' AND call_id IS NOT NULL",
        "DROP INDEX @calls_open",
        """
        CREATE INDEX calls_open ON @calls (session_id, id)
        WHERE state IN ('held', 'queued', 'dispatched', 'accepted')
        """,
        # The time of the newest event in the backup that was restored.
        "ALTER TABLE @generation ADD COLUMN backup_at bigint",
    ),
    (
        "ALTER TABLE @calls ADD COLUMN unheard_since bigint",
        """
        CREATE INDEX calls_unheard ON @calls (session_id, id)
        WHERE unheard_since IS NOT NULL AND finished_at IS NOT NULL
        """,
    ),
)

NEWEST = FIRST + len(MIGRATIONS) - 1
"""The number of the schema of this release."""

RENEW = f"""
DELETE FROM @written;
INSERT INTO @written (xid, at, sessions, firsts, lasts)
VALUES (pg_current_xact_id()::text::bigint, '-infinity', '{{}}', '{{}}', '{{}}');
UPDATE @generation SET previous = name, name = {_NAME}, shared = pg_current_xact_id()::text::bigint,
    backup_at = (SELECT max(recorded_at) FROM @events);
UPDATE @sessions SET shared_seq = last_seq
"""
"""Begins a new generation: from here on, the history differs from the one that clients have seen.

The transactions of a restored dump may be those of another server. One without sessions stands for all of them, so that
a reader behind it sees a gap.
"""

OURS = "schema_version"
"""The table with the number of the last migration of a schema."""

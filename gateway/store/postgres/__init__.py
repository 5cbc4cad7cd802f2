"""The engine that keeps its ledger in PostgreSQL, for one gateway or several.

May import `clock`, `dragoman.postgres_dsn`, `errors`, `events`, `guard`.
"""

from gateway.store.postgres.engine import PostgresEngine as PostgresEngine

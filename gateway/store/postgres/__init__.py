"""The engine that keeps its ledger in PostgreSQL, for one gateway or several."""

from gateway.store.postgres.engine import PostgresEngine as PostgresEngine

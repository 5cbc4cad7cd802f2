"""The engine that keeps its ledger in PostgreSQL, for one gateway or several."""

from gateway.engines.postgres.engine import PostgresEngine as PostgresEngine

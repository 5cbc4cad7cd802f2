"""The engine that keeps its ledger in one SQLite file, for one gateway."""

from gateway.store.sqlite.engine import SqliteEngine as SqliteEngine
from gateway.store.sqlite.temporary import TemporaryEngine as TemporaryEngine

"""The engine that keeps its ledger in one SQLite file, for one gateway.

May import `clock`, `errors`, `events`, `guard`.
"""

from gateway.store.sqlite.engine import SqliteEngine as SqliteEngine
from gateway.store.sqlite.temporary import TemporaryEngine as TemporaryEngine

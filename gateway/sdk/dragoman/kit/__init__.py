"""Serves tool calls from a backend's own FastAPI application; see `README.md` in this folder.

May import `dragoman.postgres_dsn`, `dragoman.webhook_secret`.
"""

from dragoman.kit.calls import Answer as Answer, ToolCall as ToolCall, ToolFailed as ToolFailed, Update as Update
from dragoman.kit.memory import MemoryCallStore as MemoryCallStore
from dragoman.kit.sqlite import SqliteCallStore as SqliteCallStore
from dragoman.kit.store import (
    Callback as Callback,
    CallStore as CallStore,
    Claimed as Claimed,
    KeyReused as KeyReused,
    Owed as Owed,
    StoreUnavailable as StoreUnavailable,
)
from dragoman.kit.tools import Tools as Tools

__all__ = [
    "Answer",
    "CallStore",
    "Callback",
    "Claimed",
    "KeyReused",
    "MemoryCallStore",
    "Owed",
    "SqliteCallStore",
    "StoreUnavailable",
    "ToolCall",
    "ToolFailed",
    "Tools",
    "Update",
]

"""Serves tool calls from a backend's own FastAPI application; see `README.md` in this folder."""

from gateway.kit.calls import Answer as Answer, ToolCall as ToolCall, ToolFailed as ToolFailed, Update as Update
from gateway.kit.memory import MemoryCallStore as MemoryCallStore
from gateway.kit.sqlite import SqliteCallStore as SqliteCallStore
from gateway.kit.store import (
    Callback as Callback,
    CallStore as CallStore,
    Claimed as Claimed,
    KeyReused as KeyReused,
    Owed as Owed,
    StoreUnavailable as StoreUnavailable,
)
from gateway.kit.tools import Tools as Tools

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

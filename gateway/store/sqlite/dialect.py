"""Writes shared statements for SQLite, and answers questions."""

import sqlite3
from functools import lru_cache
from typing import TypeVar

from gateway.store.questions.question import Question, write_references

T = TypeVar("T")

KEY = "(SELECT id FROM sessions WHERE session_id = {})"
"""The integer by which other tables refer to the session with an id."""
NAME = "(SELECT session_id FROM sessions WHERE id = {})"
"""The id of the session that an integer refers to."""


@lru_cache(maxsize=512)
def in_sqlite(statement: str) -> str:
    """Write a statement for SQLite: `@calls` is a plain name, and `$1` is `?1`."""
    written = write_references(statement, key=KEY, name=NAME, column="id")
    return written.replace("@", "").replace("$", "?")


def answer(connection: sqlite3.Connection, question: Question[T]) -> T:
    """Ask one question; it reads one state of the store."""
    statement = in_sqlite(question.sqlite or question.text)
    return question.read(connection.execute(statement, question.values).fetchall())

"""Asks SQLite what is written for every database: how its statements are written, and how one is answered."""

import sqlite3
from functools import lru_cache
from typing import TypeVar

from gateway.store.questions.question import Question

T = TypeVar("T")


@lru_cache(maxsize=512)
def in_sqlite(statement: str) -> str:
    """Write a statement as SQLite takes it: `@calls` is a plain name, and `$1` is `?1`."""
    return statement.replace("@", "").replace("$", "?")


def answer(connection: sqlite3.Connection, question: Question[T]) -> T:
    """Ask one question; what it reads is one state of the store."""
    statement = in_sqlite(question.sqlite or question.text)
    return question.read(connection.execute(statement, question.values).fetchall())

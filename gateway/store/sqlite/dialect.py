"""Writes shared statements for SQLite, and answers questions."""

import re
import sqlite3
from functools import lru_cache
from typing import TypeVar

from gateway.store.questions.question import Question, Row, write_references
from gateway.store.rows import PAGE_BYTES, Rows

T = TypeVar("T")

KEY = "(SELECT id FROM sessions WHERE session_id = {})"
"""The integer by which other tables refer to the session with an id."""
NAME = "(SELECT session_id FROM sessions WHERE id = {})"
"""The id of the session that an integer refers to."""
_POSITION = re.compile(r"position\((\S+) in (\S+?)\)")


@lru_cache(maxsize=512)
def in_sqlite(statement: str) -> str:
    """Write a statement for SQLite: `@calls` is a plain name, `$1` is `?1`, and LIKE ignores the case of ASCII.

    `@sessions` is the view with the newest events.
    """
    written = write_references(statement, key=KEY, name=NAME, column="id").replace(" ILIKE ", " LIKE ")
    written = _POSITION.sub(r"instr(\2, \1)", written)
    return written.replace("@sessions", "current_sessions").replace("@", "").replace("$", "?")


def answer(connection: sqlite3.Connection, question: Question[T]) -> T:
    """Ask one question; it reads one state of the store, and no row behind the page."""
    found = connection.execute(in_sqlite(question.sqlite or question.text), question.values)
    if not question.sized:
        return question.read(Rows(found.fetchall()))
    names = [column[0] for column in found.description]
    sized = [names.index(name) for name in question.sized]
    rows, filled = Rows[Row](), 0
    for row in found:
        size = sum([len(row[place] or b"") for place in sized])
        if filled and filled + size > PAGE_BYTES:
            rows.more = True
            # Ends the read, which would keep the log from being truncated.
            found.close()
            break
        filled += size
        rows.append(row)
    return question.read(rows)

"""A question that is answered from the tables and from what they do not have yet, without waiting for the writer.

It says what of the held rows concerns it. Where nothing does, the tables alone are asked; where something does and
it cannot put both together, the tables are brought up to date first.
"""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from time import sleep
from typing import Any, Generic, TypeVar

from gateway.errors import EngineUnavailable
from gateway.store.questions.question import Question
from gateway.store.sqlite.dialect import answer
from gateway.store.sqlite.held import HeldRows
from gateway.store.sqlite.log import Behind

T = TypeVar("T")

_TRIES, _PAUSE = 2_000, 0.001


class TablesNeeded(Exception):
    """Only tables that are up to date can answer."""


@dataclass(frozen=True, slots=True)
class Beside(Generic[T]):
    """A question that may be answered while rows are held."""

    question: Question[T]
    """What the tables alone are asked."""
    concerns: Callable[[HeldRows], Any]
    """Copies what is held that concerns it; None where nothing does."""
    ask: Callable[[sqlite3.Connection, Any], T] | None = None
    """Puts the tables and that copy together."""


def answer_beside(connection: sqlite3.Connection, wanted: Beside[T], behind: Behind) -> T:
    """Answer from one state of the store.

    Raises:
        TablesNeeded: that takes tables that are up to date.
    """
    for _ in range(_TRIES):
        connection.execute("BEGIN")
        try:
            part, known = behind.look(connection, wanted.concerns)
            if known:
                if part is None:
                    return answer(connection, wanted.question)
                if wanted.ask is None:
                    raise TablesNeeded
                return wanted.ask(connection, part)
        finally:
            connection.execute("COMMIT")
        # The writer is between a commit and telling of it.
        sleep(_PAUSE)
    raise EngineUnavailable("the database cannot be read: its writer does not say what it has written")

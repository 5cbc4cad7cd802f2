"""What a question to a database is: one statement, its values, and what the rows that come back mean. Pure.

Statements are written as PostgreSQL understands them, tables as `@calls` and values as `$1`; SQLite is asked the same
once both are written its way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gateway.store.encoding import ListName, write_cursor
from gateway.store.rows import Page

T = TypeVar("T")
Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """One statement, its values, and what the rows that come back mean."""

    text: str
    values: Sequence[object]
    read: Callable[[Sequence[Row]], T]
    sqlite: str = ""
    """What SQLite is asked instead, where the text would send it a long way round."""


class Where:
    """Collects the conditions of a list, and their values in order."""

    def __init__(self) -> None:
        self.values: list[object] = []
        self._texts: list[str] = []

    def add(self, text: str, *values: object) -> None:
        """Add a condition whose values stand as `{0}`, `{1}`, … in it."""
        places = [f"${len(self.values) + n}" for n in range(1, len(values) + 1)]
        self._texts.append(text.format(*places))
        self.values += values

    def equal(self, **wanted: object) -> None:
        """Add that these columns hold these values, those that are not None."""
        for column, value in wanted.items():
            if value is not None:
                self.add(column + " = {0}", value)

    def text(self) -> str:
        return f"WHERE {' AND '.join(self._texts)}" if self._texts else ""


def columns(names: Sequence[str], table: str = "") -> str:
    """List columns, of a table where one is named."""
    return ", ".join(f"{table}{name}" for name in names)


def one(text: str, values: Sequence[object], show: Callable[[Row], T]) -> Question[T | None]:
    return Question(text, values, lambda rows: show(rows[0]) if rows else None)


def each(text: str, values: Sequence[object], show: Callable[[Row], T], *, sqlite: str = "") -> Question[list[T]]:
    return Question(text, values, lambda rows: [show(row) for row in rows], sqlite)


def page_of(
    of: ListName,
    shown: Page,
    text: str,
    where: Where,
    *,
    order: str,
    show: Callable[[Row], T],
    place: Callable[[Row], Row],
) -> Question[tuple[list[T], str | None]]:
    limit = max(shown.limit, 1)

    def read(rows: Sequence[Row]) -> tuple[list[T], str | None]:
        cursor = write_cursor(of, *place(rows[limit - 1])) if len(rows) > limit else None
        return [show(row) for row in rows[:limit]], cursor

    values = [*where.values, limit + 1]
    return Question(f"{text} {where.text()} ORDER BY {order} LIMIT ${len(values)}", values, read)


def last(row: Row) -> Row:
    return row[-1:]

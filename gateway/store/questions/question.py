"""The type of a query, and the helpers that build one. Pure.

A statement is written for PostgreSQL with tables as `@calls` and values as `$1`. Rows of PostgreSQL refer to a session
by its id, rows of SQLite by the integer key of the session's row. The statement marks each place that differs:

- `@key($1)`: the reference to the session with this id;
- `@name(o.session_id)`: the id of the session that a row refers to;
- `s.@key`: the column of `sessions` that other tables refer to.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

from gateway.store.encoding import ListName, write_cursor
from gateway.store.rows import CAUSE_ENDS, PAGE_BYTES, Page, Rows

T = TypeVar("T")
Row = Sequence[Any]


_MARKS = re.compile(r"@key\(([^)]+)\)|@name\(([^)]+)\)|@key\b")


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """One statement, its values, and the function that reads the rows."""

    text: str
    values: Sequence[object]
    read: Callable[[Rows[Row]], T]
    """Reads the rows; `more` says that the page ended at its size and not at the last row."""
    sqlite: str = ""
    """The statement for SQLite, if its planner needs another one."""
    sized: tuple[str, ...] = ()
    """The columns of any length, whose sum ends the page."""

    @property
    def for_postgres(self) -> str:
        """The statement for PostgreSQL, which sends no row behind the page; `read_postgres` reads its rows."""
        if not self.sized:
            return self.text
        # The length of a column that is stored apart is known without reading it.
        size = " + ".join(f"coalesce(octet_length(q.{name}), 0)" for name in self.sized)
        return _WITHIN.format(text=self.text, size=size)

    def read_postgres(self, rows: Sequence[Row]) -> T:
        """Read the rows of `for_postgres`, which end with the columns of `_WITHIN`."""
        if not self.sized:
            return self.read(Rows(rows))
        more = bool(rows) and len(rows) < rows[0][-3]
        return self.read(Rows([row[:-3] for row in rows], more=more))


_WITHIN = f"""
SELECT * FROM (
    SELECT q.*, count(*) OVER () AS all_rows, sum({{size}}) OVER (ROWS UNBOUNDED PRECEDING) AS filled,
        row_number() OVER () AS row_number
    FROM ({{text}}) AS q
) AS page WHERE filled <= {PAGE_BYTES} OR row_number = 1 ORDER BY row_number
"""


def write_references(statement: str, *, key: str, name: str, column: str) -> str:
    """Replace the marks of a statement; `{}` in `key` and `name` is the text in the parentheses."""

    def write(mark: re.Match[str]) -> str:
        named, referred = mark.groups()
        if named is not None:
            return key.format(named)
        return column if referred is None else name.format(referred)

    return _MARKS.sub(write, statement)


class Where:
    """Collects the conditions of a list and their values; `before` contains the values of earlier conditions."""

    def __init__(self, before: Sequence[object] = ()) -> None:
        self.values: list[object] = [*before]
        self._texts: list[str] = []

    def add(self, text: str, *values: object) -> None:
        """Add a condition; `{0}`, `{1}`, … in its text are the places of the values."""
        places = [f"${len(self.values) + n}" for n in range(1, len(values) + 1)]
        self._texts.append(text.format(*places))
        self.values += values

    def extend(self, text: str, inner: "Where") -> None:
        """Add a condition, if any, that contains those of `inner`, whose values start with the ones here."""
        self._texts += [text] if text else []
        self.values = inner.values

    def equal(self, **values: object) -> None:
        """Compare each column with its value, unless the value is None."""
        for column, value in values.items():
            if value is not None:
                self.add(column + " = {0}", value)

    def is_in(self, column: str, values: Collection[str]) -> None:
        """Compare a column with several values."""
        marks = ", ".join(f"{{{n}}}" for n in range(len(values)))
        self.add(f"{column} IN ({marks})", *sorted(values))

    def has_cause(self, column: str, cause: str | None) -> None:
        """Compare the cause in a text, as `cause_of` returns it, with a cause, unless that is None."""
        if cause is not None:
            start = f"substr({column}, 1, {len(cause) + len(CAUSE_ENDS[0])})"
            self.is_in(start, [cause, *(cause + end for end in CAUSE_ENDS)])

    @property
    def conditions(self) -> str:
        return " AND ".join(self._texts)

    def text(self) -> str:
        return f"WHERE {self.conditions}" if self._texts else ""


def columns(names: Sequence[str], table: str) -> str:
    """List columns of a table or its alias, with the session as its id."""
    return ", ".join(f"@name({table}.{name})" if name == "session_id" else f"{table}.{name}" for name in names)


def one(text: str, values: Sequence[object], show: Callable[[Row], T]) -> Question[T | None]:
    return Question(text, values, lambda rows: show(rows[0]) if rows else None)


def each(text: str, values: Sequence[object], show: Callable[[Row], T]) -> Question[list[T]]:
    return Question(text, values, lambda rows: [show(row) for row in rows])


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A list that is read page by page."""

    name: ListName
    text: str
    """The query up to its conditions."""
    show: Callable[[Row], T]
    place: Callable[[Row], Row]
    """Returns the values of a row that its cursor contains."""
    sized: tuple[str, ...]
    """See `Question.sized`."""


def page_of(of: Listing[T], shown: Page, where: Where, *, order: str) -> Question[tuple[list[T], str | None]]:
    limit = max(shown.limit, 1)

    def read(rows: Rows[Row]) -> tuple[list[T], str | None]:
        shown = rows[:limit]
        cursor = write_cursor(of.name, *of.place(shown[-1])) if rows.more or len(rows) > limit else None
        return [of.show(row) for row in shown], cursor

    values = [*where.values, limit + 1]
    text = f"{of.text} {where.text()} ORDER BY {order} LIMIT ${len(values)}"
    return Question(text, values, read, sized=of.sized)


def last(row: Row) -> Row:
    return row[-1:]


WINDOW = 20_000
"""The rows that a page of a filtered list reads at most."""
SEARCHED = 4_000
"""The rows that a page of a search for a text reads at most, since it compares long columns."""
_WINDOWED = """
WITH reach (id) AS MATERIALIZED (
    SELECT coalesce(
        (SELECT {id} FROM {rows} WHERE {window} ORDER BY {id} {order} LIMIT 1 OFFSET {skipped}), {end}
    )
)
SELECT {columns}, {id}, ({matching}) AS matches, {id} = (SELECT id FROM reach) AS is_end FROM {rows}
WHERE {window} AND {id} {within} (SELECT id FROM reach) AND (({matching}) OR {id} = (SELECT id FROM reach))
ORDER BY {id} {order} LIMIT {limit}
"""


@dataclass(frozen=True, slots=True)
class Windowed(Generic[T]):
    """A list in the order of an id, whose filters may match few rows."""

    name: ListName
    columns: str
    rows: str
    """The table, with its alias if it has one."""
    id: str
    show: Callable[[Row], T]
    sized: tuple[str, ...]
    """See `Question.sized`."""


def page_of_window(
    of: Windowed[T], shown: Page, window: Where, matching: Where, *, newest_first: bool = True, most: int = WINDOW
) -> Question[tuple[list[T], str | None]]:
    """Query the matching rows among the next `most` ones; `matching` contains the values of `window`.

    If fewer rows than a page match, the cursor continues after the window.
    """
    limit = max(shown.limit, 1)

    def read(rows: Rows[Row]) -> tuple[list[T], str | None]:
        shown = rows[:limit]
        found = [of.show(row) for row in shown if row[-2]]
        if rows.more or len(rows) > limit:
            return found, write_cursor(of.name, shown[-1][-3])
        # The last row is the end of the window, even if it does not match.
        return found, write_cursor(of.name, rows[-1][-3]) if rows and rows[-1][-1] else None

    values = [*matching.values, limit + 1]
    text = _WINDOWED.format(
        id=of.id,
        rows=of.rows,
        columns=of.columns,
        window=window.conditions or "true",
        matching=matching.conditions,
        order="DESC" if newest_first else "ASC",
        within=">=" if newest_first else "<=",
        skipped=most - 1,
        end="0" if newest_first else "9223372036854775807",
        limit=f"${len(values)}",
    )
    return Question(text, values, read, sized=of.sized)


class Text:
    """A text to search for, as the values of `ILIKE … ESCAPE '!'` and, in JSON, of `position`."""

    def __init__(self, text: str) -> None:
        self.at_start = re.sub("[!%_]", r"!\g<0>", text) + "%"
        self.anywhere = "%" + self.at_start
        self.in_json = orjson.dumps(text)[1:-1]


def has_labels(where: Where, labels: Mapping[str, str]) -> None:
    """Add the condition that a session `s` has all these labels."""
    for name, value in labels.items():
        # The column has JSON as orjson writes it, so a member is a text of its own; SQLite and PostgreSQL share no
        # function that finds a text.
        member = orjson.dumps({name: value}).decode()[1:-1]
        where.add("replace(s.labels, {0}, '') <> s.labels", member)

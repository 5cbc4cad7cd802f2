"""Prints rows: as a table that fits a terminal, or tab-separated and complete when piped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import typer
from rich.cells import cell_len, set_cell_size
from rich.padding import Padding
from rich.text import Text

from gateway.cli.lines import attempt_line, clean, compact, event_line
from gateway.cli.terminal import Output, note, say_json, to_row

if TYPE_CHECKING:
    from pydantic import BaseModel

Row = TypeVar("Row", bound="BaseModel")
TABLE = "Prints a table in a terminal; tab-separated rows without a header when piped."
_GAP = 2
_LONGEST = 300
_STYLES = {
    "up": "green", "connecting": "yellow", "down": "red", "refused": "bold red", "running": "green",
    "awaiting_input": "bold yellow", "awaiting_approval": "bold yellow", "awaiting_outcome": "yellow", "error": "red",
    "held": "bold yellow", "queued": "yellow", "dispatched": "yellow", "accepted": "yellow", "succeeded": "green",
    "failed": "red", "canceled": "yellow", "expired": "red", "unknown": "bold red", "dead": "red", "closed": "dim",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    least: int | None = None
    """The smallest width after truncation; None: never truncated."""
    spare: int = 0
    """In a narrow terminal the column with the highest number is omitted first; 0: never omitted."""
    apart: bool = False
    """Whether a terminal shows it on its own line: above the others if it is the first column, else below them."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its complete text for pipes, and a shorter one for terminals."""

    whole: str
    shown: str | None = None
    style: str = ""

    def text(self) -> str:
        """Return the text for a terminal."""
        return clean(self.whole if self.shown is None else self.shown, _LONGEST)


@dataclass(frozen=True, slots=True)
class RowTable:
    """The presentation of a list: its columns and the cells of a row."""

    columns: Sequence[Column]
    cells: Callable[..., Sequence[Cell]]
    nothing: str
    """The note for an empty list."""


def state_cell(state: str) -> Cell:
    """Make the cell of a state, with its color."""
    return Cell(state, style=_STYLES.get(state, ""))


def show_rows(rows: Sequence[Row], table: RowTable, *, as_json: bool, more: bool = False) -> None:
    """Print a list; `more` means that there are rows beyond `--limit`."""
    if as_json:
        for row in rows:
            say_json(to_row(row))
    else:
        show_table(table.columns, [table.cells(row) for row in rows], Output())
        if not rows:
            note(table.nothing)
    if more:
        note("there are more; raise --limit to see them")


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], out: Output) -> None:
    """Print rows, with a heading in a terminal only."""
    if not out.is_terminal:
        for row in rows:
            typer.echo("\t".join(clean(cell.whole) for cell in row))
        return
    # Omit empty columns.
    filled = [at for at in range(len(columns)) if any(row[at].text() for row in rows)]
    above = [at for at in filled if columns[at].apart and at == 0]
    below = [at for at in filled if columns[at].apart and at > 0]
    inside = [at for at in filled if not columns[at].apart]
    indent = _GAP if above else 0
    lines = [[(columns[at].name.upper(), "bold") for at in inside]]
    lines += [[(row[at].text(), row[at].style) for at in inside] for row in rows]
    natural = [max(cell_len(line[at][0]) for line in lines) for at in range(len(inside))]
    widths = fit_columns([columns[at] for at in inside], natural, out.width - indent)
    for number, line in enumerate(lines if filled else ()):
        row = rows[number - 1] if number else None
        for at in above:
            out.say(Text(columns[at].name.upper(), "bold") if row is None else Text(row[at].text(), row[at].style))
        out.print(_line_of(line, widths, indent), no_wrap=True, overflow="ellipsis", crop=True)
        for at in below:
            if row is not None and row[at].whole:
                out.print(Padding(Text(clean(row[at].whole), row[at].style), (0, 0, 0, indent + _GAP)))


def show_members(value: "BaseModel") -> None:
    """Print the members of one row, one per line, its attempts and its events; a terminal wraps texts at spaces."""
    from rich.table import Table

    out, row = Output(), to_row(value)
    events = row.pop("events", None) or [row.pop("envelope", None)]
    attempts = row.pop("attempts", ())
    match row.pop("outcome", None):
        case {"outcome": "success", "result": result}:
            # `state` and `error` contain every other outcome.
            row["result"] = compact(result)
        case _:
            pass
    row["deliveries"] = "; ".join(
        f"{one['target']} {one['state']}{': ' if one['reason'] else ''}{one['reason'] or ''}"
        for one in row.pop("deliveries", ())
    )
    members = {name: one if isinstance(one, str) else compact(one) for name, one in row.items() if one}
    width = max(map(len, members))
    for name, text in members.items():
        style = _STYLES.get(text, "") if name == "state" else "yellow" if name in {"error", "advice"} else ""
        label, shown = f"{name:>{width}}  ", Text(clean(text), style)
        if not out.is_terminal or name.endswith("id"):
            # IDs stay on one line, so that they can be copied.
            out.say(Text.assemble((label, "dim"), shown))
            continue
        grid = Table.grid()
        grid.add_row(Text(label, "dim"), shown)
        out.print(grid)
    for attempt in attempts:
        out.print(attempt_line(attempt), soft_wrap=not out.is_terminal)
    for envelope in filter(None, events):
        out.print(event_line(envelope, plain=out.plain), soft_wrap=not out.is_terminal)


def fit_columns(columns: Sequence[Column], natural: Sequence[int], width: int) -> dict[int, int]:
    """Choose the width of each column: truncate first, then omit columns by `spare`."""
    least = [
        min(size, size if column.least is None else column.least) for column, size in zip(columns, natural, strict=True)
    ]
    shown = list(range(len(columns)))
    while sum(least[at] + _GAP for at in shown) - _GAP > width:
        spare = max(shown, key=lambda at: columns[at].spare)
        if not columns[spare].spare:
            break
        shown.remove(spare)
    widths = {at: least[at] for at in shown}
    unused = width - sum(size + _GAP for size in widths.values()) + _GAP
    for at in shown:
        more = max(min(natural[at] - widths[at], unused), 0)
        widths[at] += more
        unused -= more
    return widths


def _line_of(line: Sequence[tuple[str, str]], widths: dict[int, int], indent: int) -> Text:
    text, last = Text(" " * indent), max(widths, default=-1)
    for at, width in widths.items():
        words, style = line[at]
        text.append(_cut(words, width) if at == last else set_cell_size(_cut(words, width), width), style)
        text.append("" if at == last else " " * _GAP)
    return text


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"

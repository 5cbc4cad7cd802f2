"""Shows the figures: tables by rich in a terminal, aligned plain lines in a pipe."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table as RichTable


@dataclass(slots=True)
class Table:
    """A title, heads and rows of text; columns named in `left` are not numbers."""

    title: str
    heads: Sequence[str]
    left: frozenset[str] = frozenset()
    rows: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])

    def add(self, *cells: object) -> None:
        """Add a row."""
        self.rows.append(tuple(str(cell) for cell in cells))


def show(tables: Iterable[Table], notes: Iterable[str]) -> None:
    """Print tables and what is to be said about them."""
    console = Console() if sys.stdout.isatty() else None
    for table in tables:
        if not table.rows:
            continue
        if console is not None:
            console.print(_rich(table))
        else:
            sys.stdout.write("\n".join(_plain(table)) + "\n\n")
    for note in notes:
        sys.stdout.write(f"{note}\n")


def _rich(table: Table) -> RichTable:
    shown = RichTable(title=table.title, title_justify="left", title_style="bold")
    for head in table.heads:
        shown.add_column(head, justify="left" if head in table.left else "right")
    for row in table.rows:
        shown.add_row(*row)
    return shown


def _plain(table: Table) -> list[str]:
    lines = [tuple(table.heads), *table.rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(table.heads))]
    sides = [head in table.left for head in table.heads]
    shown = [
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, sides, strict=True)
        ).rstrip()
        for line in lines
    ]
    return [table.title, shown[0], "-" * max(map(len, shown)), *shown[1:]]

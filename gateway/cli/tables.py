"""Writes rows for people: aligned and fitted to the terminal; in a pipe, whole texts with tabs between them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import typer
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from gateway.cli.lines import clean
from gateway.cli.terminal import Output

_GAP = 2
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Column:
    """One column: how narrow it may become, and whether a narrow terminal may do without it."""

    name: str
    least: int | None = None
    """None: it is never cut."""
    spare: int = 0
    """0 stays in any case; of the others the highest goes first."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a row: the whole of it for pipes, and how a terminal shows it."""

    whole: str
    shown: str | None = None
    style: str = ""

    def text(self) -> str:
        """Say what a terminal shows."""
        return clean(self.whole if self.shown is None else self.shown, _LONGEST)


def show_table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], out: Output, *, apart: bool = False) -> None:
    """Write rows, with a heading in a terminal only.

    With `apart` the first column, which may be long, stands whole on a line of its own there, above the others.
    """
    if not out.is_terminal:
        for row in rows:
            typer.echo("\t".join(clean(cell.whole) for cell in row))
        return
    found = list(rows)
    indent, heads = 0, list[Text]()
    if apart:
        indent, heads = _GAP, [Text(columns[0].name.upper(), "bold")]
        heads += [Text(row[0].text(), row[0].style) for row in found]
        columns, found = columns[1:], [row[1:] for row in found]
    # What no row has says nothing.
    told = [at for at in range(len(columns)) if any(row[at].text() for row in found)]
    if not told:
        return
    shown = [columns[at] for at in told]
    lines = [[(column.name.upper(), "bold") for column in shown]]
    lines += [[(row[at].text(), row[at].style) for at in told] for row in found]
    natural = [max(cell_len(line[at][0]) for line in lines) for at in range(len(shown))]
    widths = fit(shown, natural, out.width - indent)
    last = max(widths)
    for number, line in enumerate(lines):
        if heads:
            out.say(heads[number])
        text = Text(" " * indent)
        for at, width in widths.items():
            words, style = line[at]
            text.append(_cut(words, width) if at == last else set_cell_size(_cut(words, width), width), style)
            text.append("" if at == last else " " * _GAP)
        out.print(text, no_wrap=True, overflow="ellipsis", crop=True)


def fit(columns: Sequence[Column], natural: Sequence[int], width: int) -> dict[int, int]:
    """Say how wide each column becomes: cut where they may be, and where that is not enough, left out by `spare`."""
    least = [
        min(size, size if column.least is None else column.least) for column, size in zip(columns, natural, strict=True)
    ]
    kept = list(range(len(columns)))
    while sum(least[at] + _GAP for at in kept) - _GAP > width:
        spare = max(kept, key=lambda at: columns[at].spare)
        if not columns[spare].spare:
            break
        kept.remove(spare)
    widths = {at: least[at] for at in kept}
    room = width - sum(size + _GAP for size in widths.values()) + _GAP
    for at in kept:
        more = max(min(natural[at] - widths[at], room), 0)
        widths[at] += more
        room -= more
    return widths


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"

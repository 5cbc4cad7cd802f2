"""The demo's verbose report: one call in every protocol, and each step by runtime."""

from collections.abc import Sequence
from datetime import timedelta

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from gateway.testing.demo.folded import HEADING, MARKS, STYLES, FoldedOutput
from gateway.testing.demo.one_call import OneCall
from gateway.testing.demo.report import Note
from gateway.testing.demo.wire_view import MARGIN, show_calls

STEP_WIDTH, TIME_WIDTH, TEXT_LINES = 37, 6, 2
ALL = "all"


class VerboseOutput(FoldedOutput):
    """Prints each step when it ends, grouped by runtime, before the brief report."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._running: list[Note] = []
        self._opens = True
        self._early: list[Note] = []
        """Steps that ended before the chapter of their runtime began."""

    def chapter(self, runtime: str, title: str) -> None:
        self._opens = False
        self._console.print(Text(), Rule(Text(title, HEADING), align="left", style="dim"))
        self._print_early(runtime)

    def show_playing(self, note: Note) -> None:
        self._running.append(note)
        self._refresh()

    def show_played(self, note: Note) -> None:
        self._running.remove(note)
        self._refresh()
        if self._opens and note.runtime != ALL:
            self._early.append(note)
        else:
            self._console.print(self._row(note))

    def show_calls(self, calls: Sequence[OneCall]) -> None:
        if calls:
            self._console.print(Text(), *show_calls(calls, self._console.width))

    def show_end(self, notes: Sequence[Note], seen: str, log: str) -> None:
        self._console.print(Text())
        for note in notes:
            if not note.held:
                self.print_failure(note)
        super().show_end(notes, seen, log)

    def end(self) -> None:
        for runtime in dict.fromkeys(note.runtime for note in self._early):
            self._print_early(runtime)
        super().end()

    def _print_early(self, runtime: str) -> None:
        for note in [note for note in self._early if note.runtime == runtime]:
            self._early.remove(note)
            self._console.print(self._row(note))

    def _refresh(self) -> None:
        rows = Group(*(self._row(note, name=True) for note in self._running[-1:]))
        self._live.update(rows, refresh=self._live.is_started)

    def _row(self, note: Note, *, name: bool = False) -> RenderableType:
        """Lay out one step; all rows have the same column widths."""
        width = self._console.width - MARGIN - STEP_WIDTH - TIME_WIDTH - 2 - 2 * 2
        row = Table.grid(padding=(0, 2, 0, 0))
        row.add_column(width=2 + STEP_WIDTH, no_wrap=True)
        row.add_column(width=width)
        row.add_column(width=TIME_WIDTH, justify="right", no_wrap=True)
        # As Text, because texts of peers must not be interpreted as markup.
        step = f"{note.runtime}: {note.step}" if name else note.step
        mark = Text.assemble((MARKS[note.held], STYLES[note.held]), " ", step)
        happened = Text(note.happened)
        lines = happened.wrap(self._console, width)
        if note.held and len(lines) > TEXT_LINES:
            last = Text(note.happened[len(lines[0].plain.rstrip()) + 1 :])
            last.truncate(width, overflow="ellipsis")
            happened = Text("\n").join([lines[0], last])
        row.add_row(mark, happened, _seconds(note.latency), style="dim" if note.held is None else None)
        return Padding(row, (0, 0, 0, MARGIN))


def _seconds(latency: timedelta | None) -> str:
    if latency is None:
        return ""
    seconds = latency.total_seconds()
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"

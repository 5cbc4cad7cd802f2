"""The demo's report in a terminal: one call on the wire, the game by runtimes, and what to do next."""

import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from shutil import which

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from gateway.testing import backend
from gateway.testing.demo.one_call import OneCall
from gateway.testing.demo.plain import MARKS
from gateway.testing.demo.report import Note
from gateway.testing.demo.wire_view import HEADING, MARGIN, show_calls

STEP_WIDTH, TIME_WIDTH, TEXT_LINES = 37, 6, 2
ALL = "all"
_STYLES: dict[bool | None, str] = {True: "bold green", False: "bold red", None: "dim"}


class TerminalOutput:
    """Finished steps scroll by; below them stands what is being played."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._running: list[Note] = []
        self._began = time.monotonic()
        self._opens = True
        self._held: list[Note] = []
        """Steps that ended before the chapter of their runtime began."""

    def begin(self) -> None:
        self._console.print(Text("Go Fish through a real gateway, which is killed in the middle", HEADING))
        self._live.start()

    def chapter(self, runtime: str, title: str) -> None:
        self._opens = False
        self._console.print(Text(), _rule(title))
        self._show_held(runtime)

    def show_playing(self, note: Note) -> None:
        self._running.append(note)
        self._refresh()

    def show_played(self, note: Note) -> None:
        self._running.remove(note)
        self._refresh()
        if self._opens and note.runtime != ALL:
            self._held.append(note)
        else:
            self._console.print(self._row(note))

    def show_calls(self, calls: Sequence[OneCall]) -> None:
        if calls:
            self._console.print(Text(), *show_calls(calls, self._console.width))

    def show_end(self, notes: Sequence[Note], seen: str, log: str) -> None:
        failed = [note for note in notes if not note.held]
        held = Text(f"{len(notes) - len(failed)} of {len(notes)} held", _STYLES[not failed])
        took = time.monotonic() - self._began
        self._console.print(Text(), _rule(""))
        self._line("seen", Text.assemble(f"{seen}: ", held, f" in {took:.0f} s"))
        for note in failed:
            self._line("", Text(f"✗ {note.runtime}: {note.step}: {note.happened}"))
        if failed:
            self._line("log", Text(log))
        self._line("play on", Text.assemble((f"{_command()} demo --keep", "bold"), "  stays up, with lines to paste"))
        self._line(
            "your own",
            Text.assemble("one endpoint, as in ", (_near(Path(backend.__file__)), "bold"), " (see README.md)"),
        )

    def show_addresses(self, addresses: dict[str, str], lines: Sequence[str]) -> None:
        self._console.print(Text(), _rule("Everything runs until Ctrl-C"))
        for name, where in addresses.items():
            self._line(name, Text(where))
        self._console.print()
        for line in lines:
            self._console.print(Text(line, "dim" if line.startswith("#") else ""), soft_wrap=True)

    def end(self) -> None:
        for runtime in dict.fromkeys(note.runtime for note in self._held):
            self._show_held(runtime)
        self._live.stop()

    def _show_held(self, runtime: str) -> None:
        for note in [note for note in self._held if note.runtime == runtime]:
            self._held.remove(note)
            self._console.print(self._row(note))

    def _refresh(self) -> None:
        self._live.update(Group(*(self._row(note, name=True) for note in self._running[-1:])), refresh=True)

    def _line(self, name: str, text: Text) -> None:
        self._console.print(Text.assemble((f"  {name:9} ", "dim"), text), soft_wrap=True)

    def _row(self, note: Note, *, name: bool = False) -> RenderableType:
        """One row; all rows have the same widths, whatever is in them."""
        width = self._console.width - MARGIN - STEP_WIDTH - TIME_WIDTH - 2 - 2 * 2
        row = Table.grid(padding=(0, 2, 0, 0))
        row.add_column(width=2 + STEP_WIDTH, no_wrap=True)
        row.add_column(width=width)
        row.add_column(width=TIME_WIDTH, justify="right", no_wrap=True)
        # As Text, because what peers say must not be read as markup.
        step = f"{note.runtime}: {note.step}" if name else note.step
        mark = Text.assemble((MARKS[note.held], _STYLES[note.held]), " ", step)
        happened = Text(note.happened)
        lines = happened.wrap(self._console, width)
        if note.held and len(lines) > TEXT_LINES:
            last = Text(note.happened[len(lines[0].plain.rstrip()) + 1 :])
            last.truncate(width, overflow="ellipsis")
            happened = Text("\n").join([lines[0], last])
        row.add_row(mark, happened, _seconds(note.latency), style="dim" if note.held is None else None)
        return Padding(row, (0, 0, 0, MARGIN))


def _rule(title: str) -> Rule:
    return Rule(Text(title, HEADING), align="left", style="dim") if title else Rule(style="dim")


def _seconds(latency: timedelta | None) -> str:
    if latency is None:
        return ""
    seconds = latency.total_seconds()
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _command() -> str:
    """Say how this command was called, so that the line can be pasted."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return "python -m gateway"
    found = which("dragoman")
    return "dragoman" if found is not None and Path(found).resolve() == called.resolve() else _near(called)


def _near(path: Path) -> str:
    """Write a path as it is seen from here, where it is below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)

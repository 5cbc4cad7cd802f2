"""The demo's live table: what was done, by which runtime, how long it took, and whether it was as promised."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import TracebackType
from typing import Self

import httpx
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

STEP_LIMIT = 15.0


class Unmet(Exception):
    """An expectation did not hold; the text says what came instead."""


def expect(held: bool, otherwise: str) -> None:
    """Demand something.

    Raises:
        Unmet: it is not so.
    """
    if not held:
        raise Unmet(otherwise)


class Note:
    """One row of the table."""

    def __init__(self, runtime: str, step: str) -> None:
        self.runtime = runtime
        self.step = step
        self.happened = ""
        self.latency: timedelta | None = None
        self.held: bool | None = None

    def say(self, happened: str, latency: timedelta | None = None) -> None:
        """Write down what happened, and how long the agent waited for it."""
        self.happened = happened if len(happened) <= 120 else f"{happened[:119]}…"
        self.latency = latency

    def cells(self) -> tuple[str, str, str, str, str]:
        """Say the row in words."""
        mark = {True: "✓", False: "✗", None: "…"}[self.held]
        latency = "" if self.latency is None else f"{self.latency.total_seconds() * 1000:.0f}"
        return mark, self.runtime, self.step, latency, self.happened


class Report:
    """All rows; a live table in a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self.notes: list[Note] = []
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    @property
    def failed(self) -> list[Note]:
        return [note for note in self.notes if not note.held]

    @asynccontextmanager
    async def step(self, runtime: str, step: str, *, within: float = STEP_LIMIT) -> AsyncGenerator[Note]:
        """Play one step; an unmet expectation is written down, and the next step is played all the same."""
        note = Note(runtime, step)
        self.notes.append(note)
        self._show(note)
        try:
            async with asyncio.timeout(within):
                yield note
            note.held = True
        except Unmet as exc:
            note.happened, note.held = str(exc), False
        except TimeoutError as exc:
            note.happened, note.held = str(exc) or f"nothing within {within:g} s", False
        except httpx.HTTPError as exc:
            note.happened, note.held = f"the gateway's API: {exc!r}", False
        finally:
            if note.held is None:
                note.happened, note.held = "broken off", False
            self._show(note)

    def __enter__(self) -> Self:
        self._console.print(Text(f"  {'runtime':9} {'step':36} {'ms':>5}  what happened", style="bold"))
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def _show(self, note: Note) -> None:
        if self._live is None:
            if note.held is not None:
                self._console.print(_line(note), soft_wrap=True)
            return
        # Finished rows scroll by above; below them stays what is being played.
        running = [note for note in self.notes if note.held is None]
        self._live.update(self._row(running[-1]) if running else Text(), refresh=True)
        if note.held is not None:
            self._console.print(self._row(note))

    def _row(self, note: Note) -> Table:
        """One row of the table; all rows have the same widths, whatever is in them."""
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(width=1)
        row.add_column(width=9)
        row.add_column(width=36)
        row.add_column(width=5, justify="right")
        row.add_column(ratio=1, no_wrap=note.held is not False, overflow="fold" if note.held is False else "ellipsis")
        style = {True: "green", False: "bold red", None: "dim"}[note.held]
        # As Text, because what peers say must not be read as markup.
        mark, *cells = (Text(cell) for cell in note.cells())
        mark.stylize(style)
        row.add_row(mark, *cells, style="dim" if note.held is None else None)
        return row


def _line(note: Note) -> Text:
    mark, runtime, step, latency, happened = note.cells()
    return Text(f"{mark} {runtime:9} {step:36} {latency:>5}  {happened}")

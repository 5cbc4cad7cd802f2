"""One line on stderr that says what a long command does; only in a terminal."""

import time
from types import TracebackType

from rich.cells import cell_len, set_cell_size

from gateway.cli.lines import clean
from gateway.cli.terminal import Output

_PAUSE = 0.1
"""Seconds between two lines."""


def count_of(noun: str) -> str:
    """Write the unit of a count."""
    return f" {noun}"


class Progress:
    """A context manager that shows one line and removes it at the end."""

    def __init__(self, what: str, unit: str = "") -> None:
        self._out = Output(stderr=True)
        self._shown = self._out.is_terminal and not self._out.is_dumb_terminal
        self._what, self._unit = what, unit
        self._drawn_at = float("-inf")

    def __enter__(self) -> "Progress":
        self._draw(f"{clean(self._what)} …")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write("\r\x1b[K")

    def tell(self, what: str, done: int, total: int) -> None:
        """Show how much is done."""
        if time.monotonic() - self._drawn_at >= _PAUSE:
            self._draw(f"{clean(what)}: {done:,} of {total:,}{self._unit}, {done * 100 // max(total, 1)}%")

    def _draw(self, line: str) -> None:
        self._drawn_at = time.monotonic()
        room = self._out.width - 1
        self._write("\r\x1b[K" + (line if cell_len(line) <= room else set_cell_size(line, room)))

    def _write(self, text: str) -> None:
        if self._shown:
            self._out.file.write(text)
            self._out.file.flush()

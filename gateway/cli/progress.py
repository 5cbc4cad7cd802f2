"""The progress line of long commands, on stderr; only in a terminal."""

import time
from types import TracebackType

from rich.cells import cell_len, set_cell_size

from gateway.cli.lines import clean
from gateway.cli.terminal import Output

_PAUSE = 0.1
"""Seconds between two updates."""


def count_of(noun: str) -> str:
    """Return the unit for counting these items."""
    return f" {noun}"


class Progress:
    """A context manager that shows one line and removes it at the end."""

    def __init__(self, action: str, unit: str = "") -> None:
        self._out = Output(stderr=True)
        self._shown = self._out.is_terminal and not self._out.is_dumb_terminal
        self._action, self._unit = action, unit
        self._drawn_at = float("-inf")

    def __enter__(self) -> "Progress":
        self._draw(f"{clean(self._action)} …")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write("\r\x1b[K")

    def update(self, action: str, done: int, total: int) -> None:
        """Show the progress, at most every 0.1 s."""
        if time.monotonic() - self._drawn_at >= _PAUSE:
            self._draw(f"{clean(action)}: {done:,} of {total:,}{self._unit}, {done * 100 // max(total, 1)}%")

    def _draw(self, line: str) -> None:
        self._drawn_at = time.monotonic()
        width = self._out.width - 1
        self._write("\r\x1b[K" + (line if cell_len(line) <= width else set_cell_size(line, width)))

    def _write(self, text: str) -> None:
        if self._shown:
            self._out.file.write(text)
            self._out.file.flush()

"""Tells on stderr how far something long is: one line drawn anew in a terminal, a line every few seconds elsewhere."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from rich.cells import cell_len, set_cell_size

from gateway.cli.lines import clean
from gateway.cli.probes import write_bytes
from gateway.cli.terminal import Output

_FIRST = 0.3
"""Seconds before anything is drawn: most of what may take long does not."""
_DRAWN = 0.1
_WRITTEN = 5.0
_RATED = 1.0
"""Seconds before a rate says something."""


@dataclass(frozen=True, slots=True)
class Unit:
    """How it is written how much was done."""

    write: Callable[[float], str]
    noun: str = ""


BYTES = Unit(write_bytes)


def count_of(noun: str) -> Unit:
    """Count things."""
    return Unit(lambda number: f"{number:,.0f}", f" {noun}")


class Progress:
    """A context manager that shows what it is told; any thread may tell."""

    def __init__(self, what: str, unit: Unit = BYTES) -> None:
        """Begin with `what`."""
        self._out = Output(stderr=True)
        self._drawn = self._out.is_terminal and not self._out.is_dumb_terminal
        self._unit = unit
        self._state = (what, 0, 0)
        self._since = time.monotonic()
        self._ended = threading.Event()
        # What is being done blocks this thread, so that another one has to say that it goes on.
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def tell(self, what: str, done: int = 0, total: int = 0) -> None:
        """Say what is being done now, how much of it is done, and how much there is; 0 where nobody knows."""
        if what != self._state[0]:
            self._since = time.monotonic()
        self._state = (what, done, total)

    def line(self) -> str:
        """Say how it stands."""
        what, done, total = self._state
        seconds = time.monotonic() - self._since
        if not total:
            return f"{clean(what)}, {_span(seconds)}"
        done = min(done, total)
        write, noun = self._unit.write, self._unit.noun
        line = f"{clean(what)}: {write(done)} of {write(total)}{noun}, {done * 100 // total}%"
        if seconds < _RATED or not done:
            return line
        rate = done / seconds
        return f"{line}, {write(rate)}/s, {_span((total - done) / rate)} left"

    def _show(self) -> None:
        if not self._drawn:
            while not self._ended.wait(_WRITTEN):
                self._out.say(f"· {self.line()}")
            return
        if self._ended.wait(_FIRST):
            return
        while True:
            line, room = self.line(), self._out.width - 1
            self._write("\r\x1b[K" + (line if cell_len(line) <= room else set_cell_size(line, room)))
            if self._ended.wait(_DRAWN):
                self._write("\r\x1b[K")
                return

    def _write(self, text: str) -> None:
        self._out.file.write(text)
        self._out.file.flush()


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02}m" if hours else f"{minutes}m {rest:02}s" if minutes else f"{rest}s"

"""The queue between the gateway and a reader of its log that may stop reading: a pipe, a socket, a terminal."""

import os
import select
import stat
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from logging import LogRecord
from logging.handlers import QueueHandler
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import TextIO

_CAPACITY = 2_000
_AT_END = 0.5
"""Seconds that a process waits at its end for its log to be read."""

DROPPED: Counter[str] = Counter()
"""Log lines of this process that found the queue full, by level."""


class LineQueue(QueueHandler):
    """Writes lines in a thread; a line that finds the queue full is dropped and counted."""

    def __init__(self, file: int, encoding: str, note: Callable[[int], LogRecord]) -> None:
        """Write to a descriptor; `note` makes the record that so many lines were dropped."""
        self._lines: Queue[bytes | Event] = Queue(_CAPACITY)
        super().__init__(self._lines)
        # The descriptor of the stream may be closed, and its number given to another file.
        self._file = os.dup(file)
        self._encoding, self._note = encoding, note
        self._ended = Event()
        Thread(target=self._write_lines, name="dragoman-log", daemon=True).start()

    def prepare(self, record: LogRecord) -> bytes:
        """Format a record in the thread that logs it."""
        return f"{self.format(record)}\n".encode(self._encoding, "backslashreplace")

    def emit(self, record: LogRecord) -> None:
        """Put a line into the queue, without waiting."""
        try:
            self._lines.put_nowait(self.prepare(record))
        except Full:
            DROPPED[record.levelname.lower()] += 1

    def flush(self) -> None:
        """Wait until the lines of the queue are written, for a second at most; `logging` does so at the end."""
        written = Event()
        if self._ended.is_set():
            return
        with suppress(Full):
            self._lines.put(written, timeout=_AT_END)
            written.wait(_AT_END)

    def close(self) -> None:
        """Let the thread end when the queue is empty."""
        self._ended.set()
        with suppress(Full):
            self._lines.put_nowait(self._ended)
        super().close()

    def _write_lines(self) -> None:
        noted = DROPPED.total()
        while not (self._ended.is_set() and self._lines.empty()):
            batch = [self._lines.get()]
            # Lines dropped by now are newer than those in the queue.
            dropped = DROPPED.total() - noted
            with suppress(Empty):
                while len(batch) < _CAPACITY:
                    batch.append(self._lines.get_nowait())
            self._write(b"".join(line for line in batch if isinstance(line, bytes)))
            if dropped:
                self._write(self.prepare(self._note(dropped)))
                noted += dropped
            for marker in batch:
                if isinstance(marker, Event):
                    marker.set()
        os.close(self._file)

    def _write(self, lines: bytes) -> None:
        # The reader may be gone; there is no other place for the lines.
        with suppress(OSError):
            while lines:
                try:
                    lines = lines[os.write(self._file, lines) :]
                except BlockingIOError:
                    # Another process that shares the file has made it non-blocking.
                    waiting = select.poll()
                    waiting.register(self._file, select.POLLOUT)
                    waiting.poll()


def find_reader(stream: TextIO) -> int | None:
    """Return the descriptor of a stream that leads to a pipe, a socket or a terminal."""
    # A stream may have no descriptor, or be closed.
    with suppress(OSError, ValueError, AttributeError):
        file = stream.fileno()
        kind = os.fstat(file).st_mode
        if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(file):
            return file
    return None

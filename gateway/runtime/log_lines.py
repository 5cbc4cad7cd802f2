"""Where log lines go: a file, or somebody who reads them behind a pipe, a socket or a terminal.

Nobody waits for a reader that has stopped reading: lines wait for it, as many as there is room for.
"""

import atexit
import os
import select
import socket
import stat
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Lock, Thread
from typing import TextIO

_WAITING = 1024 * 1024
"""Bytes of lines that wait for a reader; what comes beyond them is dropped."""
_LAST = 0.5
"""Seconds that a process which ends waits for its log to be read."""

DROPPED: Counter[str] = Counter()
"""Lines that were dropped because nobody read those before them, by level; all of the process."""


class FileLines:
    """Lines for a file, or for a stream of Python's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = Lock()

    def write(self, line: bytes, level: str) -> None:
        del level
        text = line.decode()
        # The stream may be closed, or its disk full; there is no other place to say so.
        with self._lock, suppress(OSError, ValueError):
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                # A terminal that is not UTF-8.
                self._stream.write(text.encode("ascii", "backslashreplace").decode())
            self._stream.flush()

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class ReaderLines:
    """Lines for somebody who reads them, behind a pipe, a socket or a terminal, and may stop reading.

    A line is written at once where the reader takes it. Else it waits, whole or what is left of it, and those that
    come after it wait behind it; a thread writes them when they are taken. What finds no room is dropped, until all
    that waits is written; then one line says how many there were.
    """

    def __init__(self, file: "_Taker", encoding: str, say: Callable[[int], bytes]) -> None:
        self._file = file
        self._encoding = None if encoding.lower() in {"utf-8", "utf8"} else encoding
        self._say = say
        self._lock = Lock()
        self._come: deque[tuple[bytes, str]] = deque()
        """Lines that nobody has looked at; anybody may add one."""
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped: Counter[str] = Counter()
        self._is_served = False
        """Whether a thread writes what waits."""
        self._is_over = False
        atexit.register(self.flush)

    def write(self, line: bytes, level: str) -> None:
        if self._encoding is not None:
            line = line.decode().encode(self._encoding, "backslashreplace")
        self._come.append((line, level))
        self._take_on()

    def flush(self) -> None:
        """Wait for what waits to be read, for a moment."""
        until = time.monotonic() + _LAST
        while not self._is_done() and time.monotonic() < until:
            self._take_on()
            time.sleep(0.001)

    def close(self) -> None:
        """Be the place for lines no more; what waits is still written."""
        atexit.unregister(self.flush)
        with self._lock:
            self._is_over = True
            if not self._waiting:
                self._file.close()

    def _is_done(self) -> bool:
        # Under the lock, so that no line is on its way from the one to the other.
        with self._lock:
            return not self._come and not self._waiting

    def _take_on(self) -> None:
        """Look at what has come; where somebody else is at it, he does it, so that nobody waits for anybody."""
        while self._come and self._lock.acquire(blocking=False):
            try:
                while self._come:
                    line, level = self._come.popleft()
                    rest = line if self._waiting else self._written(line)
                    if rest:
                        self._keep(rest, level)
            finally:
                self._lock.release()

    def _written(self, line: bytes) -> bytes:
        """Write as much of a line as is taken now; returns the rest."""
        try:
            while line:
                line = line[self._file.take(line) :]
        except BlockingIOError:
            return line
        except (OSError, ValueError):
            # The reader is gone; there is no other place to say so.
            return b""
        return line

    def _keep(self, line: bytes, level: str) -> None:
        if self._waiting and (self._dropped or self._size + len(line) > _WAITING):
            self._dropped[level] += 1
            DROPPED[level] += 1
        else:
            self._waiting.append(line)
            self._size += len(line)
        if not self._is_served:
            # Where no thread can be started now, the next line tries again.
            with suppress(RuntimeError):
                Thread(target=self._serve, name="dragoman-log", daemon=True).start()
                self._is_served = True

    def _serve(self) -> None:
        """Write what waits, as it is taken, until nothing waits any more."""
        looks = select.poll()
        looks.register(self._file.number, select.POLLOUT)
        while True:
            looks.poll()
            with self._lock:
                before = self._size
                self._write_on()
                is_done, got_on = not self._waiting, self._size != before
                if is_done:
                    self._is_served = False
                    if self._is_over:
                        self._file.close()
            self._take_on()
            if is_done:
                return
            if not got_on:
                # There is room, though not for this.
                time.sleep(0.01)

    def _write_on(self) -> None:
        while self._waiting:
            line = self._waiting.popleft()
            rest = self._written(line)
            self._size -= len(line) - len(rest)
            if rest:
                self._waiting.appendleft(rest)
                return
            if not self._waiting and self._dropped:
                self._waiting.append(self._note())
                self._size += len(self._waiting[0])

    def _note(self) -> bytes:
        count = self._dropped.total()
        self._dropped.clear()
        return self._say(count)


class _Taker:
    """A pipe, socket or terminal that is written to and never waited for."""

    def __init__(self, number: int, take: Callable[[bytes], int], close: Callable[[], None]) -> None:
        """Write by `take`, which raises BlockingIOError where nothing is taken now."""
        self.number, self.take, self._close = number, take, close

    def close(self) -> None:
        # Its number may be another file's from now on.
        self.take = _refuse
        self._close()


def _refuse(_line: bytes) -> int:
    raise ValueError("the log goes elsewhere by now")


def _taker_of(number: int) -> _Taker | None:
    """Open once more what a descriptor leads to, if somebody reads it; others who write to it see no change."""
    kind = os.fstat(number).st_mode
    if stat.S_ISSOCK(kind):
        peer = socket.socket(fileno=os.dup(number))
        return _Taker(peer.fileno(), lambda line: peer.send(line, socket.MSG_DONTWAIT), peer.close)
    if not stat.S_ISFIFO(kind) and not os.isatty(number):
        return None
    try:
        # Not to wait is a property of what was opened, which other processes may share.
        own = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        # No Linux, or another user's: looked at before each write, and no more written than has room then.
        own = os.dup(number)
        looks = select.poll()
        looks.register(own, select.POLLOUT)
        return _Taker(own, partial(_write_if_ready, looks, own), partial(os.close, own))
    return _Taker(own, partial(os.write, own), partial(os.close, own))


def _write_if_ready(looks: select.poll, number: int, line: bytes) -> int:
    if not looks.poll(0):
        raise BlockingIOError
    return os.write(number, line[: select.PIPE_BUF])


def lines_for(stream: TextIO, say: Callable[[int], bytes]) -> FileLines | ReaderLines:
    """Find out who takes the lines of a stream; `say` writes the line that so many were dropped."""
    taker = None
    # A stream of Python's own has no descriptor, and one that is closed none any more.
    with suppress(OSError, ValueError, AttributeError):
        taker = _taker_of(stream.fileno())
    if taker is None:
        return FileLines(stream)
    return ReaderLines(taker, getattr(stream, "encoding", None) or "utf-8", say)

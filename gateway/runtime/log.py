"""Log lines: one for each thing that happens, JSON or coloured, with secrets masked whoever wrote them.

Our own loggers (structlog) and those of libraries (the standard `logging`) run through the same steps
and end in one stream. What is masked is decided in `gateway.runtime.masking`. Nobody waits for a reader that
has stopped reading: lines wait for it, as many as there is room for.
"""

import atexit
import logging
import os
import select
import socket
import stat
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from functools import partial
from threading import Event, Lock, Thread
from typing import Literal, TextIO, cast

import orjson
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from gateway.runtime.masking import mask_facts, masked, register_secret as register_secret

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "console"]

_LEVELS: Mapping[Level, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_FIRST = ("level", "logger", "event")
_QUIET = {
    # These write whole packets, headers or bodies below these levels, and secrets travel in them.
    "engineio": logging.WARNING,
    "socketio": logging.WARNING,
    "httpcore": logging.INFO,
    # A line for each request of ours, which our own lines tell already.
    "httpx": logging.WARNING,
    # A line for each request, and what clients did wrong, which they are told.
    "mcp": logging.ERROR,
    "sse_starlette": logging.WARNING,
    "websockets": logging.INFO,
    "aiosqlite": logging.INFO,
}
_OWN_HANDLERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "engineio", "socketio", "asyncio", "aiohttp")


_WAITING = 1024 * 1024
"""Bytes of lines that wait for a reader; what comes beyond them is dropped."""
_LAST = 0.5
"""Seconds that a process which ends waits for its log to be read."""

DROPPED: Counter[str] = Counter()
"""Lines that were dropped because nobody read those before them, by level; all of the process."""


class _Written:
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


class _Read:
    """Lines for somebody who reads them, behind a pipe, a socket or a terminal, and may stop reading.

    A line is written at once where the reader takes it. Else it waits, whole or what is left of it, and those that
    come after it wait behind it; a thread writes them when they are taken. What finds no room is dropped, until all
    that waits is written; then one line says how many there were.
    """

    def __init__(self, file: "_Taker", encoding: str, say: Callable[[EventDict], bytes]) -> None:
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
        self._idle = Event()
        self._idle.set()
        atexit.register(self.flush)

    def write(self, line: bytes, level: str) -> None:
        if self._encoding is not None:
            line = line.decode().encode(self._encoding, "backslashreplace")
        self._come.append((line, level))
        self._take_on()

    def flush(self) -> None:
        """Wait for what waits to be read, for a moment."""
        self._idle.wait(_LAST)

    def close(self) -> None:
        """Be the place for lines no more; what waits is still written."""
        atexit.unregister(self.flush)
        with self._lock:
            self._is_over = True
            if not self._waiting:
                self._file.close()

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
            self._idle.clear()
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
                    self._idle.set()
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
        return self._say(
            {
                "timestamp": _iso(datetime.now(UTC)),
                "level": "warning",
                "logger": __name__,
                "event": "log lines were dropped: nobody read those before them",
                "count": count,
            }
        )


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


class _Output:
    """Where all lines go; exchanged by `configure`, so that loggers made earlier follow."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._stream: TextIO | None = None
        self._console: structlog.dev.ConsoleRenderer | None = None
        self._place: tuple[TextIO | None, _Written | _Read | None] = (None, None)
        """The stream that was written to last, and how."""

    def direct(self, stream: TextIO | None, *, console: bool) -> None:
        renderer = None
        if console:
            renderer = structlog.dev.ConsoleRenderer(
                colors=(stream or sys.stderr).isatty(),
                exception_formatter=structlog.dev.plain_traceback,
                sort_keys=False,
            )
        with self._lock:
            self._stream, self._console = stream, renderer

    def write(self, facts: EventDict) -> None:
        level = facts["level"]
        line = self._rendered(facts)
        stream = self._stream or sys.stderr
        known, place = self._place
        if place is None or known is not stream:
            place = self._place_for(stream)
        place.write(line, level)

    def flush(self) -> None:
        """Wait for lines to be read that wait for that, for a moment."""
        place = self._place[1]
        if place is not None:
            place.flush()

    def _rendered(self, facts: EventDict) -> bytes:
        exception = facts.pop("exception", None)
        timestamp = facts.pop("timestamp")
        ordered = {name: facts.pop(name) for name in _FIRST if name in facts}
        line = {"timestamp": timestamp, **mask_facts({**ordered, **facts})}
        if exception is not None:
            line["exception"] = masked(exception, keep_end=True)
        console = self._console
        if console is None:
            return orjson.dumps(line, default=repr, option=orjson.OPT_APPEND_NEWLINE)
        line["event"] = str(line["event"]).replace("\n", " ")
        return f"{console(None, '', line)}\n".encode(errors="backslashreplace")

    def _place_for(self, stream: TextIO) -> _Written | _Read:
        with self._lock:
            known, place = self._place
            if place is not None:
                if known is stream:
                    return place
                place.close()
            taker = None
            # A stream of Python's own has no descriptor, and one that is closed none any more.
            with suppress(OSError, ValueError, AttributeError):
                taker = _taker_of(stream.fileno())
            encoding = getattr(stream, "encoding", None) or "utf-8"
            place = _Written(stream) if taker is None else _Read(taker, encoding, self._rendered)
            self._place = stream, place
            return place


_output = _Output()


class _Wrapped:
    """What structlog wraps: only the logger's name, since `_write` has already written the line."""

    def __init__(self, name: str = "gateway") -> None:
        self.name = name


class _Records(logging.Handler):
    """Takes the records of libraries into our lines."""

    def emit(self, record: logging.LogRecord) -> None:
        facts: EventDict = {
            "timestamp": _iso(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _message(record),
            **structlog.contextvars.get_contextvars(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            facts["exception"] = _traceback(record.exc_info[1])
        _output.write(facts)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        # A library's own mistake in its arguments must not cost the line, nor print the arguments elsewhere.
        return str(record.msg)


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _traceback(exc: BaseException) -> str:
    return "".join(traceback.format_exception(exc))


def _write(logger: WrappedLogger, method: str, facts: EventDict) -> EventDict:
    facts["timestamp"] = _iso(datetime.now(UTC))
    facts["level"] = method
    facts.setdefault("logger", logger.name)
    match facts.pop("exc_info", None):
        case BaseException() as exc:
            facts["exception"] = _traceback(exc)
        case None | False:
            pass
        case _:
            exc = sys.exc_info()[1]
            if exc is not None:
                facts["exception"] = _traceback(exc)
    _output.write(facts)
    if method == "critical":
        # The last word of a process that ends without going the usual way.
        _output.flush()
    raise structlog.DropEvent


_STEPS: list[Processor] = [structlog.contextvars.merge_contextvars, _write]


# `format` is the name of the key in the YAML.
def configure(*, level: Level = "info", format: Format = "auto", stream: TextIO | None = None) -> None:  # noqa: A002
    """Send every line, ours and those of libraries, to one stream (standard error by default); may be repeated."""
    target = stream or sys.stderr
    _output.direct(stream, console=format == "console" or (format == "auto" and target.isatty()))
    number = _LEVELS[level]
    structlog.configure(
        processors=_STEPS,
        logger_factory=_Wrapped,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # A cached logger would keep the level of its first line.
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, _Records)]:
        root.removeHandler(handler)
    root.addHandler(_Records())
    root.setLevel(number)
    for name in _OWN_HANDLERS:
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
        library.setLevel(logging.NOTSET)
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(max(number, least))


def get_logger(name: str) -> FilteringBoundLogger:
    """Make a logger that masks even before `configure`, and follows it; plain `structlog.get_logger` only follows.

    In a loop that logs at debug for every frame, `.bind()` it once: a bound logger costs nothing below its level.
    """
    return cast("FilteringBoundLogger", structlog.wrap_logger(_Wrapped(name), processors=_STEPS))


def context(
    *,
    session_id: str | None = None,
    runtime: str | None = None,
    call_id: str | None = None,
    attempt: int | None = None,
) -> AbstractContextManager[None]:
    """Put these facts on every line written inside, by this task and what it waits for."""
    facts = {"session_id": session_id, "runtime": runtime, "call_id": call_id, "attempt": attempt}
    return cast(
        "AbstractContextManager[None]",
        structlog.contextvars.bound_contextvars(**{name: fact for name, fact in facts.items() if fact is not None}),
    )

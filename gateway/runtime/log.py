"""Log lines: one for each thing that happens, JSON or coloured, with secrets masked whoever wrote them.

Our own loggers (structlog) and those of libraries (the standard `logging`) run through the same steps
and end in one stream. What is masked is decided in `gateway.runtime.masking`.
"""

import logging
import sys
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from threading import Lock
from typing import Literal, TextIO, cast

import orjson
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from gateway.runtime.log_lines import FileLines, ReaderLines, lines_for
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
    # A line for each request, with its query, where callback tokens are.
    "uvicorn.access": logging.WARNING,
    "websockets": logging.INFO,
    "aiosqlite": logging.INFO,
}
_OWN_HANDLERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "engineio", "socketio", "asyncio", "aiohttp")


class _Output:
    """Where all lines go; exchanged by `configure`, so that loggers made earlier follow."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._stream: TextIO | None = None
        self._console: structlog.dev.ConsoleRenderer | None = None
        self._place: tuple[TextIO | None, FileLines | ReaderLines | None] = (None, None)
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

    def _place_for(self, stream: TextIO) -> FileLines | ReaderLines:
        with self._lock:
            known, place = self._place
            if place is not None:
                if known is stream:
                    return place
                place.close()
            place = lines_for(stream, self._dropped)
            self._place = stream, place
            return place

    def _dropped(self, count: int) -> bytes:
        return self._rendered(
            {
                "timestamp": _iso(datetime.now(UTC)),
                "level": "warning",
                "logger": __name__,
                "event": "log lines were dropped: nobody read those before them",
                "count": count,
            }
        )


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

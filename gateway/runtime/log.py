"""Log lines: JSON, or short lines for a terminal, without registered secrets.

The gateway's own loggers (structlog) and those of libraries (`logging`) share one handler and one formatter.
"""

import logging
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, cast

import orjson
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from gateway.runtime.log_queue import LineQueue, find_reader
from gateway.runtime.masking import clean, clean_traceback, register_secret as register_secret

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "console"]

_LEVELS: Mapping[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_FIRST = ("level", "logger", "event", "reason")
_COLORS = {"debug": 36, "info": 32, "warning": 33, "error": 31, "critical": 31}
_QUIET = {
    # These log whole packets, headers or bodies below these levels.
    "engineio": logging.WARNING,
    "socketio": logging.WARNING,
    "httpcore": logging.INFO,
    # One line for each of our requests, which our own lines already describe.
    "httpx": logging.WARNING,
    # One line for each request, and errors of clients, which the response explains.
    "mcp": logging.ERROR,
    "sse_starlette": logging.WARNING,
    # One line for each request, with its query, which may contain a callback token.
    "uvicorn.access": logging.WARNING,
    "websockets": logging.INFO,
    "aiosqlite": logging.INFO,
}
_OWN_HANDLERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "engineio", "socketio", "asyncio", "aiohttp")


class _Formatter(logging.Formatter):
    """Writes a record as one line; `msg` of a record of our own holds its facts."""

    def __init__(self, *, console: bool, colors: bool) -> None:
        super().__init__()
        self._console, self._colors = console, colors

    def format(self, record: logging.LogRecord) -> str:
        facts = _read(record)
        level = record.levelname.lower()
        facts = {"level": level, "logger": record.name, **facts}
        ordered = {name: facts.pop(name) for name in _FIRST if name in facts} | facts
        # Names come from our own code; only values may come from a peer.
        line = {name: clean(fact) for name, fact in ordered.items() if fact is not None}
        exception = _write_traceback(record)
        moment = datetime.fromtimestamp(record.created, UTC)
        if self._console:
            return self._write_short(level, moment, line) + (f"\n{exception}" if exception else "")
        timestamp = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
        if exception:
            line["exception"] = exception
        return orjson.dumps({"timestamp": timestamp, **line}).decode()

    def _write_short(self, level: str, moment: datetime, line: dict[str, Any]) -> str:
        label = f"\x1b[{_COLORS[level]}m{level:<8}\x1b[0m" if self._colors else f"{level:<8}"
        reason = f": {line['reason']}" if "reason" in line else ""
        text = f"{line['event']}{reason}".replace("\n", " ")
        facts = (f"  {name}={_write_fact(fact)}" for name, fact in line.items() if name not in _FIRST)
        return f"{moment.astimezone():%H:%M:%S} {label} {text}{''.join(facts)}"


def _write_fact(fact: Any) -> str:
    if isinstance(fact, str) and fact and not set(fact) & set(' "=\n'):
        return fact
    return orjson.dumps(fact).decode()


def _read(record: logging.LogRecord) -> dict[str, Any]:
    own: object = record.msg
    if isinstance(own, dict):
        return cast("dict[str, Any]", own)
    # A library may pass arguments that do not fit its message.
    message = str(record.msg)
    with suppress(TypeError, ValueError, KeyError):
        message = record.getMessage()
    return {"event": message, **structlog.contextvars.get_contextvars()}


def _write_traceback(record: logging.LogRecord) -> str | None:
    if not record.exc_info or record.exc_info[1] is None:
        return None
    return clean_traceback("".join(traceback.format_exception(record.exc_info[1])))


class _StreamHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a file or to a stream of Python."""

    def format(self, record: logging.LogRecord) -> str:
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        return super().format(record).encode(encoding, "backslashreplace").decode(encoding)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is that of `logging`
        """Drop a line that cannot be written: there is no other place for it."""


def _make_handler(stream: TextIO, *, console: bool) -> logging.Handler:
    file = find_reader(stream)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    handler = _StreamHandler(stream) if file is None else LineQueue(file, encoding, _note_dropped)
    handler.setFormatter(_Formatter(console=console, colors=stream.isatty()))
    return handler


def _note_dropped(count: int) -> logging.LogRecord:
    facts = {"event": "log lines dropped", "reason": "the reader of the log was too slow", "count": count}
    return logging.makeLogRecord({"name": __name__, "levelname": "WARNING", "msg": facts})


class _Output:
    """The handler of all lines, created for the first line and replaced by `configure`."""

    def __init__(self) -> None:
        self._handler: logging.Handler | None = None

    @property
    def handler(self) -> logging.Handler:
        if self._handler is None:
            self._handler = _make_handler(sys.stderr, console=False)
        return self._handler

    def replace(self, handler: logging.Handler) -> None:
        old, self._handler = self._handler, handler
        if old is not None:
            logging.getLogger().removeHandler(old)
            old.close()


_output = _Output()


class _Named:
    """The logger that structlog wraps; `_write` needs only its name."""

    def __init__(self, name: str = "gateway") -> None:
        self.name = name


def _write(logger: WrappedLogger, method: str, facts: EventDict) -> EventDict:
    name, given = facts.pop("logger", logger.name), facts.pop("exc_info", None)
    exc = given if isinstance(given, BaseException) else sys.exc_info()[1] if given else None
    info = None if exc is None else (type(exc), exc, exc.__traceback__)
    record = logging.LogRecord(name, _LEVELS[method], "", 0, cast("Any", facts), None, info)
    _output.handler.handle(record)
    if method == "critical":
        # The process is about to end without its usual steps.
        _output.handler.flush()
    raise structlog.DropEvent


_STEPS: list[Processor] = [structlog.contextvars.merge_contextvars, _write]


# `format` is the name of the key in the YAML.
def configure(*, level: Level = "info", format: Format = "auto", stream: TextIO | None = None) -> None:  # noqa: A002
    """Send the lines of the gateway and of libraries to one stream, standard error by default; call it again to change.

    `auto` writes short lines to a terminal and JSON to anything else.
    """
    target = stream or sys.stderr
    handler = _make_handler(target, console=format == "console" or (format == "auto" and target.isatty()))
    _output.replace(handler)
    number = _LEVELS[level]
    structlog.configure(
        processors=_STEPS,
        logger_factory=_Named,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # A cached logger would keep the level of its first line.
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(number)
    for name in _OWN_HANDLERS:
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
        library.setLevel(logging.NOTSET)
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(max(number, least))


def get_logger(name: str) -> FilteringBoundLogger:
    """Make a logger that masks even before `configure`.

    In a loop that logs at debug for every frame, `.bind()` it once: a bound logger costs nothing below its level.
    """
    return cast("FilteringBoundLogger", structlog.wrap_logger(_Named(name), processors=_STEPS))

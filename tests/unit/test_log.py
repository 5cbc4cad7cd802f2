"""One line a happening, whoever writes it, and no secret in any of them."""

import asyncio
import fcntl
import io
import json
import logging
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, TextIO
from urllib.parse import quote

import pytest
import structlog
from hypothesis import given, strategies as st

from gateway.runtime import log
from gateway.runtime.log_queue import DROPPED
from gateway.runtime.masking import clean, clean_text, clean_traceback

Lines = Callable[[], list[dict[str, Any]]]
CANARY = "canary-7Hq2"
log.register_secret(CANARY)


@pytest.fixture(autouse=True)
def _levels_forgotten() -> None:
    for name in ("engineio.client", "socketio.client"):
        # A client that an earlier test made has set its own logger's level.
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture
def lines() -> Lines:
    stream = io.StringIO()
    log.configure(level="info", format="json", stream=stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_time_level_logger_event_and_facts_in_this_order(lines: Lines) -> None:
    log.get_logger("gateway.runtime").info("call settled", call_id="c1", outcome="success", seconds=0.5)
    [line] = lines()
    assert list(line) == ["timestamp", "level", "logger", "event", "call_id", "outcome", "seconds"]
    assert line["timestamp"].endswith("Z")
    assert {name: line[name] for name in list(line)[1:]} == {
        "level": "info", "logger": "gateway.runtime", "event": "call settled",
        "call_id": "c1", "outcome": "success", "seconds": 0.5,
    }  # fmt: skip


def test_lines_of_libraries_have_the_same_form(lines: Lines) -> None:
    logging.getLogger("uvicorn.access").warning("%s said %s", "it", "so")
    [line] = lines()
    assert list(line) == ["timestamp", "level", "logger", "event"]
    assert (line["level"], line["logger"], line["event"]) == ("warning", "uvicorn.access", "it said so")


def test_lines_below_the_level_are_not_written(lines: Lines) -> None:
    log.get_logger("gateway").debug("frame <")
    logging.getLogger("aiohttp.client").debug("noise")
    assert lines() == []


def test_libraries_that_log_whole_packets_are_kept_quiet_even_at_debug() -> None:
    stream = io.StringIO()
    log.configure(level="debug", format="json", stream=stream)
    logging.getLogger("engineio.client").info("Sending packet MESSAGE data 2[%s]", "sudo password")
    logging.getLogger("socketio.client").info("Emitting event message [%s]", "sudo password")
    assert "sudo password" not in stream.getvalue()


def test_configuring_again_changes_loggers_made_before_and_writes_nothing_twice() -> None:
    logger = log.get_logger("gateway")
    first, second = io.StringIO(), io.StringIO()
    log.configure(level="info", format="json", stream=first)
    logger.info("one")
    log.configure(level="debug", format="json", stream=second)
    log.configure(level="debug", format="json", stream=second)
    logger.debug("two")
    logging.getLogger("uvicorn").info("three")
    assert len(first.getvalue().splitlines()) == 1
    assert [json.loads(line)["event"] for line in second.getvalue().splitlines()] == ["two", "three"]


def test_a_logger_of_plain_structlog_writes_the_same_lines(lines: Lines) -> None:
    structlog.get_logger("gateway.http").warning("by name", url=f"http://h/?apiKey={CANARY}")
    structlog.get_logger().warning("without one")
    assert [(line["logger"], line["event"]) for line in lines()] == [
        ("gateway.http", "by name"), ("gateway", "without one"),
    ]  # fmt: skip
    assert lines()[0]["url"] == "http://h/?apiKey=***"


_LOGS_BEFORE_CONFIGURE = """
from gateway.runtime import log
log.register_secret("canary-7Hq2")
log.get_logger("gateway").warning("early", text="canary-7Hq2")
"""


def test_a_logger_used_before_configure_masks_all_the_same() -> None:
    command = [sys.executable, "-c", _LOGS_BEFORE_CONFIGURE]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(ended.stderr)["text"] == "***"


def test_the_reason_comes_first_and_nulls_are_left_out(lines: Lines) -> None:
    log.get_logger("gateway").warning("call failed", call_id="c1", unknown=None, reason="no answer")
    [line] = lines()
    assert list(line) == ["timestamp", "level", "logger", "event", "reason", "call_id"]


def test_a_terminal_gets_a_short_line() -> None:
    stream = io.StringIO()
    log.configure(format="console", stream=stream)
    log.get_logger("gateway").warning("call failed", session="ada/s_1", reason="no answer", error="two words", size=5)
    time, line = stream.getvalue().split(" ", 1)
    assert len(time) == len("12:31:02")
    assert line == 'warning  call failed: no answer  session=ada/s_1  error="two words"  size=5\n'


def test_a_terminal_gets_colours_and_a_pipe_gets_json() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, pipe = Terminal(), io.StringIO()
    log.configure(stream=terminal)
    log.get_logger("gateway").info("ready", port=8080)
    log.configure(stream=pipe)
    log.get_logger("gateway").info("ready", port=8080)
    assert "\x1b[" in terminal.getvalue()
    assert json.loads(pipe.getvalue())["port"] == 8080


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_peer_cannot_forge_a_line_or_steer_the_terminal(form: log.Format) -> None:
    stream = io.StringIO()
    log.configure(format=form, stream=stream)
    log.get_logger("gateway").info("name given\nforged", name="x\nforged\x1b[2J\u2028forged\ud800")
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


def test_a_stream_that_is_closed_costs_nobody_anything() -> None:
    stream = io.StringIO()
    log.configure(format="json", stream=stream)
    stream.close()
    log.get_logger("gateway").info("into the void")


def test_a_terminal_that_is_not_utf8_still_gets_the_line() -> None:
    raw = io.BytesIO()
    log.configure(format="console", stream=io.TextIOWrapper(raw, encoding="ascii"))
    log.get_logger("gateway").info("grüße")
    assert b"gr\\xfc\\xdfe" in raw.getvalue()


def test_a_library_that_gives_wrong_arguments_still_gets_its_line(lines: Lines) -> None:
    # The test runner's own handlers would raise; ours must not.
    root = logging.getLogger()
    root.handlers[:] = [one for one in root.handlers if type(one).__module__ == log.__name__]
    template = "%s and %s"
    logging.getLogger("uvicorn.error").error(template, "one")
    assert [line["event"] for line in lines()] == ["%s and %s"]


@pytest.mark.requirement("A40")
def test_no_key_of_a_query_string_is_in_any_line(lines: Lines) -> None:
    log.register_secret("ak_9x8y7z")
    url = "wss://huma.example.com/socket.io/?agentId=a1&apiKey=ak_9x8y7z&EIO=4"
    logging.getLogger("engineio.client").warning("Attempting connection to %s", url)
    logging.getLogger("uvicorn.access").warning('%s - "%s %s HTTP/%s" %d', "127.0.0.1", "GET", url, "1.1", 101)
    log.get_logger("gateway").info("connecting", url=url, headers={"X-API-Key": "ak_9x8y7z"})
    log.get_logger("gateway").info("connecting", text="to " + quote(url, safe=""))
    try:
        raise ConnectionError(f"cannot connect to {url}")
    except ConnectionError:
        log.get_logger("gateway").exception("link lost")
        logging.getLogger("asyncio").exception("Task exception was never retrieved")
    written = lines()
    assert len(written) == 6
    assert "ak_9x8y7z" not in json.dumps(written)
    assert "agentId=a1" in json.dumps(written)


async def test_the_exception_of_a_lost_task_is_masked_too(lines: Lines) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"lost {CANARY}", "exception": ValueError(f"https://u:{CANARY}@host/")}
    )
    [line] = lines()
    assert "ValueError" in line["exception"]
    assert CANARY not in json.dumps(line)


PLAIN = st.text(max_size=30)
SHAPES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.tuples(PLAIN, PLAIN).map(CANARY.join),
        st.just(ValueError(f"no {CANARY}")),
        st.just(CANARY.encode()),
        st.just(quote(f"?x={CANARY}")),
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(PLAIN | st.just(f"k{CANARY}"), inner, max_size=3)
        | st.tuples(inner)
    ),
    max_leaves=5,
)


@given(event=PLAIN, before=PLAIN, after=PLAIN, fact=SHAPES, form=st.sampled_from(["json", "console"]))
def test_a_registered_secret_is_in_no_position_of_any_line(
    event: str, before: str, after: str, fact: Any, form: log.Format
) -> None:
    stream = io.StringIO()
    log.configure(format=form, stream=stream)
    logger = log.get_logger("gateway")
    logger.info(CANARY.join((event, after)), fact=fact, other=f"{before}{CANARY}")
    logger.error("failed", exc_info=RuntimeError(f"{before}{CANARY}{after}"))
    logging.getLogger(f"lib.{CANARY}").warning("%s %s", fact, CANARY)
    assert stream.getvalue().count("\n") >= 3
    assert CANARY not in stream.getvalue()


def test_values_are_bounded_and_no_half_secret_is_left_at_the_cut() -> None:
    assert len(clean_text("x" * 10_000_000)) <= 2_001
    # Masking shrinks this text until the place where it was cut, in the middle of a secret, comes into view.
    long = "¤canary¤" + "x" * 1_500
    log.register_secret(long)
    assert "xxxx" not in clean_text(f" {long * 100}")
    assert "xxxx" not in clean_traceback(f"{long * 100} ")
    assert len(str(clean({"n": 10**10_000})["n"])) < 100


def test_a_long_traceback_keeps_its_last_line() -> None:
    text = clean_traceback("frame\n" * 50_000 + "ValueError: the reason")
    assert len(text) <= 8_010
    assert text.endswith("ValueError: the reason")


def test_an_exception_that_cannot_be_written_does_not_break_the_line(
    lines: Lines,
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    log.get_logger("gateway").error("failed", cause=Mute(), exc_info=Mute())
    assert "Mute" in lines()[0]["cause"]


@given(SHAPES | st.floats() | st.integers() | st.binary())
def test_whatever_is_logged_becomes_one_json_line(fact: Any) -> None:
    stream = io.StringIO()
    log.configure(format="json", stream=stream)
    log.get_logger("gateway").info("happened", fact=fact)
    [line] = stream.getvalue().splitlines()
    assert json.loads(line)["event"] == "happened"


LIMIT = 5.0


class Behind:
    """A log whose lines go to a reader who reads when he is told to."""

    def __init__(self, reader: int, stream: TextIO) -> None:
        self.reader, self.stream = reader, stream
        self._text = b""

    def say(self, *lines: dict[str, Any]) -> None:
        """Log lines; where that waits for the reader, it fails."""
        work = threading.Thread(
            target=lambda: [log.get_logger("gateway").info("said", **one) for one in lines], daemon=True
        )
        work.start()
        work.join(LIMIT)
        assert not work.is_alive()

    def read(self) -> Iterator[dict[str, Any]]:
        """Read line by line, and wait for the next."""
        while True:
            line, newline, rest = self._text.partition(b"\n")
            if newline:
                self._text = rest
                yield json.loads(line)
            else:
                self._text += os.read(self.reader, 65_536)

    def numbers(self, count: int) -> list[int]:
        lines = self.read()
        return [next(lines)["number"] for _ in range(count)]


@pytest.fixture(params=["pipe", "terminal"])
def behind(request: pytest.FixtureRequest) -> Generator[Behind]:
    if request.param == "terminal":
        reader, writer = pty.openpty()
    else:
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    stream = os.fdopen(writer, "w")
    log.configure(format="json", stream=stream)
    made = Behind(reader, stream)
    made.say({})
    assert next(made.read())["event"] == "said"
    yield made
    os.close(reader)
    log.configure(format="json", stream=io.StringIO())
    log.get_logger("gateway").info("elsewhere")
    stream.close()


def lines_of(count: int, size: int) -> list[dict[str, Any]]:
    return [{"number": number, "text": "z" * size} for number in range(count)]


def test_lines_wait_for_a_reader_and_come_whole_and_in_order(behind: Behind) -> None:
    behind.say(*lines_of(150, 1_000), {"number": 150, **{f"fact_{n}": "y" * 2_000 for n in range(5)}}, {"number": 151})
    assert os.get_blocking(behind.stream.fileno())
    assert behind.numbers(152) == list(range(152))
    behind.say({"number": 152})
    assert behind.numbers(1) == [152]


def test_lines_without_room_are_dropped_and_counted_in_one_line(behind: Behind) -> None:
    before = DROPPED["info"]
    behind.say(*lines_of(5_000, 1_900))
    lines = behind.read()
    kept: list[int] = []
    while "number" in (line := next(lines)):
        kept.append(line["number"])
    assert kept == list(range(len(kept)))
    assert 2_000 <= len(kept) < 5_000
    assert (line["level"], line["logger"], line["event"]) == ("warning", "gateway.runtime.log", "log lines dropped")
    assert DROPPED["info"] - before == line["count"] == 5_000 - len(kept)
    behind.say({"number": 5})
    assert next(lines)["number"] == 5


def test_lines_of_many_threads_come_whole_while_the_reader_is_slow(behind: Behind) -> None:
    def work(name: int) -> None:
        for number in range(50):
            log.get_logger("gateway").info("said", thread=name, number=number, text="x" * 700)

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in range(6)]
    for one in threads:
        one.start()
    found: dict[int, list[int]] = {name: [] for name in range(6)}
    lines = behind.read()
    for _ in range(300):
        line = next(lines)
        found[line["thread"]].append(line["number"])
    assert found == {name: list(range(50)) for name in range(6)}


def test_the_last_word_waits_for_its_reader_for_a_moment_only(behind: Behind) -> None:
    behind.say(*lines_of(100, 1_000))
    log.get_logger("gateway").critical("leaving", number=100)
    assert behind.numbers(101) == list(range(101))


def test_a_reader_that_goes_away_costs_nobody_anything() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        log.configure(format="json", stream=stream)
        behind = Behind(reader, stream)
        behind.say(*lines_of(200, 1_000))
        os.close(reader)
        behind.say(*lines_of(200, 1_000))
        log.configure(format="json", stream=io.StringIO())
        log.get_logger("gateway").info("elsewhere")


def test_a_reader_that_is_not_utf8_still_gets_the_line() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="ascii") as stream:
        log.configure(format="console", stream=stream)
        log.get_logger("gateway").info("grüße")
        assert b"gr\\xfc\\xdfe" in os.read(reader, 4096)
        log.configure(format="json", stream=io.StringIO())
        log.get_logger("gateway").info("elsewhere")
    os.close(reader)


_SAYS_MUCH_AND_ENDS = """
from gateway.runtime import log
log.configure(format="json")
for number in range(12):
    log.get_logger("gateway").info("said", number=number, text="x" * 1_000)
"""


@pytest.mark.parametrize("is_read", [True, False])
def test_a_process_that_ends_waits_for_its_reader_for_a_moment_only(*, is_read: bool) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with subprocess.Popen([sys.executable, "-c", _SAYS_MUCH_AND_ENDS], stderr=writer) as process:
        os.close(writer)
        with os.fdopen(reader) as lines:
            if is_read:
                # Three times as much as the pipe holds.
                assert [json.loads(line)["number"] for line in lines] == list(range(12))
            assert process.wait(60) == 0

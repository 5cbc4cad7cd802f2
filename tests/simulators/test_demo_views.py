"""What the demo shows fits the terminal, leaves nothing out unsaid, and is the same for programs."""

import io
import json
from collections.abc import Sequence
from datetime import timedelta

import pytest
from rich.console import Console
from rich.text import Text

from gateway.testing.demo.folded import STARTS, WHOLE, FoldedOutput
from gateway.testing.demo.layout import lay_out
from gateway.testing.demo.machine import JsonOutput
from gateway.testing.demo.one_call import OneCall, find_call
from gateway.testing.demo.report import Moment, Note, Report, Story, expect
from gateway.testing.demo.verbose import VerboseOutput
from gateway.testing.demo.wire_view import show_calls
from gateway.testing.wire import Passed, Wire

CALL_ID = "fa5298ec-4f1f-5b5c-9a4e-0f6a3f0c2b11"
SIGNATURE = "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="
WIDTHS = (40, 60, 80, 120, 200)
LONG = {
    "type": "tool-call",
    "seen": None,
    "url": "http://127.0.0.1:9000/callback",
    "context": {"hands": [["7", "7"], ["K"]], "chat": "x" * 300, "at": "2026-11-22T10:00:00Z"},
    "toolCallId": CALL_ID,
    "toolName": "ask_for_cards",
    "arguments": {"targetPlayer": "Victoria", "rank": "7"},
}


def dumped(value: object) -> str:
    return json.dumps(value)


def passed(text: str, exchange: int, *, by_gateway: bool, head: str = "", **headers: str) -> Passed:
    return Passed(text, by_gateway, exchange, head, {name.replace("_", "-"): told for name, told in headers.items()})


def call_of(runtime: str, mark: str, *, noise: bool = False) -> OneCall:
    """One call as a simulated runtime and the backend would have kept it; noise is another call's."""
    wire, backend = Wire(), Wire()
    event = {"kind": "tool.requested", "tool": "ask_for_cards", "arguments": LONG["arguments"]}
    ids = {"call_id": CALL_ID, "native_call_id": mark}
    data = {"session_id": "s-1", "sequence": 4, "event": {**event, **ids}}
    if noise:
        backend.passed.append(passed("{}", 8, by_gateway=True, head="POST /tools", webhook_id="another"))
        backend.passed.append(
            passed(dumped({"data": {"event": {"kind": "x"}}}), 9, by_gateway=True, head="POST /events")
        )
    wire.passed.append(passed(f'42["event",{dumped({**LONG, "toolCallId": mark})}]', 1, by_gateway=False))
    signed = {"webhook_id": CALL_ID, "webhook_timestamp": "1795385983", "webhook_signature": SIGNATURE}
    asked = dumped({"type": "tool.requested", "data": {**event, **ids, "attempt": 1}})
    backend.passed.append(passed(asked, 1, by_gateway=True, head="POST /tools", **signed))
    if noise:
        backend.passed.append(passed('{"outcome": "failure"}', 8, by_gateway=False, head="200"))
    backend.passed.append(passed('{"outcome": "success"}', 1, by_gateway=False, head="200"))
    told = dumped({"type": "tool-result", "toolCallId": mark, "result": "Go fish!"})
    wire.passed.append(passed(f'42["message",{told}]', 1, by_gateway=True))
    backend.passed.append(
        passed(dumped({"type": "tool.requested", "data": data}), 2, by_gateway=True, head="POST /events")
    )
    found = find_call(runtime, mark, CALL_ID, wire=wire, backend=backend)
    assert found is not None
    return found


CALLS = [call_of(name, f"call_{n}") for n, name in enumerate(("huma 0.1", "huma 0.2", "herm", "mcp"))]


def shown(calls: Sequence[OneCall], width: int, *, terminal: bool = False) -> str:
    written = io.StringIO()
    Console(file=written, width=width, highlight=False, force_terminal=terminal).print(*show_calls(calls, width))
    return written.getvalue()


def terminal(width: int = 80) -> tuple[io.StringIO, VerboseOutput]:
    written = io.StringIO()
    return written, VerboseOutput(Console(file=written, force_terminal=True, width=width, highlight=False))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "message", [dumped(LONG), f'42["event",{dumped(LONG)}]', f"id: 1\ndata: {dumped(LONG)}", "x" * 99]
)
def test_a_message_fits_the_width_and_the_lines(message: str, width: int) -> None:
    for most in (5, 9, 30):
        lines = lay_out(message, width, most)
        assert max(map(len, lines)) <= width, lines
        assert len(lines) <= most, lines


def test_what_is_left_out_is_counted_and_what_matters_stays() -> None:
    lines = lay_out(dumped(LONG), 38, 6, keep={"Victoria", "7", "ask_for_cards"})
    assert lines == [
        '{"type": "tool-call",',
        ' "toolName": "ask_for_cards",',
        ' "arguments":',
        '  {"targetPlayer": "Victoria",',
        '   "rank": "7"},',
        " … 4 more}",
    ]


def test_a_message_that_fits_is_shown_whole_but_for_long_ids() -> None:
    (line,) = lay_out(f'{{"id": "{CALL_ID}", "rank": "7", "n": 1.50}}', 80, 5)
    assert line == '{"id": "fa5298ec…", "rank": "7", "n": 1.5}'
    assert lay_out('{"n": 1', 80, 5) == ['{"n": 1']


def test_a_call_is_found_among_others_and_not_before_all_of_it_has_passed() -> None:
    found = call_of("huma 0.2", "call_1", noise=True)
    assert found.answered.text == '{"outcome": "success"}'
    assert found.webhook.headers["webhook-signature"] == SIGNATURE
    assert found.envelope["event"]["native_call_id"] == "call_1"
    wire, backend = Wire(), Wire()
    wire.passed.extend([found.asked, found.told])
    for each in (found.copied, found.webhook, found.answered):
        assert find_call("huma 0.2", "call_1", CALL_ID, wire=wire, backend=backend) is None
        backend.passed.append(each)
    assert find_call("huma 0.2", "call_1", CALL_ID, wire=wire, backend=backend) is not None
    wire.passed.pop()
    assert find_call("huma 0.2", "call_1", CALL_ID, wire=wire, backend=backend) is None


@pytest.mark.parametrize("width", WIDTHS)
def test_calls_stand_side_by_side_as_far_as_there_is_room(width: int) -> None:
    lines = shown(CALLS, width).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    first = next(line for line in lines if "HUMA 0.1" in line)
    beside = [name for name in ("HUMA 0.2.0", "Herm", "MCP") if name in first]
    assert len(beside) == {40: 0, 60: 0, 80: 1, 120: 1, 200: 3}[width]
    whole = "\n".join(lines)
    assert "One call in four dialects" in whole
    assert [whole.count(number) for number in ("1  The", "2  The record", "3  Your", "4  The")] == [1, 1, 1, 1]
    assert f"webhook-signature: {SIGNATURE[:10]}" in whole
    assert SIGNATURE not in whole


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;35m" in shown(CALLS, 80, terminal=True)
    assert "\x1b" not in shown(CALLS, 80)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "35m" not in shown(CALLS, 80, terminal=True)


async def test_steps_of_the_opening_are_shown_with_their_runtime() -> None:
    written, output = terminal()
    report = Report(output)
    output.begin()
    async with report.step("huma 0.1", "connects"), report.step("herm", "creates"):
        pass
    async with report.step("all", "alike"):
        pass
    output.chapter("herm", "Herm")
    async with report.step("herm", "plays") as note:
        note.say("fine", timedelta(seconds=1.25))
    output.end()
    rows = [line for line in written.getvalue().split("\n") if "✓" in line or "──" in line]
    assert ["alike" in rows[0], "Herm" in rows[1], "creates" in rows[2], "plays" in rows[3]] == [True] * 4
    assert rows[3].rstrip().endswith("1.2 s")
    assert "connects" in rows[4]


@pytest.mark.parametrize("width", [70, 80, 120])
async def test_rows_fit_the_terminal_and_show_a_failure_whole(width: int) -> None:
    written, output = terminal(width)
    report = Report(output)
    output.begin()
    output.chapter("herm", "Herm")
    async with report.step("herm", "a message by the HTTP API, answered") as note:
        note.say("word " * 24, timedelta(milliseconds=13))
    async with report.step("herm", "fails"):
        expect(held=False, otherwise="[red]word " * 24)
    output.end()
    output.show_end(report.notes, "9 calls", "gateway.log")
    lines = [Text.from_ansi(line).plain.rstrip() for line in written.getvalue().split("\n")]
    rows = lines[: next(n for n, line in enumerate(lines) if line.startswith("✗ herm"))]
    assert max(map(len, rows)) <= width
    assert sum(line.count("[red]word") for line in rows) == 24
    assert len([line for line in rows if " word" in line]) <= 2
    failure, *_ = lines[len(rows) :]
    assert failure.split()[:3] == ["✗", "herm", "fails:"]
    assert "1 of 2 checks passed in 0 s: 9 calls" in lines
    assert "The log of the gateway is gateway.log" in lines


async def test_the_brief_report_fits_a_screen_and_shows_a_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["dragoman"])
    written = io.StringIO()
    output = FoldedOutput(Console(file=written, width=80, highlight=False))
    report = Report(output)
    output.begin()
    async with report.step("all", STARTS) as note:
        note.say("ready at http://127.0.0.1:1")
    async with report.step("all", WHOLE):
        pass
    async with report.step("herm", "plays") as note:
        note.say("fine", timedelta(milliseconds=13))
    async with report.step("mcp", "fails"):
        expect(held=False, otherwise="[red]no")
    output.show_story(Story("One call", [Moment(0, "agent", "calls"), Moment(1.0754, "gateway", "is killed")]))
    output.end()
    output.show_end(report.notes, "9 calls", "gateway.log")
    lines = written.getvalue().splitlines()
    assert "✓ gateway     ready at http://127.0.0.1:1" in lines
    assert "✗ mcp         fails: [red]no" in lines
    assert "✓ Herm        1 of 1 checks  plays" in lines
    assert "✗ MCP         0 of 1 checks" in [line.rstrip() for line in lines]
    assert lines[lines.index("One call") :][1:3] == ["       0 ms  agent   calls", "   1,075 ms  gateway is killed"]
    assert "3 of 4 checks passed in 0 s: 9 calls" in lines
    assert "– HUMA 0.1    not played" in lines
    assert len(lines) <= 36
    assert "\x1b" not in written.getvalue()


def test_programs_get_each_text_as_it_was_on_the_wire() -> None:
    written = io.StringIO()
    output = JsonOutput(written)
    note = Note("herm", "plays")
    note.held = True
    note.say("fine", timedelta(milliseconds=12.34))
    output.show_played(note)
    output.show_calls(CALLS[:1])
    output.show_story(Story("One call", [Moment(0.5, "agent", "calls")]))
    output.show_end([note, Note("herm", "unfinished")], "9 calls", "gateway.log")
    step, call, story, end = map(json.loads, written.getvalue().splitlines())
    assert step == {"type": "step", "runtime": "herm", "step": "plays", "held": True, "ms": 12.3, "happened": "fine"}
    (one,) = CALLS[:1]
    assert (call["asked"], call["copy"], call["told"]) == (one.asked.text, one.copied.text, one.told.text)
    assert (call["webhook"]["body"], call["webhook"]["answer"]) == (one.webhook.text, one.answered.text)
    assert call["webhook"]["headers"]["webhook-signature"] == SIGNATURE
    assert (call["webhook"]["request"], call["webhook"]["status"]) == ("POST /tools", 200)
    assert story["moments"] == [{"seconds": 0.5, "who": "agent", "what": "calls"}]
    assert (end["held"], end["of"], end["log"]) == (1, 2, "gateway.log")

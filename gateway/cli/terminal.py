"""Prints lines, checks, problems and JSON: in color in a terminal (unless NO_COLOR is set), plain when piped."""

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import typer
from rich.console import Console
from rich.text import Text

from gateway.errors import Problem, Severity

if TYPE_CHECKING:
    from pydantic import BaseModel

SHORT = 8
"""The number of characters of an ID that a terminal shows."""


class Output(Console):
    """Stdout or stderr, in color or plain; a closed pipe (`| head`) ends the command without an error."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(highlight=False, stderr=stderr)
        self.plain = not self.encoding.lower().startswith("utf")
        """Whether to print ASCII instead of symbols."""

    def say(self, text: str | Text) -> None:
        """Print a line without wrapping it."""
        self.print(Text(text) if isinstance(text, str) else text, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        leave_quietly()


def say_json(value: Any) -> None:
    """Print JSON on one line; in ASCII, so that it contains no control character of a terminal."""
    typer.echo(json.dumps(value))


def say_row(row: "BaseModel", text: str, *, as_json: bool) -> None:
    """Print the result of an action as JSON or as a text."""
    if as_json:
        say_json(to_row(row))
    else:
        typer.echo(text)


def to_row(value: "BaseModel") -> dict[str, Any]:
    """Convert an API model to JSON values, with only the members that the gateway has sent."""
    row = json.loads(json.dumps(value.model_dump(exclude_unset=True), default=_write_value))
    for envelope in (row, row.get("envelope"), *(row.get("events") or ())):
        match envelope:
            case {"event": {"channel": "unknown-kind", "payload": payload}}:
                # An event of a newer release.
                cast("dict[str, Any]", envelope)["event"] = payload
            case _:
                pass
    return row


def _write_value(value: object) -> str:
    # A time in the format of the API, or a secret as asterisks.
    return value.isoformat() if isinstance(value, datetime) else str(value)


def age_of(moment: datetime) -> str:
    """Format the age of a time."""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit} ago"
    return f"{max(seconds, 0):.0f}s ago"


def leave_quietly() -> NoReturn:
    """Exit because the reader has closed the pipe."""
    # At exit the interpreter would report that it cannot flush its buffer.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)


State = Literal["ok", "note", "warning", "broken"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check: its finding and a fix."""

    state: State
    text: str
    fix: str = ""


_MARKS: dict[State, tuple[str, str, str]] = {
    "ok": ("✓", "ok", "green"),
    "note": ("·", "--", "dim"),
    "warning": ("!", "!!", "yellow"),
    "broken": ("✗", "XX", "bold red"),
}


_SEVERITIES: dict[Severity, tuple[str, str]] = {
    "error": ("", "red"),
    "warning": ("warning: ", "yellow"),
    "note": ("note: ", "dim"),
}
"""The first word and the color of a problem."""


def complain(message: str, fix: str = "") -> None:
    """Print an error and its fix on stderr."""
    text = Text.assemble(("dragoman: ", "bold"), ("error: ", "bold red"), message)
    _stderr().print(text, soft_wrap=True)
    if fix:
        _stderr().print(Text(f"  {fix}", "yellow"), soft_wrap=True)


def show_problems(file: str, problems: Sequence[Problem]) -> None:
    """Print each problem on its own line on stderr, then the count."""
    console = _stderr()
    for problem in problems:
        word, style = _SEVERITIES[problem.severity]
        # A problem of the file itself has no line.
        inside = problem.line is not None
        line = Text.assemble(
            (f"{file}:{problem.line}: " if inside else f"{file}: ", "bold"),
            (word, style),
            (f"{problem.path or '(top)'}: " if inside else "", "cyan"),
            (problem.message, "" if word else style),
        )
        console.print(line, soft_wrap=True)
    if problems:
        console.print(Text(f"{file}: {count_problems(problems)}"), soft_wrap=True)


def count_problems(problems: Sequence[Problem]) -> str:
    """Write the numbers of errors, warnings and notes, such as `1 error, 2 warnings`."""
    found = Counter(problem.severity for problem in problems)
    return ", ".join(filter(None, (plural(found[severity], severity) for severity in _SEVERITIES)))


def plural(number: int, noun: str) -> str:
    """Write a number with its noun; zero is the empty text."""
    return f"{number} {noun}{'' if number == 1 else 's'}" if number else ""


def show_heading(text: str) -> None:
    """Print the heading of a group of checks on stdout."""
    Output().say(Text(f"\n{text}", "bold"))


def show_check(check: Check) -> None:
    """Print one check on stdout."""
    out = Output()
    sign, plain, style = _MARKS[check.state]
    out.say(Text.assemble((f"  {plain if out.plain else sign} ", style), check.text))
    for line in check.fix.splitlines():
        out.say(Text(f"      {line}", style if check.state != "ok" else ""))


def note(text: str, style: str = "dim") -> None:
    """Print a note on stderr."""
    _stderr().print(Text(f"· {text}", style), soft_wrap=True)


def _stderr() -> Console:
    return Console(stderr=True, highlight=False)

"""Writes findings for people: `file:line: path: message`, coloured only in a terminal (and never with NO_COLOR)."""

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from gateway.cli.lines import clean, clean_line
from gateway.errors import Problem

if TYPE_CHECKING:
    from gateway.cli.reasons import Part
    from gateway.links.masking import Mask


class Output(Console):
    """Stdout, or stderr, in colour or plain; a reader that has gone away (`| head`) is the end, and no error."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(highlight=False, stderr=stderr)
        self.plain = not self.encoding.lower().startswith("utf")
        """Whether only ASCII is sure to be readable."""

    def say(self, text: str | Text) -> None:
        """Write a line as it is, however long."""
        self.print(Text(text) if isinstance(text, str) else text, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        leave_quietly()


def say_json(value: Any) -> None:
    """Write JSON on one line; in ASCII, so that no character in it can steer a terminal."""
    typer.echo(json.dumps(value))


def leave_quietly() -> NoReturn:
    """End the command because nobody reads any more."""
    # What is still in the buffer would be complained about when the interpreter ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)


State = Literal["ok", "note", "warning", "broken"]

_MARKS: dict[State, tuple[str, str, str]] = {
    "ok": ("✓", "ok", "green"),
    "note": ("·", "--", "dim"),
    "warning": ("!", "!!", "yellow"),
    "broken": ("✗", "XX", "bold red"),
}


def complain(message: str, mend: str = "") -> None:
    """Say on stderr why a command cannot go on and, where that is known, what to do."""
    text = Text.assemble(("dragoman: ", "bold"), ("error: ", "bold red"), message)
    _stderr().print(text, soft_wrap=True)
    if mend:
        _stderr().print(Text(f"  {mend}", "yellow"), soft_wrap=True)


def show_problems(file: str, problems: Sequence[Problem]) -> None:
    """Write each problem on a line of its own to stderr, then how many there are."""
    console = _stderr()
    for problem in problems:
        warning = problem.severity == "warning"
        # A problem of the file itself has no place in it.
        inside = problem.line is not None
        line = Text.assemble(
            (f"{file}:{problem.line}: " if inside else f"{file}: ", "bold"),
            ("warning: ", "yellow") if warning else ("", ""),
            (f"{problem.path or '(top)'}: " if inside else "", "cyan"),
            (problem.message, "" if warning else "red"),
        )
        console.print(line, soft_wrap=True)
    if problems:
        console.print(Text(f"{file}: {count_problems(problems)}"), soft_wrap=True)


def count_problems(problems: Sequence[Problem]) -> str:
    """Say how many errors and warnings there are."""
    warnings = sum(problem.severity == "warning" for problem in problems)
    return ", ".join(filter(None, (plural(len(problems) - warnings, "error"), plural(warnings, "warning"))))


def plural(number: int, noun: str) -> str:
    """Count things in words; nothing is the empty text."""
    return f"{number} {noun}{'' if number == 1 else 's'}" if number else ""


def show_heading(text: str) -> None:
    """Begin a group of checks on stdout."""
    Output().say(Text(f"\n{text}", "bold"))


def show_check(state: State, text: str, mend: str = "") -> None:
    """Write one check on stdout: what it found and, where something is wrong, what to do."""
    console = Output()
    sign, plain, style = _MARKS[state]
    mark = plain if console.plain else sign
    console.print(Text.assemble((f"  {mark} ", style), text), soft_wrap=True)
    for line in mend.splitlines():
        console.print(Text(f"      {line}", style if state != "ok" else ""), soft_wrap=True)


_TONES = {"plain": "", "good": "green", "doubtful": "yellow", "bad": "red"}


def show_reasons(parts: "Sequence[Part]", *, mask: "Mask") -> None:
    """Write an explanation on stdout: a heading and a line each, with a block below where there is one."""
    console = Output()
    for part in parts:
        text = clean(mask(part.text))
        console.print(Text.assemble((f"{part.heading:<10}", "bold"), (text, _TONES[part.tone])), soft_wrap=True)
        for line in mask(part.block).splitlines():
            console.print(Text(f"          {clean_line(line)}", "dim" if part.tone == "plain" else ""), soft_wrap=True)


def note(text: str, style: str = "dim") -> None:
    """Say on stderr what goes on, or what more there is."""
    _stderr().print(Text(f"· {text}", style), soft_wrap=True)


def _stderr() -> Console:
    return Console(stderr=True, highlight=False)

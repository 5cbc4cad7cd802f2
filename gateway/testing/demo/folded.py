"""The demo's brief report: a line for each runtime, the timeline of one call, and the next commands."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from shutil import which

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gateway.testing import backend
from gateway.testing.demo.one_call import DIALECTS, FURTHER, OneCall
from gateway.testing.demo.report import Note, Story
from gateway.testing.serving import LOOPBACK

STARTS, WHOLE = "the gateway starts", "the whole game"
MARKS = {True: "✓", False: "✗", None: "…"}
STYLES: dict[bool | None, str] = {True: "bold green", False: "bold red", None: "dim"}
HEADING = "bold"


class FoldedOutput:
    """Shows the running step on one line that it overwrites, failures at once, and the rest at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._began = time.monotonic()
        self._story: Story | None = None

    def begin(self) -> None:
        self._print(Text("Several runtimes and an MCP client play Go Fish against one backend.", HEADING))
        self._print(Text())
        if self._console.is_terminal:
            self._live.start()

    def chapter(self, runtime: str, title: str) -> None:
        """The running step names its runtime."""

    def show_playing(self, note: Note) -> None:
        line = Text(f"{MARKS[None]} {note.runtime}: {note.step}", STYLES[None], no_wrap=True, overflow="ellipsis")
        self._live.update(line, refresh=self._live.is_started)

    def show_waiting(self, note: Note, text: str) -> None:
        """Show that a step still waits: on its line in a terminal, else on a line of its own."""
        line = Text(f"{MARKS[None]} {note.runtime}: {note.step}: {text}", STYLES[None])
        if self._live.is_started:
            line.truncate(self._console.width, overflow="ellipsis")
            self._live.update(line, refresh=True)
        else:
            self._print(line)

    def show_played(self, note: Note) -> None:
        if not note.held:
            self.print_failure(note)
        elif note.step == STARTS:
            self._print(_line(note.held, "gateway", note.happened))

    def print_failure(self, note: Note) -> None:
        """Print a failed step and its reason in full."""
        self._print(_line(note.held, note.runtime, f"{note.step}: {note.happened}"))

    def show_calls(self, calls: Sequence[OneCall]) -> None:
        """`--verbose` and `--json` show the messages."""

    def show_story(self, story: Story) -> None:
        self._story = story

    def show_end(self, notes: Sequence[Note], seen: str, log: str) -> None:
        complete = any(note.step == WHOLE and note.held for note in notes)
        for runtime, name in DIALECTS.items():
            own = [note for note in notes if note.runtime == runtime]
            if runtime in FURTHER and not own:
                continue
            held = sum(note.held is True for note in own)
            steps = " · ".join(dict.fromkeys(note.step for note in own if note.latency is not None))
            text = f"{held} of {len(own)} checks  {steps}"
            played = complete and bool(own)
            if not played:
                text = f"{held} of {len(own)} checks, the rest not played" if own else "not played"
            # Only a side that was played to its end can be green.
            line = _line(held == len(own) and (played or None), name, text)
            line.truncate(self._console.width, overflow="ellipsis")
            self._print(line)
        if self._story is not None:
            for line in story_lines(self._story):
                self._print(line)
        held = sum(note.held is True for note in notes)
        took = time.monotonic() - self._began
        passed = Text(f"{held} of {len(notes)} checks passed", STYLES[held == len(notes)])
        self._print(Text.assemble("\n", passed, f" in {took:.0f} s: {seen}"))
        if held < len(notes):
            self._print(Text(f"The log of the gateway is {log}"))
        if not complete:
            return
        command = command_line()
        self._print(Text.assemble((f"{command} demo --verbose", HEADING), "  show every step and message"))
        keep = f"{command} demo --keep"
        self._print(Text.assemble((keep, HEADING), "     keep everything running, with its UI:"))
        self._print(Text.assemble((f"{keep} --port 8090", HEADING), f"  http://{LOOPBACK}:8090/ui"))
        self._print(
            Text.assemble("Your own backend needs one endpoint, as in ", (_near(Path(backend.__file__)), HEADING))
        )

    def show_addresses(self, addresses: dict[str, str], lines: Sequence[str]) -> None:
        for line in ("", *(f"{name:9} {address}" for name, address in addresses.items()), "", *lines):
            self._print(Text(line, "dim" if line.startswith("#") else ""))
        self._print(Text("\nPress Ctrl-C to stop."))

    def end(self) -> None:
        self._live.stop()

    def _print(self, line: Text) -> None:
        # As Text, because texts of peers must not be interpreted as markup.
        self._console.print(line, soft_wrap=True)


def _line(held: bool | None, name: str, text: str) -> Text:
    return Text.assemble(("–" if held is None else MARKS[held], STYLES[held]), f" {name:11} ", text)


def story_lines(story: Story) -> list[Text]:
    """Lay out a timeline in lines of at most 80 columns."""
    lines = [Text(), Text(story.title, HEADING)]
    for moment in story.moments:
        at = (f"{moment.seconds * 1000:>8,.0f} ms  ", "dim")
        lines.append(Text.assemble(at, (f"{moment.who:8}", HEADING), moment.what))
    return lines


def command_line() -> str:
    """Return the command that started this process, ready to paste."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return "python -m gateway"
    found = which("dragoman")
    return "dragoman" if found is not None and Path(found).resolve() == called.resolve() else _near(called)


def _near(path: Path) -> str:
    """Write a path below the current folder relative to it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)

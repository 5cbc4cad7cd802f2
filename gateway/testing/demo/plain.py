"""The demo's report in a pipe: plain lines."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from gateway.testing.demo.one_call import OneCall
from gateway.testing.demo.report import Note

MARKS = {True: "✓", False: "✗", None: "…"}


class PlainOutput:
    """One line for each step, when it has ended."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begin(self) -> None:
        self._say(f"  {'runtime':9} {'step':36} {'ms':>5}  what happened")

    def chapter(self, runtime: str, title: str) -> None:
        """Each line names its runtime."""

    def show_playing(self, note: Note) -> None:
        """Nothing is said twice."""

    def show_played(self, note: Note) -> None:
        latency = "" if note.latency is None else f"{note.latency.total_seconds() * 1000:.0f}"
        self._say(f"{MARKS[note.held]} {note.runtime:9} {note.step:36} {latency:>5}  {note.happened}")

    def show_calls(self, calls: Sequence[OneCall]) -> None:
        """Side by side is for people; `--json` has them whole."""

    def show_end(self, notes: Sequence[Note], seen: str, log: str) -> None:
        del seen
        failed = [note for note in notes if not note.held]
        self._say(f"\n{len(notes) - len(failed)} of {len(notes)} expectations held.")
        for note in failed:
            self._say(f"  ✗ {note.runtime}: {note.step}: {note.happened}")
        if failed:
            self._say(f"The gateway's log is {log}")

    def show_addresses(self, addresses: dict[str, str], lines: Sequence[str]) -> None:
        for line in ("", *(f"{name:9} {where}" for name, where in addresses.items()), "", *lines):
            self._say(line)
        self._say("\nCtrl-C ends everything.")

    def end(self) -> None:
        """Nothing is left open."""

    def _say(self, line: str) -> None:
        # As Text, because what peers say must not be read as markup.
        self._console.print(Text(line), soft_wrap=True)

"""The demo's report for programs: one JSON object per line."""

import json
from collections.abc import Sequence
from typing import Any, TextIO

from gateway.testing.demo.one_call import OneCall
from gateway.testing.demo.report import Note, Story


class JsonOutput:
    """Prints `step` objects, `waiting` while the gateway starts, then `call` with all texts, `story` and `end`."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def begin(self) -> None:
        """Print nothing before the first step."""

    def chapter(self, runtime: str, title: str) -> None:
        """Print nothing: each step contains its runtime."""

    def show_playing(self, note: Note) -> None:
        """Print nothing until the step has ended."""

    def show_waiting(self, note: Note, text: str) -> None:
        self._write("waiting", runtime=note.runtime, step=note.step, text=text)

    def show_played(self, note: Note) -> None:
        took = None if note.latency is None else round(note.latency.total_seconds() * 1000, 1)
        self._write("step", runtime=note.runtime, step=note.step, held=note.held, ms=took, happened=note.happened)

    def show_calls(self, calls: Sequence[OneCall]) -> None:
        for call in calls:
            self._write(
                "call",
                runtime=call.runtime,
                asked=call.asked.text,
                copy=call.copied.text,
                webhook={
                    "request": call.webhook.head,
                    "headers": dict(call.webhook.headers),
                    "body": call.webhook.text,
                    "status": int(call.answered.head),
                    "answer": call.answered.text,
                },
                told=call.told.text,
            )

    def show_story(self, story: Story) -> None:
        moments = [{"seconds": round(each.seconds, 4), "who": each.who, "what": each.what} for each in story.moments]
        self._write("story", title=story.title, moments=moments)

    def show_end(self, notes: Sequence[Note], seen: str, log: str) -> None:
        held = sum(note.held is True for note in notes)
        self._write("end", held=held, of=len(notes), seen=seen, log=log)

    def show_addresses(self, addresses: dict[str, str], lines: Sequence[str]) -> None:
        self._write("listening", addresses=addresses, lines=list(lines))

    def end(self) -> None:
        """Do nothing: there is nothing to close."""

    def _write(self, kind: str, **members: Any) -> None:
        self._file.write(f"{json.dumps({'type': kind, **members}, ensure_ascii=False)}\n")
        self._file.flush()

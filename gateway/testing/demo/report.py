"""The demo's steps: their runtimes, times and results."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import httpx

from gateway.testing.demo.one_call import OneCall

STEP_LIMIT = 15.0


class Unmet(Exception):
    """An expectation was not met; the text describes the actual state."""


def expect(held: bool, otherwise: str) -> None:
    """Check a condition.

    Raises:
        Unmet: it is false.
    """
    if not held:
        raise Unmet(otherwise)


class Note:
    """One step in the report."""

    def __init__(self, runtime: str, step: str) -> None:
        self.runtime = runtime
        self.step = step
        self.happened = ""
        self.latency: timedelta | None = None
        self.held: bool | None = None

    def say(self, happened: str, latency: timedelta | None = None) -> None:
        """Set the result of the step, and the time that the agent waited."""
        self.happened = happened if len(happened) <= 120 else f"{happened[:119]}…"
        self.latency = latency


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of the timeline; `seconds` count from the agent's request."""

    seconds: float
    who: str
    what: str


@dataclass(frozen=True, slots=True)
class Story:
    """The timeline of one call."""

    title: str
    moments: Sequence[Moment]


class Output(Protocol):
    """A format of the report."""

    def begin(self) -> None: ...
    def chapter(self, runtime: str, title: str) -> None: ...
    def show_playing(self, note: Note) -> None: ...
    def show_waiting(self, note: Note, text: str) -> None: ...
    def show_played(self, note: Note) -> None: ...
    def show_calls(self, calls: Sequence[OneCall]) -> None: ...
    def show_story(self, story: Story) -> None: ...
    def show_end(self, notes: Sequence[Note], seen: str, log: str) -> None: ...
    def show_addresses(self, addresses: dict[str, str], lines: Sequence[str]) -> None: ...
    def end(self) -> None: ...


class Report:
    """All steps, passed to the output as they happen."""

    def __init__(self, output: Output) -> None:
        self.notes: list[Note] = []
        self.output = output

    @property
    def failed(self) -> list[Note]:
        return [note for note in self.notes if not note.held]

    @asynccontextmanager
    async def step(self, runtime: str, step: str, *, within: float | None = STEP_LIMIT) -> AsyncGenerator[Note]:
        """Run one step; record an unmet expectation, and let the next step run.

        `within` is None for a step that watches what it waits for.
        """
        note = Note(runtime, step)
        self.notes.append(note)
        self.output.show_playing(note)
        try:
            async with asyncio.timeout(within):
                yield note
            note.held = True
        except Unmet as exc:
            note.happened, note.held = str(exc), False
        except TimeoutError as exc:
            note.happened, note.held = str(exc) or f"nothing within {within:g} s", False
        except httpx.HTTPError as exc:
            note.happened, note.held = f"the gateway's API: {exc!r}", False
        finally:
            if note.held is None:
                note.happened, note.held = "canceled", False
            self.output.show_played(note)

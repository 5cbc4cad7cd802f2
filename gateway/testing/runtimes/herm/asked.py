"""What a simulated Herm agent waits for: results, permissions, answers, secrets."""

import asyncio
from datetime import timedelta
from typing import Literal

from gateway.testing.change import PATIENCE, Change
from gateway.testing.runtimes.herm.rules import Frame

Kind = Literal["tool", "approval", "clarify", "sudo", "secret"]


class Interrupted(Exception):
    """The application has stopped the turn, so nothing will be answered any more."""


class Asked:
    """Something the agent waits for, and every answer that came."""

    def __init__(self, asked_id: str, kind: Kind, payload: Frame, change: Change) -> None:
        self.asked_id = asked_id
        self.kind = kind
        self.payload = payload
        self.answers: list[Frame] = []
        """All answers as posted; more than one is a repeat."""
        self.closed = False
        """The turn was stopped before an answer came."""
        self.started = asyncio.get_running_loop().time()
        self.settled: float | None = None
        self._change = change

    @property
    def latency(self) -> timedelta | None:
        """From the question to its first answer."""
        return None if self.settled is None else timedelta(seconds=self.settled - self.started)

    def settle(self, event: Frame) -> None:
        """Take an answer; the first one counts."""
        self.answers.append(event)
        if self.settled is None:
            self.settled = asyncio.get_running_loop().time()

    async def answered(self, within: float = PATIENCE) -> Frame:
        """Wait for the answer; returns the event as it was posted.

        Raises:
            Interrupted: there will be none.
            TimeoutError: none came in time.
        """

        def look() -> bool | None:
            return True if self.answers or self.closed else None

        await self._change.until(look, within, what=lambda: f"an answer to {self.kind} {self.asked_id}")
        if not self.answers:
            raise Interrupted(f"{self.kind} {self.asked_id} was closed by an interrupt")
        return self.answers[0]

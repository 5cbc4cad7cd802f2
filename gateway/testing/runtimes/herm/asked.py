"""The open requests of a simulated Herm agent: tool calls, approvals, questions and secrets."""

import asyncio
from datetime import timedelta
from typing import Literal

from gateway.testing.change import PATIENCE, Change
from gateway.testing.runtimes.herm.rules import Frame

Kind = Literal["tool", "approval", "clarify", "sudo", "secret"]


class Interrupted(Exception):
    """The application has stopped the turn, so there will be no answer."""


class Asked:
    """One request of the agent, and all its answers."""

    def __init__(self, asked_id: str, kind: Kind, payload: Frame, change: Change) -> None:
        self.asked_id = asked_id
        self.kind = kind
        self.payload = payload
        self.answers: list[Frame] = []
        """All answers, unchanged; each after the first is a repeat."""
        self.closed = False
        """Whether the turn was stopped before an answer arrived."""
        self.started = asyncio.get_running_loop().time()
        self.settled: float | None = None
        self._change = change

    @property
    def latency(self) -> timedelta | None:
        """The time from the request to its first answer."""
        return None if self.settled is None else timedelta(seconds=self.settled - self.started)

    def settle(self, event: Frame) -> None:
        """Add an answer; the first one counts."""
        self.answers.append(event)
        if self.settled is None:
            self.settled = asyncio.get_running_loop().time()

    async def answered(self, within: float = PATIENCE) -> Frame:
        """Wait for the answer; return the posted event.

        Raises:
            Interrupted: the turn was stopped.
            TimeoutError: no answer arrived in time.
        """

        def look() -> bool | None:
            return True if self.answers or self.closed else None

        await self._change.until(look, within, what=lambda: f"an answer to {self.kind} {self.asked_id}")
        if not self.answers:
            raise Interrupted(f"{self.kind} {self.asked_id} was closed by an interrupt")
        return self.answers[0]

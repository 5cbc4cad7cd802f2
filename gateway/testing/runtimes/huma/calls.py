"""The tool calls and message bursts of a simulated HUMA agent."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gateway.testing.change import PATIENCE, Change
from gateway.testing.runtimes.huma.rules import Frame, ResultFrame, Violation, check_confirmation


class SimCall:
    """One tool call and all its result frames."""

    def __init__(self, call_id: str, tool: str, arguments: object, *, change: Change) -> None:
        self.call_id = call_id
        self.tool = tool
        self.arguments = arguments
        self.results: list[Frame] = []
        """All result frames with this id, unchanged; each after the first is a repeat."""
        self.reading: ResultFrame | None = None
        """The first result frame, parsed: its outcome, result and error in either dialect."""
        self.cancel_asked = False
        self.started = asyncio.get_running_loop().time()
        self.written = self.started
        """The time at which it was passed to all connected sockets, by the loop's clock."""
        self.settled: float | None = None
        self._change = change

    @property
    def latency(self) -> timedelta | None:
        """The time from the call to its first result."""
        return None if self.settled is None else timedelta(seconds=self.settled - self.started)

    def settle(self, reading: ResultFrame, frame: Frame) -> None:
        """Add a result; the first one counts.

        Raises:
            Violation: the result has another tool, or differs from the first one.
        """
        if reading.tool is not None and reading.tool != self.tool:
            raise Violation(f'tool-result "toolName" must be {self.tool!r}, as in the call')
        self.results.append(frame)
        if self.reading is None:
            self.reading = reading
            self.settled = asyncio.get_running_loop().time()
        elif frame != self.results[0]:
            raise Violation(f"call {self.call_id!r} has already ended with another result")

    async def result(self, within: float = PATIENCE) -> Frame:
        """Wait for the first result; return the raw frame."""
        return (await self.wait_results(1, within))[0]

    async def wait_results(self, count: int, within: float = PATIENCE) -> list[Frame]:
        """Wait until `count` results have arrived, including repeats."""
        return await self._change.until(
            lambda: self.results if len(self.results) >= count else None,
            within,
            what=lambda: f"{count} results of {self.tool!r}, {len(self.results)} arrived",
        )


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The result of one message of a burst; `assumed` if no confirmation arrived in time."""

    index: int
    success: bool
    payload: dict[str, Any] | None
    """The `data` of the client's `addon-tool-event`."""
    latency: timedelta
    assumed: bool = False


class SimBurst:
    """One `send_message` of the messaging addon: messages that the client confirms one by one."""

    def __init__(self, call_id: str) -> None:
        self.call_id = call_id
        self.sent = 0
        """The number of sent `message_sent` events."""
        self.aborted = False
        self.late: set[int] = set()
        """The indexes of messages whose confirmation has timed out."""
        self.confirmations: dict[int, Frame] = {}

    def confirm(self, payload: Frame) -> None:
        """Add a confirmation.

        Raises:
            Violation: it is malformed, too late, for an unsent message, or differs from an earlier one.
        """
        index = check_confirmation(payload)
        if index >= self.sent:
            raise Violation(f"message {index} of {self.call_id!r} was not sent yet")
        if index in self.late:
            raise Violation(f"the confirmation of message {index} arrived too late; success was assumed")
        # A repeat contains the newest context, which may have changed.
        if _without_context(self.confirmations.setdefault(index, payload)) != _without_context(payload):
            raise Violation(f"message {index} was already confirmed otherwise")


def _without_context(confirmation: Frame) -> Frame:
    return {name: value for name, value in confirmation.items() if name != "context"}

"""What a simulated HUMA agent has asked of its clients: tool calls and bursts of messages."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gateway.testing.change import PATIENCE, Change
from gateway.testing.runtimes.huma.rules import Frame, ResultFrame, Violation, check_confirmation


class SimCall:
    """One tool call and every result frame that came for it."""

    def __init__(self, call_id: str, tool: str, arguments: object, *, change: Change) -> None:
        self.call_id = call_id
        self.tool = tool
        self.arguments = arguments
        self.results: list[Frame] = []
        """All result frames with this id, as received; more than one is a repeat."""
        self.reading: ResultFrame | None = None
        """The first of them, read: its outcome, result and error in either dialect."""
        self.cancel_asked = False
        self.started = asyncio.get_running_loop().time()
        self.written = self.started
        """When it was handed to all sockets that there were, by the loop's clock."""
        self.settled: float | None = None
        self._change = change

    @property
    def latency(self) -> timedelta | None:
        """From the call to its first result."""
        return None if self.settled is None else timedelta(seconds=self.settled - self.started)

    def settle(self, reading: ResultFrame, frame: Frame) -> None:
        """Take a result; the first one counts.

        Raises:
            Violation: it names another tool, or differs from the result that counts.
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
        """Wait for the first result; returns the raw frame."""
        return (await self.wait_results(1, within))[0]

    async def wait_results(self, count: int, within: float = PATIENCE) -> list[Frame]:
        """Wait until `count` results have come, repeats included."""
        return await self._change.until(
            lambda: self.results if len(self.results) >= count else None,
            within,
            what=lambda: f"{count} results of {self.tool!r}, {len(self.results)} came",
        )


@dataclass(frozen=True, slots=True)
class Confirmation:
    """How one message of a burst fared; `assumed` where no confirmation came in time."""

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
        """How many `message_sent` have gone out."""
        self.aborted = False
        self.late: set[int] = set()
        """Indexes whose time to confirm is over."""
        self.confirmations: dict[int, Frame] = {}

    def confirm(self, payload: Frame) -> None:
        """Take a confirmation.

        Raises:
            Violation: it is malformed, for a message that was not sent, too late, or a second and different one.
        """
        index = check_confirmation(payload)
        if index >= self.sent:
            raise Violation(f"message {index} of {self.call_id!r} was not sent yet")
        if index in self.late:
            raise Violation(f"the confirmation of message {index} came too late; success was assumed")
        # A repeat carries the newest context, which may be another one by now.
        if _fate(self.confirmations.setdefault(index, payload)) != _fate(payload):
            raise Violation(f"message {index} was already confirmed otherwise")


def _fate(confirmation: Frame) -> Frame:
    return {name: value for name, value in confirmation.items() if name != "context"}

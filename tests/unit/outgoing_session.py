"""The outbound events of one session without I/O, as the tests of `Outbox` use them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from gateway.adapter.port import Adapter, Capabilities, Receipt
from gateway.core.effects import Transmit
from gateway.core.session import SlotAccess, StepBuilder
from gateway.core.state import SessionView
from gateway.events import (
    Envelope,
    EventId,
    LinkChanged,
    MessagePosted,
    SessionId,
    SessionMoved,
    Text,
    ToolFinished,
)
from gateway.runtime.session.outbox import Attempts, Outbox
from gateway.runtime.session.row import read_result
from gateway.store.rows import Send
from gateway.store.step import RUNTIME, Lane
from gateway.testing.conformance.engine_words import FakeClock
from tests.unit.core.harness import HUMA_0_2, START, Harness

WINDOW = 2.0
"""Seconds of the delivery window."""


class Session:
    """An outbox without its I/O; `posted` has the signals to the inbox."""

    def __init__(self, adapter: Adapter = HUMA_0_2, **able: Any) -> None:
        harness = Harness(adapter)
        capabilities: Capabilities = replace(harness.runtime.capabilities, **{"replaces_context": False, **able})
        options = harness.runtime.options.model_copy(update={"delivery_window": timedelta(seconds=WINDOW)})
        self.runtime = replace(harness.runtime, capabilities=capabilities, options=options)
        self.view: SessionView = harness.view
        self.out = Outbox(self.view, self.runtime)
        self.now = 0.0
        self.clock = FakeClock()
        self.clock.turn(START - self.clock.now())
        self.posted: list[Any] = []

    def tell(self, signals: Sequence[Any]) -> None:
        self.posted += signals

    def add(self, *sequences: int, lane: Lane = "turn", **more: Any) -> None:
        for sequence in sequences:
            self.out.add(Transmit(sequence, lane, "x", (), **more), now=self.now)

    def read(self, *rows: Send, more: bool = False) -> None:
        """Read the ledger, and find these pending."""
        self.view = replace(self.view, last_sequence=max([self.view.last_sequence, *(one.sequence for one in rows)]))
        reading = self.out.begin_reading()
        self.tell(self.out.take(reading, rows, {}, self.view, more=more, now=START))

    def up(self, *rows: Send, more: bool = False) -> None:
        """Let a link come up that finds these pending."""
        self.out.link_up()
        assert self.next() == "read"
        self.read(*rows, more=more)

    def next(self) -> Any:
        return self.out.next(self.view, self.clock)

    def step(
        self, *new: Transmit, lost: bool = False, moved: bool = False, sending: bool = False, fails: bool = False
    ) -> Attempts | None:
        """Make a step that sends these events, and put its attempts on record unless it `fails`."""
        builder = StepBuilder(
            self.view, START, lambda: EventId("e"), SlotAccess(lambda _: True, lambda _: None), self.runtime
        )
        builder.effects += new
        if lost:
            builder.apply(LinkChanged(state="down"), "from_runtime")
        if moved:
            builder.apply(SessionMoved(state="idle"), "from_runtime")
        attempts = self.out.plan_attempts(builder, sending=sending)
        if not fails:
            if attempts is not None:
                self.out.note_attempts(attempts)
            if moved:
                self.out.awaits_turn = False
            for item in new:
                self.out.add(item, now=self.now)
        return None if attempts is None else (set(attempts[0]), set(attempts[1]))

    def taken(self) -> Transmit:
        item = self.next()
        if item == "attempt":
            self.step()
            item = self.next()
        assert isinstance(item, Transmit)
        return item

    def leaves(self, result: Receipt | Exception | None = None) -> int:
        """Send the next event."""
        item, silent = self.taken(), self.runtime.capabilities.delivery == "silence"
        meaning = read_result(result or Receipt("sent"), silent=silent)
        self.tell(self.out.note_result(item, meaning, now=self.now))
        return item.sequence


def row(sequence: int, lane: Any = "turn", *, kind: str | None = None, **more: Any) -> Send:
    event = ToolFinished(native_call_id=str(sequence), tool="t", outcome="success")
    envelope = Envelope(EventId(str(sequence)), SessionId("s"), sequence, START, "to_runtime", event, stored_kind=kind)
    return replace(Send(SessionId("s"), sequence, RUNTIME, lane, "pending", 0, None, None, envelope, START), **more)


def said(sequence: int) -> Send:
    """A message, which no runtime may get twice."""
    event = MessagePosted(content=(Text(text="Hello"),))
    return replace(row(sequence, "new_work"), envelope=replace(row(sequence).envelope, event=event))


def message(sequence: int, **more: Any) -> Transmit:
    return Transmit(sequence, "new_work", "message.posted", (), needs_attempt=True, **more)


def outcome(number: int) -> Transmit:
    return Transmit(number, "turn", "tool.finished", ())

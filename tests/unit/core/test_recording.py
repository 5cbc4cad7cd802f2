"""What a step builder's `record` changes for whoever goes on with the builder: the number, the memory, no more."""

from copy import copy

import pytest

from gateway.core.fold import fold
from gateway.core.session import StepBuilder
from gateway.events import (
    ApprovalAsked,
    Author,
    ContextUpdated,
    Event,
    MessagePosted,
    SessionClosed,
    SessionMoved,
    Text,
    ToolCanceled,
    ToolFinished,
    ToolRequested,
    TurnInterrupted,
)
from tests.unit.core.harness import Harness

TOLD = {"events", "last_sequence", "memory", "_taken"}


@pytest.mark.parametrize(
    "event",
    [
        ApprovalAsked(id="q", native_call_id="q", tool="run", scopes=("once",)),
        ContextUpdated(name="deal", context={"a": 1}),
        MessagePosted(author=Author(role="agent"), content=(Text(text="Hi"),)),
        SessionClosed(reason="over"),
        SessionMoved(state="idle"),
        ToolCanceled(native_call_id="tc-1"),
        ToolFinished(native_call_id="tc-1", tool="ask_for_cards", outcome="success"),
        ToolRequested(native_call_id="tc-2", tool="ask_for_cards", arguments={}, runs_in="host"),
        TurnInterrupted(),
    ],
    ids=lambda event: event.kind,
)
def test_record_moves_the_number_and_the_memory_and_nothing_else(event: Event) -> None:
    harness = Harness()
    harness.call("tc-1")
    calls = dict(harness.view.calls)
    assert calls

    def move(builder: StepBuilder) -> None:
        before = {name: copy(value) for name, value in vars(builder).items()}
        new = builder.apply(event, "from_runtime", dedupe_key="n-1")
        assert {name for name, value in vars(builder).items() if value != before[name]} <= TOLD
        assert new.sequence == builder.last_sequence == before["last_sequence"] + 1
        assert builder.memory == fold(before["memory"], new, new.sequence)
        assert builder.calls == calls

    harness.decide(move)

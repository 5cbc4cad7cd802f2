"""The changes by `record` of a step builder: its number and its memory, nothing else."""

from copy import copy
from dataclasses import replace
from typing import Any, cast

import pytest

from gateway.adapter.port import Frame
from gateway.core import calls, inbound
from gateway.core.fold import fold
from gateway.core.routing import Route
from gateway.core.session import StepBuilder
from gateway.core.state import Start
from gateway.errors import Stale
from gateway.events import (
    ApprovalAsked,
    Author,
    CallId,
    ContextUpdated,
    Draft,
    Event,
    InteractionId,
    MessagePosted,
    Outcome,
    SessionClosed,
    SessionMoved,
    Text,
    ToolCanceled,
    ToolFinished,
    ToolRequested,
    TurnInterrupted,
)
from gateway.executors.port import Answered
from gateway.store.call import Call, Settle
from gateway.store.step import RUNTIME, InteractionChange, Keep, SendChange
from tests.unit.core.harness import GOOD, ROUTES, Harness

DONE = Answered(Outcome(outcome="success", result=1))
TOLD = {"events", "last_sequence", "memory", "_taken"}


def frame(native: str) -> Frame:
    return Frame("event", {"type": "tool-call", "toolCallId": native, "toolName": "ask_for_cards", "arguments": GOOD})


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
        new = builder.apply(event, "from_runtime", draft=Draft(event, native_id="n-1"))
        assert {name for name, value in vars(builder).items() if value != before[name]} <= TOLD
        assert new.sequence == builder.last_sequence == before["last_sequence"] + 1
        assert builder.memory == fold(before["memory"], new)
        assert builder.calls == calls

    harness.decide(move)


def test_going_back_to_a_mark_restores_everything() -> None:
    harness = Harness(routes=(*ROUTES, Route(event="*", copy_to=("log",))))
    harness.call("tc-1")
    harness.call("tc-2")

    def move(builder: StepBuilder) -> None:
        inbound.take(builder, frame("tc-3"))
        before = {name: copy(value) for name, value in vars(builder).items()}
        for _ in range(2):
            mark = builder.mark()
            builder.live, builder.touched_at, builder.start = False, builder.now, Start("ready")
            inbound.take(builder, frame("tc-4"), cursor="further")
            inbound.take(builder, Frame("event", {"type": "status", "status": "idle"}))
            calls.answered(builder, harness.id_of("tc-1"), 1, DONE, jitter=0)
            calls.cancel(builder, harness.id_of("tc-2"), reason=None)
            question = ApprovalAsked(id="q", native_call_id="q", tool="run", scopes=("once",))
            builder.apply(question, "from_runtime", draft=Draft(question, native_id="n-1"))
            builder.interactions.append(InteractionChange(InteractionId("i"), "waiting"))
            builder.send_changes.append(SendChange(1, RUNTIME, "delivered"))
            builder.keep(Keep("key", "scope", "sha", builder.now, ()), [builder.last_sequence])
            changed = {name for name, value in vars(builder).items() if value != before[name]}
            assert changed >= {"calls", "effects", "events", "sends", "_calls", "_keeps", "_taken", "memory", "cursor"}
            builder.back_to(mark)
            assert {name: value for name, value in vars(builder).items() if value != before[name]} == {}
        calls.answered(builder, harness.id_of("tc-1"), 1, DONE, jitter=0)

    harness.decide(move)
    assert harness.kinds == ["tool.requested", "tool.finished"]
    assert set(harness.view.calls) == {harness.id_of("tc-2"), harness.id_of("tc-3")}


@pytest.mark.parametrize(("at", "to"), [("queued", "accepted"), ("dispatched", "accepted")])
def test_a_call_ends_only_as_the_table_allows(at: Any, to: Any) -> None:
    harness = Harness()
    harness.call("tc-1")
    call_id = harness.id_of("tc-1", 0)
    known = cast("dict[CallId, Call]", harness.view.calls)
    known[call_id] = replace(known[call_id], state=at)
    with pytest.raises(Stale):
        harness.decide(lambda builder: builder.change_call(Settle(call_id, to, "sha", None)))
    assert call_id in harness.view.calls

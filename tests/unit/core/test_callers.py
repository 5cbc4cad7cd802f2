"""Calls from outside: no memory contains them, and their request is checked once."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.core import callers
from gateway.core.fold import fold
from gateway.core.nulls import Fitted
from gateway.core.state import Remembered
from gateway.events import Envelope, Event, EventId, Origin, SessionId, ToolFinished, ToolRequested
from gateway.store.call import CALLER
from tests.unit.core.harness import ASK, GOOD, Harness

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "event",
    [ToolRequested(native_call_id="caller:a:k", tool="t"), ToolFinished(native_call_id="c", outcome="success")],
    ids=lambda event: event.kind,
)
def test_calls_from_outside_are_no_activity_of_the_runtime(event: Event) -> None:
    known = Remembered(running=True, active_at=NOW)
    direction = "from_runtime" if event.kind == "tool.requested" else "to_runtime"
    origin = Origin(CALLER, "dragoman/1")
    recorded = Envelope(EventId("e"), SessionId("s"), 1, NOW + timedelta(seconds=9), direction, event, origin)
    assert fold(known, recorded) == known


def test_a_call_from_outside_is_checked_once() -> None:
    harness, checked = Harness(), list[tuple[str, Mapping[str, Any]]]()

    def fit(tool: str, arguments: Mapping[str, Any]) -> Fitted:
        checked.append((tool, arguments))
        return Fitted(arguments)

    harness.runtime = replace(harness.runtime, policy=replace(harness.runtime.policy, fit_arguments=fit))
    request = callers.CallRequest(ASK.name, GOOD, "backend", "k-1", "dragoman/1")
    call_id = harness.decide(lambda builder: callers.ask(builder, request))
    assert [call.call_id for call in harness.dispatched] == [call_id]
    assert checked == [(ASK.name, GOOD)]

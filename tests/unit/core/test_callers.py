"""What a runtime's memory takes of calls from outside: nothing."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.core.fold import fold
from gateway.core.state import Remembered
from gateway.events import Envelope, Event, EventId, Origin, SessionId, ToolFinished, ToolRequested
from gateway.store.call import CALLER

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "event",
    [ToolRequested(native_call_id="caller:a:k", tool="t"), ToolFinished(native_call_id="c", outcome="success")],
    ids=lambda event: event.kind,
)
def test_what_callers_do_is_no_activity_of_the_runtime(event: Event) -> None:
    known = Remembered(running=True, active_at=NOW)
    direction = "from_runtime" if event.kind == "tool.requested" else "to_runtime"
    origin = Origin(CALLER, "dragoman/1")
    recorded = Envelope(EventId("e"), SessionId("s"), 1, NOW + timedelta(seconds=9), direction, event, origin)
    assert fold(known, recorded) == known

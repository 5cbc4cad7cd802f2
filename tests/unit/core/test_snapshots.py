"""Snapshots of a session's memory."""

import json
from datetime import UTC, datetime

from gateway.core.snapshots import from_snapshot, to_snapshot
from gateway.core.state import Asked, Remembered
from gateway.events import EventId, QuestionAsked
from tests.unit.core.test_herm import Herm

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MEMORY = Remembered(
    labels={"game": "one"},
    context={"large": 2**70, "real": 0.1, "nothing": None},
    history=("[12:00] Alice: hello",),
    active_at=NOW,
    asked=(Asked(QuestionAsked(id="q", text="which?"), EventId("e"), 3, NOW),),
)


def test_a_memory_comes_back_as_it_was() -> None:
    assert from_snapshot(to_snapshot(100, MEMORY)) == (100, MEMORY)
    assert from_snapshot(None) == (0, Remembered())


def test_calls_that_wait_are_written_as_objects_in_their_order() -> None:
    herm = Herm()
    for native in ("one", "two"):
        herm.wants(native)
    memory = herm.harness.view.memory
    told = json.loads(to_snapshot(2, memory))["memory"]
    for name in ("wanted", "hosted"):
        assert type(told[name]) is dict
        assert list(told[name]) == ["one", "two"]
    assert told["hosted"]["one"] == {"native_call_id": "one", "answer": None, "awaited": "unsaid", "size": 3}
    assert from_snapshot(to_snapshot(2, memory)) == (2, memory)


def test_snapshots_of_earlier_releases_are_read() -> None:
    memory = json.loads(to_snapshot(100, MEMORY))["memory"]
    for told in ([100, memory], {"folding": 3, "sequence": 100, "memory": memory}):
        assert from_snapshot(json.dumps(told).encode()) == (100, MEMORY)


def test_an_unreadable_snapshot_is_replaced_by_the_fold_of_all_events() -> None:
    state = b'{"sequence":1,"memory":{"state":{}}}'
    for damaged in (b"", b"\xff", b"{}", b"[]", b"7", b'{"sequence":"x","memory":{}}', state, b"[" * 100_000):
        assert from_snapshot(damaged) == (0, Remembered())

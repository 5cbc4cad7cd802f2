"""A session's memory is read by releases before and after the one that wrote it."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gateway.core import lifecycle
from gateway.core.snapshots import FOLDING, from_snapshot, to_snapshot
from gateway.core.state import Asked, Complete, Remembered
from gateway.events import EventId, LinkChanged, QuestionAsked
from gateway.runtime.session.load import load_view
from gateway.store.memory import MemoryEngine
from gateway.store.step import Step
from gateway.testing.conformance.engine_newer import WeatherChanged
from gateway.testing.conformance.engine_words import ALICE, FakeClock, new, open_session, said
from tests.unit.core.harness import Harness
from tests.unit.core.test_herm import Herm

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MEMORY = Remembered(
    labels={"game": "one"},
    context={"large": 2**70, "real": 0.1, "nothing": None},
    history=("[12:00] Alice: hello",),
    active_at=NOW,
    asked=(Asked(QuestionAsked(id="q", text="which?"), EventId("e"), 3, NOW),),
)


def written(known: Remembered, /, **changes: Any) -> bytes:
    """A snapshot at sequence 100, with other members."""
    return json.dumps(json.loads(to_snapshot(100, known)) | changes).encode()


def test_a_memory_comes_back_as_it_was() -> None:
    assert from_snapshot(to_snapshot(100, MEMORY)) == (100, MEMORY, None)
    assert from_snapshot(None) == (0, Remembered(), None)


def test_calls_that_wait_are_written_as_earlier_releases_read_them() -> None:
    herm = Herm()
    for native in ("one", "two"):
        herm.wants(native)
    memory = herm.harness.view.memory
    told = json.loads(to_snapshot(2, memory))["memory"]
    for name in ("wanted", "hosted"):
        assert type(told[name]) is dict
        assert list(told[name]) == ["one", "two"]
    assert told["hosted"]["one"] == {"native_call_id": "one", "answer": None, "awaited": "unsaid", "size": 3}
    assert from_snapshot(to_snapshot(2, memory)) == (2, memory, None)


def test_the_snapshot_of_the_first_release_is_read() -> None:
    first = b"[100,%b]" % json.dumps(json.loads(to_snapshot(100, MEMORY))["memory"]).encode()
    assert from_snapshot(first) == (100, MEMORY, None)


def test_a_newer_memory_is_read_for_what_is_known_and_carried_along() -> None:
    told: dict[str, Any] = json.loads(to_snapshot(100, MEMORY))["memory"]
    told["mood"] = "calm"
    told["state"] = {"of": "another shape"}
    told["asked"].append({**told["asked"][0], "event": {"kind": "weather.asked", "id": "w"}})
    newer = written(MEMORY, folding=FOLDING + 1, memory=told)
    sequence, memory, complete = from_snapshot(newer)
    assert (sequence, memory) == (100, replace(MEMORY, state=Remembered().state))
    assert complete == Complete(100, newer)

    ours = to_snapshot(150, memory, complete)
    again = from_snapshot(ours)
    assert (again.sequence, again.memory) == (150, memory)
    assert again.complete is not None
    assert again.complete.sequence == 100
    assert json.loads(again.complete.snapshot) == json.loads(newer)


def test_the_newer_release_folds_anew_from_the_newest_snapshot_of_its_own() -> None:
    own = to_snapshot(100, MEMORY)
    older = json.loads(to_snapshot(150, Remembered(), Complete(100, own)))
    older["folding"] = FOLDING - 1
    assert from_snapshot(json.dumps(older).encode()) == (100, MEMORY, None)


def test_an_older_memory_that_lacks_nothing_is_gone_on_with() -> None:
    assert from_snapshot(written(MEMORY, folding=FOLDING - 1)) == (100, MEMORY, None)


def test_what_cannot_be_read_at_all_is_folded_from_the_first_event() -> None:
    for damaged in (b"", b"\xff", b"{}", b"[]", b"7", b'{"folding":"x","sequence":1,"memory":{}}', b"[" * 100_000):
        assert from_snapshot(damaged) == (0, Remembered(), None)


async def test_a_session_folded_without_an_event_hands_on_the_memory_before_it() -> None:
    async with MemoryEngine(FakeClock()) as engine:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said("a"), new(WeatherChanged()), said("b"), new(WeatherChanged()))))
        view = await load_view(engine, ALICE)
        assert view.complete is not None
        assert view.complete.sequence == 2
        assert from_snapshot(view.complete.snapshot).sequence == 2

        written = to_snapshot(view.last_sequence, view.memory, view.complete)
        await engine.commit(Step(ALICE, (said("c"),), snapshot=written, keep_from=3))
        again = await load_view(engine, ALICE)
        assert (again.complete, again.last_sequence) == (view.complete, 6)


def test_the_events_that_a_newer_release_folds_anew_are_kept_until_the_session_is_closed() -> None:
    harness = Harness()
    steps: list[Step] = []

    def link(builder: Any) -> None:
        lifecycle.link(harness.runtime, builder, LinkChanged(state="down"))
        steps.append(builder.step(fence=0, snapshot=b"s"))

    harness.decide(link)
    harness.view = replace(harness.view, complete=Complete(7, b"{}"))
    harness.decide(link)

    def close(builder: Any) -> None:
        lifecycle.close(harness.runtime, builder, reason=None)
        steps.append(builder.step(fence=0, snapshot=b"s"))

    harness.decide(close)
    assert [step.keep_from for step in steps] == [None, 8, None]

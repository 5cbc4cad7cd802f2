"""The state that lists show is that of the last `session.moved` on record."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.adapter.port import Adapter
from gateway.core import lifecycle
from gateway.events import Opaque, SessionMoved
from tests.unit.core.harness import HERM, HUMA_0_1, HUMA_0_2, OPENHANDS, Harness

WORDS = {
    "loading": "starting",
    "running": "running",
    "awaiting_user_input": "awaiting_input",
    "awaiting_user_confirmation": "awaiting_approval",
    "paused": "paused",
    "finished": "finished",
    "stopped": "stopped",
    "error": "error",
}


def _state(number: int, word: str, *, hour: int = 20) -> dict[str, Any]:
    return {
        "id": number,
        "timestamp": f"2026-11-20T{hour}:00:{number:02}.000000",
        "source": "agent",
        "message": "",
        "observation": "agent_state_changed",
        "content": "",
        "extras": {"agent_state": word, "reason": ""},
    }


def _last_moved(harness: Harness) -> str | None:
    moved = [new.event.state for new, _ in harness.journal if isinstance(new.event, SessionMoved)]
    return moved[-1] if moved else None


@pytest.mark.parametrize(
    ("adapter", "first"), [(HUMA_0_1, "idle"), (HUMA_0_2, "idle"), (OPENHANDS, "starting"), (HERM, "starting")]
)
def test_before_the_first_state_a_session_is_starting_if_its_protocol_reports_turns(adapter: Adapter, first: str):
    harness = Harness(adapter)
    assert harness.listed == first
    harness.decide(lifecycle.recover)
    assert (harness.step.state, harness.listed) == (None, first)


@pytest.mark.parametrize(("word", "state"), WORDS.items())
def test_every_state_is_listed(word: str, state: str):
    harness = Harness(OPENHANDS)
    harness.receive(_state(1, word), channel="oh_event")
    assert harness.listed == state == _last_moved(harness)


def test_states_that_come_in_one_step_leave_the_last():
    harness = Harness(HUMA_0_2)

    def both(builder: Any) -> None:
        builder.apply(SessionMoved(state="running"), "from_runtime")
        builder.apply(SessionMoved(state="idle"), "from_runtime")

    harness.view, harness.listed = replace(harness.view, listed="starting"), "starting"
    harness.decide(both)
    assert harness.listed == "idle" == _last_moved(harness)


def test_a_row_that_another_release_left_wrong_is_set_right_when_its_session_is_taken_up():
    harness = Harness(OPENHANDS)
    harness.receive(_state(1, "error"), channel="oh_event")
    harness.view = replace(harness.view, listed="idle")
    harness.decide(lifecycle.recover)
    assert (harness.step.state, harness.step.events) == ("error", ())
    harness.decide(lifecycle.recover)
    assert harness.step.state is None


def test_a_closed_session_is_listed_as_closed():
    harness = Harness(OPENHANDS)
    harness.receive(_state(1, "running"), channel="oh_event")
    harness.decide(lambda builder: lifecycle.close(builder, reason=None))
    assert harness.listed == "closed"


@pytest.mark.requirement("OH15", "OH17")
def test_an_outdated_state_is_recorded_and_changes_nothing():
    harness = Harness(OPENHANDS)
    harness.receive(_state(3, "awaiting_user_input"), channel="oh_event")
    before = harness.view.memory
    harness.receive(_state(0, "loading"), channel="oh_event")
    kept, _ = harness.journal[-1]
    assert isinstance(kept.event, Opaque)
    assert (kept.event.channel, kept.event.payload["native_state"]) == ("session.moved", "loading")
    assert [(loss.how, loss.path) for loss in kept.losses] == [("narrowed", "")]
    assert kept.origin.native_sequence == 0
    assert replace(harness.view.memory, recent=before.recent) == before
    assert harness.listed == "awaiting_input" == _last_moved(harness)
    # It comes once more, and is a repeat now.
    harness.receive(_state(0, "loading"), channel="oh_event")
    assert len(harness.journal) == 2


@pytest.mark.requirement("OH12")
def test_a_conversation_that_begins_anew_under_its_name_counts_from_its_first_state():
    harness = Harness(OPENHANDS)
    harness.receive(_state(30, "finished"), channel="oh_event")
    harness.receive(_state(0, "loading", hour=21), channel="oh_event")
    assert harness.listed == "starting" == _last_moved(harness)

"""The state that lists show is that of the last `session.moved` on record."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.core import session
from gateway.envelope import Opaque, SessionMoved
from gateway.ports.adapter import Adapter
from tests.unit.core.table import HERM, HUMA_0_1, HUMA_0_2, OPENHANDS, Table

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


def _last_moved(table: Table) -> str | None:
    moved = [new.event.state for new, _ in table.journal if isinstance(new.event, SessionMoved)]
    return moved[-1] if moved else None


@pytest.mark.parametrize(
    ("adapter", "first"), [(HUMA_0_1, "idle"), (HUMA_0_2, "idle"), (OPENHANDS, "starting"), (HERM, "starting")]
)
def test_before_the_first_state_a_session_starts_where_its_protocol_tells_of_turns(adapter: Adapter, first: str):
    table = Table(adapter)
    assert table.listed == first
    table.decide(lambda build: session.recover(table.council, build))
    assert (table.step.state, table.listed) == (None, first)


@pytest.mark.parametrize(("word", "state"), WORDS.items())
def test_every_state_is_listed(word: str, state: str):
    table = Table(OPENHANDS)
    table.receive(_state(1, word), channel="oh_event")
    assert table.listed == state == _last_moved(table)


def test_states_that_come_in_one_step_leave_the_last():
    table = Table(HUMA_0_2)

    def both(build: Any) -> None:
        build.record(SessionMoved(state="running"), "from_runtime")
        build.record(SessionMoved(state="idle"), "from_runtime")

    table.view, table.listed = replace(table.view, listed="starting"), "starting"
    table.decide(both)
    assert table.listed == "idle" == _last_moved(table)


def test_a_row_that_another_release_left_wrong_is_set_right_when_its_session_is_taken_up():
    table = Table(OPENHANDS)
    table.receive(_state(1, "error"), channel="oh_event")
    table.view = replace(table.view, listed="idle")
    table.decide(lambda build: session.recover(table.council, build))
    assert (table.step.state, table.step.events) == ("error", ())
    table.decide(lambda build: session.recover(table.council, build))
    assert table.step.state is None


def test_a_closed_session_is_listed_as_closed():
    table = Table(OPENHANDS)
    table.receive(_state(1, "running"), channel="oh_event")
    table.decide(lambda build: session.close(table.council, build, reason=None))
    assert table.listed == "closed"


@pytest.mark.requirement("OH15", "OH17")
def test_a_state_gone_by_is_on_record_and_changes_nothing():
    table = Table(OPENHANDS)
    table.receive(_state(3, "awaiting_user_input"), channel="oh_event")
    before = table.view.memory
    table.receive(_state(0, "loading"), channel="oh_event")
    kept, _ = table.journal[-1]
    assert isinstance(kept.event, Opaque)
    assert (kept.event.channel, kept.event.payload["native_state"]) == ("session.moved", "loading")
    assert [(loss.how, loss.path) for loss in kept.losses] == [("narrowed", "")]
    assert kept.origin.native_sequence == 0
    assert replace(table.view.memory, recent=before.recent) == before
    assert table.listed == "awaiting_input" == _last_moved(table)
    # It comes once more, and is a repeat now.
    table.receive(_state(0, "loading"), channel="oh_event")
    assert len(table.journal) == 2


@pytest.mark.requirement("OH12")
def test_a_conversation_that_begins_anew_under_its_name_counts_from_its_first_state():
    table = Table(OPENHANDS)
    table.receive(_state(30, "finished"), channel="oh_event")
    table.receive(_state(0, "loading", hour=21), channel="oh_event")
    assert table.listed == "starting" == _last_moved(table)

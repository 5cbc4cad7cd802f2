"""The start of a runtime as its link shows it, and the end of the wait of new work."""

from typing import Any

import pytest

from gateway.core import inbound, lifecycle
from gateway.core.state import Start
from gateway.events import DeliverySettled, LinkChanged, MessagePosted, Text
from tests.unit.core.harness import HERM, HUMA_0_2, OPENHANDS, START, Harness


def _state(number: int, state: str) -> dict[str, Any]:
    return {
        "id": number,
        "timestamp": f"2026-11-20T20:00:{number:02}.000000",
        "source": "agent",
        "observation": "agent_state_changed",
        "content": "",
        "extras": {"agent_state": state, "reason": ""},
    }


def _linked(harness: Harness, *, is_starting: bool | None = None) -> None:
    harness.catch_up(is_starting=is_starting)
    harness.decide(lambda builder: lifecycle.link(builder, LinkChanged(state="up")))


def _hear(harness: Harness, *payloads: Any) -> str:
    for payload in payloads:
        harness.receive(payload, channel="oh_event")
    return harness.view.start.state


@pytest.fixture
def harness() -> Harness:
    made = Harness(OPENHANDS)
    made.decide(inbound.connecting)
    return made


@pytest.mark.parametrize("state", ["awaiting_user_input", "running", "finished", "error", "paused", "stopped"])
def test_any_state_but_starting_says_that_the_runtime_listens(harness: Harness, state: str):
    assert _hear(harness, _state(0, "loading")) == "starting"
    assert _hear(harness, _state(3, state)) == "ready"


def test_a_repeated_state_counts_on_a_new_link_and_an_outdated_one_does_not(harness: Harness):
    _hear(harness, _state(0, "loading"), _state(3, "awaiting_user_input"))
    harness.decide(inbound.connecting)
    assert harness.view.start == Start("unknown")
    recorded = len(harness.journal)
    assert _hear(harness, _state(3, "awaiting_user_input")) == "ready"
    assert _hear(harness, _state(0, "loading")) == "ready"
    assert len(harness.journal) == recorded
    assert _hear(harness, _state(7, "loading")) == "starting"


def test_an_outdated_state_does_not_count_even_if_this_link_has_shown_no_newer_one(harness: Harness):
    _hear(harness, _state(0, "loading"), _state(3, "awaiting_user_input"))
    harness.decide(inbound.connecting)
    _linked(harness, is_starting=False)
    assert _hear(harness, _state(0, "loading")) == "ready"
    assert _hear(harness, _state(7, "loading")) == "starting"


def test_a_runtime_that_begins_anew_makes_the_states_before_it_count_for_nothing(harness: Harness):
    _hear(harness, _state(3, "awaiting_user_input"))
    _linked(harness, is_starting=True)
    assert harness.view.start.state == "starting"
    assert _hear(harness, _state(3, "awaiting_user_input")) == "starting"
    assert _hear(harness, _state(9, "awaiting_user_input")) == "ready"


@pytest.mark.parametrize(("is_starting", "state"), [(None, "unknown"), (False, "ready"), (True, "starting")])
def test_the_state_that_a_link_finds_counts_if_the_runtime_reports_none(
    harness: Harness, is_starting: bool | None, state: str
):
    _linked(harness, is_starting=is_starting)
    assert harness.view.start.state == state


def test_a_state_that_was_told_counts_more_than_that_the_runtime_is_there(harness: Harness):
    _hear(harness, _state(0, "loading"))
    _linked(harness, is_starting=False)
    assert harness.view.start.state == "starting"


def test_the_wait_is_bounded_and_begins_with_the_link(harness: Harness):
    _hear(harness, _state(0, "loading"))
    assert lifecycle.next_due(harness.runtime, harness.view) is None
    _linked(harness)
    assert lifecycle.next_due(harness.runtime, harness.view) == START + harness.runtime.options.start_wait
    harness.wait(59)
    assert harness.view.start.state == "starting"
    harness.wait(1)
    assert harness.view.start.state == "overdue"
    assert lifecycle.next_due(harness.runtime, harness.view) is None
    assert _hear(harness, _state(0, "loading")) == "overdue"
    assert _hear(harness, _state(4, "awaiting_user_input")) == "ready"


def test_an_error_of_the_session_ends_the_wait_and_one_of_its_history_does_not(harness: Harness):
    old = {**_state(0, ""), "observation": "error", "extras": {"error_id": ""}, "content": "it failed"}
    assert _hear(harness, old, _state(1, "loading")) == "starting"
    assert _hear(harness, {"error": True, "message": "Failed to create agent session: RetryError"}) == "overdue"


def test_a_runtime_without_history_listens_from_the_start():
    harness = Harness(HUMA_0_2)
    harness.decide(inbound.connecting)
    assert harness.view.start.state == "ready"


def test_of_a_runtime_that_reports_no_start_nothing_is_remembered_or_said():
    harness = Harness(HERM)
    harness.decide(inbound.connecting)
    _linked(harness, is_starting=False)
    harness.wait(61)
    sequence = harness.post(MessagePosted(content=(Text(text="hello"),)))
    echo = {"type": "user.message", "id": "evt_1", "content": [{"type": "text", "text": "hello"}]}
    harness.receive(
        {"id": "evt_1", "sequence": 1, "type": "user.message", "sessionId": "s", "payload": echo}, channel="stream"
    )
    [settled] = [recorded.event for recorded, _ in harness.journal if isinstance(recorded.event, DeliverySettled)]
    assert (settled.sequence, settled.state, settled.reason) == (sequence, "delivered", None)


def test_news_that_are_no_states_say_nothing_of_it(harness: Harness):
    ready = {"status_update": True, "type": "info", "id": "STATUS$READY", "message": ""}
    assert _hear(harness, ready) == "unknown"

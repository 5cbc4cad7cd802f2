"""What a link has told of a runtime's start, and when new work need wait no longer."""

from typing import Any

import pytest

from gateway.core import frames, session
from gateway.core.starting import Start
from gateway.envelope import DeliverySettled, LinkChanged, MessagePosted, Text
from tests.unit.core.table import HERM, OPENHANDS, START, Table


def _state(number: int, state: str) -> dict[str, Any]:
    return {
        "id": number,
        "timestamp": f"2026-11-20T20:00:{number:02}.000000",
        "source": "agent",
        "observation": "agent_state_changed",
        "content": "",
        "extras": {"agent_state": state, "reason": ""},
    }


def _linked(table: Table, *, is_starting: bool | None = None) -> None:
    table.decide(lambda build: frames.caught_up(table.council, build, is_starting=is_starting))
    table.decide(lambda build: session.link(table.council, build, LinkChanged(state="up")))


def _hear(table: Table, *payloads: Any) -> str:
    for payload in payloads:
        table.receive(payload, channel="oh_event")
    return table.view.start.state


@pytest.fixture
def table() -> Table:
    made = Table(OPENHANDS)
    made.decide(lambda build: frames.connecting(made.council, build))
    return made


@pytest.mark.parametrize("state", ["awaiting_user_input", "running", "finished", "error", "paused", "stopped"])
def test_any_state_but_starting_says_that_the_runtime_listens(table: Table, state: str):
    assert _hear(table, _state(0, "loading")) == "starting"
    assert _hear(table, _state(3, state)) == "ready"


def test_a_repeat_of_what_an_earlier_link_brought_counts_and_a_state_gone_by_does_not(table: Table):
    _hear(table, _state(0, "loading"), _state(3, "awaiting_user_input"))
    table.decide(lambda build: frames.connecting(table.council, build))
    assert table.view.start == Start()
    recorded = len(table.journal)
    assert _hear(table, _state(3, "awaiting_user_input")) == "ready"
    assert _hear(table, _state(0, "loading")) == "ready"
    assert len(table.journal) == recorded
    assert _hear(table, _state(7, "loading")) == "starting"


def test_a_state_gone_by_does_not_count_on_a_link_that_was_shown_no_newer_one(table: Table):
    _hear(table, _state(0, "loading"), _state(3, "awaiting_user_input"))
    table.decide(lambda build: frames.connecting(table.council, build))
    _linked(table, is_starting=False)
    assert _hear(table, _state(0, "loading")) == "ready"
    assert _hear(table, _state(7, "loading")) == "starting"


def test_a_runtime_that_begins_anew_makes_the_states_before_it_count_for_nothing(table: Table):
    _hear(table, _state(3, "awaiting_user_input"))
    _linked(table, is_starting=True)
    assert table.view.start.state == "starting"
    assert _hear(table, _state(3, "awaiting_user_input")) == "starting"
    assert _hear(table, _state(9, "awaiting_user_input")) == "ready"


@pytest.mark.parametrize(("is_starting", "state"), [(None, "unknown"), (False, "ready"), (True, "starting")])
def test_what_the_link_finds_out_counts_where_nothing_was_told(table: Table, is_starting: bool | None, state: str):
    _linked(table, is_starting=is_starting)
    assert table.view.start.state == state


def test_a_state_that_was_told_counts_more_than_that_the_runtime_is_there(table: Table):
    _hear(table, _state(0, "loading"))
    _linked(table, is_starting=False)
    assert table.view.start.state == "starting"


def test_the_wait_is_bounded_and_begins_with_the_link(table: Table):
    _hear(table, _state(0, "loading"))
    assert session.next_due(table.council, table.view) is None
    _linked(table)
    assert session.next_due(table.council, table.view) == START + table.council.options.start_wait
    table.wait(59)
    assert table.view.start.state == "starting"
    table.wait(1)
    assert table.view.start.state == "overdue"
    assert session.next_due(table.council, table.view) is None
    assert _hear(table, _state(0, "loading")) == "overdue"
    assert _hear(table, _state(4, "awaiting_user_input")) == "ready"


def test_an_error_of_the_session_ends_the_wait_and_one_of_its_history_does_not(table: Table):
    old = {**_state(0, ""), "observation": "error", "extras": {"error_id": ""}, "content": "it failed"}
    assert _hear(table, old, _state(1, "loading")) == "starting"
    assert _hear(table, {"error": True, "message": "Failed to create agent session: RetryError"}) == "overdue"


def test_of_a_runtime_that_hears_while_it_starts_nothing_is_remembered_or_said():
    table = Table(HERM)
    table.decide(lambda build: frames.connecting(table.council, build))
    _linked(table)
    table.wait(61)
    sequence = table.post(MessagePosted(content=(Text(text="hello"),)))
    echo = {"type": "user.message", "id": "evt_1", "content": [{"type": "text", "text": "hello"}]}
    table.receive(
        {"id": "evt_1", "sequence": 1, "type": "user.message", "sessionId": "s", "payload": echo}, channel="stream"
    )
    [settled] = [recorded.event for recorded, _ in table.journal if isinstance(recorded.event, DeliverySettled)]
    assert (settled.sequence, settled.state, settled.reason) == (sequence, "delivered", None)


def test_news_that_are_no_states_say_nothing_of_it(table: Table):
    ready = {"status_update": True, "type": "info", "id": "STATUS$READY", "message": ""}
    assert _hear(table, ready) == "unknown"

"""An agent's call at our MCP server and the action by which its runtime tells of it are one, whichever comes first."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gateway.core import calls, inbound
from gateway.core.callers import CallRequest, ask
from gateway.core.effects import Dispatch
from gateway.core.fold import fold
from gateway.core.own_actions import HOLD, TICKET, WITHIN
from gateway.core.routing import Route, Routes
from gateway.core.snapshots import from_snapshot, to_snapshot
from gateway.core.state import Remembered
from gateway.events import (
    CallId,
    CallLinked,
    Envelope,
    EventId,
    Origin,
    Outcome,
    SessionId,
    ToolFinished,
    ToolRequested,
)
from gateway.executors.port import Answered
from tests.unit.core.harness import ASK, GOOD, HERM, OPENHANDS, Harness

MCP = "mcp/2025-11-25"
OTHER = {**GOOD, "rank": "K"}
COPIES = (Route(event="tool.*", copy_to=("log",)), Route(tool="ask_*", to="cards"))


class Agent:
    """An OpenHands agent, its own MCP client, and the session that hears both."""

    def __init__(self, adapter: Any = OPENHANDS, **more: Any) -> None:
        self.harness = Harness(adapter, **more)
        self.number = 10
        self.said: list[dict[str, Any]] = []

    def acts(self, arguments: Any = GOOD, *, name: str = ASK.name, action: str = "call_tool_mcp") -> int:
        """The runtime's link tells that the agent calls an MCP tool."""
        args = {"name": name, "arguments": arguments, "thought": "", "security_risk": -1}
        return self.hears(action=action, args=args, message="I am interacting with the MCP server")

    def seen(self, cause: int, *, error: str | None = None, observation: str = "mcp", content: str = "{}") -> int:
        """The runtime's link reports its result."""
        if error is not None:
            return self.hears(observation="error", content=error, extras={"error_id": STOPPED}, cause=cause)
        return self.hears(observation=observation, content=content, extras={"name": "n", "arguments": {}}, cause=cause)

    def state(self, word: str) -> None:
        self.hears(observation="agent_state_changed", content="", extras={"agent_state": word, "reason": ""})

    def asks(self, arguments: Any = GOOD, *, key: str = "k", caller: str = TICKET, tool: str = ASK.name) -> CallId:
        """A request comes to our MCP server."""
        request = CallRequest(tool, arguments, caller, key, MCP)
        return self.harness.decide(lambda builder: ask(builder, request))

    def answers(self, call_id: CallId) -> None:
        outcome = Answered(Outcome(outcome="success", result="Go fish!"))
        self.harness.decide(lambda builder: calls.outcome(builder, call_id, outcome))

    def later(self, span: timedelta) -> None:
        self.harness.now += span

    def hears(self, **said: Any) -> int:
        self.number += 1
        event = {"id": self.number, "timestamp": f"2026-11-20T20:00:00.{self.number:06}", "source": "agent", **said}
        self.said.append(event)
        self.harness.receive(event, channel="oh_event")
        return self.number

    def repeat(self) -> None:
        """The runtime tells once more all that it has told."""
        for event in self.said:
            self.harness.receive(event, channel="oh_event")
            assert self.harness.step.events == ()

    @property
    def journal(self) -> list[Envelope]:
        return [recorded for recorded, _ in self.harness.journal]

    @property
    def links(self) -> list[tuple[str, str]]:
        """Which action is which call."""
        linked = [one.event for one in self.journal if isinstance(one.event, CallLinked)]
        return [(one.native_call_id, one.call_id) for one in linked]

    @property
    def own(self) -> list[str | None]:
        """The links of the runtime's own requests and ends, in the order of their events."""
        return [
            one.linked_to
            for one in self.journal
            if one.direction == "from_runtime" and one.origin is not None and one.origin.adapter == "openhands"
            if isinstance(one.event, ToolRequested | ToolFinished)
        ]

    def check(self) -> None:
        """The memory is the fold of the journal, and survives a snapshot."""
        memory, view = Remembered(echoes=True, delegates=True), self.harness.view
        for one in self.journal:
            memory = fold(memory, one)
        assert memory == view.memory
        assert from_snapshot(to_snapshot(view.last_sequence, memory)).memory == memory


STOPPED = "AGENT_ERROR$ERROR_ACTION_NOT_EXECUTED_STOPPED"


@pytest.fixture
def agent() -> Agent:
    return Agent()


def restart(agent: Agent) -> None:
    """Continue the session in another process, from the store."""
    view = agent.harness.view
    kept = from_snapshot(to_snapshot(view.last_sequence, view.memory)).memory
    agent.harness.view = replace(view, memory=kept)


@pytest.mark.parametrize("restarts", [False, True])
def test_an_action_that_is_told_first_is_linked_when_its_call_begins(agent: Agent, *, restarts: bool) -> None:
    number = agent.acts()
    if restarts:
        restart(agent)
    call_id = agent.asks()
    assert agent.links == [(str(number), call_id)]
    [linked] = [one for one in agent.journal if one.event.kind == "call.linked"]
    assert (linked.caused_by, linked.origin, linked.direction) == (1, None, "to_runtime")
    agent.answers(call_id)
    agent.seen(number)
    assert agent.own == [None, call_id]
    agent.check()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_call_that_begins_first_is_linked_when_its_action_is_told(agent: Agent, *, restarts: bool) -> None:
    call_id = agent.asks()
    agent.answers(call_id)
    if restarts:
        restart(agent)
    number = agent.acts()
    agent.seen(number)
    assert agent.links == [(str(number), call_id)]
    assert agent.own == [call_id, call_id]
    assert agent.harness.view.memory.unlinked == ()
    agent.check()


def test_the_same_frame_twice_links_once(agent: Agent) -> None:
    number = agent.acts()
    call_id = agent.asks()
    agent.number -= 1
    agent.acts()
    agent.asks()
    agent.seen(number)
    agent.number -= 1
    agent.seen(number)
    assert agent.links == [(str(number), call_id)]
    assert agent.own == [None, call_id]


def test_an_end_that_comes_twice_is_linked_both_times_and_nothing_is_withdrawn_after_the_first(agent: Agent) -> None:
    number = agent.acts()
    call_id = agent.asks()
    agent.answers(call_id)
    agent.seen(number)
    agent.seen(number, error="stopped")
    assert agent.own == [None, call_id, call_id]
    assert not agent.harness.settled


@pytest.mark.parametrize("call_first", [False, True])
def test_of_equal_ones_the_oldest_belong_together(agent: Agent, *, call_first: bool) -> None:
    def acts() -> list[int]:
        return [agent.acts(), agent.acts()]

    def asks() -> list[str]:
        return [agent.asks(key="one"), agent.asks(key="two")]

    asked = asks() if call_first else []
    numbers = acts()
    asked = asked or asks()
    assert agent.links == list(zip(map(str, numbers), asked, strict=True))


@pytest.mark.parametrize("call_first", [False, True])
def test_arguments_tell_concurrent_actions_apart(agent: Agent, *, call_first: bool) -> None:
    moves: list[Callable[[], Any]] = [
        lambda: agent.acts(GOOD),
        lambda: agent.acts(OTHER),
        lambda: agent.asks(OTHER, key="other"),
        lambda: agent.asks(GOOD, key="good"),
    ]
    made = [move() for move in (reversed(moves) if call_first else moves)]
    good, other, other_call, good_call = reversed(made) if call_first else made
    assert sorted(agent.links) == sorted([(str(good), good_call), (str(other), other_call)])


@pytest.mark.parametrize("call_first", [False, True])
def test_arguments_that_a_runtime_changed_are_linked_by_tool_and_order_at_the_actions_end(
    agent: Agent, *, call_first: bool
) -> None:
    if call_first:
        first, second = agent.asks(OTHER, key="one"), agent.asks(OTHER, key="two")
        number = agent.acts()
    else:
        number = agent.acts()
        first, second = agent.asks(OTHER, key="one"), agent.asks(OTHER, key="two")
    assert agent.links == []
    agent.seen(number)
    assert agent.links == [(str(number), first)]
    assert agent.own == [None, first]
    assert [call.call_id for call in agent.harness.view.memory.unlinked] == [second]
    agent.check()


@pytest.mark.parametrize("name", ["dragoman_ask_for_cards", "mcp__dragoman__ask_for_cards"])
def test_the_prefix_that_a_runtime_puts_before_a_tool_is_taken_off(agent: Agent, name: str) -> None:
    number = agent.acts(name=name)
    assert agent.links == [] != [agent.asks()]
    assert [native for native, _ in agent.links] == [str(number)]


@pytest.mark.parametrize("name", ["ask_for_cards_now", "xask_for_cards", "cards", "", "lonely"])
def test_another_tool_is_another_call(agent: Agent, name: str) -> None:
    number = agent.acts(name=name)
    agent.asks()
    agent.seen(number)
    assert agent.links == []
    assert agent.own == [None, None]


@pytest.mark.parametrize("broken", [{"name": 7}, {"arguments": "x"}, {"name": None, "arguments": None}])
def test_an_action_without_a_tool_name_is_not_linked(agent: Agent, broken: dict[str, Any]) -> None:
    args = {"name": ASK.name, "arguments": GOOD, **broken}
    number = agent.hears(action="call_tool_mcp", args=args)
    agent.asks()
    agent.seen(number)
    assert agent.links == []


def test_an_action_that_ended_without_a_call_was_not_made_here(agent: Agent) -> None:
    number = agent.acts()
    agent.seen(number)
    agent.asks()
    again = agent.acts(OTHER)
    agent.seen(number)
    assert agent.links == []
    assert agent.own == [None, None, None, None]
    agent.asks(OTHER, key="other")
    assert [native for native, _ in agent.links] == [str(again)]


@pytest.mark.parametrize("caller", ["backend", "tool token", "mcp client"])
def test_only_a_client_with_the_ticket_is_the_agent(agent: Agent, caller: str) -> None:
    number = agent.acts()
    agent.asks(caller=caller)
    agent.seen(number)
    assert agent.links == []
    assert agent.harness.view.memory.unlinked == ()


def test_a_protocol_without_such_actions_keeps_no_memory_of_calls() -> None:
    agent = Agent(HERM)
    agent.asks()
    assert agent.harness.view.memory.unlinked == ()
    [asked] = [one for one in agent.journal if isinstance(one.event, ToolRequested)]
    assert asked.origin is not None
    assert asked.origin.correlation is None


def test_a_call_that_no_action_tells_of_is_given_up_after_a_while_on_a_link_that_stands(agent: Agent) -> None:
    agent.asks()
    agent.later(WITHIN + timedelta(seconds=1))
    number = agent.acts()
    agent.seen(number)
    assert agent.links == []


def test_actions_of_the_history_are_linked_at_any_age(agent: Agent) -> None:
    call_id = agent.asks()
    agent.answers(call_id)
    agent.harness.decide(inbound.connecting)
    agent.later(100 * WITHIN)
    number = agent.acts()
    assert agent.links == [(str(number), call_id)]
    agent.harness.catch_up()
    assert not agent.harness.settled


def test_only_so_many_of_either_are_kept(agent: Agent) -> None:
    asked = [agent.asks(key=f"{n}") for n in range(70)]
    assert len(agent.harness.view.memory.unlinked) == 64
    numbers = [agent.acts(OTHER) for _ in range(70)]
    assert len(agent.harness.view.memory.actions) == 64
    agent.asks(OTHER, key="other")
    # The oldest that is still known.
    assert [native for native, _ in agent.links] == [str(numbers[6])]
    assert [call.call_id for call in agent.harness.view.memory.unlinked] == asked[7:]
    agent.check()


# Abandoned actions -----------------------------------------------------------------------------------


def test_an_action_that_the_agent_abandons_ends_its_call_and_cancels_at_the_executor(agent: Agent) -> None:
    number = agent.acts()
    call_id = agent.asks()
    agent.seen(number, error="The agent was stopped.")
    [settled] = agent.harness.settled
    assert (settled.call_id, settled.state, settled.error) == (call_id, "canceled", "The agent was stopped.")
    [released] = agent.harness.released
    assert released.tell is not None
    assert released.tell["reason"] == "The agent was stopped."
    assert not agent.harness.view.calls
    agent.check()


def test_an_action_that_fails_ends_no_call(agent: Agent) -> None:
    number = agent.acts()
    call_id = agent.asks()
    agent.seen(number, observation="mcp", content='{"isError": true, "content": []}')
    assert agent.own[-1] == call_id
    assert list(agent.harness.view.calls) == [call_id]


def test_an_abandoned_action_ends_no_earlier_call_with_other_arguments(agent: Agent) -> None:
    before = agent.asks(OTHER, key="before")
    number = agent.acts()
    agent.seen(number, error="The agent was stopped.")
    assert (agent.links, list(agent.harness.view.calls)) == ([], [before])
    number = agent.acts()
    since = agent.asks(OTHER, key="since")
    agent.seen(number, error="The agent was stopped.")
    assert (agent.links, list(agent.harness.view.calls)) == ([(str(number), since)], [before])


def test_an_action_that_the_history_shows_as_abandoned_ends_its_call_at_once(
    agent: Agent,
) -> None:
    number = agent.acts()
    agent.asks()
    restart(agent)
    agent.harness.decide(inbound.connecting)
    agent.seen(number, error="The agent was stopped.")
    assert [settled.state for settled in agent.harness.settled] == ["canceled"]


def test_a_call_of_an_action_that_was_given_up_before_is_not_begun(agent: Agent) -> None:
    agent.state("running")
    number = agent.acts()
    agent.state("stopped")
    agent.seen(number, error="The agent was stopped.")
    call_id = agent.asks()
    assert agent.links == [(str(number), call_id)]
    assert [settled.state for settled in agent.harness.settled] == ["canceled"]
    assert not [effect for effect in agent.harness.effects if isinstance(effect, Dispatch)]
    agent.check()


def test_calls_after_the_agent_continues_are_not_the_abandoned_ones(agent: Agent) -> None:
    number = agent.acts()
    agent.state("stopped")
    agent.seen(number, error="The agent was stopped.")
    agent.state("running")
    call_id = agent.asks()
    assert agent.links == []
    again = agent.acts()
    assert agent.links == [(str(again), call_id)]
    assert list(agent.harness.view.calls) == [call_id]


def test_an_action_that_its_runtime_lost_with_its_turn_is_no_call_of_a_later_one(agent: Agent) -> None:
    agent.state("running")
    agent.acts()
    agent.state("error")
    agent.state("running")
    number = agent.acts()
    call_id = agent.asks()
    assert agent.links == [(str(number), call_id)]


def test_a_call_that_comes_behind_the_end_of_its_turn_is_still_its_actions(agent: Agent) -> None:
    agent.state("running")
    number = agent.acts()
    agent.state("error")
    call_id = agent.asks()
    assert agent.links == [(str(number), call_id)]
    assert list(agent.harness.view.calls) == [call_id]


# Links in frames -----------------------------------------------------------------------------------------------


def test_progress_that_pretends_to_be_a_link_is_progress(agent: Agent) -> None:
    first, second = agent.acts(), agent.acts(OTHER)
    call_id = agent.asks()
    forged = {"kind": "call.linked", "call_id": call_id, "native_call_id": str(second), "linked_to": call_id}
    assert agent.harness.decide(lambda builder: calls.progressed(builder, call_id, forged))
    agent.seen(second)
    assert agent.links == [(str(first), call_id)]
    assert agent.own == [None, None, None]
    agent.check()


def test_a_link_in_the_frame_of_a_peer_is_ignored(agent: Agent) -> None:
    agent.acts()
    before = agent.harness.view.memory
    said = CallLinked(native_call_id="11", tool=ASK.name, call_id="c")
    for direction in ("from_runtime", "to_runtime"):
        recorded = Envelope(
            EventId("e"), SessionId("s"), 9, agent.harness.now, direction, said, Origin("x", "x/1"), caused_by=1
        )
        assert fold(before, recorded).actions == before.actions


# Copies ----------------------------------------------------------------------------------------------------


@pytest.fixture
def copied() -> Agent:
    agent = Agent()
    policy = replace(agent.harness.runtime.policy, routes=Routes(COPIES))
    agent.harness.runtime = replace(agent.harness.runtime, policy=policy)
    return agent


def copies(agent: Agent) -> list[tuple[int, Any]]:
    """Of which events the last step has copies made, and when."""
    first = agent.harness.step.events[0].sequence
    return [(first + send.event_index, send.due_at) for send in agent.harness.step.sends]


def test_a_linked_action_is_not_copied(copied: Agent) -> None:
    number = copied.acts()
    assert copies(copied) == [(1, copied.harness.now + HOLD)]
    call_id = copied.asks()
    assert [change.state for change in copied.harness.step.send_changes] == ["moot"]
    # The call itself is.
    assert [sequence for sequence, _ in copies(copied)] == [2]
    copied.answers(call_id)
    copied.seen(number)
    assert copies(copied) == []


def test_an_action_with_an_earlier_call_is_not_copied(copied: Agent) -> None:
    copied.asks()
    copied.acts()
    assert copies(copied) == []
    assert copied.harness.step.send_changes == ()


def test_an_action_that_was_not_made_here_is_copied_at_its_end(copied: Agent) -> None:
    number = copied.acts()
    copied.seen(number)
    [change] = copied.harness.step.send_changes
    assert (change.sequence, change.target, change.state, change.due_at) == (1, "destination:log", "pending", None)
    assert copies(copied) == [(2, None)]


def test_copies_that_may_have_left_are_not_called_back(copied: Agent) -> None:
    copied.acts()
    copied.later(HOLD)
    copied.asks()
    assert copied.harness.step.send_changes == ()


def test_an_action_of_a_foreign_tool_is_copied_at_once(copied: Agent) -> None:
    copied.acts(name="another")
    assert copies(copied) == [(1, None)]

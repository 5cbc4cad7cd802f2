"""Properties of linking: in any order of actions and calls, each pair is found once, and no other is."""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

from hypothesis import given, settings, strategies as st

from gateway.core import inbound
from gateway.events import CallId, CallLinked, ToolFinished
from tests.unit.core.harness import GOOD
from tests.unit.core.test_own_actions import Agent, restart

TOOLS = ["ask_for_cards", "ask_for_more"]
RANKS = ["7", "K"]


@dataclass
class Use:
    """One use of a tool; the runtime's events and the call come in any order."""

    tool: str
    rank: str
    here: bool
    """Whether it is made at our MCP server; otherwise at another one, which has tools of the same names."""
    ending: str
    """success, canceled, or nothing at all."""
    number: int | None = None
    call_id: CallId | None = None
    left: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        moves = ["acts", "asks", "answers", "ends", "ends"]
        self.left = [move for move in moves if self.here or move in {"acts", "ends"}]
        if self.ending == "never":
            self.left = [move for move in self.left if move != "ends"]

    def may(self) -> list[str]:
        """List the possible next events: the end of an action follows the action and its call."""
        done = {"acts": self.number is not None, "asks": self.call_id is not None or not self.here}
        return [
            move
            for move in dict.fromkeys(self.left)
            if move in {"acts", "asks"} or (done["asks"] if move == "answers" else all(done.values()))
        ]

    @property
    def arguments(self) -> dict[str, Any]:
        return {**GOOD, "rank": self.rank}


class World:
    """An agent with several uses of tools in progress, and its environment."""

    def __init__(self, uses: list[Use]) -> None:
        self.agent = Agent()
        harness = self.agent.harness
        policy = replace(harness.runtime.policy, declared=frozenset({*harness.runtime.policy.declared, *TOOLS}))
        harness.runtime = replace(harness.runtime, policy=policy)
        self.agent.state("running")
        self.uses = uses

    def move(self, choice: int, surroundings: str, uses: list[Use] | None = None) -> bool:
        """Make the next move; return False if there is none."""
        can = [(use, move) for use in uses or self.uses for move in use.may()]
        if not can:
            return False
        use, move = can[choice % len(can)]
        use.left.remove(move)
        agent = self.agent
        match surroundings:
            case "restart":
                restart(agent)
            case "again":
                agent.repeat()
            case "replay":
                agent.harness.decide(inbound.connecting)
                agent.repeat()
                agent.harness.catch_up()
            case "wait":
                agent.later(timedelta(seconds=1))
            case _:
                pass
        match move:
            case "acts":
                use.number = agent.acts(use.arguments, name=f"dragoman_{use.tool}")
            case "asks":
                use.call_id = agent.asks(use.arguments, key=f"{id(use)}", tool=use.tool)
            case "answers":
                assert use.call_id is not None
                agent.answers(use.call_id)
            case _:
                assert use.number is not None
                agent.seen(use.number, error="stopped" if use.ending == "canceled" else None)
        return True


USES = st.lists(
    st.builds(
        Use,
        tool=st.sampled_from(TOOLS),
        rank=st.sampled_from(RANKS),
        here=st.booleans(),
        ending=st.sampled_from(["success", "canceled", "never"]),
    ),
    max_size=6,
)
SURROUNDINGS = st.sampled_from(["", "", "restart", "again", "replay", "wait"])
MOVES = st.lists(st.tuples(st.integers(0, 100), SURROUNDINGS), max_size=40)


def play(uses: list[Use], moves: list[tuple[int, str]]) -> World:
    """Play all of it, in the order that the moves say as long as there are any."""
    world = World(uses)
    for choice, surroundings in moves:
        world.move(choice, surroundings)
    while world.move(0, ""):
        pass
    return world


@settings(max_examples=200, deadline=None)
@given(USES, MOVES)
def test_each_action_is_one_call_at_most_and_the_other_way_round(uses: list[Use], moves: list[tuple[int, str]]) -> None:
    agent = play(uses, moves).agent
    natives, calls = Counter(native for native, _ in agent.links), Counter(call_id for _, call_id in agent.links)
    assert {*natives.values(), *calls.values()} <= {1}
    tools = {str(use.number): use.tool for use in uses} | {use.call_id: use.tool for use in uses}
    assert all(tools[native] == tools[CallId(call_id)] for native, call_id in agent.links)
    agent.check()


@settings(max_examples=200, deadline=None)
@given(USES.map(lambda uses: [use for use in uses if use.here]), MOVES)
def test_different_calls_of_one_agent_find_their_own_actions(uses: list[Use], moves: list[tuple[int, str]]) -> None:
    apart = list({(use.tool, use.rank): use for use in uses}.values())
    agent = play(apart, moves).agent
    assert sorted(agent.links) == sorted((str(use.number), str(use.call_id)) for use in apart)
    # Each call counts once.
    ends = [one for one in agent.journal if isinstance(one.event, ToolFinished) and one.linked_to is None]
    assert sorted(one.event.call_id or "" for one in ends if isinstance(one.event, ToolFinished)) == sorted(
        str(use.call_id) for use in apart
    )
    agent.check()


@settings(max_examples=200, deadline=None)
@given(USES, MOVES)
def test_of_uses_one_after_the_other_those_made_here_find_their_own_and_the_others_nothing(
    uses: list[Use], moves: list[tuple[int, str]]
) -> None:
    world, coming = World(uses), iter(moves)
    for use in uses:
        while world.move(*next(coming, (0, "")), uses=[use]):
            pass
        if use.ending == "never":
            # As a runtime does that has lost an answer.
            world.agent.state("error")
            world.agent.state("running")
    assert world.agent.links == [(str(use.number), use.call_id) for use in uses if use.here]
    assert world.agent.harness.view.memory.unlinked == ()
    world.agent.check()


@settings(max_examples=200, deadline=None)
@given(USES, MOVES)
def test_a_link_follows_both_of_its_events_and_precedes_the_end_of_the_action(
    uses: list[Use], moves: list[tuple[int, str]]
) -> None:
    journal = play(uses, moves).agent.journal
    assert all(one.sequence + 1 == two.sequence for one, two in pairwise(journal))
    by_sequence = {one.sequence: one for one in journal}
    links = {one.caused_by: one for one in journal if isinstance(one.event, CallLinked)}
    for sequence, linked in links.items():
        assert sequence is not None
        assert sequence < linked.sequence
        assert by_sequence[sequence].direction == "from_runtime"
    for one in journal:
        if isinstance(one.event, ToolFinished) and one.direction == "from_runtime":
            linked = links.get(one.caused_by)
            assert one.linked_to == (None if linked is None else linked.event.model_dump()["call_id"])
            assert linked is None or linked.sequence < one.sequence

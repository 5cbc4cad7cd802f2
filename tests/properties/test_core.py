"""Properties of the core: in any order of signals, calls end once and memory can be replayed."""

from typing import Any

from hypothesis import given, settings, strategies as st

from gateway.core import calls
from gateway.core.arguments import Fragment
from gateway.core.fold import fold
from gateway.core.routing import Approval, Matched, Route, Routes, Ruling, Unfitting
from gateway.core.snapshots import from_snapshot, to_snapshot
from gateway.core.state import Remembered
from gateway.errors import DragomanError
from gateway.events import ContextUpdate, ContextUpdated, MessagePosted, Outcome, Text, ToolFinished, TurnInterrupted
from gateway.executors.port import Accepted, Answered, NeverSent, Replied, Uncertain
from tests.unit.core.harness import HUMA_0_1, HUMA_0_2, Harness

NATIVE = st.sampled_from(["a", "b", "c"])
TOOLS = st.sampled_from(["ask_for_cards", "slow_thing", "fly"])
ANSWERS = st.sampled_from(
    [
        Answered(Outcome(outcome="success", result=1), updates=(ContextUpdate(name="u", context={"x": 1}),)),
        Answered(Outcome(outcome="failure", error="no")),
        Accepted(),
        NeverSent("refused"),
        Uncertain("broken"),
        Replied({}),
    ]
)
MOVES = st.one_of(
    st.tuples(st.just("call"), NATIVE, TOOLS),
    st.tuples(st.just("cancel"), NATIVE, st.none()),
    st.tuples(st.just("answer"), NATIVE, ANSWERS),
    st.tuples(st.just("claim"), NATIVE, st.none()),
    st.tuples(st.just("outcome"), NATIVE, ANSWERS),
    st.tuples(st.just("operator"), NATIVE, st.none()),
    st.tuples(st.just("wait"), st.floats(0.1, 200), st.none()),
    st.tuples(st.just("say"), st.integers(0, 2), st.none()),
    st.tuples(st.just("message"), st.text(max_size=20), st.none()),
    st.tuples(st.just("interrupt"), st.none(), st.none()),
    st.tuples(st.just("recover"), st.none(), st.none()),
)


def _move(harness: Harness, move: tuple[str, Any, Any]) -> None:
    name, one, other = move
    match name:
        case "call":
            harness.call(one, tool=other, arguments={"targetPlayer": "V", "rank": "7"})
        case "cancel":
            harness.cancel(one)
        case "answer":
            call = harness.view.calls.get(harness.id_of(one))
            harness.answer(other, native=one, attempt=call.attempt if call else 1)
        case "claim":
            harness.decide(lambda builder: calls.claim(builder, harness.id_of(one)))
        case "outcome" if isinstance(other, Answered):
            harness.decide(lambda builder: calls.outcome(builder, harness.id_of(one), other))
        case "operator":
            harness.decide(lambda builder: calls.cancel(builder, harness.id_of(one), reason=None))
        case "wait":
            harness.wait(one)
        case "say":
            harness.send(index=one, count=3)
        case "message":
            harness.post(MessagePosted(content=(Text(text=one),)))
        case "interrupt":
            harness.post(TurnInterrupted())
        case "recover":
            harness.recover()
        case _:
            pass


@settings(max_examples=150, deadline=None)
@given(st.lists(MOVES, max_size=30), st.sampled_from([HUMA_0_1, HUMA_0_2]), st.integers(0, 3))
def test_each_call_gets_one_outcome_and_memory_can_be_replayed(
    moves: list[tuple[str, Any, Any]], adapter: Any, slots: int
):
    harness = Harness(adapter, slots=slots)
    opened: set[str] = set()
    outcomes: list[str] = []
    for move in moves:
        before = set(harness.view.calls)
        try:
            _move(harness, move)
        except DragomanError:
            continue
        opened |= set(harness.view.calls) | before
        settled = [change.call_id for change in harness.settled]
        finished = [event.call_id for event in harness.events if isinstance(event, ToolFinished)]
        assert sorted(settled) == sorted(str(call_id) for call_id in finished)
        # A native id used again after its call has settled would be Stale in a real store; here it may reopen.
        outcomes += settled
        assert not set(settled) & set(harness.view.calls)
        assert before - set(harness.view.calls) <= set(settled)
    # Time settles all open calls: none hangs.
    harness.wait(100_000)
    assert not harness.view.calls
    memory = Remembered()
    for recorded, _ in harness.journal:
        memory = fold(memory, recorded)
    assert memory == harness.view.memory
    view = harness.view
    assert from_snapshot(to_snapshot(view.last_sequence, view.memory)) == (view.last_sequence, view.memory)


WORDS = st.text(alphabet="ab*?[]!-.", max_size=6)
ROUTE = st.builds(
    Route,
    runtime=WORDS,
    tool=st.none() | WORDS,
    event=st.none() | WORDS,
    labels=st.dictionaries(WORDS, WORDS, max_size=2),
    to=st.none() | st.just("x"),
    copy_to=st.lists(WORDS, max_size=2).map(tuple),
)


@given(
    st.lists(ROUTE, max_size=5).map(tuple),
    WORDS,
    WORDS,
    st.none() | WORDS,
    st.dictionaries(WORDS, WORDS, max_size=2),
)
def test_the_router_always_answers_with_the_first_rule_that_matches(
    routes: tuple[Route, ...], runtime: str, kind: str, tool: str | None, labels: dict[str, str]
):
    harness = Routes(routes)
    found = harness.executor_for(runtime=runtime, kind=kind, tool=tool, labels=labels)
    fits = [
        n
        for n, route in enumerate(routes)
        if route.to is not None and route.matches(runtime=runtime, kind=kind, tool=tool, labels=labels)
    ]
    assert found == (Matched("x", fits[0]) if fits else None)
    copies = harness.copies_for(runtime=runtime, kind=kind, tool=tool, labels=labels)
    assert len(copies) == len(set(copies))


FRAGMENTS = [None, Fragment({"properties": {"a": {"maximum": 1}}, "required": ["a"]}), Fragment({"required": ["b"]})]
RULES = st.builds(
    Route,
    runtime=st.sampled_from(["*", "finn", "ada"]),
    tool=st.none() | st.sampled_from(["*", "pay", "p*", "drop"]),
    event=st.none() | st.sampled_from(["*", "tool.requested", "message.posted"]),
    labels=st.sampled_from([dict[str, str](), {"tier": "g*"}]),
    to=st.none() | st.just("x"),
    undeclared=st.booleans(),
    arguments=st.sampled_from(FRAGMENTS),
    approve=st.none() | st.just(Approval()),
    deny=st.none() | st.just("no"),
)


@given(
    st.lists(RULES, max_size=5).map(tuple),
    st.sampled_from(["pay", "drop", "fly"]),
    st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 3)),
    st.sampled_from([dict[str, str](), {"tier": "gold"}]),
    st.sampled_from([frozenset[str](), frozenset({"pay"})]),
)
def test_the_first_denial_decides_about_a_call_and_else_the_first_rule_that_fits(
    routes: tuple[Route, ...],
    tool: str,
    arguments: dict[str, int],
    labels: dict[str, str],
    declared: frozenset[str],
):
    def fits(route: Route) -> bool:
        needed = {None: True, FRAGMENTS[1]: arguments.get("a", 9) <= 1, FRAGMENTS[2]: "b" in arguments}
        return needed[route.arguments]

    def takes(route: Route) -> bool:
        unknown = bool(declared) and tool not in declared
        by_name = route.tool == tool or route.undeclared or route.approve is not None
        return route.to is not None and route.deny is None and (by_name or not unknown) and matches(route)

    def matches(route: Route) -> bool:
        return route.matches(runtime="finn", kind="tool.requested", tool=tool, labels=labels)

    found = Routes(routes, declared=declared).rule_for(runtime="finn", tool=tool, labels=labels, arguments=arguments)
    denials = [n for n, one in enumerate(routes) if one.deny is not None and matches(one) and fits(one)]
    taking = [n for n, one in enumerate(routes) if takes(one)]
    fitting = [n for n in taking if fits(routes[n])]
    match found:
        case Ruling(denied=str()):
            assert found.index == denials[0]
        case Ruling():
            assert not denials
            assert (found.index, found.executor, found.approve) == (fitting[0], "x", routes[fitting[0]].approve)
        case Unfitting():
            assert (denials, fitting, found.tried) == ([], [], tuple(taking))
        case None:
            assert (denials, taking) == ([], [])
    listed = [
        one.index for one in Routes(routes, declared=declared).rules_for(runtime="finn", tool=tool, labels=labels)
    ]
    assert not isinstance(found, Ruling) or found.denied is not None or found.index in listed


@given(st.dictionaries(st.text(max_size=5), st.integers(), max_size=3), st.integers(0, 3))
def test_a_context_is_remembered_as_the_backend_gave_it(context: dict[str, int], messages: int):
    harness = Harness()
    for number in range(messages):
        harness.post(MessagePosted(content=(Text(text=f"m{number}"),)))
    try:
        harness.post(ContextUpdated(name="x", context=context))
    except DragomanError:
        return
    assert harness.view.memory.context == context

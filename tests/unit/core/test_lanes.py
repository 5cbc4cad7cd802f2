"""The order of sends, and the first events on a new link if each context replaces the last one."""

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings, strategies as st

from gateway.core.adapt import REPLACED, renew
from gateway.core.effects import Place, Transmit
from gateway.core.resend import LANES, Lanes, RuntimeNeeds, SendHistory, plan_resend
from gateway.core.state import Remembered
from gateway.events import ContextUpdated, Envelope, Event, EventId, MessagePosted, SessionId, Text, ToolFinished
from gateway.store.rows import Send
from gateway.store.step import RUNTIME
from tests.unit.core.harness import HUMA_0_1, HUMA_0_2, START

PLACES: tuple[Place, ...] = get_args(Place)
WAITING = st.lists(st.tuples(st.sampled_from(LANES), st.sampled_from(PLACES), st.booleans()), max_size=20)
MEMORY = Remembered(context={"n": 99}, history=("[12:00] Alice: Hi",))
NEWEST = {"n": 99, "conversationHistory": "[12:00] Alice: Hi"}


def _all_of(lanes: Lanes, held: frozenset[int] = frozenset()) -> list[Transmit]:
    taken: list[Transmit] = []
    while (item := lanes.take(lambda one: one.sequence not in held)) is not None:
        taken.append(item)
    return taken


@settings(deadline=None)
@given(WAITING, st.randoms(use_true_random=False), st.booleans())
def test_each_event_leaves_once_by_lane_or_by_place_and_never_behind_a_later_one(
    waiting: list[tuple[Any, Place, bool]], random: Any, in_order: bool
) -> None:
    items = [Transmit(number, lane, "x", (), place=place) for number, (lane, place, _) in enumerate(waiting, 1)]
    held = frozenset(number for number, (_, _, waits) in enumerate(waiting, 1) if waits)
    lanes = Lanes(in_order=in_order)
    for item in random.sample(items, len(items)):
        lanes.add(item)

    def rank(item: Transmit) -> tuple[int, int]:
        return (PLACES.index(item.place) if in_order else LANES.index(item.lane), item.sequence)

    assert _all_of(lanes, held) == sorted((one for one in items if one.sequence not in held), key=rank)
    # All waiting events are still queued.
    assert _all_of(lanes) == sorted((one for one in items if one.sequence in held), key=rank)
    assert not lanes.count


# A fresh link ---------------------------------------------------------------------------------------------


def _state(number: int, *, wakes: bool, message: bool = False, call_id: str | None = None) -> ContextUpdated:
    posted = MessagePosted(content=(Text(text=f"m{number}"),), message_id=f"m{number}") if message else None
    return ContextUpdated(
        name=f"c{number}", context={"n": number}, wakes_agent=wakes, message=posted, call_id=call_id
    )  # fmt: skip


def _event(kind: str, number: int) -> Event:
    match kind:
        case "outcome":
            return ToolFinished(native_call_id=str(number), tool="t", outcome="success")
        case "update":
            return _state(number, wakes=False, call_id="c")
        case "message":
            return _state(number, wakes=True, message=True)
        case _:
            return _state(number, wakes=kind == "wake")


def _row(sequence: int, event: Event) -> Send:
    envelope = Envelope(EventId(str(sequence)), SessionId("s"), sequence, START, "to_runtime", event)
    return Send(SessionId("s"), sequence, RUNTIME, "turn", "pending", 0, None, None, envelope, envelope.recorded_at)


KINDS = st.lists(st.sampled_from(["quiet", "wake", "message", "outcome", "update"]), max_size=14)


@pytest.mark.requirement("A27", "L9", "L66")
@settings(deadline=None)
@given(KINDS, st.sampled_from([HUMA_0_1, HUMA_0_2]))
def test_a_fresh_link_is_told_state_outcomes_wakes_each_with_the_newest_state(kinds: list[str], adapter: Any) -> None:
    rows = [_row(number, _event(kind, number)) for number, kind in enumerate(kinds, 1)]
    plans = plan_resend(rows, SendHistory(), RuntimeNeeds(), capabilities=adapter.capabilities, now=START)
    lanes, codec = Lanes(in_order=True), adapter.codec()
    for plan in plans:
        if plan.fate == "send":
            event = plan.row.envelope.event
            said = plan.row.envelope if isinstance(event, ContextUpdated) else None
            lanes.add(Transmit(plan.row.sequence, "turn", event.kind, (), state=said, renew=True, place=plan.place))
    told = [renew(item, MEMORY, codec, "conversationHistory") for item in _all_of(lanes)]
    order = [kinds[item.sequence - 1] for item in told]
    ranks = [("quiet", "outcome", "wake").index({"update": "outcome", "message": "wake"}.get(k, k)) for k in order]
    assert ranks == sorted(ranks)
    for kind in ("message", "outcome", "update"):
        assert order.count(kind) == kinds.count(kind)
    for kind in ("quiet", "wake"):
        # Of many that say the same the newest is told, and the others say why they are not.
        assert order.count(kind) == min(1, kinds.count(kind))
        newest = max((number for number, one in enumerate(kinds, 1) if one == kind), default=0)
        assert [item.sequence for item in told if kinds[item.sequence - 1] == kind] == [newest] * order.count(kind)
    assert {plan.reason for plan in plans if plan.fate == "moot"} <= {REPLACED}
    states = [item.state.event for item in told if item.state is not None]
    assert all(isinstance(event, ContextUpdated) and event.context == NEWEST for event in states)


@settings(deadline=None)
@given(KINDS)
def test_wakes_wait_for_the_pages_to_come_and_meet_the_same_fate_as_on_one_page(kinds: list[str]) -> None:
    rows = [_row(number, _event(kind, number)) for number, kind in enumerate(kinds, 1)]
    half = len(rows) // 2
    able = HUMA_0_2.capabilities
    first = plan_resend(rows[:half], SendHistory(), RuntimeNeeds(), capabilities=able, now=START, more=True)
    owed = [plan.row for plan in first if plan.fate == "later"]
    assert not [plan for plan in first if plan.fate == "send" and plan.place == "wakes"]
    second = plan_resend([*owed, *rows[half:]], SendHistory(), RuntimeNeeds(), capabilities=able, now=START)
    whole = plan_resend(rows, SendHistory(), RuntimeNeeds(), capabilities=able, now=START)
    wakes = [plan.row.sequence for plan in whole if plan.fate == "send" and plan.place == "wakes"]
    assert [plan.row.sequence for plan in second if plan.fate == "send" and plan.place == "wakes"] == wakes


def test_while_a_link_stands_nothing_is_left_out_and_nothing_changes_its_place() -> None:
    rows = [_row(number, _event(kind, number)) for number, kind in enumerate(("wake", "quiet", "wake", "quiet"), 1)]
    plans = plan_resend(rows, SendHistory(fresh=False), RuntimeNeeds(), capabilities=HUMA_0_2.capabilities, now=START)
    assert [(plan.row.sequence, plan.fate, plan.place) for plan in plans] == [
        (number, "send", "in_order") for number in (1, 2, 3, 4)
    ]


def test_an_event_with_the_newest_state_is_not_changed() -> None:
    said = _row(3, replace_context(NEWEST)).envelope
    item = Transmit(3, "turn", "context.updated", (), state=said)
    assert renew(item, MEMORY, HUMA_0_2.codec(), "conversationHistory") is item
    older = replace(item, state=_row(3, replace_context({"n": 1})).envelope)
    anew = renew(older, MEMORY, HUMA_0_2.codec(), "conversationHistory")
    assert anew.renewed
    assert anew.frames[0].payload["context"] == NEWEST


def replace_context(context: dict[str, Any]) -> ContextUpdated:
    return ContextUpdated(name="x", context=context)

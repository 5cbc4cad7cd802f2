"""The memory of a session is bounded by count and bytes, and nothing that waits is forgotten without an answer."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given, strategies as st

from gateway.core import confirmations, inbound
from gateway.core.bounds import HISTORY_BYTES, KEPT_BYTES, with_entry, without
from gateway.core.calls import OVERLOADED
from gateway.core.routing import Route
from gateway.core.state import MOST_ASKED, MOST_WANTED, Hosted
from gateway.events import ContextUpdated, MessagePosted, Text, ToolRequested
from gateway.events.weight import weight
from gateway.executors.port import Replied
from tests.unit.core.harness import OPENHANDS, Harness
from tests.unit.core.test_herm import Herm


def test_for_one_question_too_many_the_oldest_is_skipped_and_the_runtime_told():
    herm = Herm()
    herm.hear("session.status_running")
    for number in range(MOST_ASKED):
        herm.hear("agent.clarify_request", request_id=f"q{number}", question="Which?", choices=None)
        assert herm.harness.sent == []
    herm.hear("agent.clarify_request", request_id="one more", question="Which?", choices=None)
    assert herm.harness.sent == [{"type": "user.clarify_result", "request_id": "q0", "answer": ""}]
    assert [asked.event.id for asked in herm.harness.view.memory.asked][::99] == ["q1", "one more"]
    assert [change.state for change in herm.harness.step.interactions] == ["expired", "waiting"]


def test_for_one_question_too_many_in_a_replayed_history_the_runtime_is_told_too():
    herm = Herm()
    herm.harness.decide(inbound.connecting)
    for number in range(MOST_ASKED + 1):
        herm.hear("agent.clarify_request", request_id=f"q{number}", question="Which?", choices=None)
    assert herm.harness.sent == [{"type": "user.clarify_result", "request_id": "q0", "answer": ""}]
    herm.harness.catch_up()
    assert len(herm.harness.step.interactions) == MOST_ASKED


def test_large_questions_give_way_by_bytes_but_the_newest_stays():
    herm = Herm()
    herm.hear("session.status_running")
    for number in range(6):
        herm.hear("agent.clarify_request", request_id=f"q{number}", question="?" * 1_000_000, choices=None)
    assert len(herm.harness.view.memory.asked) == 4
    herm.hear("agent.clarify_request", request_id="huge", question="?" * (KEPT_BYTES + 1), choices=None)
    assert [asked.event.id for asked in herm.harness.view.memory.asked] == ["huge"]


def test_large_unconfirmed_messages_are_bounded_by_bytes_and_the_next_one_is_refused() -> None:
    harness = Harness(routes=(Route(event="message.posted", to="chat"),))
    for number in range(5):
        harness.send("x" * 1_000_000, index=number, count=6)
    assert harness.sent[0]["data"]["messageIndex"] == 4
    assert harness.sent[0]["data"]["error"] == OVERLOADED
    assert [waiting.index for waiting in harness.view.memory.confirmations] == [0, 1, 2, 3]
    assert sum(waiting.size for waiting in harness.view.memory.confirmations) <= KEPT_BYTES
    first = harness.view.memory.confirmations[0]
    harness.decide(lambda builder: confirmations.replied(builder, first.sequence, Replied({"delivered": True})))
    harness.send("y" * 1_000_000, index=5, count=6)
    assert (harness.sent, len(harness.view.memory.confirmations)) == ([], 4)


def test_a_single_unconfirmed_message_may_have_any_size() -> None:
    harness = Harness(routes=(Route(event="message.posted", to="chat"),))
    harness.send("x" * (KEPT_BYTES + 1))
    assert (harness.sent, len(harness.view.memory.confirmations)) == ([], 1)


def test_unanswered_calls_of_a_replayed_history_are_bounded_and_the_next_one_is_refused():
    herm = Herm()
    herm.harness.decide(inbound.connecting)
    for number in range(MOST_WANTED):
        herm.wants(f"toolu_{number}")
        assert herm.harness.sent == []
    herm.wants("one more")
    [told] = herm.harness.sent
    assert told["tool_use_id"] == "one more"
    assert OVERLOADED in told["content"][-1]["text"]
    assert len(herm.harness.view.memory.wanted) == MOST_WANTED
    herm.harness.catch_up()
    assert [call.native_call_id for call in herm.harness.view.calls.values()][::999] == ["toolu_0", "toolu_999"]


def test_recorded_calls_wait_again_when_another_link_replays_history_before_they_are_read():
    herm = Herm()
    herm.harness.decide(inbound.connecting)
    herm.wants("c1")
    [(request, sequence)] = [one for one in herm.harness.journal if isinstance(one[0].event, ToolRequested)]
    herm.harness.decide(inbound.caught_up)
    herm.harness.decide(inbound.connecting)
    herm.harness.decide(lambda builder: inbound.open_wanted(builder, [(sequence, request.event)]))
    assert (herm.harness.dispatched, herm.harness.effects) == ([], ())


def test_the_answer_of_another_client_ends_a_call_that_no_memory_holds():
    herm = Herm()
    policy = replace(herm.harness.runtime.policy, open_calls=2 * MOST_WANTED)
    herm.harness.runtime = replace(herm.harness.runtime, policy=policy)
    for number in range(MOST_WANTED + 1):
        herm.wants(f"toolu_{number}")
    last = list(herm.harness.view.calls.values())[-1]
    assert last.native_call_id not in herm.harness.view.memory.wanted
    herm.hear("user.custom_tool_result", tool_use_id=last.native_call_id, content=[{"type": "text", "text": "x"}])
    assert [change.call_id for change in herm.harness.settled] == [last.call_id]
    assert herm.harness.sent == []


def test_words_without_an_echo_and_held_contexts_are_bounded_by_bytes():
    harness = Harness(OPENHANDS)
    for _ in range(10):
        harness.post(MessagePosted(content=(Text(text="x" * 1_000_000),)))
        harness.post(ContextUpdated(name="news", context={}, description="y" * 200_000))
    harness.post(ContextUpdated(name="news", context={}, description="y" * 200_000))
    memory = harness.view.memory
    assert sum(said.size for said in memory.unechoed) <= KEPT_BYTES
    assert len(memory.held) <= 2
    assert [(loss.how, loss.note) for loss in harness.step.events[0].losses] == [
        ("narrowed", "held"),
        ("dropped", "older contexts that waited with this one: 1"),
    ]
    assert sum(len(line) for line in memory.history) <= HISTORY_BYTES


def test_weights_grow_with_the_content_of_a_value():
    assert weight("x" * 1_000) >= 1_000
    assert weight({"a": ["x" * 1_000] * 3}) >= 3_000
    assert weight("\N{PLAYING CARD ACE OF SPADES}" * 1_000) >= 4_000
    assert weight(MessagePosted(content=(Text(text="\N{PLAYING CARD ACE OF SPADES}" * 1_000),))) >= 4_000
    assert weight(MessagePosted(content=(Text(text="x" * 5_000),))) >= 5_000
    assert weight([[0]] * 1_000) > 10 * weight([0])
    many = {"cards": [{"id": number, "at": {"x": 1.5}, "names": ["seven", "7"]} for number in range(1_000)]}
    # Each card is weighed alone, as one of many, and beside a value that is no JSON.
    exact = sum(weight(card) for card in many["cards"])
    for value in (many, {"cards": [*many["cards"], b""]}):
        assert exact / 2 < weight(value) < exact * 2


SIZES = (1, KEPT_BYTES // 3, KEPT_BYTES // 2, KEPT_BYTES + 1, None)
"""Of entries that come; None for one that goes."""


def _naive(entries: dict[str, Hosted], native: str, entry: Hosted, most: int) -> list[Hosted]:
    kept = list({**entries, native: entry}.values())[-most:]
    while len(kept) > 1 and sum(one.size for one in kept) > KEPT_BYTES:
        del kept[0]
    return kept


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(SIZES)), min_size=3),
    st.integers(2, 4),
    st.booleans(),
)
def test_entries_by_id_give_way_as_if_each_time_all_were_counted(
    changes: list[tuple[str, int | None]], most: int, read_back: bool
):
    entries: Mapping[str, Hosted] = {}
    for native, size in changes:
        if read_back:
            # A snapshot gives plain ones.
            entries = dict(entries)
        before = dict(entries)
        if size is None:
            after, wanted = without(entries, native), [one for one in entries.values() if one.native_call_id != native]
        else:
            entry = Hosted(native, size=size)
            after, wanted = with_entry(entries, native, entry, most), _naive(before, native, entry, most)
        assert entries == before
        assert list(after.values()) == wanted
        assert [one.native_call_id for one in after.values()] == list(after)
        entries = after

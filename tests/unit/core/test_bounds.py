"""What a session remembers is bounded by count and bytes, and nothing that waits is forgotten without an answer."""

from gateway.core.fold import HISTORY_BYTES
from gateway.core.state import KEPT_BYTES, MOST_ASKED
from gateway.events import ContextUpdated, MessagePosted, Text
from gateway.events.weight import weight
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


def test_large_questions_give_way_by_bytes_but_the_newest_stays():
    herm = Herm()
    herm.hear("session.status_running")
    for number in range(6):
        herm.hear("agent.clarify_request", request_id=f"q{number}", question="?" * 1_000_000, choices=None)
    assert len(herm.harness.view.memory.asked) == 4
    herm.hear("agent.clarify_request", request_id="huge", question="?" * (KEPT_BYTES + 1), choices=None)
    assert [asked.event.id for asked in herm.harness.view.memory.asked] == ["huge"]


def test_unanswered_calls_of_a_replayed_history_are_bounded():
    herm = Herm()
    herm.harness.decide(lambda builder: setattr(builder, "live", False))
    for number in range(1_010):
        herm.wants(f"toolu_{number}")
    wanted = herm.harness.view.memory.wanted
    assert len(wanted) == 1_000
    assert list(wanted)[-1] == "toolu_1009"


def test_words_without_an_echo_and_held_contexts_are_bounded_by_bytes():
    harness = Harness(OPENHANDS)
    for _ in range(10):
        harness.post(MessagePosted(content=(Text(text="x" * 1_000_000),)))
        harness.post(ContextUpdated(name="news", context={}, description="y" * 200_000))
    memory = harness.view.memory
    assert sum(said.size for said in memory.unechoed) <= KEPT_BYTES
    assert len(memory.held) <= 2
    assert sum(len(line) for line in memory.history) <= HISTORY_BYTES


def test_weights_grow_with_whatever_a_value_holds():
    assert weight("x" * 1_000) >= 1_000
    assert weight({"a": ["x" * 1_000] * 3}) >= 3_000
    assert weight(MessagePosted(content=(Text(text="x" * 5_000),))) >= 5_000
    assert weight([[0]] * 1_000) > 10 * weight([0])
    many = {"cards": [{"id": number, "at": {"x": 1.5}, "names": ["seven", "7"]} for number in range(1_000)]}
    # Each card is weighed alone, as one of many, and beside what is no JSON.
    exact = sum(weight(card) for card in many["cards"])
    for value in (many, {"cards": [*many["cards"], b""]}):
        assert exact / 2 < weight(value) < exact * 2

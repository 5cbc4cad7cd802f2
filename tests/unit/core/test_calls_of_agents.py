"""Tool calls in the core: routing, refusals, outcomes, repeats, retries, deadlines."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import orjson
import pytest

from gateway.core import calls, lifecycle
from gateway.core.effects import Queue, Resend
from gateway.core.routing import Route
from gateway.core.session import RetryPolicy
from gateway.events import ContextUpdate, Outcome, ToolFinished
from gateway.executors.port import Accepted, Answered, NeverSent, NotProcessed, Uncertain
from gateway.store.call import Accept, Call, Claim, Open, Requeue, Settle
from tests.unit.core.harness import HUMA_0_1, START, Harness

DONE = Answered(Outcome(outcome="success", result={"cards": 2}))


@pytest.mark.requirement("N57", "L43")
def test_a_routed_call_is_opened_and_leaves_in_the_same_step():
    harness = Harness()
    harness.call()
    assert harness.kinds == ["session.moved", "tool.requested"]
    (opened,) = harness.step.calls
    assert isinstance(opened, Open)
    assert (opened.call.state, opened.call.attempt, opened.call.executor) == ("dispatched", 1, "cards")
    assert [call.call_id for call in harness.dispatched] == [harness.id_of("tc-1")]


@pytest.mark.requirement("N59", "A4", "L51", "N36")
def test_a_success_repeats_the_id_and_name_of_its_call_and_wakes_the_agent():
    harness = Harness()
    harness.call()
    harness.answer(DONE)
    assert harness.sent == [
        {
            "type": "tool-result",
            "triggering": True,
            "toolCallId": "tc-1",
            "toolName": "ask_for_cards",
            "outcome": "success",
            "result": {"cards": 2},
        }
    ]
    assert not harness.view.calls
    harness.answer(DONE)
    assert harness.sent == []
    assert harness.step.calls == ()


@pytest.mark.requirement("N36")
def test_a_backend_may_let_the_agent_sleep_on_a_success():
    harness = Harness()
    harness.call()
    harness.answer(replace(DONE, wakes_agent=False))
    assert harness.sent[0]["triggering"] is False


@pytest.mark.requirement("N38", "A25")
def test_a_failure_wakes_the_agent():
    harness = Harness()
    harness.call()
    harness.answer(Answered(Outcome(outcome="failure", error="No sevens here.")))
    assert (harness.sent[0]["outcome"], harness.sent[0]["error"], harness.sent[0]["triggering"]) == (
        "failure",
        "No sevens here.",
        True,
    )


@pytest.mark.requirement("A24", "N37")
def test_an_executor_may_cancel_unasked_and_the_agent_is_told_without_being_woken():
    harness = Harness()
    harness.call()
    harness.answer(Answered(Outcome(outcome="canceled", error="changed my mind")))
    assert (harness.sent[0]["outcome"], harness.sent[0]["triggering"]) == ("canceled", False)


@pytest.mark.requirement("L64", "L65", "A5", "A6", "N20", "A29")
def test_updates_leave_before_their_result_and_never_wake():
    harness = Harness()
    harness.call()
    update = ContextUpdate(name="cards-received", context={"hand": ["7", "7"]}, description="Two sevens.")
    harness.answer(replace(DONE, updates=(update,)))
    assert [payload["type"] for payload in harness.sent] == ["context-update", "tool-result"]
    assert harness.sent[0]["triggering"] is False
    assert harness.sent[0]["context"] == {"hand": ["7", "7"]}


@pytest.mark.requirement("L65", "L64")
def test_in_0_1_updates_leave_before_their_result_as_well():
    harness = Harness(HUMA_0_1)
    harness.call()
    update = ContextUpdate(name="cards-received", context={"hand": []}, description="Go fish.")
    harness.answer(replace(DONE, updates=(update,)))
    assert [payload["content"].get("type", "event") for payload in harness.sent] == ["event", "tool-result"]


def test_an_update_that_cannot_be_said_is_left_out_with_a_loss_and_the_result_still_goes():
    harness = Harness()
    harness.call()
    bad = ContextUpdate(name="n" * 200, context={}, description="")
    harness.answer(replace(DONE, updates=(bad,)))
    assert [payload["type"] for payload in harness.sent] == ["tool-result"]
    (loss,) = harness.step.events[-1].losses
    assert (loss.how, loss.path) == ("dropped", "/updates/0/name")


@pytest.mark.requirement("L44", "N60")
def test_an_unknown_tool_is_answered_with_a_waking_failure_that_names_it():
    harness = Harness()
    harness.call(tool="fly")
    assert harness.sent[0]["outcome"] == "failure"
    assert harness.sent[0]["error"] == "Unknown tool: fly"
    assert harness.sent[0]["triggering"] is True
    assert harness.dispatched == []


def test_a_declared_tool_without_a_route_is_answered_as_not_available():
    harness = Harness()
    harness.call(tool="lonely")
    assert harness.sent[0]["error"] == "The tool 'lonely' is not available here."


def test_an_unrouted_call_can_be_left_to_another_client():
    harness = Harness(unrouted="ignore")
    harness.call(tool="fly")
    assert harness.kinds == ["tool.requested"]
    assert harness.sent == []
    assert harness.step.calls == ()


@pytest.mark.requirement("L45", "L46", "L49")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"rank": "7"}, "/targetPlayer"), ({"targetPlayer": "V", "rank": "1"}, '"7"')],
)
def test_invalid_arguments_are_answered_and_not_executed(arguments: dict[str, str], words: str):
    harness = Harness()
    harness.call(arguments=arguments)
    assert harness.dispatched == []
    assert harness.sent[0]["outcome"] == "failure"
    assert words in harness.sent[0]["error"]


def test_an_id_with_unusable_arguments_ends_in_a_failure():
    harness = Harness()
    harness.call(arguments=[1, 2])
    assert harness.sent[0]["outcome"] == "failure"
    assert not harness.view.calls


def test_a_call_past_the_inbox_bound_is_answered_as_overloaded():
    harness = Harness()
    harness.receive({"type": "tool-call", "toolCallId": "x", "toolName": "t", "arguments": {}}, overloaded=True)
    assert "overloaded" in harness.sent[0]["error"]


# Repeats -------------------------------------------------------------------------------------------------


def test_the_same_call_again_while_it_is_open_changes_nothing():
    harness = Harness()
    harness.call()
    harness.call()
    assert harness.step.events == ()
    assert harness.dispatched == []


def test_an_open_id_with_other_arguments_is_rejected_as_evidence():
    harness = Harness()
    harness.call()
    harness.call(arguments={"targetPlayer": "Bob", "rank": "K"})
    assert harness.kinds == ["frame.rejected"]
    assert len(harness.view.calls) == 1


def _ended(harness: Harness) -> Call:
    (change,) = harness.settled
    opened = harness.id_of("tc-1")
    assert change.call_id == opened
    return Call(
        call_id=opened,
        session_id=harness.view.session_id,
        runtime="finn",
        native_call_id="tc-1",
        n=0,
        tool="ask_for_cards",
        args_sha="",
        state="succeeded",
        attempt=1,
        created_at=START,
        deadline_at=START,
        request_sequence=2,
        outcome_sequence=harness.view.last_sequence,
    )


def test_a_repeat_of_a_settled_call_gets_its_stored_outcome():
    harness = Harness()
    harness.call()
    sha = next(iter(harness.view.calls.values())).args_sha
    harness.answer(DONE)
    harness.known = {"tc-1": replace(_ended(harness), args_sha=sha)}
    harness.call()
    assert harness.step.events == ()
    assert harness.effects == (Resend(harness.known["tc-1"].outcome_sequence or 0),)
    assert [(change.sequence, change.state) for change in harness.step.send_changes] == [(3, "pending")]


def test_a_settled_id_with_other_arguments_is_a_call_of_its_own():
    harness = Harness()
    harness.call()
    harness.answer(DONE)
    harness.known = {"tc-1": replace(_ended(harness), args_sha="another")}
    harness.call(arguments={"targetPlayer": "Bob", "rank": "K"})
    assert [call.call_id for call in harness.dispatched] == [harness.id_of("tc-1", 1)]


# Slots, retries, time ------------------------------------------------------------------------------------


def test_a_call_without_a_free_slot_is_queued_and_claimed_later():
    harness = Harness(slots=0)
    harness.call()
    (opened,) = harness.step.calls
    assert isinstance(opened, Open)
    assert (opened.call.state, opened.call.attempt) == ("queued", 0)
    assert harness.effects == (Queue(harness.id_of("tc-1"), "cards"),)
    assert harness.decide(lambda builder: calls.claim(builder, harness.id_of("tc-1")))
    assert harness.step.calls == (Claim(harness.id_of("tc-1"), 1),)
    assert len(harness.dispatched) == 1


@pytest.mark.parametrize("answer", [NeverSent("no connection"), NotProcessed("busy", timedelta(seconds=1))])
def test_an_attempt_that_certainly_did_nothing_is_retried_for_every_executor(answer: NeverSent | NotProcessed):
    harness = Harness()
    harness.call(tool="slow_thing", arguments={})
    harness.answer(answer)
    (change,) = harness.step.calls
    assert isinstance(change, Requeue)
    assert harness.sent == []


def test_an_uncertain_attempt_is_retried_only_for_idempotent_executors():
    harness = Harness()
    harness.call()
    harness.answer(Uncertain("the connection broke"))
    assert isinstance(harness.step.calls[0], Requeue)
    harness.call("tc-2", tool="slow_thing", arguments={})
    harness.answer(Uncertain("the connection broke"), native="tc-2")
    assert harness.settled[0].unknown
    assert harness.sent[0]["error"].startswith("outcome unknown: the connection broke")


def test_attempts_end_and_the_last_reason_is_told():
    harness = Harness(executors={"cards": RetryPolicy(idempotent=True, attempts=2), "once": RetryPolicy()})
    harness.call()
    harness.answer(Uncertain("no answer"))
    harness.decide(lambda builder: calls.claim(builder, harness.id_of("tc-1")))
    harness.answer(Uncertain("no answer"), attempt=2)
    assert harness.sent[0]["error"] == "outcome unknown: no answer (after 2 attempts)"
    # It ends without an answer, as with one.
    assert harness.released == []
    harness.call("tc-2")
    harness.answer(DONE, native="tc-2")
    assert (harness.sent[0]["outcome"], harness.released) == ("success", [])


def test_an_attempt_that_was_not_sent_uses_up_none_and_waits_as_long_as_its_executor_holds_calls():
    harness = Harness(executors={"cards": RetryPolicy(attempts=1), "once": RetryPolicy()})
    harness.call()
    for _ in range(5):
        harness.answer(NeverSent("no connection"))
        (waiting,) = harness.view.calls.values()
        assert (waiting.state, waiting.attempt, waiting.unknown) == ("queued", 0, False)
        assert [type(effect) for effect in harness.effects] == [Queue]
        assert harness.decide(lambda builder: calls.claim(builder, harness.id_of("tc-1")))
        assert harness.step.calls == (Claim(harness.id_of("tc-1"), 1),)
    harness.missing = "'cards' has been unreachable since 12:00:00 UTC (no connection)"
    harness.answer(NeverSent("no connection"))
    assert harness.sent[0]["error"] == f"{harness.missing}; the tool was not called, retry later"
    (settled,) = harness.settled
    assert (settled.dead, settled.unknown) == (True, False)


def test_a_waiting_call_is_not_sent_behind_its_deadline():
    harness = Harness(slots=0)
    harness.call()
    harness.now = START + timedelta(seconds=120)
    assert not harness.decide(lambda builder: calls.claim(builder, harness.id_of("tc-1")))


@pytest.mark.parametrize("idempotent", [False, True])
def test_after_a_restart_only_calls_without_a_retry_say_so(idempotent: bool):
    policy = RetryPolicy(idempotent=idempotent, attempts=8)
    harness = Harness(executors={"cards": policy})
    harness.call()
    if idempotent:
        for attempt in range(1, 8):
            harness.answer(Uncertain("no answer"), attempt=attempt)
            harness.decide(lambda builder: calls.claim(builder, harness.id_of("tc-1")))
    harness.recover()
    (settled,) = harness.settled
    assert (settled.error or "").endswith("after 8 attempts" if idempotent else "it was not tried again")


def test_a_success_of_an_earlier_attempt_wins_and_its_failure_does_not_count():
    harness = Harness()
    harness.call()
    harness.answer(Uncertain("slow"))
    harness.decide(lambda builder: calls.claim(builder, harness.id_of("tc-1")))
    harness.answer(Answered(Outcome(outcome="failure", error="late")), attempt=1)
    assert harness.step.events == ()
    harness.answer(DONE, attempt=1)
    assert harness.sent[0]["outcome"] == "success"
    # The later one is under way still.
    assert [release.stop for release in harness.released] == [True]


def test_an_accepted_call_waits_for_its_callback():
    harness = Harness()
    harness.call()
    harness.answer(Accepted())
    (change,) = harness.step.calls
    assert isinstance(change, Accept)
    assert change.deadline_at == START + timedelta(seconds=600)
    assert harness.decide(lambda builder: calls.outcome(builder, harness.id_of("tc-1"), DONE))
    assert harness.sent[0]["result"] == {"cards": 2}
    assert not harness.decide(lambda builder: calls.outcome(builder, harness.id_of("tc-1"), DONE))


def test_a_silent_accepted_call_is_sent_again_no_earlier_than_its_executor_asks():
    harness = Harness()
    harness.call()
    harness.answer(Accepted())
    harness.wait(120)
    harness.answer(NotProcessed("busy", timedelta(seconds=300)), attempt=2)
    (change,) = harness.step.calls
    assert isinstance(change, Accept)
    assert change.due_at == harness.now + timedelta(seconds=300)
    asked = harness.now + timedelta(seconds=300)
    harness.now += timedelta(seconds=1)
    harness.decide(lambda builder: calls.progressed(builder, harness.id_of("tc-1"), {"step": 1}))
    assert harness.view.calls[harness.id_of("tc-1")].due_at == asked


@pytest.mark.parametrize("answer", [NotProcessed("busy", timedelta(seconds=300)), Accepted()])
def test_an_accepted_call_that_waits_for_a_slot_is_not_sent_again_after_an_answer(answer: NotProcessed | Accepted):
    harness = Harness()
    harness.call()
    harness.answer(Accepted())
    harness.wait(120)
    harness.slots = 0
    harness.wait(120)
    assert [type(effect) for effect in harness.effects] == [Queue]
    harness.answer(answer, attempt=2)
    harness.slots = 1
    assert not harness.decide(lambda builder: calls.claim(builder, harness.id_of("tc-1")))
    assert harness.view.calls[harness.id_of("tc-1")].attempt == 2


@pytest.mark.requirement("A26")
def test_a_call_without_an_answer_fails_at_its_deadline_and_the_executor_is_told():
    harness = Harness()
    harness.call()
    harness.wait(119)
    assert harness.step.events == ()
    harness.wait(1)
    assert harness.sent[0]["outcome"] == "failure"
    assert harness.sent[0]["error"] == "outcome unknown: The tool 'ask_for_cards' gave no answer within 120 s."
    assert harness.settled[0].state == "expired"
    assert harness.released[0].tell is not None


def test_the_next_thing_due_is_the_earliest_deadline():
    harness = Harness(routes=(Route(tool="*", to="cards"),))
    assert lifecycle.next_due(harness.runtime, harness.view) is None
    harness.call()
    assert lifecycle.next_due(harness.runtime, harness.view) == START + timedelta(seconds=120)


# Outcomes that do not fit --------------------------------------------------------------------------------


@pytest.mark.requirement("A11")
def test_an_outcome_too_big_is_told_in_a_bounded_form_and_the_loss_recorded():
    harness = Harness()
    harness.call()
    harness.answer(Answered(Outcome(outcome="success", result={"text": "x" * 70_000})))
    (payload,) = harness.sent
    assert payload["outcome"] == "success"
    assert payload["result"].endswith("characters]")
    assert len(payload["result"]) < 65_536
    assert [loss.how for loss in harness.step.events[-1].losses] == ["narrowed"]


@pytest.mark.parametrize("result", ["x" * 800_000, "\U0001f600" * 200_000, {"text": "x" * 70_000}])
def test_huma_0_1_is_told_a_result_whole_as_long_as_the_wire_takes_it(result: Any):
    harness = Harness(HUMA_0_1)
    harness.call()
    harness.answer(Answered(Outcome(outcome="success", result=result)))
    assert harness.sent[0]["content"]["result"] == result
    assert harness.step.events[-1].losses == ()


@pytest.mark.parametrize(("result", "at_least"), [("x" * 2_000_000, 800_000), ("\U0001f600" * 500_000, 400_000)])
def test_huma_0_1_is_told_as_much_of_a_longer_result_as_the_wire_takes(result: str, at_least: int):
    harness = Harness(HUMA_0_1)
    harness.call()
    harness.answer(Answered(Outcome(outcome="success", result=result)))
    (payload,) = harness.sent
    size = len(orjson.dumps(payload))
    assert at_least <= size <= 900_000
    assert payload["content"]["success"] is True
    assert [(loss.how, loss.path) for loss in harness.step.events[-1].losses] == [("narrowed", "/result")]


@pytest.mark.requirement("A11")
def test_a_result_of_emoji_is_cut_by_the_units_of_the_runtime():
    harness = Harness()
    harness.call()
    harness.answer(Answered(Outcome(outcome="success", result="\U0001f600" * 40_000)))
    assert len(harness.sent[0]["result"].encode("utf-16-le")) // 2 <= 65_536


def test_a_result_may_have_any_key():
    harness = Harness()
    harness.call()
    harness.answer(Answered(Outcome(outcome="success", result={"__proto__": {"constructor": 1}})))
    assert harness.sent[0]["result"] == {"__proto__": {"constructor": 1}}
    assert harness.step.events[-1].losses == ()


def test_an_endless_error_is_cut():
    harness = Harness()
    harness.call()
    harness.answer(Answered(Outcome(outcome="failure", error="e" * 100_000)))
    assert len(harness.sent[0]["error"]) < 10_000


def test_an_outcome_of_a_restarted_process_is_recorded_as_unknown():
    harness = Harness()
    harness.call(tool="slow_thing", arguments={})
    harness.recover()
    finished = harness.events[-1]
    assert isinstance(finished, ToolFinished)
    assert finished.unknown
    assert "restarted" in (finished.error or "")


def test_an_idempotent_call_of_a_restarted_process_is_tried_again():
    harness = Harness()
    harness.call()
    harness.recover()
    assert isinstance(harness.step.calls[0], Requeue)
    assert harness.sent == []


def forget_executors(harness: Harness) -> None:
    """Let the configuration no longer have any executor."""
    harness.runtime = replace(harness.runtime, policy=replace(harness.runtime.policy, executors={}))


@pytest.mark.parametrize("state", ["queued", "dispatched"])
def test_a_call_of_a_removed_executor_ends_on_restart_and_says_if_it_may_have_run(state: str):
    harness = Harness(slots=0 if state == "queued" else 1)
    harness.call()
    forget_executors(harness)
    harness.recover()
    (settled,) = harness.settled
    assert (settled.dead, settled.unknown) == (True, state == "dispatched")
    what = "the tool may have run" if settled.unknown else "the tool was not called"
    assert harness.sent[0]["error"].endswith(f"executor 'cards' is no longer configured; {what}")


def test_a_queued_call_of_a_removed_executor_is_unknown_after_an_uncertain_attempt():
    harness = Harness()
    harness.call()
    harness.answer(Uncertain("the connection was lost"))
    forget_executors(harness)
    harness.recover()
    (settled,) = harness.settled
    assert (settled.dead, settled.unknown) == (True, True)


def accepted_without_executor() -> Harness:
    """Restart behind a 202 of an executor that is no longer in the configuration."""
    harness = Harness()
    harness.call(tool="slow_thing", arguments={})
    harness.answer(Accepted())
    forget_executors(harness)
    harness.recover()
    assert (harness.step.calls, harness.sent) == ((), [])
    return harness


def test_an_accepted_call_waits_for_its_callback_also_without_its_executor():
    harness = accepted_without_executor()
    done = Answered(Outcome(outcome="success", result="by callback"))
    harness.decide(lambda builder: calls.outcome(builder, harness.id_of("tc-1"), done))
    assert harness.sent[0]["result"] == "by callback"


def test_an_accepted_call_without_its_executor_ends_at_its_deadline_as_unknown():
    harness = accepted_without_executor()
    harness.wait(601)
    (settled,) = harness.settled
    assert (settled.state, settled.dead, settled.unknown) == ("expired", True, True)


def test_an_accepted_call_without_its_executor_can_be_canceled():
    harness = accepted_without_executor()
    harness.decide(lambda builder: calls.cancel(builder, harness.id_of("tc-1"), reason=None))
    harness.wait(11)
    assert [settled.state for settled in harness.settled] == ["canceled"]


def test_a_202_of_an_executor_that_is_gone_meanwhile_is_waited_for():
    harness = Harness()
    harness.call(tool="slow_thing", arguments={})
    forget_executors(harness)
    harness.answer(Accepted())
    assert harness.view.calls[harness.id_of("tc-1")].state == "accepted"
    assert harness.sent == []


def test_a_call_of_an_unreachable_executor_fails_at_once_and_waits_for_an_operator():
    harness = Harness()
    harness.slots, harness.missing = 0, "'cards' has been unreachable since 12:00:00 UTC (no connection)"
    harness.call()
    assert harness.sent[-1]["error"] == f"{harness.missing}; the tool was not called, retry later"
    assert harness.view.calls == {}
    (_, settled) = harness.step.calls
    assert isinstance(settled, Settle)
    assert (settled.dead, settled.unknown) == (True, False)


def test_a_waiting_call_that_is_turned_away_fails_and_one_that_has_left_does_not():
    harness = Harness()
    harness.slots = 0
    harness.call()
    harness.decide(lambda builder: calls.turn_away(builder, harness.id_of("tc-1"), "nobody there"))
    assert "nobody there; the tool was not called" in harness.sent[-1]["error"]
    harness.slots = 1
    harness.call("tc-2")
    harness.decide(lambda builder: calls.turn_away(builder, harness.id_of("tc-2"), "nobody there"))
    assert set(harness.view.calls) == {harness.id_of("tc-2")}


def test_an_outcome_that_an_earlier_attempt_made_unsure_stays_unknown():
    harness = Harness()
    harness.call()
    harness.answer(Uncertain("the connection was lost"))
    assert harness.view.calls[harness.id_of("tc-1")].unknown
    harness.decide(lambda builder: calls.turn_away(builder, harness.id_of("tc-1"), "nobody there"))
    (settled,) = harness.step.calls
    assert isinstance(settled, Settle)
    assert (settled.dead, settled.unknown) == (True, True)
    assert "giving up on this call" in (settled.error or "")


@pytest.mark.parametrize("state", ["queued", "dispatched"])
def test_a_call_with_an_unreadable_request_does_not_run_with_other_arguments(state: str):
    harness = Harness()
    harness.slots = 0 if state == "queued" else 1
    harness.call()
    [(call_id, call)] = harness.view.calls.items()
    assert call.state == state
    harness.view = replace(harness.view, calls={call_id: replace(call, arguments=None)})
    harness.recover()
    finished = harness.events[-1]
    assert isinstance(finished, ToolFinished)
    assert (finished.outcome, finished.unknown) == ("failure", state == "dispatched")
    assert not any(isinstance(effect, Queue) for effect in harness.effects)

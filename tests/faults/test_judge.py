"""The judge itself: fed with wrong records it must find what is wrong, and with right ones nothing."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

import pytest

from tests.faults.judge import (
    Entry,
    Finished,
    Journal,
    Request,
    Rules,
    Span,
    Told,
    Verdict,
    Wanted,
    judge,
    new_nonce,
    nonces,
    outages,
)
from tests.faults.observed import begin, note

RULES = Rules(repeatable=frozenset({"again"}), inward=frozenset({"words"}))
FRAME = '{"type":"tool-result","toolCallId":"tc-1","status":"success","result":1}'
DONE = Told("success", FRAME)
WANTED = Wanted("tc-1", "once", [DONE])
ENTRY = Entry("call-1", "tc-1", "succeeded")
REQUEST = Request("call-1", "tc-1", "once", '{"n":1}')
OUTCOME = Finished("call-1", '{"outcome":"success"}')
JOURNAL = Journal("s", [1, 2, 3], [OUTCOME])


def weigh(
    wanted: Wanted | None = WANTED,
    entries: tuple[Entry, ...] = (ENTRY,),
    requests: tuple[Request, ...] = (REQUEST,),
    journal: Journal = JOURNAL,
    rules: Rules = RULES,
    counted: int | None = None,
) -> Verdict:
    return judge([] if wanted is None else [wanted], entries, requests, [journal], rules, counted=counted)


def charged(verdict: Verdict) -> str:
    with pytest.raises(AssertionError) as caught:
        verdict.acquit()
    return str(caught.value)


def test_what_is_right_is_acquitted() -> None:
    assert weigh().acquit() == Verdict(1, 0, 0, 0, 0, 0)


def test_repeats_are_counted_and_allowed_where_they_are_the_same() -> None:
    repeated = replace(WANTED, tool="again", told=[DONE, DONE, DONE])
    asked = replace(REQUEST, tool="again")
    verdict = weigh(repeated, requests=(asked, asked), counted=2).acquit()
    assert (verdict.told_again, verdict.asked_again) == (2, 1)


def test_a_repeat_that_the_gateway_has_not_counted_is_found() -> None:
    assert "saw 2 repeats, the gateway has counted 1" in charged(
        weigh(replace(WANTED, told=[DONE, DONE, DONE]), counted=1)
    )


@pytest.mark.parametrize(
    ("wanted", "entries", "why"),
    [
        (WANTED, (), "the ledger does not know it"),
        (replace(WANTED, told=[]), (replace(ENTRY, state="dispatched"),), "it has no outcome"),
        (replace(WANTED, told=[]), (ENTRY,), "never reached the runtime"),
    ],
)
def test_a_lost_call_is_found_wherever_it_was_lost(wanted: Wanted, entries: tuple[Entry, ...], why: str) -> None:
    verdict = weigh(wanted, entries)
    assert verdict.lost == 1
    assert why in charged(verdict)


def test_a_withdrawn_call_needs_no_answer() -> None:
    withdrawn = replace(WANTED, told=[], withdrawn=True)
    finished = Journal("s", [1, 2], [Finished("call-1", '{"outcome":"canceled"}')])
    assert weigh(withdrawn, (replace(ENTRY, state="canceled"),), journal=finished).acquit().lost == 0


def test_two_outcomes_for_one_call_are_found_on_the_wire_and_in_the_journal() -> None:
    other = Told("failure", FRAME.replace("success", "failure"))
    on_the_wire = weigh(replace(WANTED, told=[DONE, other]))
    assert on_the_wire.different == 1
    assert "different outcomes" in charged(on_the_wire)
    in_the_journal = weigh(journal=replace(JOURNAL, outcomes=[OUTCOME, Finished("call-1", '{"outcome":"failure"}')]))
    assert in_the_journal.different == 1
    assert "different outcomes" in charged(in_the_journal)


def test_the_same_outcome_twice_in_the_journal_is_found() -> None:
    assert "2 outcomes" in charged(weigh(journal=replace(JOURNAL, outcomes=[OUTCOME, OUTCOME])))
    assert "0 outcomes" in charged(weigh(journal=replace(JOURNAL, outcomes=[])))


def test_a_repeat_that_is_not_the_same_bytes_is_found() -> None:
    reordered = Told("success", '{"toolCallId":"tc-1","type":"tool-result","status":"success","result":1}')
    assert "differs from what was told first" in charged(weigh(replace(WANTED, told=[DONE, reordered])))


def test_another_outcome_than_the_ledgers_is_found() -> None:
    assert "something else than the ledger says" in charged(weigh(entries=(replace(ENTRY, state="failed"),)))


@pytest.mark.parametrize(
    ("sequences", "words"),
    [([1, 2, 4], "gaps [3]"), ([1, 2, 2, 3], "repeats [2]"), ([1, 3, 2], "out of order")],
)
def test_gaps_repeats_and_disorder_of_sequences_are_found(sequences: list[int], words: str) -> None:
    assert words in charged(weigh(journal=replace(JOURNAL, sequences=sequences)))


def test_a_history_whose_beginning_retention_removed_has_no_gap() -> None:
    weigh(journal=replace(JOURNAL, sequences=[7, 8, 9])).acquit()


def test_what_an_executor_should_not_have_been_asked_is_found() -> None:
    assert "must not be repeated" in charged(weigh(requests=(REQUEST, REQUEST)))
    assert "under another key" in charged(weigh(requests=(replace(REQUEST, key="call-2"),)))
    assert "a success that no executor was asked for" in charged(weigh(requests=()))
    again = replace(REQUEST, tool="again")
    other = replace(again, arguments='{"n":2}')
    assert "different things under one key" in charged(weigh(replace(WANTED, tool="again"), requests=(again, other)))


def test_an_answer_out_of_the_configuration_needs_no_executor() -> None:
    weigh(replace(WANTED, tool="words"), requests=()).acquit()


def test_a_repeatable_call_must_not_end_unknown() -> None:
    failed = replace(WANTED, tool="again", told=[Told("failure", "unknown")])
    unknown = replace(ENTRY, state="failed", unknown=True)
    assert "left unknown" in charged(weigh(failed, (unknown,)))
    assert weigh(replace(failed, tool="once"), (unknown,)).acquit().unknown == 1


def test_calls_that_nobody_asked_for_or_that_are_twice_on_record_are_found() -> None:
    assert "nobody asked for it" in charged(weigh(None))
    assert "the ledger has it twice" in charged(weigh(entries=(ENTRY, replace(ENTRY, call_id="call-2"))))


def test_the_history_names_what_each_side_has_seen() -> None:
    history = charged(weigh(requests=(REQUEST, REQUEST)))
    for part in ("call 'tc-1'", "asked for  once", "succeeded", 'once({"n":1}) as call-1', FRAME, OUTCOME.body):
        assert part in history


# What the wire may have lost


def test_only_the_second_before_an_end_and_the_time_without_a_link_may_lose_a_call() -> None:
    kill = outages([Span(10, 10)], [Span(0, 10.1), Span(12, inf)])
    assert kill == [Span(9, 10), Span(9.1, 10.1), Span(-inf, 0), Span(10.1, 12)]


def test_a_frozen_process_may_lose_what_is_written_until_it_is_thawed_or_another_link_stands() -> None:
    assert outages([Span(10, 14)], [Span(0, inf)]) == [Span(9, 14), Span(-inf, 0)]
    assert outages([Span(10, 14)], [Span(0, inf), Span(12, inf)]) == [Span(9, 12), Span(-inf, 0)]


def test_a_link_that_ends_long_after_a_fault_did_not_end_of_it() -> None:
    assert outages([Span(10, 10)], [Span(0, 30)]) == [Span(9, 10), Span(-inf, 0), Span(30, inf)]


def weigh_written(begin: float, end: float, **more: object) -> Verdict:
    wanted = replace(WANTED, told=[], written=Span(begin, end), wire="finn")
    rules = replace(RULES, outages={"finn": [Span(9, 12)], "other": [Span(0, 100)]})
    return judge([wanted], (), (), [Journal("s", [1])], rules, **more)  # pyright: ignore[reportArgumentType]


def test_a_call_written_to_a_dying_wire_is_lost_on_the_wire_and_any_other_is_lost() -> None:
    excused = weigh_written(9.5, 9.6).acquit()
    assert (excused.lost, excused.wire, excused.at_risk) == (0, 1, 1)
    # Its link stood a second longer.
    for since, until in ((8.5, 8.9), (12.1, 12.2)):
        lost = weigh_written(since, until)
        assert (lost.lost, lost.wire, lost.at_risk) == (1, 0, 0)
        assert "the ledger does not know it" in charged(lost)


def test_a_call_that_somebody_was_asked_or_told_about_was_not_lost_on_the_wire() -> None:
    rules = replace(RULES, outages={"": [Span(0, 9)]})
    written = replace(WANTED, written=Span(1, 1))
    nothing = Journal("s", [1])
    assert weigh(replace(written, told=[]), (), (), nothing, rules).acquit().wire == 1
    assert weigh(replace(written, told=[]), (), (REQUEST,), nothing, rules).lost == 1
    assert weigh(written, (), (), nothing, rules).lost == 1


def test_calls_at_risk_that_came_through_are_counted_too() -> None:
    rules = replace(RULES, outages={"": [Span(0, 9)]})
    verdict = weigh(replace(WANTED, written=Span(1, 1)), rules=rules).acquit()
    assert (verdict.wire, verdict.at_risk) == (0, 1)


# Recorded reports, changed in one place


@dataclass
class Report:
    """What three sides have written down of some calls."""

    wanted: list[Wanted] = field(default_factory=list[Wanted])
    entries: list[Entry] = field(default_factory=list[Entry])
    requests: list[Request] = field(default_factory=list[Request])
    outcomes: list[Finished] = field(default_factory=list[Finished])
    sequences: list[int] = field(default_factory=lambda: list(range(1, 30)))

    def weigh(self) -> Verdict:
        rules = replace(RULES, outages={"finn": [Span(9, 12)]})
        return judge(self.wanted, self.entries, self.requests, [Journal("s", self.sequences, self.outcomes)], rules)


def told(outcome: str, said: object, native: str) -> Told:
    return Told(outcome, json.dumps({"toolCallId": native, "outcome": outcome, "said": said}), json.dumps(said))


def record() -> Report:
    """Four calls: three succeeded, the last one's frame died on the wire."""
    report = Report()
    for number, tool in enumerate(("again", "once", "again")):
        native, call_id = f"tc-{number}", f"call-{number}"
        arguments = {"n": number, "nonce": new_nonce()}
        result = {"did": arguments, "answer": new_nonce()}
        text = json.dumps(arguments, sort_keys=True)
        written = Span(number, number + 0.1)
        report.wanted.append(Wanted(native, tool, [told("success", result, native)], text, written, "finn"))
        report.entries.append(Entry(call_id, native, "succeeded"))
        report.requests.append(Request(call_id, native, tool, text, (json.dumps(result),)))
        report.outcomes.append(Finished(call_id, json.dumps({"outcome": "success", "result": result})))
    gone = json.dumps({"n": 3, "nonce": new_nonce()}, sort_keys=True)
    report.wanted.append(Wanted("tc-3", "once", (), gone, Span(9.5, 9.6), "finn"))
    return report


def swap_results(report: Report) -> None:
    first, second = report.wanted[0], report.wanted[1]
    report.wanted[:2] = [replace(first, told=second.told), replace(second, told=first.told)]


def swap_everything_behind_the_executor(report: Report) -> None:
    swap_results(report)
    first, second = report.outcomes[0], report.outcomes[1]
    report.outcomes[:2] = [replace(first, body=second.body), replace(second, body=first.body)]


def repeat_the_result_of_the_call_before(report: Report) -> None:
    report.wanted[1] = replace(report.wanted[1], told=report.wanted[0].told)
    report.outcomes[1] = replace(report.outcomes[1], body=report.outcomes[0].body)


def ask_for_another(report: Report) -> None:
    report.requests[1] = replace(report.requests[1], arguments=report.requests[0].arguments)


def make_a_result_up(report: Report) -> None:
    made_up = {"did": json.loads(report.wanted[0].arguments)}
    report.wanted[0] = replace(report.wanted[0], told=[told("success", made_up, "tc-0")])
    report.outcomes[0] = replace(report.outcomes[0], body=json.dumps(made_up))


def tell_twice_differently(report: Report) -> None:
    first = report.wanted[0]
    report.wanted[0] = replace(first, told=[*first.told, told("failure", "no", "tc-0")])


def settle_twice_differently(report: Report) -> None:
    report.outcomes.append(Finished("call-0", json.dumps({"outcome": "failure"})))


def lose_one_whose_link_stood(report: Report) -> None:
    report.wanted[3] = replace(report.wanted[3], written=Span(7.5, 7.6))


def lose_one_behind_the_new_link(report: Report) -> None:
    report.wanted[3] = replace(report.wanted[3], written=Span(12.5, 12.6))


def lose_one_that_is_said_twice_by_its_runtime(report: Report) -> None:
    report.wanted[3] = replace(report.wanted[3], written=None)


def lose_one_that_was_asked_for(report: Report) -> None:
    report.requests.append(Request("call-3", "tc-3", "once", report.wanted[3].arguments))


def lose_an_outcome(report: Report) -> None:
    report.wanted[0] = replace(report.wanted[0], told=[])


def fail_without_asking_or_a_reason(report: Report) -> None:
    report.entries[1] = replace(report.entries[1], state="failed")
    report.wanted[1] = replace(report.wanted[1], told=[told("failure", "something went wrong", "tc-1")])
    report.outcomes[1] = replace(report.outcomes[1], body=json.dumps({"error": "something went wrong"}))
    del report.requests[1]


def skip_a_sequence(report: Report) -> None:
    del report.sequences[5]


def test_a_report_of_what_is_right_is_acquitted() -> None:
    verdict = record().weigh().acquit()
    assert (verdict.calls, verdict.lost, verdict.different, verdict.wire, verdict.at_risk) == (4, 0, 0, 1, 1)


@pytest.mark.parametrize(
    ("change", "lost", "different", "why"),
    [
        (swap_results, 0, 2, "the runtime was told words of another call"),
        (swap_everything_behind_the_executor, 0, 2, "the journal holds words of another call"),
        (repeat_the_result_of_the_call_before, 0, 1, "the runtime was told words of another call"),
        (ask_for_another, 0, 0, "asked for something else than the runtime wanted"),
        (make_a_result_up, 0, 1, "a success that its executor did not answer"),
        (tell_twice_differently, 0, 1, "different outcomes for one call"),
        (settle_twice_differently, 0, 1, "different outcomes for one call"),
        (lose_one_whose_link_stood, 1, 0, "the ledger does not know it"),
        (lose_one_behind_the_new_link, 1, 0, "the ledger does not know it"),
        (lose_one_that_is_said_twice_by_its_runtime, 1, 0, "the ledger does not know it"),
        (lose_one_that_was_asked_for, 1, 0, "the ledger does not know it"),
        (lose_an_outcome, 1, 0, "never reached the runtime"),
        (fail_without_asking_or_a_reason, 0, 0, "does not say why"),
        (skip_a_sequence, 0, 0, "gaps [6]"),
    ],
)
def test_a_report_that_is_changed_in_one_place_is_counted_and_charged(
    change: Callable[[Report], None], lost: int, different: int, why: str
) -> None:
    report = record()
    change(report)
    verdict = report.weigh()
    assert (verdict.lost, verdict.different) == (lost, different)
    assert why in charged(verdict)


def test_a_failure_that_no_executor_was_asked_for_may_say_why() -> None:
    report = record()
    fail_without_asking_or_a_reason(report)
    why = "outcome unknown: the gateway restarted"
    report.wanted[1] = replace(report.wanted[1], told=[told("failure", why, "tc-1")])
    report.outcomes[1] = replace(report.outcomes[1], body=json.dumps({"error": why}))
    assert report.weigh().acquit().calls == 4


def test_nonces_are_found_however_they_are_wrapped() -> None:
    one, other = new_nonce(), new_nonce()
    assert nonces(json.dumps({"a": json.dumps({"b": f"x{one}y"}), other: 1})) == {one, other}


def test_what_was_found_is_noted_before_it_is_judged() -> None:
    report, figures = record(), begin()
    swap_results(report)
    lose_one_whose_link_stood(report)
    with pytest.raises(AssertionError):
        note(report.weigh()).acquit()
    assert (figures.lost, figures.different, figures.calls) == (1, 2, 4)

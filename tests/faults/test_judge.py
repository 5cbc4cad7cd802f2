"""The judge itself: fed with wrong records it must find what is wrong, and with right ones nothing."""

from dataclasses import replace

import pytest

from tests.faults.judge import Entry, Finished, Journal, Request, Rules, Told, Verdict, Wanted, judge

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
    told = replace(WANTED, tool="again", told=[DONE, DONE, DONE])
    asked = replace(REQUEST, tool="again")
    verdict = weigh(told, requests=(asked, asked), counted=2).acquit()
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


def test_a_call_that_left_no_trace_is_excused_where_its_frame_may_have_died() -> None:
    nobody = replace(WANTED, told=[])
    rules = replace(RULES, given_up=frozenset({"tc-1"}))
    nothing = Journal("s", [1])
    assert weigh(nobody, (), (), nothing, rules).acquit().lost == 0
    assert weigh(nobody, (), (REQUEST,), nothing, rules).lost == 1
    assert weigh(WANTED, (), (), nothing, rules).lost == 1


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
    told = replace(WANTED, tool="again", told=[Told("failure", "unknown")])
    unknown = replace(ENTRY, state="failed", unknown=True)
    assert "left unknown" in charged(weigh(told, (unknown,)))
    assert weigh(replace(told, tool="once"), (unknown,)).acquit().unknown == 1


def test_calls_that_nobody_asked_for_or_that_are_twice_on_record_are_found() -> None:
    assert "nobody asked for it" in charged(weigh(None))
    assert "the ledger has it twice" in charged(weigh(entries=(ENTRY, replace(ENTRY, call_id="call-2"))))


def test_the_story_names_what_each_side_has_seen() -> None:
    story = charged(weigh(requests=(REQUEST, REQUEST)))
    for part in ("call 'tc-1'", "asked for  once", "succeeded", 'once({"n":1}) as call-1', FRAME, OUTCOME.body):
        assert part in story

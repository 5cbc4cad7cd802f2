"""Engine conformance: calls."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gateway.errors import Stale
from gateway.events import CallId, ToolRequested
from gateway.events.response import Response
from gateway.store.attempts import CallAttempt
from gateway.store.call import (
    BORN,
    MOST_UNHEARD,
    TRANSITIONS,
    Accept,
    Approve,
    Call,
    CallChange,
    CallState,
    CameLate,
    Claim,
    Dismissed,
    Hold,
    Listened,
    MarkCanceling,
    Progressed,
    Redriven,
    Requeue,
    attempts_of,
    changed,
)
from gateway.store.port import Engine
from gateway.store.rows import CallFilter, Page
from gateway.store.step import RUNTIME, Enqueue, Step
from gateway.testing.conformance.engine_words import (
    ALICE,
    ALL,
    BOB,
    DAY,
    START,
    FakeClock,
    answered,
    asked,
    call,
    close_session,
    new,
    open_call,
    open_session,
    said,
    settled,
    texts,
)

SECOND = timedelta(seconds=1)
_HELD: Mapping[str, Any] = {
    "state": "held",
    "attempt": 0,
    "rule": "r" * 64,
    "place": "routes[2]",
    "binding": "b" * 64,
    "held_at": START,
    "unheard_since": START,
}
_HOLD = Hold(
    CallId("call-1"), "cards", "s" * 64, "routes[3]", "c" * 64, START + SECOND, START + DAY, 2, {"rank": "7"}, 12
)
_APPROVE = Approve(CallId("call-1"), "chat", "d" * 64, START + DAY, 3, "e" * 32, {"rank": "K"}, 12, edited=True)

_CHANGES: tuple[CallChange, ...] = (
    call(),
    _HOLD,
    _APPROVE,
    Claim(CallId("call-1"), 2),
    Accept(CallId("call-1"), START + DAY),
    Requeue(CallId("call-1"), START + SECOND, "no answer"),
    MarkCanceling(CallId("call-1"), START + SECOND),
    *(settled(state=state, outcome_index=1) for state in TRANSITIONS),
    replace(settled(outcome_index=1), elsewhere=True),
    Progressed(CallId("call-1"), 10),
    Redriven(CallId("call-1")),
    Dismissed(CallId("call-1")),
    CameLate(CallId("call-1")),
    Listened(CallId("call-1")),
    Listened(CallId("call-1"), START),
)
_ENDED: tuple[CallState, ...] = ("succeeded", "failed", "canceled", "expired")
_WAYS: Mapping[CallState, tuple[tuple[CallChange, ...], ...]] = {
    "held": ((call(**_HELD),),),
    "queued": ((call(state="queued", attempt=0),),),
    "dispatched": ((call(),),),
    "accepted": ((call(), Accept(CallId("call-1"), START + DAY)),),
    **{state: ((call(),), (settled(state=state, outcome_index=1, dead=True),)) for state in _ENDED},
}
"""The changes that bring a call to each state."""


class CallSuite:
    """Calls."""

    async def test_an_opened_call_is_stored_unchanged(self, engine: Engine) -> None:
        await open_session(engine)
        opened = call(
            native_call_id="n\x00🂡",
            n=3,
            state="queued",
            attempt=0,
            request_index=1,
            executor="cards",
            due_at=START + SECOND,
            key="another key",
            deliver=False,
        )
        await engine.commit(Step(ALICE, (said(), asked()), calls=(opened,)))
        assert await engine.call(CallId("call-1")) == Call(
            call_id=CallId("call-1"),
            session_id=ALICE,
            runtime="finn",
            native_call_id="n\x00🂡",
            n=3,
            tool="ask_for_cards",
            args_sha="a" * 64,
            state="queued",
            attempt=0,
            created_at=START,
            deadline_at=START + timedelta(seconds=120),
            request_sequence=3,
            executor="cards",
            key="another key",
            due_at=START + SECOND,
            deliver=False,
        )
        assert await engine.call(CallId("nobody's")) is None

    async def test_a_call_moves_through_its_states(self, engine: Engine, clock: FakeClock) -> None:
        await open_session(engine)
        await open_call(engine, state="queued", attempt=0, due_at=START)
        expected = await self._row(engine)

        await engine.commit(Step(ALICE, calls=(Claim(CallId("call-1"), 1),)))
        expected = replace(expected, state="dispatched", attempt=1, due_at=None)
        assert await self._row(engine) == expected

        await engine.commit(Step(ALICE, calls=(Requeue(CallId("call-1"), START + SECOND, "HTTP 503"),)))
        expected = replace(expected, state="queued", due_at=START + SECOND, error="HTTP 503")
        assert await self._row(engine) == expected

        await engine.commit(
            Step(ALICE, calls=(Claim(CallId("call-1"), 2), Accept(CallId("call-1"), START + 600 * SECOND)))
        )
        expected = replace(expected, state="accepted", attempt=2, due_at=None, deadline_at=START + 600 * SECOND)
        assert await self._row(engine) == expected

        await engine.commit(Step(ALICE, calls=(MarkCanceling(CallId("call-1"), START + 10 * SECOND),)))
        expected = replace(expected, canceling_until=START + 10 * SECOND)
        assert await self._row(engine) == expected

        clock.turn(SECOND)
        await engine.commit(
            Step(
                ALICE, (said(), answered()), calls=(settled(outcome_index=1, state="failed", unknown=True, error="?"),)
            )
        )
        assert await self._row(engine) == replace(
            expected,
            state="failed",
            outcome_sequence=4,
            outcome_sha="b" * 64,
            unknown=True,
            error="?",
            finished_at=START + SECOND,
        )

    async def test_how_long_ago_a_call_ended_is_known_of_ended_ones_only(self, engine: Engine) -> None:
        await open_session(engine)
        await open_call(engine)
        assert await engine.ended_for(CallId("call-1")) is None
        assert await engine.ended_for(CallId("nobody's")) is None
        await engine.commit(Step(ALICE, (answered(),), calls=(settled(),)))
        ended = await engine.ended_for(CallId("call-1"))
        assert ended is not None
        assert timedelta(0) <= ended < DAY
        await engine.commit(Step(ALICE, calls=(CameLate(CallId("call-1")),)))
        later = await engine.ended_for(CallId("call-1"))
        assert later is not None
        assert ended <= later < DAY

    @pytest.mark.parametrize("state", list(TRANSITIONS))
    @pytest.mark.parametrize(
        "change", _CHANGES, ids=lambda change: f"{type(change).__name__}-{getattr(change, 'state', '')}"
    )
    async def test_only_changes_in_the_table_of_call_states_are_allowed(
        self, engine: Engine, state: CallState, change: CallChange
    ) -> None:
        await open_session(engine)
        for way in _WAYS[state]:
            await engine.commit(Step(ALICE, (asked(), answered()), calls=way))
        before = await engine.call(CallId("call-1"))
        assert before is not None
        assert before.state == state
        try:
            after = changed(before, change, now=START, numbers=(4, 5))
        except Stale:
            with pytest.raises(Stale):
                await engine.commit(Step(ALICE, (asked(), answered()), calls=(change,)))
            assert await engine.call(CallId("call-1")) == before
        else:
            await engine.commit(Step(ALICE, (asked(), answered()), calls=(change,)))
            row = await engine.call(CallId("call-1"))
            assert row is not None
            assert row.state == after.state

    @pytest.mark.parametrize("state", list(TRANSITIONS))
    async def test_a_call_starts_in_a_state_of_the_table(self, engine: Engine, state: CallState) -> None:
        await open_session(engine)
        step = Step(ALICE, (asked(),), calls=(call(**_HELD) if state == "held" else call(state=state),))
        if state in BORN:
            await engine.commit(step)
        else:
            with pytest.raises(Stale):
                await engine.commit(step)
        assert (await engine.call(CallId("call-1")) is not None) is (state in BORN)

    async def test_a_call_begins_as_held_if_a_person_is_asked_and_only_then(self, engine: Engine) -> None:
        await open_session(engine)
        for opened in (call(state="held", attempt=0), call(rule="r"), call(rule="r", state="queued", attempt=0)):
            with pytest.raises(Stale):
                await engine.commit(Step(ALICE, (asked(),), calls=(opened,)))
        assert await engine.call(CallId("call-1")) is None

    async def test_a_held_call_keeps_what_a_person_allows(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, (asked(),), calls=(call(**_HELD, arguments_sequence=2),)))
        row = await self._row(engine)
        assert (row.state, row.rule, row.place, row.binding, row.held_at, row.arguments_sequence) == (
            "held", "r" * 64, "routes[2]", "b" * 64, START, 2
        )  # fmt: skip
        assert await engine.open_calls(ALICE) == [row]
        assert (await engine.calls(CallFilter(states=frozenset({"held"})), ALL))[0] == [row]
        await engine.commit(Step(ALICE, calls=(_HOLD,)))
        row = replace(
            row, rule="s" * 64, place="routes[3]", binding="c" * 64, held_at=START + SECOND,
            deadline_at=START + DAY, executor="cards",
        )  # fmt: skip
        assert await self._row(engine) == row
        await engine.commit(Step(ALICE, calls=(_APPROVE,)))
        row = replace(
            row, state="queued", executor="chat", binding="d" * 64, arguments_sequence=3, approved_sha="e" * 32
        )
        assert await self._row(engine) == row
        await engine.commit(Step(ALICE, calls=(Claim(CallId("call-1"), 1),)))
        assert await self._row(engine) == replace(row, state="dispatched", attempt=1)

    async def test_a_call_that_was_sent_is_never_held(self, engine: Engine) -> None:
        await open_session(engine)
        await open_call(engine)
        await engine.commit(Step(ALICE, calls=(Requeue(CallId("call-1"), START, "HTTP 503"),)))
        with pytest.raises(Stale):
            await engine.commit(Step(ALICE, calls=(_HOLD,)))

    async def test_an_outcome_waits_until_it_is_received_once(self, engine: Engine) -> None:
        await open_session(engine)
        held = call(**_HELD, deliver=False)
        await engine.commit(Step(ALICE, (asked(),), calls=(held,)))
        assert await engine.unheard_calls(ALICE) == []
        with pytest.raises(Stale):
            await engine.commit(Step(ALICE, calls=(Listened(CallId("call-1")),)))
        await engine.commit(Step(ALICE, calls=(Listened(CallId("call-1"), START + SECOND),)))
        await engine.commit(Step(ALICE, (answered(),), calls=(settled(state="failed"),)))
        row = await self._row(engine)
        assert (row.unheard_since, await engine.unheard_calls(ALICE)) == (START + SECOND, [row])
        assert await engine.unheard_calls(BOB) == []
        steps = [Step(ALICE, (said(str(n)),), calls=(Listened(CallId("call-1")),)) for n in range(5)]
        results = await asyncio.gather(*map(engine.commit, steps), return_exceptions=True)
        assert sorted(isinstance(one, Stale) for one in results) == [False, True, True, True, True]
        assert (await self._row(engine)).unheard_since is None
        assert await engine.unheard_calls(ALICE) == []

    async def test_a_canceled_call_and_one_that_was_never_held_wait_for_nobody(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, (asked(),), calls=(call("held", **_HELD),)))
        await open_call(engine, call_id="other")
        ends = (settled("held", state="canceled"), settled("other"))
        await engine.commit(Step(ALICE, (answered(),), calls=ends))
        assert await engine.unheard_calls(ALICE) == []

    async def test_the_newest_outcomes_that_wait_come_first_and_are_limited(self, engine: Engine) -> None:
        await open_session(engine)
        names = [f"call-{number}" for number in range(MOST_UNHEARD + 2)]
        for name in names:
            await engine.commit(Step(ALICE, (asked(),), calls=(call(name, **_HELD),)))
            await engine.commit(Step(ALICE, (answered(),), calls=(settled(name, state="failed"),)))
        found = [row.call_id for row in await engine.unheard_calls(ALICE)]
        assert found == list(reversed(names))[:MOST_UNHEARD]

    async def _row(self, engine: Engine) -> Call:
        """Return the call without its attempts, which have a test of their own."""
        row = await engine.call(CallId("call-1"))
        assert row is not None
        return replace(row, attempts=None)

    async def test_each_attempt_of_a_call_is_on_record(self, engine: Engine, clock: FakeClock) -> None:
        await open_session(engine)
        await open_call(engine)
        first, second, third = (START + SECOND * n for n in (0, 10, 20))
        call_id = CallId("call-1")
        for change in (
            Requeue(call_id, second, "answered 503", response=Response(503)),
            Claim(call_id, 2),
            Requeue(call_id, third, "no connection", sent=False),
            Claim(call_id, 2),
            Accept(call_id, START + DAY, START + 60 * SECOND, response=Response(202)),
            Accept(call_id, START + DAY, START + 90 * SECOND, ended=False),
            Claim(call_id, 3),
        ):
            clock.turn(SECOND)
            await engine.commit(Step(ALICE, calls=(change,)))
        clock.turn(SECOND)
        end = settled(state="failed", unknown=True, error="gone")
        await engine.commit(Step(ALICE, (answered(),), calls=(replace(end, response=Response(500)),)))
        row = await engine.call(call_id)
        assert row is not None
        at = [START + SECOND * n for n in range(9)]
        assert attempts_of(row) == (
            CallAttempt(1, first, at[1], 503, "answered 503", due_at=second),
            CallAttempt(2, at[2], at[3], None, "no connection", sent=False, due_at=third),
            CallAttempt(2, at[4], at[5], 202, due_at=START + 60 * SECOND),
            CallAttempt(3, at[7], at[8], 500, "gone", unsure=True),
        )

    async def test_the_only_attempt_of_a_call_that_it_ends_is_derived(self, engine: Engine, clock: FakeClock) -> None:
        await open_session(engine)
        await open_call(engine)
        clock.turn(SECOND)
        await engine.commit(Step(ALICE, (answered(),), calls=(replace(settled(), response=Response(200)),)))
        row = await engine.call(CallId("call-1"))
        assert row is not None
        assert row.attempts is None
        assert attempts_of(row) == (CallAttempt(1, START, START + SECOND),)

    async def test_a_call_may_be_opened_and_settled_in_one_step(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(
            Step(
                ALICE,
                (asked(), answered()),
                calls=(call(), settled(outcome_index=1, state="failed")),
                sends=(Enqueue(1, RUNTIME),),
            )
        )
        row = await self._row(engine)
        assert (row.state, row.request_sequence, row.outcome_sequence) == ("failed", 2, 3)
        assert await engine.open_calls(ALICE) == []

    async def test_a_call_may_be_settled_without_an_event(self, engine: Engine) -> None:
        await open_session(engine)
        await open_call(engine)
        await engine.commit(Step(ALICE, calls=(settled(outcome_index=None),)))
        row = await self._row(engine)
        assert (row.state, row.outcome_sequence, row.outcome_sha) == ("succeeded", None, "b" * 64)

    async def test_the_latest_reuse_of_an_id_is_neither_its_first_call_nor_a_redrive(self, engine: Engine) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        await open_call(engine, call_id="second", n=1)
        await open_call(engine, call_id="first", n=0)
        await open_call(engine, BOB, call_id="bob's", n=7)
        redrive = call(
            "redrive", n=9, request_index=None, request_sequence=2, redrive_of=CallId("second"), key="second"
        )
        await engine.commit(Step(ALICE, calls=(redrive,)))
        found = await engine.latest_reuse(ALICE, "native-1")
        assert found is not None
        assert found.call_id == "second"
        await open_call(engine, call_id="only", native_call_id="native-2")
        assert await engine.latest_reuse(ALICE, "native-2") is None
        row = await engine.call(CallId("redrive"))
        assert row is not None
        assert (row.redrive_of, row.key, row.request_sequence) == ("second", "second", 2)

    async def test_calls_are_listed_newest_first_page_by_page(self, engine: Engine) -> None:
        await open_session(engine)
        names = [f"c-{n}" for n in (3, 1, 4, 2, 5)]
        for name in names:
            await open_call(engine, call_id=name)
        rows, cursor = await engine.calls(CallFilter(), Page(2))
        assert [row.call_id for row in rows] == ["c-5", "c-2"]
        await open_call(engine, call_id="newer")
        rows, cursor = await engine.calls(CallFilter(), Page(2, cursor))
        assert [row.call_id for row in rows] == ["c-4", "c-1"]
        rows, cursor = await engine.calls(CallFilter(), Page(2, cursor))
        assert ([row.call_id for row in rows], cursor) == (["c-3"], None)

    async def test_calls_are_listed_by_their_filters(self, engine: Engine) -> None:
        await open_session(engine)
        await open_session(engine, BOB, runtime="coder", labels={"team": "blue", "table": "1"})
        await open_call(engine, call_id="a", trace=f"00-{'a' * 32}-{'1' * 16}-01")
        await open_call(engine, call_id="b", tool="other", state="queued", attempt=0)
        await open_call(engine, BOB, call_id="c")
        await engine.commit(Step(BOB, (answered(),), calls=(settled("c", state="failed", unknown=True),)))
        for which, expected in (
            (CallFilter(session_id=ALICE), ["b", "a"]),
            (CallFilter(runtime="coder"), ["c"]),
            (CallFilter(tool="other"), ["b"]),
            (CallFilter(states=frozenset({"queued", "failed"})), ["c", "b"]),
            (CallFilter(unknown=True), ["c"]),
            (CallFilter(unknown=False, tool="ask_for_cards"), ["a"]),
            (CallFilter(session_id=BOB, tool="other"), []),
            (CallFilter(labels={"team": "blue", "table": "1"}), ["c"]),
            (CallFilter(labels={"team": "blu"}), []),
            (CallFilter(labels={"team": "blue"}, states=frozenset({"queued"})), []),
            (CallFilter(since=START, until=START + SECOND), ["c", "b", "a"]),
            (CallFilter(until=START), []),
            (CallFilter(trace_id="a" * 32), ["a"]),
            (CallFilter(trace_id="b" * 32), []),
        ):
            rows, cursor = await engine.calls(which, ALL)
            assert ([row.call_id for row in rows], cursor) == (expected, None)

    async def test_calls_are_found_by_a_text(self, engine: Engine) -> None:
        await open_session(engine)
        hostile = 'ä "100%" \\ _!\n'
        for number, rank in enumerate(("7", hostile, "x" * 20_000)):
            request = new(ToolRequested(native_call_id=f"n-{number}", tool="ask", arguments={"rank": rank}))
            opened = call(f"call-{number}", native_call_id=f"n-{number}", key=f"key-{number}")
            await engine.commit(Step(ALICE, (request,), calls=(opened,)))
        lost = settled("call-0", state="failed", error="Answered 500: no_such 100% table!")
        await engine.commit(Step(ALICE, (answered("n-0"),), calls=(lost,)))
        for text, expected in (
            ("CALL-1", ["call-1"]),
            ("key-2", ["call-2"]),
            ("n-0", ["call-0"]),
            ("answered 500", ["call-0"]),
            ("no_such 100% table!", ["call-0"]),
            ("no!such", []),
            ("n%", []),
            (hostile, ["call-1"]),
            ("Ä", []),
            ('"rank":"7"', []),
            ("x" * 200, []),
        ):
            rows, cursor = await engine.calls(CallFilter(text=text), ALL)
            assert ([row.call_id for row in rows], cursor) == (expected, None), text
        rows, _ = await engine.calls(CallFilter(text="call-", states=frozenset({"failed"})), ALL)
        assert [row.call_id for row in rows] == ["call-0"]

    async def test_excerpts_of_arguments_are_short_and_skip_long_requests(self, engine: Engine) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        given: dict[str, dict[str, object]] = {
            "none": {},
            "exact": {"rank": "x" * 188},
            "one more": {"rank": "x" * 189},
            "hostile": {"<b>": ["\u202e\n", None, 2**70, -0.5]},
            "cut within a letter": {"a": "é" * 3_000, "b": "never"},
            "long": {"a": "x" * 20_000},
        }
        for number, (name, arguments) in enumerate(given.items()):
            native = f"n-{number}"
            request = new(ToolRequested(native_call_id=native, tool="ask", arguments=arguments))
            await engine.commit(Step(ALICE, (request,), calls=(call(name, native_call_id=native),)))
        await open_call(engine, BOB, call_id="erased")
        await engine.commit(Step(BOB, (answered(),), calls=(settled("erased"),)))
        await close_session(engine, BOB)
        await engine.erase(BOB)
        names = [CallId(name) for name in (*given, "erased", "unknown")]
        found = dict(await engine.argument_excerpts(names))
        long = found.pop(CallId("long"))
        assert long.startswith("… 20,")
        assert long.endswith(" bytes")
        assert found == {
            "none": "{}",
            "exact": '{"rank": "' + "x" * 188 + '"}',
            "one more": '{"rank": "' + "x" * 189 + "…",
            "hostile": '{"<b>": ["\u202e\\n", null, 1180591620717411303424, -0.5]}',
            "cut within a letter": '{"a": "' + "é" * 192 + "…",
        }
        assert await engine.argument_excerpts([]) == {}

    async def test_a_dead_call_is_listed_until_it_is_redriven(self, engine: Engine, clock: FakeClock) -> None:
        await open_session(engine)
        await open_call(engine, call_id="lost", executor="cards")
        await open_call(engine, call_id="done", executor="cards")
        clock.turn(DAY)
        await open_call(engine, call_id="later", executor="chat")
        lost = replace(settled("lost", state="failed", unknown=True), dead=True)
        await engine.commit(Step(ALICE, (answered(),), calls=(lost,)))
        await engine.commit(Step(ALICE, (answered(),), calls=(settled("done", state="failed"),)))
        await engine.commit(
            Step(ALICE, (answered(),), calls=(replace(settled("later", state="expired"), dead=True, error="é: 7"),))
        )
        for which, expected in (
            (CallFilter(dead=True), ["later", "lost"]),
            (CallFilter(dead=False), ["done"]),
            (CallFilter(dead=True, executor="cards"), ["lost"]),
            (CallFilter(dead=True, since=START + DAY), ["later"]),
            (CallFilter(dead=True, cause="é"), ["later"]),
            (CallFilter(dead=True, cause="é: 7"), ["later"]),
            (CallFilter(dead=True, cause="é:"), []),
            (CallFilter(since=START + DAY + SECOND), []),
        ):
            rows, _ = await engine.calls(which, ALL)
            assert [row.call_id for row in rows] == expected
        row = await engine.call(CallId("lost"))
        assert row is not None
        await engine.commit(Step(ALICE, calls=(Redriven(CallId("lost")),)))
        assert await engine.call(CallId("lost")) == replace(row, dead=False)
        rows, _ = await engine.calls(CallFilter(dead=True), ALL)
        assert [row.call_id for row in rows] == ["later"]
        for call_id in ("lost", "done"):
            with pytest.raises(Stale):
                await engine.commit(Step(ALICE, calls=(Redriven(CallId(call_id)),)))

    async def test_of_many_that_redrive_a_call_at_once_one_does(self, engine: Engine) -> None:
        await open_session(engine)
        await open_call(engine, call_id="lost")
        await engine.commit(Step(ALICE, (answered(),), calls=(replace(settled("lost"), dead=True),)))
        steps = [Step(ALICE, (said(str(n)),), calls=(Redriven(CallId("lost")),)) for n in range(10)]
        done = await asyncio.gather(*map(engine.commit, steps), return_exceptions=True)
        assert [type(one) for one in done].count(Stale) == 9
        assert len(await texts(engine)) == 1

    async def test_a_dead_call_is_dismissed_once_and_only_then_listed_no_more(self, engine: Engine) -> None:
        await open_session(engine)
        for call_id, dead in (("lost", True), ("done", False)):
            await open_call(engine, call_id=call_id)
            await engine.commit(Step(ALICE, (answered(),), calls=(replace(settled(call_id), dead=dead),)))
        row = await engine.call(CallId("lost"))
        assert row is not None
        await engine.commit(Step(ALICE, (said("enough"),), calls=(Dismissed(CallId("lost")),)))
        assert await engine.call(CallId("lost")) == replace(row, dead=False)
        assert (await engine.calls(CallFilter(dead=True), ALL))[0] == []
        await open_call(engine, call_id="open")
        for change in (Dismissed(CallId("lost")), Redriven(CallId("lost")), Dismissed(CallId("done")),
                       Dismissed(CallId("open")), Dismissed(CallId("unknown"))):  # fmt: skip
            with pytest.raises(Stale):
                await engine.commit(Step(ALICE, (said("again"),), calls=(change,)))

    async def test_one_late_outcome_is_marked_in_the_row_of_an_ended_call(self, engine: Engine) -> None:
        await open_session(engine)
        await open_call(engine, call_id="a")
        with pytest.raises(Stale):
            await engine.commit(Step(ALICE, calls=(CameLate(CallId("a")),)))
        await engine.commit(Step(ALICE, (answered(),), calls=(settled("a"),)))
        row = await engine.call(CallId("a"))
        assert row is not None
        steps = [Step(ALICE, (said(str(n)),), calls=(CameLate(CallId("a")),)) for n in range(5)]
        done = await asyncio.gather(*map(engine.commit, steps), return_exceptions=True)
        assert [type(one).__name__ for one in done].count("Stale") == 4
        assert await engine.call(CallId("a")) == replace(row, late=True)

    async def test_the_progress_of_an_open_call_adds_up_in_its_row(self, engine: Engine) -> None:
        await open_session(engine)
        await open_call(engine, call_id="a")
        for size in (1_000, 24):
            await engine.commit(Step(ALICE, (said(str(size)),), calls=(Progressed(CallId("a"), size),)))
        row = await engine.call(CallId("a"))
        assert row is not None
        assert row.progressed == 1_024
        await engine.commit(Step(ALICE, (answered(),), calls=(settled("a"),)))
        with pytest.raises(Stale):
            await engine.commit(Step(ALICE, calls=(Progressed(CallId("a"), 1),)))

    async def test_only_a_call_that_has_ended_can_have_been_redriven(self, engine: Engine) -> None:
        await open_session(engine)
        await open_call(engine, call_id="open")
        for call_id in ("open", "unknown"):
            with pytest.raises(Stale):
                await engine.commit(Step(ALICE, calls=(Redriven(CallId(call_id)),)))

    async def test_a_call_that_may_have_been_done_stays_unsure_while_it_is_tried_again(self, engine: Engine) -> None:
        await open_session(engine)
        await open_call(engine, call_id="a")
        for attempt, unsure in ((2, True), (3, False)):
            again = Requeue(CallId("a"), START + SECOND, "no answer", unsure=unsure)
            await engine.commit(Step(ALICE, calls=(again, Claim(CallId("a"), attempt))))
            row = await engine.call(CallId("a"))
            assert row is not None
            assert (row.attempt, row.unknown) == (attempt, True)

    async def test_open_calls_are_those_without_an_outcome(self, engine: Engine) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        await open_call(engine, call_id="a", state="queued", attempt=0)
        await open_call(engine, call_id="b")
        await open_call(engine, call_id="c")
        await engine.commit(Step(ALICE, calls=(Accept(CallId("b"), START + DAY),)))
        await engine.commit(Step(ALICE, (answered(),), calls=(settled("c"),)))
        await open_call(engine, BOB, call_id="bob's")
        assert [row.call_id for row in await engine.open_calls(ALICE)] == ["a", "b"]
        runtime = (await engine.open_calls(ALICE))[0].runtime
        assert dict(await engine.count_open_calls()) == {runtime: 3}

    async def test_an_accepted_call_is_sent_again_and_stays_accepted(self, engine: Engine) -> None:
        await open_session(engine)
        await open_call(engine, call_id="a")
        due = START + SECOND
        for change, expected in (
            (Accept(CallId("a"), START + DAY, due), (1, due)),
            (Progressed(CallId("a"), 10), (1, due)),
            (Progressed(CallId("a"), 10, due + SECOND), (1, due + SECOND)),
            (Claim(CallId("a"), 2, due + DAY), (2, due + DAY)),
            (Accept(CallId("a"), START + DAY, due, sent=False), (1, due)),
            (Claim(CallId("a"), 2), (2, None)),
        ):
            await engine.commit(Step(ALICE, calls=(change,)))
            row = await engine.call(CallId("a"))
            assert row is not None
            assert (row.state, row.attempt, row.due_at, row.deadline_at) == ("accepted", *expected, START + DAY)

    async def test_an_attempt_that_was_not_sent_uses_up_no_number(self, engine: Engine) -> None:
        await open_session(engine)
        await open_call(engine, call_id="a")
        await engine.commit(Step(ALICE, calls=(Requeue(CallId("a"), START + SECOND, "no connection", sent=False),)))
        row = await engine.call(CallId("a"))
        assert row is not None
        assert (row.state, row.attempt, row.unknown) == ("queued", 0, False)

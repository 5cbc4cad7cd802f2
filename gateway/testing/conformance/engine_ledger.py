"""Engine conformance: deliveries, interactions, stored answers and notes."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta

import pytest

from gateway.errors import Stale
from gateway.events import CallId, InteractionId, QuestionAsked, SessionId
from gateway.store.call import CallState
from gateway.store.port import Engine
from gateway.store.rows import DeadFilter, Page, StoredAnswer
from gateway.store.step import RUNTIME, Enqueue, InteractionChange, Keep, SendChange, Step
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
    new,
    open_session,
    said,
    settled,
)

SECOND = timedelta(seconds=1)


class SendSuite:
    """Outbound rows."""

    async def test_a_send_is_born_pending_with_its_envelope(self, engine: Engine) -> None:
        await open_session(engine)
        done = await engine.commit(
            Step(
                ALICE,
                (said(), said("out")),
                sends=(Enqueue(1, RUNTIME, "urgent"), Enqueue(1, "destination:log", "new_work")),
            )
        )
        first, second = await engine.sends_of(ALICE, 3)
        assert (first.target, first.lane, second.target, second.lane) == (
            "destination:log",
            "new_work",
            RUNTIME,
            "urgent",
        )
        assert (first.session_id, first.sequence, first.state, first.attempt) == (ALICE, 3, "pending", 0)
        assert (first.due_at, first.reason) == (None, None)
        assert first.envelope == second.envelope == done.envelopes[1]
        assert await engine.sends_of(ALICE, 2) == []

    async def test_pending_sends_come_session_by_session_in_order_of_sequence(self, engine: Engine) -> None:
        for session_id in (BOB, ALICE):
            await open_session(engine, session_id)
        for session_id in (BOB, ALICE, BOB, ALICE):
            await engine.commit(
                Step(
                    session_id,
                    (said(), said()),
                    sends=(Enqueue(1, RUNTIME), Enqueue(0, RUNTIME), Enqueue(0, "destination:x")),
                )
            )
        rows = await engine.pending_sends(target=RUNTIME)
        first, second = rows[0].session_id, rows[-1].session_id
        assert {first, second} == {ALICE, BOB}
        assert [(row.session_id, row.sequence) for row in rows] == [
            (session_id, sequence) for session_id in (first, second) for sequence in (2, 3, 4, 5)
        ]
        rows = await engine.pending_sends(target=RUNTIME, session_id=BOB, limit=3)
        assert [(row.session_id, row.sequence) for row in rows] == [(BOB, 2), (BOB, 3), (BOB, 4)]
        assert len(await engine.pending_sends(target="destination:x")) == 4
        assert await engine.pending_sends(target="destination:y") == []

    async def test_a_send_changes_as_requested(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said(),), sends=(Enqueue(0, RUNTIME), Enqueue(0, "destination:x"))))
        later = START + 5 * SECOND
        await engine.commit(
            Step(
                ALICE,
                send_changes=(
                    SendChange(2, RUNTIME, "delivered", 1),
                    SendChange(2, "destination:x", "pending", 1, later, "HTTP 500"),
                    SendChange(2, "destination:unknown", "dead"),
                    SendChange(77, RUNTIME, "dead"),
                ),
            )
        )
        copy, sent = await engine.sends_of(ALICE, 2)
        assert (sent.state, sent.attempt, sent.due_at, sent.reason) == ("delivered", 1, None, None)
        assert (copy.state, copy.attempt, copy.due_at, copy.reason) == ("pending", 1, later, "HTTP 500")
        assert await engine.pending_sends(target=RUNTIME) == []
        assert await engine.dead_sends(ALL) == ([], None)

    async def test_a_send_that_still_waits_keeps_the_reason_it_was_given(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said(), said()), sends=(Enqueue(0, RUNTIME), Enqueue(1, RUNTIME))))
        await engine.commit(Step(ALICE, send_changes=(SendChange(2, RUNTIME, "pending", reason="held"),)))
        rows = await engine.pending_sends(session_id=ALICE, target=RUNTIME)
        assert [(row.sequence, row.state, row.due_at, row.reason) for row in rows] == [
            (2, "pending", None, "held"),
            (3, "pending", None, None),
        ]

    async def test_a_send_may_be_changed_together_with_others_of_its_moment(self, engine: Engine) -> None:
        await open_session(engine)
        await asyncio.gather(
            engine.commit(Step(ALICE, (said(),), sends=(Enqueue(0, RUNTIME),))),
            engine.commit(Step(ALICE, send_changes=(SendChange(2, RUNTIME, "pending", 1, START),))),
            engine.commit(Step(ALICE, send_changes=(SendChange(2, RUNTIME, "delivered", 2),))),
        )
        (row,) = await engine.sends_of(ALICE, 2)
        assert (row.state, row.attempt, row.due_at) == ("delivered", 2, None)

    async def test_sends_are_due_when_they_say_and_at_once_when_they_do_not(self, engine: Engine) -> None:
        await open_session(engine)
        assert await engine.next_send_due(RUNTIME) is None
        await engine.commit(Step(ALICE, (said(), said()), sends=(Enqueue(0, RUNTIME), Enqueue(1, RUNTIME))))
        assert await engine.next_send_due(RUNTIME) == START
        changes = (
            SendChange(2, RUNTIME, "pending", 1, START + SECOND),
            SendChange(3, RUNTIME, "pending", 1, START + DAY),
        )
        await engine.commit(Step(ALICE, send_changes=changes))
        assert await engine.next_send_due(RUNTIME) == START + SECOND
        rows = await engine.pending_sends(target=RUNTIME, due_before=START)
        assert rows == []
        rows = await engine.pending_sends(target=RUNTIME, due_before=START + SECOND)
        assert [row.sequence for row in rows] == [2]
        assert len(await engine.pending_sends(target=RUNTIME)) == 2
        assert await engine.next_send_due("destination:x") is None

    async def test_a_send_may_wait_from_its_beginning_until_it_is_changed(self, engine: Engine) -> None:
        await open_session(engine)
        held = Enqueue(0, "destination:x", due_at=START + SECOND)
        await engine.commit(Step(ALICE, (said(), said()), sends=(held, Enqueue(1, "destination:x"))))
        assert await engine.pending_sends(target="destination:x", due_before=START) == []
        assert await engine.next_send_due("destination:x") == START + SECOND
        await engine.commit(Step(ALICE, send_changes=(SendChange(2, "destination:x", "moot", reason="not wanted"),)))
        rows = await engine.pending_sends(target="destination:x", due_before=START)
        assert [row.sequence for row in rows] == [3]
        again = Step(ALICE, (said(),), sends=(held,), send_changes=(SendChange(4, "destination:x", "pending"),))
        await engine.commit(again)
        rows = await engine.pending_sends(target="destination:x", due_before=START)
        assert [(row.sequence, row.due_at) for row in rows] == [(3, None), (4, None)]

    async def test_a_send_that_is_not_due_holds_back_the_later_ones_of_its_session(
        self, engine: Engine, clock: FakeClock
    ) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said(), said()), sends=(Enqueue(0, RUNTIME), Enqueue(1, RUNTIME))))
        await engine.commit(Step(ALICE, send_changes=(SendChange(2, RUNTIME, "pending", 1, START + DAY),)))
        await engine.commit(Step(ALICE, send_changes=(SendChange(3, RUNTIME, "pending", 1, START + SECOND),)))
        assert await engine.next_send_due(RUNTIME) == START + DAY
        assert await engine.pending_sends(target=RUNTIME, due_before=START + SECOND) == []
        await open_session(engine, BOB)
        clock.turn(SECOND)
        await engine.commit(Step(BOB, (said(),), sends=(Enqueue(0, RUNTIME),)))
        assert await engine.next_send_due(RUNTIME) == START + SECOND
        rows = await engine.pending_sends(target=RUNTIME, due_before=START + SECOND)
        assert [(row.session_id, row.sequence) for row in rows] == [(BOB, 2)]
        assert await engine.pending_sends(target=RUNTIME, due_before=START + SECOND, session_id=ALICE) == []
        assert len(await engine.pending_sends(target=RUNTIME, due_before=START + DAY)) == 3

    async def test_dead_sends_are_listed_newest_first_page_by_page(self, engine: Engine, clock: FakeClock) -> None:
        await open_session(engine)
        for state in ("dead", "delivered", "unknown", "moot", "refused", "pending", "dead"):
            clock.turn(SECOND)
            done = await engine.commit(Step(ALICE, (said(),), sends=(Enqueue(0, RUNTIME),)))
            change = SendChange(done.last_sequence, RUNTIME, state, 1, None, f"it is {state}")
            await engine.commit(Step(ALICE, send_changes=(change,)))
        rows, cursor = await engine.dead_sends(Page(3))
        assert [(row.sequence, row.state, row.reason) for row in rows] == [
            (8, "dead", "it is dead"),
            (6, "refused", "it is refused"),
            (4, "unknown", "it is unknown"),
        ]
        rows, cursor = await engine.dead_sends(Page(3, cursor))
        assert ([row.sequence for row in rows], cursor) == ([2], None)
        assert [await engine.count_dead(most) for most in (10, 3)] == [4, 3]
        assert await engine.count_open_sessions() == 1
        assert await engine.held_back_by() is None

    async def test_a_dead_send_is_revived_once(self, engine: Engine) -> None:
        await open_session(engine)
        for sequence, state in enumerate(("refused", "unknown", "dead", "delivered", "moot", "pending"), 2):
            await engine.commit(Step(ALICE, (said(),), sends=(Enqueue(0, RUNTIME), Enqueue(0, "destination:x"))))
            change = SendChange(sequence, RUNTIME, state, 3, None, "why")
            await engine.commit(Step(ALICE, send_changes=(change,)))
            dead = state in {"refused", "unknown", "dead"}
            assert not await engine.revive(ALICE, sequence, "destination:x", due_at=START)
            tries = (engine.revive(ALICE, sequence, RUNTIME, due_at=START + SECOND) for _ in range(5))
            assert (await asyncio.gather(*tries)).count(True) == dead
            row = next(row for row in await engine.sends_of(ALICE, sequence) if row.target == RUNTIME)
            expected = ("pending", 0, START + SECOND, None) if dead else (state, 3, None, "why")
            assert (row.state, row.attempt, row.due_at, row.reason) == expected
        assert await engine.dead_sends(ALL) == ([], None)
        assert not await engine.revive(BOB, 2, RUNTIME, due_at=START)

    async def test_a_dead_send_is_dismissed_once(self, engine: Engine) -> None:
        await open_session(engine)
        for sequence, state in enumerate(("refused", "unknown", "dead", "delivered", "moot", "pending"), 2):
            await engine.commit(Step(ALICE, (said(),), sends=(Enqueue(0, RUNTIME), Enqueue(0, "destination:x"))))
            await engine.commit(Step(ALICE, send_changes=(SendChange(sequence, RUNTIME, state, 3, None, "why"),)))
            dead = state in {"refused", "unknown", "dead"}
            assert not await engine.dismiss(ALICE, sequence, "destination:x", reason="enough")
            tries = (engine.dismiss(ALICE, sequence, RUNTIME, reason="enough") for _ in range(5))
            assert (await asyncio.gather(*tries)).count(True) == dead
            row = next(row for row in await engine.sends_of(ALICE, sequence) if row.target == RUNTIME)
            expected = ("moot", 3, "enough") if dead else (state, 3, "why")
            assert (row.state, row.attempt, row.reason) == expected
            assert not await engine.revive(ALICE, sequence, RUNTIME, due_at=START)
        assert await engine.dead_sends(ALL) == ([], None)
        assert not await engine.dismiss(BOB, 2, RUNTIME, reason="enough")

    async def test_dead_sends_are_listed_by_their_filters(self, engine: Engine, clock: FakeClock) -> None:
        await open_session(engine)
        await open_session(engine, BOB, runtime="coder")
        for session_id, target in ((ALICE, RUNTIME), (ALICE, "destination:x"), (BOB, "destination:x")):
            done = await engine.commit(Step(session_id, (said(),), sends=(Enqueue(0, target),)))
            reason = f"answered 500 (after {done.last_sequence} attempts)" if target != RUNTIME else None
            change = SendChange(done.last_sequence, target, "dead", 1, None, reason)
            await engine.commit(Step(session_id, send_changes=(change,)))
            clock.turn(SECOND)
        for which, expected in (
            (DeadFilter(), [(BOB, 2), (ALICE, 3), (ALICE, 2)]),
            (DeadFilter(runtime="finn"), [(ALICE, 3), (ALICE, 2)]),
            (DeadFilter(target="destination:x"), [(BOB, 2), (ALICE, 3)]),
            (DeadFilter(target=RUNTIME, runtime="coder"), []),
            (DeadFilter(since=START + SECOND), [(BOB, 2), (ALICE, 3)]),
            (DeadFilter(cause="answered 500"), [(BOB, 2), (ALICE, 3)]),
            (DeadFilter(cause="answered 500 (after 3 attempts)"), [(ALICE, 3)]),
            (DeadFilter(cause="answered"), []),
        ):
            rows, cursor = await engine.dead_sends(ALL, which)
            assert ([(row.session_id, row.sequence) for row in rows], cursor) == (expected, None)
        rows, cursor = await engine.dead_sends(Page(1), DeadFilter(target="destination:x"))
        rows, cursor = await engine.dead_sends(Page(1, cursor), DeadFilter(target="destination:x"))
        assert ([row.session_id for row in rows], cursor) == ([ALICE], None)


class InteractionSuite:
    """Interactions."""

    async def test_an_interaction_is_stored_and_answered(self, engine: Engine) -> None:
        await open_session(engine)
        question = new(QuestionAsked(id="q", text="which?"))
        asks = InteractionChange(
            InteractionId("i-1"), "waiting", "question.asked", 3, START + DAY, call_id=CallId("call-1")
        )
        await engine.commit(Step(ALICE, (said(), question), interactions=(asks,)))
        row = await engine.interaction(InteractionId("i-1"))
        assert row is not None
        assert (row.session_id, row.kind, row.state, row.request_sequence) == (ALICE, "question.asked", "waiting", 3)
        assert (row.expires_at, row.answered_by, row.call_id) == (START + DAY, None, "call-1")
        assert [await engine.count_waiting(most) for most in (0, 1, 9)] == [0, 1, 1]
        await engine.commit(
            Step(ALICE, interactions=(InteractionChange(InteractionId("i-1"), "answered", answered_by="backend"),))
        )
        assert await engine.interaction(InteractionId("i-1")) == replace(row, state="answered", answered_by="backend")
        assert await engine.count_waiting(9) == 0

    async def test_a_change_of_no_question_changes_nothing(self, engine: Engine) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        await engine.commit(Step(ALICE, interactions=(InteractionChange(InteractionId("i"), "moot"),)))
        assert await engine.interaction(InteractionId("i")) is None
        asks = InteractionChange(InteractionId("i"), "waiting", "question.asked", 2)
        await engine.commit(Step(ALICE, (said(),), interactions=(asks,)))
        await engine.commit(Step(BOB, interactions=(InteractionChange(InteractionId("i"), "moot"),)))
        row = await engine.interaction(InteractionId("i"))
        assert row is not None
        assert row.state == "waiting"

    async def test_interactions_are_listed_by_their_filters(self, engine: Engine) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        for number, (session_id, sequence) in enumerate(((ALICE, 2), (BOB, 2), (ALICE, 3), (ALICE, 4))):
            asks = InteractionChange(InteractionId(f"i-{9 - number}"), "waiting", "question.asked", sequence)
            await engine.commit(Step(session_id, (said(),), interactions=(asks,)))
        await engine.commit(Step(ALICE, interactions=(InteractionChange(InteractionId("i-7"), "expired"),)))
        rows, cursor = await engine.interactions(Page(3))
        assert [row.interaction_id for row in rows] == ["i-9", "i-8", "i-7"]
        rows, cursor = await engine.interactions(Page(3, cursor))
        assert ([row.interaction_id for row in rows], cursor) == (["i-6"], None)
        rows, _ = await engine.interactions(ALL, session_id=ALICE, state="waiting")
        assert [row.interaction_id for row in rows] == ["i-9", "i-6"]

    async def test_equal_calls_that_were_canceled_before_a_held_one_are_counted(
        self, engine: Engine, clock: FakeClock
    ) -> None:
        await open_session(engine)
        await open_session(engine, BOB)

        async def hold(name: str, session_id: SessionId = ALICE, args_sha: str = "a" * 64) -> int:
            held = call(
                name, session_id=session_id, native_call_id=name, args_sha=args_sha, state="held", attempt=0,
                rule="r" * 64, place="routes[2]", binding="b" * 64, held_at=START,
            )  # fmt: skip
            (asking,) = (await engine.commit(Step(session_id, (asked(name),), calls=(held,)))).envelopes
            asks = InteractionChange(
                InteractionId(name), "waiting", "approval.asked", asking.sequence, call_id=CallId(name)
            )
            await engine.commit(Step(session_id, interactions=(asks,)))
            return await before(name)

        async def before(name: str) -> int:
            row = await engine.interaction(InteractionId(name))
            assert row is not None
            rows, _ = await engine.interactions_with_events(ALL, session_id=row.session_id)
            assert [found for found, _ in rows if found.interaction_id == name] == [row]
            return row.asked_before

        async def end(name: str, state: CallState, session_id: SessionId = ALICE) -> None:
            moot = InteractionChange(InteractionId(name), "moot")
            change = settled(name, state=state)
            await engine.commit(Step(session_id, (answered(name),), calls=(change,), interactions=(moot,)))

        assert await hold("first") == 0
        assert await hold("beside") == 0
        clock.turn(SECOND)
        await end("first", "canceled")
        assert await before("beside") == 0
        assert await hold("second") == 1
        assert await hold("of another session", BOB) == 0
        assert await hold("with other arguments", args_sha="c" * 64) == 0
        await end("beside", "failed")
        await end("with other arguments", "canceled")
        clock.turn(timedelta(minutes=9, seconds=59))
        await end("second", "canceled")
        assert await hold("third") == 2
        clock.turn(2 * SECOND)
        assert await hold("fourth") == 1
        assert [await before(name) for name in ("first", "third")] == [0, 2]
        clock.turn(timedelta(minutes=10))
        assert await hold("fifth") == 0

    async def test_the_approvals_of_held_calls_are_listed_since_a_time(self, engine: Engine) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        for number, (session_id, call_id) in enumerate(
            ((ALICE, "call-1"), (BOB, None), (BOB, "call-2"), (ALICE, "call-3"))
        ):
            (asked,) = (await engine.commit(Step(session_id, (said(),)))).envelopes
            asks = InteractionChange(
                InteractionId(f"i-{number}"), "waiting", "approval.asked", asked.sequence,
                call_id=None if call_id is None else CallId(call_id),
            )  # fmt: skip
            await engine.commit(Step(session_id, interactions=(asks,)))
        rows, cursor = await engine.approvals(Page(2))
        assert [(row.call_id, asked.sequence) for row, asked in rows] == [("call-1", 2), ("call-2", 3)]
        rows, cursor = await engine.approvals(Page(2, cursor))
        assert ([row.call_id for row, _ in rows], cursor) == (["call-3"], None)
        rows, _ = await engine.approvals(ALL, session_id=BOB)
        assert [row.call_id for row, _ in rows] == ["call-2"]
        recorded_at = rows[0][1].recorded_at
        rows, _ = await engine.approvals(ALL, since=recorded_at)
        assert "call-2" in [row.call_id for row, _ in rows]
        assert await engine.approvals(ALL, since=recorded_at + DAY) == ([], None)


class MemorySuite:
    """Answers to API writes, and notes."""

    async def test_an_answer_is_remembered_until_it_expires(self, engine: Engine, clock: FakeClock) -> None:
        first = StoredAnswer("sha", b'\x00{"a": 1}', START + DAY)
        other = StoredAnswer("other", b"{}", START + 3 * DAY)
        assert await engine.recall(key="k", scope="s") is None
        assert await engine.remember(key="k", scope="s", answer=first)
        assert not await engine.remember(key="k", scope="s", answer=other)
        assert await engine.recall(key="k", scope="s") == first
        assert await engine.recall(key="k", scope="another") is None
        assert await engine.recall(key="s", scope="k") is None
        clock.turn(DAY)
        assert await engine.recall(key="k", scope="s") is None
        assert await engine.remember(key="k", scope="s", answer=other)
        assert await engine.recall(key="k", scope="s") == other

    async def test_of_many_concurrent_answers_one_is_stored(self, engine: Engine) -> None:
        answers = [StoredAnswer(str(n), b"", START + DAY) for n in range(20)]
        stored = await asyncio.gather(*(engine.remember(key="k", scope="s", answer=answer) for answer in answers))
        assert stored.count(True) == 1
        assert await engine.recall(key="k", scope="s") == answers[stored.index(True)]

    async def test_an_answer_is_stored_with_its_step(self, engine: Engine, clock: FakeClock) -> None:
        await open_session(engine)
        keep = Keep("k", "s", "sha", START + DAY, events=(0, 2))
        await engine.commit(Step(ALICE, (said(), said(), said()), keeps=(keep,)))
        stored = await engine.recall(key="k", scope="s")
        assert stored is not None
        assert (stored.request_sha, stored.expires_at) == ("sha", START + DAY)
        assert json.loads(stored.response) == {"session_id": ALICE, "sequences": [2, 4]}
        await engine.commit(Step(ALICE, (said(),), keeps=(replace(keep, request_sha="second", events=(0,)),)))
        assert await engine.recall(key="k", scope="s") == stored
        clock.turn(DAY)
        later = replace(keep, request_sha="third", events=(0,), expires_at=START + 2 * DAY)
        await engine.commit(Step(ALICE, (said(),), keeps=(later,)))
        stored = await engine.recall(key="k", scope="s")
        assert stored is not None
        assert (stored.request_sha, json.loads(stored.response)["sequences"]) == ("third", [6])

    async def test_of_answers_with_one_key_in_one_step_the_first_is_stored(self, engine: Engine) -> None:
        await open_session(engine)
        keep = Keep("k", "s", "first", START + DAY, events=(0,))
        keeps = (keep, replace(keep, key="a", request_sha="other"), replace(keep, request_sha="second"))
        await engine.commit(Step(ALICE, (said(),), keeps=keeps))
        stored = [await engine.recall(key=key, scope="s") for key in ("k", "a")]
        assert [one and one.request_sha for one in stored] == ["first", "other"]

    async def test_a_step_that_fails_keeps_no_answer(self, engine: Engine) -> None:
        await open_session(engine)
        keep = Keep("k", "s", "sha", START + DAY, events=(0,))
        with pytest.raises(Stale):
            await engine.commit(Step(ALICE, (said(),), keeps=(keep,), last_sequence=7))
        assert await engine.recall(key="k", scope="s") is None

    async def test_a_note_is_stored_replaced_and_removed(self, engine: Engine) -> None:
        assert await engine.note("destination:x") is None
        await engine.set_note("destination:x", "off")
        await engine.set_note("destination:x", "on\x00🂡")
        await engine.set_note("destination:y", "")
        assert await engine.note("destination:x") == "on\x00🂡"
        assert await engine.note("destination:y") == ""
        await engine.set_note("destination:x", None)
        await engine.set_note("destination:x", None)
        assert await engine.note("destination:x") is None

"""Engine conformance: erasure, retention, closing and reopening."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.errors import Conflict, EngineUnavailable, NotFound, Repeated, Truncated
from gateway.events import CallId, InteractionId, Loss, Opaque, Origin, SessionId, SessionOpened
from gateway.store.port import Engine
from gateway.store.rows import CallFilter, Page, RetentionPolicy, StoredAnswer, Swept
from gateway.store.step import RUNTIME, Enqueue, InteractionChange, SendChange, Step
from gateway.testing.conformance.engine_words import (
    ALICE,
    ALL,
    BOB,
    DAY,
    START,
    FakeClock,
    answered,
    close_session,
    journal,
    new,
    open_call,
    open_session,
    row_of,
    said,
    settled,
    texts,
)

COPIES = "destination:x"
KEEP_ALL = RetentionPolicy(
    closed_age=timedelta(days=10_000),
    open_age=timedelta(days=10_000),
    open_events=10**9,
    call_age=timedelta(days=10_000),
    copy_age=timedelta(days=10_000),
    max_bytes=2**60,
)


class EraseSuite:
    """Erasing bodies."""

    async def test_an_erased_session_keeps_only_its_outline(self, engine: Engine) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        origin = Origin("a", "p", "n-1")
        loss = Loss(how="dropped", path="/x", note="it was secret")
        before = await engine.commit(
            Step(
                ALICE,
                (said("secret", origin=origin, caused_by=1, linked_to="call-1", losses=(loss,)),),
                snapshot=b"secret",
            )
        )
        await engine.commit(Step(BOB, (said("kept"),), snapshot=b"kept"))
        await close_session(engine)
        await engine.erase(ALICE)
        row = await row_of(engine)
        assert (row.last_sequence, row.first_sequence, row.state) == (2, 1, "closed")
        assert await engine.snapshot(ALICE) is None
        first, second = await engine.read(ALICE)
        assert isinstance(first.event, Opaque)
        assert first.event == Opaque(channel="erased", payload={"kind": "session.opened"})
        assert second == replace(
            before.envelopes[0],
            event=Opaque(channel="erased", payload={"kind": "message.posted"}),
            losses=(),
        )
        assert await texts(engine, BOB) == ["kept"]
        assert await engine.snapshot(BOB) == b"kept"

    async def test_a_large_session_is_erased_whole_and_may_be_erased_again(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, tuple(said() for _ in range(1_200)), state="closed"))
        await engine.erase(ALICE)
        await engine.erase(ALICE)
        assert {e.event.kind for e in await journal(engine, ALICE)} == {"opaque"}

    async def test_only_closed_sessions_are_erased(self, engine: Engine) -> None:
        await open_session(engine)
        with pytest.raises(Conflict):
            await engine.erase(ALICE)
        with pytest.raises(NotFound):
            await engine.erase(BOB)
        assert isinstance((await engine.read(ALICE))[0].event, SessionOpened)

    async def test_unsent_events_of_an_erased_session_are_moot(self, engine: Engine) -> None:
        for session_id in (ALICE, BOB):
            await open_session(engine, session_id)
            await engine.commit(Step(session_id, (said(), said()), sends=(Enqueue(0, RUNTIME), Enqueue(1, RUNTIME))))
            await engine.commit(Step(session_id, send_changes=(SendChange(2, RUNTIME, "delivered"),)))
        await close_session(engine)
        await engine.erase(ALICE)
        assert [row.session_id for row in await engine.pending_sends(target=RUNTIME)] == [BOB]
        rows = [row for sequence in (2, 3) for row in await engine.sends_of(ALICE, sequence)]
        assert [(row.state, row.reason) for row in rows] == [("delivered", None), ("moot", "the session was erased")]
        assert await engine.dead_sends(Page()) == ([], None)

    async def test_an_erased_session_may_live_on(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said("a", dedupe_key="k"),), state="closed"))
        await engine.erase(ALICE)
        await open_session(engine)
        with pytest.raises(Repeated):
            await engine.commit(Step(ALICE, (said("a", dedupe_key="k"), said("b"))))
        assert (await engine.commit(Step(ALICE, (said("b"),)))).last_sequence == 4
        assert await texts(engine) == ["b"]


class SweepSuite:
    """Retention."""

    async def test_a_policy_that_keeps_all_removes_nothing(self, engine: Engine) -> None:
        await self._fill(engine)
        assert await engine.sweep(KEEP_ALL) == Swept()
        assert len(await engine.read(ALICE)) == 11

    async def test_old_events_are_removed_and_readers_get_truncated(self, engine: Engine, clock: FakeClock) -> None:
        await self._fill(engine)
        clock.turn(2 * DAY)
        await engine.commit(Step(ALICE, (said("new", recorded_at=clock.now()),)))
        assert (await engine.sweep(replace(KEEP_ALL, open_age=DAY))).events == 11
        row = await row_of(engine)
        assert (row.first_sequence, row.last_sequence) == (12, 12)
        for after in (0, 5, 10):
            with pytest.raises(Truncated) as caught:
                await engine.read(ALICE, after=after)
            assert caught.value.first_sequence == 12
        assert [e.sequence for e in await engine.read(ALICE, after=11)] == [12]

    async def test_numbering_continues_after_everything_is_removed(self, engine: Engine, clock: FakeClock) -> None:
        await self._fill(engine)
        clock.turn(2 * DAY)
        await engine.sweep(replace(KEEP_ALL, open_age=DAY))
        row = await row_of(engine)
        assert (row.first_sequence, row.last_sequence) == (12, 11)
        assert await engine.read(ALICE, after=11) == []
        with pytest.raises(Truncated):
            await engine.read(ALICE, after=10)
        assert (await engine.commit(Step(ALICE, (said(),)))).last_sequence == 12
        assert [e.sequence for e in await engine.read(ALICE, after=11)] == [12]
        assert (await row_of(engine)).first_sequence == 12

    async def test_a_dedupe_key_is_forgotten_with_its_event(self, engine: Engine, clock: FakeClock) -> None:
        await open_session(engine)
        policy = replace(KEEP_ALL, open_age=DAY)
        for removed in (2, 1):
            await engine.commit(Step(ALICE, (said(dedupe_key="k", recorded_at=clock.now()),)))
            clock.turn(2 * DAY)
            assert (await engine.sweep(policy)).events == removed

    async def test_closed_sessions_have_an_age_of_their_own(self, engine: Engine, clock: FakeClock) -> None:
        await self._fill(engine)
        await self._fill(engine, BOB)
        await close_session(engine, BOB)
        clock.turn(2 * DAY)
        assert (await engine.sweep(replace(KEEP_ALL, closed_age=DAY))).events == 11
        assert (await row_of(engine)).first_sequence == 1
        assert (await row_of(engine, BOB)).first_sequence == 12

    async def test_an_open_session_keeps_its_newest_events(self, engine: Engine) -> None:
        await self._fill(engine)
        assert (await engine.sweep(replace(KEEP_ALL, open_events=4))).events == 7
        assert (await row_of(engine)).first_sequence == 8
        assert (await engine.sweep(replace(KEEP_ALL, open_events=4))).events == 0

    async def test_over_the_byte_budget_the_oldest_of_all_sessions_go(self, engine: Engine) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        for number in range(1, 11):
            moment = START + number * DAY
            large = said("x" * 10_000, recorded_at=moment)
            await engine.commit(Step(ALICE if number % 2 else BOB, (large,)))
        assert (await engine.sweep(replace(KEEP_ALL, max_bytes=45_000))).events == 8
        rows = [await row_of(engine), await row_of(engine, BOB)]
        assert [(row.first_sequence, row.last_sequence) for row in rows] == [(5, 6), (5, 6)]
        assert (await engine.sweep(replace(KEEP_ALL, max_bytes=45_000))).events == 0

    async def test_needed_events_and_all_later_ones_stay(self, engine: Engine, clock: FakeClock) -> None:
        names = [SessionId(name) for name in ("call", "send", "question")]
        for name in names:
            await self._fill(engine, name)
        await open_call(engine, names[0])
        await engine.commit(Step(names[1], (said(),), sends=(Enqueue(0, RUNTIME),)))
        asks = InteractionChange(InteractionId("i"), "waiting", "question.asked", 12)
        await engine.commit(Step(names[2], (said(),), interactions=(asks,)))
        for name in names:
            await engine.commit(Step(name, (said(), said())))
        clock.turn(2 * DAY)
        everything = replace(KEEP_ALL, open_age=DAY, max_bytes=0, open_events=0)
        await engine.sweep(everything)
        assert [(await row_of(engine, name)).first_sequence for name in names] == [12, 12, 12]
        await engine.commit(Step(names[0], calls=(settled(outcome_index=None),)))
        await engine.commit(Step(names[1], send_changes=(SendChange(12, RUNTIME, "dead"),)))
        await engine.commit(Step(names[2], interactions=(InteractionChange(InteractionId("i"), "moot"),)))
        await engine.sweep(everything)
        assert [(await row_of(engine, name)).first_sequence for name in names] == [15, 15, 15]
        assert await engine.dead_sends(ALL) == ([], None)
        assert await engine.interaction(InteractionId("i")) is None

    async def test_a_copy_that_cannot_be_delivered_holds_events_back_for_its_age(
        self, engine: Engine, clock: FakeClock
    ) -> None:
        names = [SessionId(name) for name in ("copy", "send")]
        for name, target in zip(names, (COPIES, RUNTIME), strict=True):
            await self._fill(engine, name)
            await engine.commit(Step(name, (said(),), sends=(Enqueue(0, target),)))
        clock.turn(2 * DAY)
        policy = replace(KEEP_ALL, open_age=DAY, copy_age=3 * DAY)
        await engine.sweep(policy)
        assert [(await row_of(engine, name)).first_sequence for name in names] == [12, 12]
        clock.turn(2 * DAY)
        await engine.sweep(replace(KEEP_ALL, copy_age=3 * DAY))
        assert len(await engine.pending_sends(target=COPIES)) == 1
        swept = await engine.sweep(policy)
        assert (swept.events, dict(swept.copies)) == (1, {COPIES: 1})
        assert [(await row_of(engine, name)).first_sequence for name in names] == [13, 12]
        assert await engine.pending_sends(target=COPIES) == []
        assert len(await engine.pending_sends(target=RUNTIME)) == 1
        # The result of an attempt that is still running finds no row to mark, and is ignored.
        await engine.commit(Step(names[0], send_changes=(SendChange(12, COPIES, "delivered", attempt=1),)))
        assert await engine.sends_of(names[0], 12) == []

    async def test_a_sweep_keeps_to_its_budget_and_asks_for_more(self, engine: Engine, clock: FakeClock) -> None:
        await self._fill(engine)
        clock.turn(2 * DAY)
        policy = replace(KEEP_ALL, open_age=DAY)
        assert await engine.sweep(policy, budget=4) == Swept(events=4, more=True)
        assert (await row_of(engine)).first_sequence == 5
        assert await engine.sweep(policy, budget=4) == Swept(events=4, more=True)
        assert await engine.sweep(policy, budget=4) == Swept(events=3, more=False)

    async def test_a_long_history_is_swept_whole(self, engine: Engine, clock: FakeClock) -> None:
        for name in (ALICE, BOB):
            await open_session(engine, name)
            await engine.commit(Step(name, tuple(said(dedupe_key=str(n)) for n in range(700))))
        clock.turn(2 * DAY)
        assert await engine.sweep(replace(KEEP_ALL, open_age=DAY)) == Swept(events=1_402)
        assert [(await row_of(engine, name)).first_sequence for name in (ALICE, BOB)] == [702, 702]

    async def test_ended_calls_go_when_their_outcome_waits_for_no_one(self, engine: Engine, clock: FakeClock) -> None:
        await open_session(engine)
        for name in ("old", "undelivered", "open"):
            await open_call(engine, call_id=name)
        await engine.commit(Step(ALICE, (answered(),), calls=(settled("old"),), sends=(Enqueue(0, RUNTIME),)))
        await engine.commit(Step(ALICE, send_changes=(SendChange(5, RUNTIME, "delivered"),)))
        await engine.commit(Step(ALICE, (answered(),), calls=(settled("undelivered"),), sends=(Enqueue(0, RUNTIME),)))
        clock.turn(2 * DAY)
        await open_call(engine, call_id="young")
        await engine.commit(Step(ALICE, (answered(),), calls=(settled("young"),)))
        assert await engine.sweep(replace(KEEP_ALL, call_age=DAY)) == Swept(calls=1)
        rows, _ = await engine.calls(CallFilter(), ALL)
        assert [row.call_id for row in rows] == ["young", "open", "undelivered"]
        await open_call(engine, call_id="old")

    async def test_expired_answers_go(self, engine: Engine, clock: FakeClock) -> None:
        await engine.remember(key="k", scope="s", answer=StoredAnswer("sha", b"", START + DAY))
        await engine.sweep(KEEP_ALL)
        assert await engine.recall(key="k", scope="s") is not None
        clock.turn(2 * DAY)
        await engine.sweep(KEEP_ALL)
        assert await engine.recall(key="k", scope="s") is None

    async def test_a_sweep_and_commits_at_once_leave_no_gap(self, engine: Engine, clock: FakeClock) -> None:
        await self._fill(engine)
        clock.turn(2 * DAY)
        policy = replace(KEEP_ALL, open_events=5)
        await asyncio.gather(
            *(engine.commit(Step(ALICE, (said(recorded_at=clock.now()),))) for _ in range(50)),
            engine.sweep(policy),
            *(engine.commit(Step(ALICE, (said(recorded_at=clock.now()),))) for _ in range(50)),
        )
        await engine.sweep(policy)
        row = await row_of(engine)
        assert (row.first_sequence, row.last_sequence) == (107, 111)
        assert [e.sequence for e in await engine.read(ALICE, after=106)] == list(range(107, 112))

    async def _fill(self, engine: Engine, session_id: SessionId = ALICE) -> None:
        await open_session(engine, session_id)
        await engine.commit(Step(session_id, tuple(said(str(n)) for n in range(10))))


class LifeSuite:
    """Opening and closing."""

    def build(self, folder: Path, clock: FakeClock) -> Engine:
        """Make the engine under test without entering it; the same folder means the same store."""
        raise NotImplementedError

    async def test_a_working_store_reports_that_it_is_writable(self, engine: Engine) -> None:
        health = await engine.health()
        assert health.writable
        assert health.bytes_used is not None

    async def test_a_closed_store_raises_and_nothing_hangs(self, tmp_path: Path, clock: FakeClock) -> None:
        engine = self.build(tmp_path, clock)
        assert not (await engine.health()).writable
        async with engine:
            await open_session(engine)
        assert not (await engine.health()).writable
        for attempt in (engine.commit(Step(ALICE, (said(),))), engine.read(ALICE), engine.session(ALICE)):
            with pytest.raises(EngineUnavailable):
                await asyncio.wait_for(attempt, 5)

    async def test_steps_before_closing_are_written_or_refused(self, tmp_path: Path, clock: FakeClock) -> None:
        engine = self.build(tmp_path, clock)
        async with engine:
            await open_session(engine)
            tasks = [asyncio.ensure_future(engine.commit(Step(ALICE, (said(str(n)),)))) for n in range(40)]
            await asyncio.sleep(0)
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        refused = [result for result in results if isinstance(result, BaseException)]
        assert all(isinstance(result, EngineUnavailable) for result in refused)
        async with self.build(tmp_path, clock) as again:
            assert len(await texts(again)) == 40 - len(refused)

    async def test_everything_outlives_a_restart(self, tmp_path: Path, clock: FakeClock) -> None:
        async with self.build(tmp_path, clock) as engine:
            await open_session(engine, labels={"team": "a"})
            await engine.commit(Step(ALICE, (said("a", dedupe_key="k"),), cursor="c", snapshot=b"s", state="running"))
            await open_call(engine)
            await open_call(engine, call_id="ended")
            await engine.commit(Step(ALICE, (answered(),), calls=(settled("ended"),), sends=(Enqueue(0, RUNTIME),)))
            asks = InteractionChange(InteractionId("i"), "waiting", "question.asked", 6, START + DAY)
            await engine.commit(Step(ALICE, (new(Opaque(channel="x")),), interactions=(asks,)))
            await engine.remember(key="k", scope="s", answer=StoredAnswer("sha", b"r", START + DAY))
            await engine.set_note("n", "v")
            before = await self._everything(engine)
        async with self.build(tmp_path, clock) as engine:
            assert await self._everything(engine) == before
            with pytest.raises(Repeated):
                await engine.commit(Step(ALICE, (said("a", dedupe_key="k"), said("b"))))
            await engine.commit(Step(ALICE, (answered(),), calls=(settled(),)))
            assert await engine.open_calls(ALICE) == []

    async def _everything(self, engine: Engine) -> list[object]:
        return [
            await engine.sessions(ALL),
            await engine.read(ALICE),
            await engine.calls(CallFilter(), ALL),
            await engine.call(CallId("call-1")),
            await engine.open_calls(ALICE),
            await engine.pending_sends(target=RUNTIME),
            await engine.interactions(ALL),
            await engine.recall(key="k", scope="s"),
            await engine.note("n"),
        ]

"""Engine conformance: steps that are submitted together and settled later."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from gateway.errors import EngineUnavailable, Fenced, Stale
from gateway.events import SessionId
from gateway.store.port import Engine
from gateway.store.step import Committed, Step
from gateway.testing.conformance.engine_words import ALICE, BOB, FakeClock, open_session, said, settled, texts

_SOON = 30.0
_MANY = 5_000
"""More steps than any engine accepts at once."""


class Settlements:
    """Receives results, and notes how it was called."""

    def __init__(self) -> None:
        self.found: list[tuple[Step, Committed | Exception]] = []
        self.batches: list[int] = []
        self.tasks: list[object] = []
        self._news = asyncio.Event()

    def take(self, results: Sequence[tuple[Step, Committed | Exception]]) -> None:
        self.found += results
        self.batches.append(len(results))
        self.tasks.append(asyncio.current_task())
        self._news.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(_SOON):
            while len(self.found) < count:
                self._news.clear()
                await self._news.wait()

    def of(self, session_id: SessionId) -> list[int | type[Exception]]:
        """Return the last sequence of each step of a session, or the type of its error."""
        return [
            type(result) if isinstance(result, Exception) else result.last_sequence
            for step, result in self.found
            if step.session_id == session_id
        ]


def steps(count: int, session_id: SessionId = ALICE) -> list[Step]:
    return [Step(session_id, (said(str(number), session_id=session_id),)) for number in range(count)]


class SubmitSuite:
    """Tests `submit`; the suite of `commit` covers what a step writes."""

    def build(self, folder: Path, clock: FakeClock) -> Engine:
        raise NotImplementedError

    async def test_submitted_steps_are_written_in_the_order_of_their_session(self, engine: Engine) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        got, mixed = Settlements(), [one for pair in zip(steps(50), steps(50, BOB), strict=True) for one in pair]
        assert engine.submit(mixed, got.take) == 100
        assert got.found == []
        await got.until(100)
        assert got.of(ALICE) == got.of(BOB) == [*range(2, 52)]
        assert await texts(engine) == await texts(engine, BOB) == [str(number) for number in range(50)]
        assert {id(step) for step, _ in got.found} == {id(step) for step in mixed}

    async def test_results_come_in_batches_from_the_loop_and_outside_of_tasks(self, engine: Engine) -> None:
        await open_session(engine)
        got = Settlements()
        assert engine.submit(steps(100), got.take) == 100
        await got.until(100)
        assert len(got.batches) < 20
        assert set(got.tasks) == {None}

    async def test_more_steps_than_there_is_capacity_for_are_accepted_in_part(self, engine: Engine) -> None:
        await open_session(engine)
        got, waiting = Settlements(), steps(_MANY)
        first = engine.submit(waiting, got.take)
        assert 0 < first < _MANY
        assert engine.submit(waiting[first:], got.take) == 0
        accepted = first
        async with asyncio.timeout(_SOON):
            while accepted < _MANY:
                await got.until(len(got.found) + 1)
                accepted += engine.submit(waiting[accepted:], got.take)
        await got.until(_MANY)
        assert got.of(ALICE) == [*range(2, _MANY + 2)]

    async def test_a_step_that_fails_fails_alone(self, engine: Engine) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        fenced = Step(ALICE, (said("fenced"),), fence=7)
        stale = Step(ALICE, (said("stale"),), last_sequence=99)
        unreadable = Step(ALICE, cast("Any", (None,)))
        refused = Step(BOB, calls=(settled("unknown", outcome_index=None),))
        got, good = Settlements(), steps(3)
        assert engine.submit([good[0], fenced, unreadable, good[1], stale, refused, good[2]], got.take) == 7
        await got.until(7)
        found = {id(step): result for step, result in got.found}
        assert [type(found[id(step)]) for step in (*good, fenced, stale, refused)] == [
            *([Committed] * 3), Fenced, Stale, Stale
        ]  # fmt: skip
        assert isinstance(found[id(unreadable)], AttributeError)
        assert await texts(engine) == ["0", "1", "2"]

    async def test_a_receiver_that_fails_does_not_concern_others(self, engine: Engine) -> None:
        await open_session(engine)
        got = Settlements()

        def fail(results: Sequence[tuple[Step, Committed | Exception]]) -> None:
            raise ValueError(results)

        assert engine.submit(steps(1), fail) == 1
        assert engine.submit(steps(1), got.take) == 1
        await got.until(1)
        assert (await engine.commit(steps(1)[0])).last_sequence == 4

    async def test_submitted_and_committed_steps_keep_their_order(self, engine: Engine) -> None:
        await open_session(engine)
        got = Settlements()
        committed = [asyncio.ensure_future(engine.commit(step)) for step in steps(3)]
        await asyncio.sleep(0)
        assert engine.submit(steps(3), got.take) == 3
        await got.until(3)
        assert [(await one).last_sequence for one in committed] == [2, 3, 4]
        assert got.of(ALICE) == [5, 6, 7]

    async def test_each_step_is_settled_once_when_the_store_closes(self, tmp_path: Path, clock: FakeClock) -> None:
        got = Settlements()
        async with self.build(tmp_path, clock) as engine:
            await open_session(engine)
            assert engine.submit(steps(100), got.take) == 100
        assert engine.submit(steps(2, BOB), got.take) == 2
        await got.until(102)
        # Nothing comes twice.
        await asyncio.sleep(0)
        assert len({id(step) for step, _ in got.found}) == len(got.found) == 102
        assert got.of(BOB) == [EngineUnavailable, EngineUnavailable]
        written = [one for one in got.of(ALICE) if isinstance(one, int)]
        assert {one for one in got.of(ALICE) if not isinstance(one, int)} <= {EngineUnavailable}
        async with self.build(tmp_path, clock) as again:
            assert len(await texts(again)) == len(written)

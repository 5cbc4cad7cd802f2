"""Engine conformance: steps that contradict or repeat stored rows."""

import asyncio
from dataclasses import replace

import pytest

from gateway.errors import Fenced, Repeated, Stale
from gateway.events import CallId, InteractionId
from gateway.store.call import CallChange, Claim, MarkCanceling
from gateway.store.port import Engine
from gateway.store.rows import CallFilter
from gateway.store.step import (
    RUNTIME,
    Enqueue,
    InteractionChange,
    Keep,
    Step,
)
from gateway.testing.conformance.engine_words import (
    ALICE,
    ALL,
    BOB,
    DAY,
    START,
    answered,
    asked,
    call,
    open_call,
    open_session,
    row_of,
    said,
    settled,
    texts,
)


class ExpectationSuite:
    """Steps that fail as a whole, and steps with repeated events."""

    @pytest.mark.parametrize(
        "fails",
        [
            {"last_sequence": 1},
            {"last_sequence": 3},
            {"fence": 1},
            Claim(CallId("nobody's"), 2),
            Claim(CallId("ended"), 2),
            settled("ended"),
        ],
        ids=repr,
    )
    async def test_a_step_that_may_not_be_written_writes_nothing(
        self, engine: Engine, fails: dict[str, int] | CallChange
    ) -> None:
        await self._expectations(engine)
        before = await row_of(engine)
        changes: tuple[CallChange, ...] = () if isinstance(fails, dict) else (fails,)
        step = Step(
            ALICE,
            (asked("n-3"),),
            calls=(call("other", native_call_id="n-3"), MarkCanceling(CallId("open"), START + DAY), *changes),
            sends=(Enqueue(0, RUNTIME),),
            interactions=(InteractionChange(InteractionId("i"), "waiting", "question.asked", 5),),
            cursor="c",
            snapshot=b"s",
            state="running",
            last_sequence=4,
        )
        if isinstance(fails, dict):
            step = replace(step, **fails)
        with pytest.raises(Stale):
            await engine.commit(step)
        assert await row_of(engine) == before
        assert await engine.call(CallId("other")) is None
        row = await engine.call(CallId("open"))
        assert row is not None
        assert row.canceling_until is None
        assert await engine.pending_sends(target=RUNTIME) == []
        assert await engine.interaction(InteractionId("i")) is None

    async def test_a_step_whose_expectations_hold_is_written(self, engine: Engine) -> None:
        await self._expectations(engine)
        done = await engine.commit(Step(ALICE, (said(),), fence=0, last_sequence=4))
        assert done.last_sequence == 5

    async def _expectations(self, engine: Engine) -> None:
        await open_session(engine)
        await open_call(engine, call_id="open")
        await open_call(engine, call_id="ended", native_call_id="n-2")
        await engine.commit(Step(ALICE, (answered(),), calls=(settled("ended"),)))

    async def test_opening_a_call_that_exists_is_stale(self, engine: Engine) -> None:
        await open_session(engine)
        await open_call(engine)
        with pytest.raises(Stale):
            await open_call(engine)
        await engine.commit(Step(ALICE, (answered(),), calls=(settled(),)))
        with pytest.raises(Stale):
            await open_call(engine)
        with pytest.raises(Stale):
            await engine.commit(Step(ALICE, (asked(),), calls=(call("twice"), call("twice"))))
        assert (await row_of(engine)).last_sequence == 3

    async def test_changing_a_call_that_is_not_open_is_stale(self, engine: Engine) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        await open_call(engine)
        for stale in (
            Step(ALICE, (answered(),), calls=(settled("unknown"),)),
            Step(BOB, (answered(),), calls=(settled(),)),
        ):
            with pytest.raises(Stale):
                await engine.commit(stale)
        await engine.commit(Step(ALICE, (answered(),), calls=(settled(),)))
        for change in (settled(), Claim(CallId("call-1"), 2)):
            with pytest.raises(Stale):
                await engine.commit(Step(ALICE, (answered(),), calls=(change,)))

    async def test_of_many_outcomes_at_once_exactly_one_wins(self, engine: Engine) -> None:
        await open_session(engine)
        await open_call(engine)
        steps = [Step(ALICE, (answered(),), calls=(settled(outcome_sha=str(n)),)) for n in range(30)]
        results = await asyncio.gather(*(engine.commit(step) for step in steps), return_exceptions=True)
        assert [type(result) for result in results].count(Stale) == 29
        row = await engine.call(CallId("call-1"))
        assert row is not None
        assert row.outcome_sha == str(next(n for n, result in enumerate(results) if not isinstance(result, Stale)))
        assert (await row_of(engine)).last_sequence == row.outcome_sequence == 3

    async def test_of_a_step_with_repeats_nothing_is_written_and_they_are_named(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, (asked(dedupe_key="k-\x00🂡"),), calls=(call("open"),)))
        await engine.commit(Step(ALICE, (answered(dedupe_key="o"),)))
        before = await row_of(engine)
        question = InteractionChange(InteractionId("i-1"), "waiting", "question.asked", 5)
        keep = Keep("k", "s", "sha", START + DAY, events=(1,))
        step = Step(
            ALICE,
            (asked(dedupe_key="k-\x00🂡"), asked(dedupe_key="new"), answered(dedupe_key="o")),
            calls=(call("other", native_call_id="n-3", request_index=1), settled("open", outcome_index=2)),
            sends=(Enqueue(1, RUNTIME),),
            interactions=(question,),
            keeps=(keep,),
            cursor="c",
            snapshot=b"s",
            state="running",
        )
        with pytest.raises(Repeated) as told:
            await engine.commit(step)
        assert told.value.keys == {"k-\x00🂡", "o"}
        assert await row_of(engine) == before
        row = await engine.call(CallId("open"))
        assert row is not None
        assert row.state == "dispatched"
        assert await engine.call(CallId("other")) is None
        assert await engine.pending_sends(target=RUNTIME) == []
        assert await engine.interaction(InteractionId("i-1")) is None
        assert await engine.recall(key="k", scope="s") is None
        # The refused step has stored no dedupe key.
        again = replace(step, events=(said(), asked(dedupe_key="new"), answered(dedupe_key="o-2")))
        assert [e.sequence for e in (await engine.commit(again)).envelopes] == [4, 5, 6]
        found, _ = await engine.interactions(ALL)
        assert [(one.interaction_id, one.request_sequence) for one in found] == [("i-1", 5)]

    async def test_a_key_that_comes_twice_in_a_step_is_a_repeat(self, engine: Engine) -> None:
        await open_session(engine)
        with pytest.raises(Repeated) as told:
            await engine.commit(Step(ALICE, (said("a", dedupe_key="k"), said("b"), said("c", dedupe_key="k"))))
        assert told.value.keys == {"k"}
        await engine.commit(Step(ALICE, (said("a", dedupe_key="k"),)))
        assert await texts(engine) == ["a"]

    async def test_of_repeats_that_arrive_together_one_is_written(self, engine: Engine) -> None:
        await open_session(engine)
        steps = [Step(ALICE, (said(str(n), dedupe_key="k"), said("beside"))) for n in range(20)]
        done = await asyncio.gather(*(engine.commit(step) for step in steps), return_exceptions=True)
        assert [type(one) for one in done].count(Repeated) == 19
        assert (await row_of(engine)).last_sequence == 3

    async def test_an_expectation_is_looked_at_before_repeats(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said(dedupe_key="k"),)))
        with pytest.raises(Stale) as told:
            await engine.commit(Step(ALICE, (said(dedupe_key="k"),), last_sequence=1))
        assert type(told.value) is Stale
        with pytest.raises(Fenced):
            await engine.commit(Step(ALICE, (said(dedupe_key="k"),), fence=7))

    async def test_a_key_counts_per_session_and_direction(self, engine: Engine) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        await engine.commit(Step(ALICE, (said(dedupe_key="k"),)))
        other = await engine.commit(Step(ALICE, (said(direction="to_runtime", dedupe_key="k"),)))
        elsewhere = await engine.commit(Step(BOB, (said(dedupe_key="k"),)))
        assert (other.last_sequence, elsewhere.last_sequence) == (3, 2)

    async def test_a_step_can_be_repeated_when_its_end_is_unknown(self, engine: Engine) -> None:
        await open_session(engine)
        step = Step(
            ALICE, (asked(dedupe_key="q"),), calls=(call(),), sends=(Enqueue(0, "destination:log"),), cursor="c"
        )
        await engine.commit(step)
        with pytest.raises(Stale):
            await engine.commit(step)
        outcome = Step(ALICE, (answered(),), calls=(settled(),))
        await engine.commit(outcome)
        with pytest.raises(Stale):
            await engine.commit(outcome)
        found, _ = await engine.calls(CallFilter(), ALL)
        assert [(row.request_sequence, row.outcome_sequence) for row in found] == [(2, 3)]
        assert len(await engine.pending_sends(target="destination:log")) == 1
        assert (await row_of(engine)).last_sequence == 3

"""Engine conformance: writing steps and reading events."""

import asyncio
from datetime import timedelta, timezone
from math import inf, nan
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.errors import InvalidRequest, NotFound, Stale
from gateway.events import CallId, ContextUpdated, Loss, MessagePosted, Opaque, Origin, SecretSupplied, SessionId, Text
from gateway.store.call import Claim
from gateway.store.port import Engine
from gateway.store.step import RUNTIME, Enqueue, SendChange, Step
from gateway.testing.conformance.engine_words import (
    ALICE,
    BOB,
    START,
    answered,
    asked,
    call,
    journal,
    new,
    open_call,
    open_session,
    row_of,
    said,
    settled,
    texts,
)

FREE_FORM: list[Any] = [
    {"null": None, "nested": {"null": None, "list": [None, {"null": None}]}},
    {"nul": "a\x00b", "\x00": "key", "emoji": "🂡 ünïcödé \u2028", "quote": '"\\'},
    {"64 bit": [2**63 - 1, -(2**63)], "larger": 2**64, "true": True, "one": 1},
    {"float": [0.1, 1e300, 5e-324, -0.0, 1.0, 123456789.123456789], "text": ["NaN", "Infinity"]},
    {"empty": [{}, [], ""], "deep": [[[[[[[[[["bottom"]]]]]]]]]]},
]


class JournalSuite:
    """Committing and reading."""

    async def test_events_are_numbered_from_one_without_gaps(self, engine: Engine) -> None:
        await open_session(engine)
        first = await engine.commit(Step(ALICE, (said("a"), said("b"))))
        second = await engine.commit(Step(ALICE, (said("c"),)))
        assert [e.sequence for e in first.envelopes] == [2, 3]
        assert (first.last_sequence, second.last_sequence) == (3, 4)
        assert [e.sequence for e in await engine.read(ALICE)] == [1, 2, 3, 4]

    @pytest.mark.parametrize("numbers", [(2, 3), (4, 5), (3, 0), (4, 3)])
    async def test_events_that_are_numbered_for_another_place_are_stale(
        self, engine: Engine, numbers: tuple[int, ...]
    ) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said("a", sequence=2),)))
        with pytest.raises(Stale):
            await engine.commit(Step(ALICE, tuple(said("b", sequence=number) for number in numbers)))
        await engine.commit(Step(ALICE, (said("c", sequence=3), said("d", sequence=4))))
        assert [e.sequence for e in await engine.read(ALICE)] == [1, 2, 3, 4]
        assert await texts(engine) == ["a", "c", "d"]

    async def test_committed_events_read_back_unchanged(self, engine: Engine) -> None:
        await open_session(engine)
        given = said(
            "hello",
            direction="to_runtime",
            recorded_at=START.astimezone(timezone(timedelta(hours=5, minutes=30))),
            origin=Origin("huma-0.2", "huma/0.2.0", "n-1", 2**53, "12:00"),
            caused_by=1,
            linked_to=CallId("call-1"),
            losses=(Loss(how="dropped", path="/a~1b", note="unknown"), Loss(how="invented", path="")),
            synthetic=True,
        )
        committed = await engine.commit(Step(ALICE, (given, said("plain"))))
        assert [*committed.envelopes] == [*await engine.read(ALICE, after=1)]
        kept = committed.envelopes[0]
        assert kept.event == given.event
        assert kept.event_id == given.event_id
        assert kept.recorded_at == given.recorded_at
        assert (kept.session_id, kept.sequence, kept.direction, kept.caused_by) == (ALICE, 2, "to_runtime", 1)
        assert (kept.origin, kept.losses, kept.synthetic) == (given.origin, given.losses, True)
        assert [one.linked_to for one in committed.envelopes] == ["call-1", None]
        assert (committed.envelopes[1].origin, committed.envelopes[1].synthetic) == (None, False)

    @pytest.mark.parametrize("value", FREE_FORM)
    async def test_free_form_values_come_back_exactly(self, engine: Engine, value: Any) -> None:
        await open_session(engine)
        await engine.commit(
            Step(ALICE, (new(ContextUpdated(name="x", context=value)), new(Opaque(channel="c", payload=[value]))))
        )
        context, opaque = await engine.read(ALICE, after=1)
        assert isinstance(context.event, ContextUpdated)
        assert isinstance(opaque.event, Opaque)
        assert repr(context.event.context) == repr(value)
        assert repr(opaque.event.payload) == repr([value])

    async def test_a_body_of_a_megabyte_is_stored(self, engine: Engine) -> None:
        await open_session(engine)
        large = "🂡x" * 400_000
        await engine.commit(Step(ALICE, (said(large),)))
        assert await texts(engine) == [large]

    async def test_deep_nesting_is_stored_or_refused_but_never_unreadable(self, engine: Engine) -> None:
        await open_session(engine)
        value: Any = "bottom"
        depths: dict[int, Any] = {}
        for depth in range(1, 241):
            value = [value]
            depths[depth] = value
        for depth in (64, 190, 240):
            await engine.commit(Step(ALICE, (new(Opaque(channel="deep", payload=depths[depth])),)))
        endless: Any = value
        for _ in range(2_000):
            endless = [endless]
        with pytest.raises(InvalidRequest):
            await engine.commit(Step(ALICE, (new(Opaque(channel="deep", payload=endless)),)))
        kept = [e.event for e in await engine.read(ALICE, after=1)]
        assert kept == [Opaque(channel="deep", payload=depths[depth]) for depth in (64, 190, 240)]

    async def test_a_native_frame_is_kept_with_its_event_and_erased_with_it(self, engine: Engine) -> None:
        await open_session(engine)
        frame = '{"channel":"event","payload":{"text":"🂡 \\u0000 \\"x\\""},"omitted":null}'.encode()
        await engine.commit(Step(ALICE, (said(native=frame), said())))
        assert [event.native for event in await engine.read(ALICE, after=1)] == [frame, None]
        await engine.commit(Step(ALICE, state="closed"))
        await engine.erase(ALICE)
        assert [event.native for event in await engine.read(ALICE, after=1)] == [None, None]

    async def test_a_secret_is_returned_once_and_stored_as_asterisks(self, engine: Engine) -> None:
        await open_session(engine)
        committed = await engine.commit(Step(ALICE, (new(SecretSupplied(id="s", value=SecretStr("hunter2"))),)))
        told = committed.envelopes[0].event
        assert isinstance(told, SecretSupplied)
        assert told.reveal() == "hunter2"
        kept = (await engine.read(ALICE, after=1))[0].event
        assert isinstance(kept, SecretSupplied)
        assert set(kept.value.get_secret_value()) == {"*"}
        with pytest.raises(ValueError, match="not stored"):
            kept.reveal()

    @pytest.mark.parametrize(
        "poison",
        [
            Opaque(channel="c", payload={"x": nan}),
            Opaque(channel="c", payload=[{"x": -inf}]),
            MessagePosted(content=(Text(text="\ud800"),)),
            Opaque(channel="c", payload={"\udfff": 1}),
        ],
        ids=["nan", "infinity", "lone surrogate", "lone surrogate as key"],
    )
    async def test_an_unstorable_step_is_refused_and_fails_alone(self, engine: Engine, poison: Any) -> None:
        await open_session(engine)
        steps = [Step(ALICE, (said("a"),)), Step(ALICE, (said("b"), new(poison))), Step(ALICE, (said("c"),))]
        results = await asyncio.gather(*(engine.commit(step) for step in steps), return_exceptions=True)
        assert isinstance(results[1], InvalidRequest)
        assert await texts(engine) == ["a", "c"]

    async def test_an_index_that_points_at_no_event_is_refused(self, engine: Engine) -> None:
        await open_session(engine)
        for step in (
            Step(ALICE, (said(),), sends=(Enqueue(1, RUNTIME),)),
            Step(ALICE, (asked(),), calls=(call(request_index=-1),)),
            Step(ALICE, (asked(),), calls=(call(request_index=None),)),
        ):
            with pytest.raises(InvalidRequest):
                await engine.commit(step)
        assert (await row_of(engine)).last_sequence == 1

    async def test_a_time_without_a_zone_is_refused_and_fails_alone(self, engine: Engine) -> None:
        await open_session(engine)
        naive = START.replace(tzinfo=None)
        steps = [
            Step(ALICE, (said("a"),)),
            Step(ALICE, (said("b", recorded_at=naive),)),
            Step(ALICE, (said("c"), asked()), calls=(call(request_index=1, deadline_at=naive),)),
            Step(ALICE, (said("d"),), send_changes=(SendChange(2, RUNTIME, "pending", 1, naive),)),
            Step(ALICE, (said("e"),)),
        ]
        results = await asyncio.gather(*(engine.commit(step) for step in steps), return_exceptions=True)
        assert [type(result) is InvalidRequest for result in results] == [False, True, True, True, False]
        assert await texts(engine) == ["a", "e"]

    async def test_a_step_without_events_changes_the_session_only(self, engine: Engine) -> None:
        await open_session(engine)
        done = await engine.commit(Step(ALICE, cursor="c-1", snapshot=b"\x00snap", state="running"))
        assert (done.envelopes, done.last_sequence) == ((), 1)
        row = await row_of(engine)
        assert (row.cursor, row.state, row.last_sequence) == ("c-1", "running", 1)
        assert await engine.snapshot(ALICE) == b"\x00snap"

    async def test_rows_that_a_step_omits_stay(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, cursor="c-1", snapshot=b"1", state="running"))
        await engine.commit(Step(ALICE, (said(),)))
        row = await row_of(engine)
        assert (row.cursor, row.state, row.last_sequence) == ("c-1", "running", 2)
        assert await engine.snapshot(ALICE) == b"1"

    async def test_an_unknown_session_is_not_found(self, engine: Engine) -> None:
        with pytest.raises(NotFound):
            await engine.commit(Step(BOB, (said(),)))
        with pytest.raises(NotFound):
            await engine.read(BOB)

    async def test_reading_starts_after_a_sequence_and_stops_at_the_limit(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, tuple(said(str(n)) for n in range(2, 10))))
        assert [e.sequence for e in await engine.read(ALICE, after=3, limit=2)] == [4, 5]
        assert [e.sequence for e in await engine.read(ALICE, after=9)] == []
        assert [e.sequence for e in await engine.read(ALICE, after=100)] == []
        assert len(await engine.read(ALICE)) == 9

    # Group commit

    async def test_events_are_read_by_their_kinds(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said("a"), asked(), said("b"), answered(), said("c"))))
        kinds = ["message.posted", "tool.finished"]
        pages, after = list[list[int]](), 0
        while after is not None:
            page, after = await engine.read_kinds(ALICE, kinds, after=after, limit=2)
            pages.append([envelope.sequence for envelope in page])
        assert pages == [[2, 4], [5, 6], []]
        assert await engine.read_kinds(ALICE, ["message.posted"]) == (
            [one for one in await engine.read(ALICE) if one.event.kind == "message.posted"],
            None,
        )
        assert await engine.read_kinds(ALICE, ["turn.started"]) == ([], None)
        assert await engine.read_kinds(ALICE, kinds, after=9) == ([], None)
        with pytest.raises(NotFound):
            await engine.read_kinds(BOB, kinds)

    async def test_the_latest_event_of_a_kind_is_found(self, engine: Engine) -> None:
        await open_session(engine)
        assert await engine.latest_event(ALICE, "message.posted") == (None, 1)
        await engine.commit(Step(ALICE, (said("a"), said("b"), asked())))
        found, searched_from = await engine.latest_event(ALICE, "message.posted")
        assert (found, searched_from) == ((await engine.read(ALICE, after=2))[0], 1)
        with pytest.raises(NotFound):
            await engine.latest_event(BOB, "message.posted")

    async def test_hundreds_of_commits_at_once_leave_no_gap_and_no_disorder(self, engine: Engine) -> None:
        sessions = [SessionId(f"s-{n}") for n in range(20)]
        for session_id in sessions:
            await open_session(engine, session_id)
        steps = [Step(sessions[n % 20], (said(str(n)), said(f"{n} too"))) for n in range(500)]
        results = await asyncio.gather(*(engine.commit(step) for step in steps))
        for number, session_id in enumerate(sessions):
            kept = await journal(engine, session_id)
            assert [e.sequence for e in kept] == list(range(1, 52))
            committed = [e for n, done in enumerate(results) if n % 20 == number for e in done.envelopes]
            assert sorted(committed, key=lambda e: e.sequence) == [*kept[1:]]
            assert await texts(engine, session_id) == [
                text for n in range(number, 500, 20) for text in (str(n), f"{n} too")
            ]

    async def test_a_step_sees_what_was_committed_just_before_it(self, engine: Engine) -> None:
        await open_session(engine)
        results = await asyncio.gather(
            open_call(engine, state="queued"),
            engine.commit(Step(ALICE, calls=(Claim(CallId("call-1"), 2),))),
            engine.commit(Step(ALICE, (answered(),), calls=(settled(),))),
            engine.commit(Step(ALICE, (answered(),), calls=(settled(),))),
            engine.commit(Step(ALICE, (said(),), last_sequence=3)),
            return_exceptions=True,
        )
        assert [type(result) is Stale for result in results] == [False, False, False, True, False]

    async def test_stale_steps_among_others_fail_alone(self, engine: Engine) -> None:
        await open_session(engine)
        steps = [Step(ALICE, (said(str(n)),), fence=n % 2) for n in range(50)]
        results = await asyncio.gather(*(engine.commit(step) for step in steps), return_exceptions=True)
        assert [isinstance(result, Stale) for result in results] == [n % 2 == 1 for n in range(50)]
        assert await texts(engine) == [str(n) for n in range(0, 50, 2)]

    async def test_a_canceled_caller_affects_no_other(self, engine: Engine) -> None:
        await open_session(engine)
        tasks = [asyncio.ensure_future(engine.commit(Step(ALICE, (said(str(n)),)))) for n in range(60)]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results[::3])
        last = (await engine.commit(Step(ALICE, (said("end"),)))).last_sequence
        kept = await journal(engine, ALICE)
        assert [e.sequence for e in kept] == list(range(1, last + 1))
        told = {e.sequence for done in results if not isinstance(done, BaseException) for e in done.envelopes}
        assert len(told) == 40
        assert told <= {e.sequence for e in kept}

"""Engine conformance: the events of all sessions in one order."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from gateway.events import SessionId
from gateway.store.port import Engine
from gateway.store.rows import ANY_EVENT, FROM_THE_START, EventFilter, Placed, Position, RetentionPolicy
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import (
    ALICE,
    BOB,
    FakeClock,
    answered,
    asked,
    close_session,
    open_session,
    said,
)


class OrderSuite:
    """Reading the events of all sessions."""

    async def test_every_event_has_a_place_and_its_session(self, engine: Engine) -> None:
        await open_session(engine, labels={"team": "blue"})
        await open_session(engine, BOB, runtime="coder")
        await engine.commit(Step(ALICE, (said("a"), said("b"))))
        await engine.commit(Step(BOB, (asked(session_id=BOB),)))
        found, _ = await read_on(engine)
        assert [(one.session.session_id, one.envelope.sequence) for one in found] == [
            (ALICE, 1), (BOB, 1), (ALICE, 2), (ALICE, 3), (BOB, 2),
        ]  # fmt: skip
        assert [one.envelope for one in found if one.session.session_id == ALICE] == await engine.read(ALICE)
        first, second = found[0].session, found[1].session
        assert (first.runtime, first.native_id, first.labels) == ("finn", "native-of-alice", {"team": "blue"})
        assert (second.runtime, second.native_id, second.labels) == ("coder", "native-of-bob", {})
        assert [one.position for one in found] == sorted({one.position for one in found})

    @pytest.mark.parametrize(("limit", "searched"), [(1, 1), (2, 1), (1, 5), (3, 2), (50, 50)])
    async def test_reading_resumes_behind_every_place(self, engine: Engine, limit: int, searched: int) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        for count in (1, 3, 2):
            texts = [said(str(number)) for number in range(count)]
            await asyncio.gather(*(engine.commit(Step(one, tuple(texts))) for one in (ALICE, BOB)))
        whole, end = await read_on(engine)
        assert len(whole) == 14
        for number, placed in enumerate(whole):
            rest, _ = await read_on(engine, placed.position, limit=limit, searched=searched)
            assert rest == whole[number + 1 :]
        assert (await read_on(engine, FROM_THE_START, limit=limit, searched=searched))[0] == whole
        assert (await read_on(engine, end))[0] == []
        assert (await read_on(engine, await engine.end()))[0] == []
        await engine.commit(Step(ALICE, (said("new"),)))
        for place in (end, whole[-1].position):
            assert [one.envelope.sequence for one in (await read_on(engine, place))[0]] == [8]

    async def test_the_filters_select_events(self, engine: Engine) -> None:
        await open_session(engine, labels={"team": "blue", "table": "1"})
        await open_session(engine, BOB, runtime="coder", labels={"team": "red"})
        for session_id in (ALICE, BOB):
            await engine.commit(Step(session_id, (said(), asked(), answered())))
        for which, expected in (
            (EventFilter(session_id=ALICE), [("alice", number) for number in range(1, 5)]),
            (EventFilter(runtime="coder"), [("bob", number) for number in range(1, 5)]),
            (EventFilter(labels={"team": "blue", "table": "1"}, kinds=frozenset({"tool.requested"})), [("alice", 3)]),
            (EventFilter(kinds=frozenset({"tool.finished", "session.opened"})), [
                ("alice", 1), ("bob", 1), ("alice", 4), ("bob", 4),
            ]),
            (EventFilter(labels={"team": "blu"}), []),
            (EventFilter(session_id=SessionId("nobody")), []),
        ):  # fmt: skip
            for limit, searched in ((1, 1), (2, 3), (50, 50)):
                found, _ = await read_on(engine, which=which, limit=limit, searched=searched)
                assert [(one.session.session_id, one.envelope.sequence) for one in found] == expected, which

    async def test_a_reader_beside_commits_gets_each_event_once_and_each_session_in_order(self, engine: Engine) -> None:
        names = [SessionId(f"s-{number}") for number in range(6)]
        for name in names:
            await open_session(engine, name)
        _, place = await read_on(engine)

        async def write(name: SessionId) -> None:
            for number in range(30):
                await engine.commit(Step(name, tuple(said() for _ in range(1 + number % 3))))

        writing = asyncio.gather(*map(write, names))
        found: list[Placed] = []
        while not writing.done():
            some, place = await read_on(engine, place, limit=7, searched=5)
            found += some
        await writing
        found += (await read_on(engine, place))[0]
        for name in names:
            sequences = [one.envelope.sequence for one in found if one.session.session_id == name]
            assert sequences == list(range(2, 62))
        assert len(found) == 360

    async def test_removed_events_are_a_gap_for_readers_before_them(self, engine: Engine, clock: FakeClock) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        await engine.commit(Step(ALICE, (said("a"), said("b"))))
        await engine.commit(Step(BOB, (said("c"),)))
        whole, _ = await read_on(engine)
        await close_session(engine)
        clock.turn(timedelta(days=8))
        assert (await engine.sweep(RetentionPolicy())).events == 3
        kept = [one for one in whole if one.session.session_id == BOB]
        for place, is_gap in ((FROM_THE_START, True), (whole[0].position, True), (whole[-1].position, False)):
            page = await engine.read_all(place, ANY_EVENT, limit=50, searched=50)
            assert (page.is_gap, page.events) == (is_gap, [one for one in kept if one.position > place])

    async def test_a_reader_who_has_read_all_removed_events_of_a_commit_misses_none(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said("a"), said("b"))))
        whole, _ = await read_on(engine)
        assert (await engine.sweep(RetentionPolicy(open_events=1))).events == 2
        for placed, is_gap in zip(whole, (True, False, False), strict=True):
            page = await engine.read_all(placed.position, ANY_EVENT, limit=50, searched=50)
            assert (page.is_gap, page.events) == (is_gap, [one for one in whole[2:] if one.position > placed.position])

    async def test_no_place_is_given_again_after_the_last_event_was_removed(
        self, engine: Engine, clock: FakeClock
    ) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        await engine.commit(Step(BOB, (said("a"), said("b"))))
        await close_session(engine, BOB)
        whole, end = await read_on(engine)
        clock.turn(timedelta(days=8))
        assert (await engine.sweep(RetentionPolicy())).events == 3
        for placed, is_gap in zip(whole, (True, True, True, False), strict=True):
            page = await engine.read_all(placed.position, ANY_EVENT, limit=50, searched=50)
            assert (page.is_gap, page.events) == (is_gap, [])
        await engine.commit(Step(ALICE, (said("new"),)))
        found, _ = await read_on(engine, end)
        assert [(one.session.session_id, one.envelope.sequence) for one in found] == [(ALICE, 2)]


async def read_on(
    engine: Engine,
    after: Position = FROM_THE_START,
    *,
    which: EventFilter = ANY_EVENT,
    limit: int = 50,
    searched: int = 50,
) -> tuple[Sequence[Placed], Position]:
    """Read all matching events behind a position, also those held back; return also the position behind them."""
    found: list[Placed] = []
    while True:
        page = await engine.read_all(after, which, limit=limit, searched=searched)
        assert not page.is_gap
        assert page.position >= after
        found += page.events
        after = page.position
        if page.held_back and not page.more:
            # Another program on the same server has an earlier transaction open.
            await asyncio.sleep(0.01)
        elif not page.more:
            return found, after

"""Engine conformance: sessions."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from gateway.errors import Conflict, InvalidRequest
from gateway.events import InteractionId, SessionId, SessionOpened, SessionState
from gateway.store.port import Engine, NewSession
from gateway.store.rows import CallFilter, Page, SessionFilter, SessionRow
from gateway.store.step import InteractionChange, Step
from gateway.testing.conformance.engine_words import (
    ALICE,
    ALL,
    BOB,
    DAY,
    START,
    FakeClock,
    asked,
    call,
    close_session,
    new,
    open_session,
    row_of,
    said,
)

SECOND = timedelta(seconds=1)


class RegistrySuite:
    """Sessions."""

    shared: bool = True
    """Whether several engines may share one store."""

    def build(self, folder: Path, clock: FakeClock) -> Engine:
        raise NotImplementedError

    async def test_a_new_session_has_its_first_event(self, engine: Engine) -> None:
        first = new(SessionOpened(runtime="finn", protocol="test/1", native_id="n"))
        row, is_new = await engine.open_session(
            NewSession(
                session_id=ALICE, runtime="finn", protocol="test/1", native_id="n", labels={"team": "a"}, first=first
            )
        )
        assert is_new
        assert row == SessionRow(ALICE, "finn", "test/1", "n", "starting", {"team": "a"}, 1, 1, START, START)
        assert await engine.session(ALICE) == row
        assert [e.event for e in await engine.read(ALICE)] == [first.event]
        assert await engine.session(BOB) is None

    async def test_a_session_is_listed_with_the_state_it_is_in(self, engine: Engine) -> None:
        assert (await open_session(engine, state="idle")).state == "idle"
        # A step may change only this, without an event.
        for state in (*get_args(SessionState), "closed"):
            committed = await engine.commit(Step(ALICE, state=state))
            assert (committed.envelopes, committed.last_sequence) == ((), 1)
            assert (await row_of(engine)).state == state
            assert [row.state for row in (await engine.sessions(Page()))[0]] == [state]

    async def test_an_open_session_is_returned_as_it_is(self, engine: Engine) -> None:
        await open_session(engine, labels={"team": "a"})
        await engine.commit(Step(ALICE, (said(),), state="running"))
        before = await row_of(engine)
        row, is_new = await engine.open_session(
            NewSession(
                session_id=BOB,
                runtime="finn",
                protocol="test/1",
                native_id="native-of-alice",
                labels={"team": "b"},
                first=said(),
            )
        )
        assert (row, is_new) == (before, False)
        assert await engine.session(BOB) is None

    async def test_notes_are_stored_in_the_transaction_that_opens_a_session(self, engine: Engine) -> None:
        async def opened(native_id: str, note: str, session_id: SessionId = ALICE) -> bool:
            notes = {"n": note, f"n-{note}": "here"}
            _, is_new = await engine.open_session(NewSession(
                session_id=session_id, runtime="finn", protocol="test/1", native_id=native_id, labels={}, first=said(),
                notes=notes,
            ))  # fmt: skip
            return is_new

        assert await opened("a", "made")
        assert not await opened("a", "found")
        await engine.commit(Step(ALICE, (said(),), state="closed"))
        assert not await opened("a", "again")
        for note in ("made", "found", "again"):
            assert await engine.note(f"n-{note}") == "here"
        with pytest.raises(Conflict):
            await opened("b", "refused")
        assert (await engine.note("n"), await engine.note("n-refused")) == ("again", None)

    async def test_a_closed_session_is_opened_again(self, engine: Engine, clock: FakeClock) -> None:
        await open_session(engine, labels={"team": "a"})
        await engine.commit(Step(ALICE, (said(),), cursor="c", snapshot=b"s", state="closed"))
        clock.turn(DAY)
        row = await open_session(engine, labels={"team": "b"}, state="idle")
        assert (row.state, row.labels, row.last_sequence, row.first_sequence) == ("idle", {"team": "b"}, 3, 1)
        assert (row.opened_at, row.updated_at) == (START, START + DAY)
        assert (row.cursor, await engine.snapshot(ALICE)) == ("c", b"s")
        assert isinstance((await engine.read(ALICE, after=2))[0].event, SessionOpened)

    async def test_of_many_that_open_one_session_at_once_one_makes_it(self, engine: Engine) -> None:
        results = await asyncio.gather(
            *(
                engine.open_session(
                    NewSession(
                        session_id=ALICE, runtime="finn", protocol="test/1", native_id="n", labels={}, first=said()
                    )
                )
                for _ in range(10)
            )
        )
        assert [is_new for _, is_new in results].count(True) == 1
        assert {row.session_id for row, _ in results} == {ALICE}
        assert (await row_of(engine)).last_sequence == 1

    async def test_engines_that_open_one_session_at_one_moment_find_the_same(
        self, engine: Engine, tmp_path: Path, clock: FakeClock
    ) -> None:
        async with AsyncExitStack() as stack:
            others = [await stack.enter_async_context(self.build(tmp_path, clock)) for _ in range(2 * self.shared)]
            for number in range(100):
                name = SessionId(f"s-{number}")
                results = await asyncio.gather(*(_open(one, name, f"n-{number}") for one in (engine, *others, engine)))
                assert [is_new for _, is_new in results].count(True) == 1
                assert {(row.session_id, row.native_id) for row, _ in results} == {(name, f"n-{number}")}
                assert (await row_of(engine, name)).last_sequence == 1

    async def test_of_engines_that_want_one_id_for_two_native_sessions_one_has_it(
        self, engine: Engine, tmp_path: Path, clock: FakeClock
    ) -> None:
        async with AsyncExitStack() as stack:
            other = await stack.enter_async_context(self.build(tmp_path, clock)) if self.shared else engine
            for number in range(30):
                name, natives = SessionId(f"s-{number}"), (f"one-{number}", f"two-{number}")
                opens = (_open(one, name, native) for one, native in zip((engine, other), natives, strict=True))
                results = await asyncio.gather(*opens, return_exceptions=True)
                assert [type(result) for result in results].count(Conflict) == 1
                row = await row_of(engine, name)
                assert (row.native_id in natives, row.last_sequence) == (True, 1)

    async def test_a_session_id_belongs_to_one_native_session(self, engine: Engine) -> None:
        await open_session(engine)
        with pytest.raises(Conflict):
            await open_session(engine, ALICE, native_id="another")
        assert (await row_of(engine)).last_sequence == 1

    async def test_sessions_are_listed_oldest_first_page_by_page(self, engine: Engine, clock: FakeClock) -> None:
        names = [SessionId(name) for name in ("m", "a", "z", "b", "y")]
        for name in names:
            await open_session(engine, name, runtime="odd" if name == "a" else "finn")
            clock.turn(SECOND)
        await close_session(engine, names[2])
        rows, cursor = await engine.sessions(Page(2))
        assert [row.session_id for row in rows] == names[:2]
        rows, cursor = await engine.sessions(Page(2, cursor))
        assert [row.session_id for row in rows] == names[2:4]
        rows, cursor = await engine.sessions(Page(2, cursor))
        assert ([row.session_id for row in rows], cursor) == (names[4:], None)
        rows, cursor = await engine.sessions(Page(5))
        assert (len(rows), cursor) == (5, None)
        rows, _ = await engine.sessions(ALL, SessionFilter("odd"))
        assert [row.session_id for row in rows] == ["a"]
        rows, _ = await engine.sessions(ALL, SessionFilter(open_only=True))
        assert [row.session_id for row in rows] == ["m", "a", "b", "y"]

    async def test_sessions_are_listed_newest_first_on_request(self, engine: Engine) -> None:
        names = [SessionId(name) for name in ("m", "a", "z", "b", "y")]
        for name in names:
            await open_session(engine, name)
        await close_session(engine, names[4])
        shown, cursor = list[str](), None
        for size in (2, 2, 1):
            rows, cursor = await engine.sessions(Page(2, cursor), newest_first=True)
            assert len(rows) == size
            shown += [row.session_id for row in rows]
        assert (shown, cursor) == (["y", "b", "z", "a", "m"], None)
        rows, cursor = await engine.sessions(Page(1), SessionFilter(open_only=True), newest_first=True)
        assert [row.session_id for row in rows] == ["b"]
        rows, _ = await engine.sessions(Page(1, cursor), SessionFilter(open_only=True), newest_first=True)
        assert [row.session_id for row in rows] == ["z"]

    @pytest.mark.parametrize("native_id", ["room-7", "a/b/c", "ä'; --", "🃏 %_"])
    async def test_a_session_is_found_by_its_runtime_and_native_id(self, engine: Engine, native_id: str) -> None:
        await open_session(engine, SessionId("one"), native_id=native_id)
        await open_session(engine, SessionId("other"), native_id=native_id, runtime="odd")
        await open_session(engine, SessionId("longer"), native_id=f"{native_id}x")
        rows, cursor = await engine.sessions(Page(1), SessionFilter("finn", native_id))
        assert ([row.session_id for row in rows], cursor) == (["one"], None)
        await close_session(engine, SessionId("one"))
        rows, _ = await engine.sessions(Page(1), SessionFilter("finn", native_id))
        assert [row.state for row in rows] == ["closed"]
        assert (await engine.sessions(Page(1), SessionFilter("finn", native_id, open_only=True)))[0] == []
        assert (await engine.sessions(Page(1), SessionFilter("finn", "unknown")))[0] == []

    @pytest.mark.parametrize("newest_first", [False, True])
    async def test_sessions_are_listed_by_their_filters(
        self, engine: Engine, clock: FakeClock, newest_first: bool
    ) -> None:
        hostile = {"team": 'a","x":"b', 'n":"m': "ä'; --", "%": "\x00"}
        await open_session(engine, SessionId("a"), labels={"team": "blue", "table": "1"}, native_id="room-7")
        await open_session(engine, SessionId("b"), labels={"team": "blue", "table": "12"}, state="idle")
        clock.turn(DAY)
        await open_session(engine, SessionId("c"), labels=hostile, native_id="room-7", runtime="odd")
        await open_session(engine, SessionId("d"), labels={"x": "b"}, state="idle")
        await close_session(engine, SessionId("d"))
        for which, expected in (
            (SessionFilter(labels={"team": "blue"}), "ab"),
            (SessionFilter(labels={"team": "blue", "table": "1"}), "a"),
            (SessionFilter(labels={"table": "2"}), ""),
            (SessionFilter(labels={"x": "b"}), "d"),
            *((SessionFilter(labels={name: value}), "c") for name, value in hostile.items()),
            (SessionFilter(states=frozenset({"idle", "closed"})), "bd"),
            (SessionFilter(states=frozenset({"idle", "closed"}), open_only=True), "b"),
            (SessionFilter(native_id="room-7"), "ac"),
            (SessionFilter(text="finn/room-7"), "a"),
            (SessionFilter(text="OOM-7"), "ac"),
            (SessionFilter(text="r_om"), ""),
            (SessionFilter(text="BLUE"), "ab"),
            (SessionFilter(text="ä'; --"), "c"),
            (SessionFilter(text='","x":"'), "c"),
            (SessionFilter(text="%"), "c"),
            (SessionFilter(text="C"), "c"),
            (SessionFilter("odd", "room-7", labels={"%": "\x00"}), "c"),
            (SessionFilter(since=START + DAY), "cd"),
            (SessionFilter(until=START + DAY), "ab"),
            (SessionFilter(since=START + DAY, until=START + DAY), ""),
        ):
            found, cursor = list[str](), None
            for _ in "abcde":
                rows, cursor = await engine.sessions(Page(1, cursor), which, newest_first=newest_first)
                found += [row.session_id for row in rows]
                if cursor is None:
                    break
            assert (found, cursor) == (sorted(expected, reverse=newest_first), None), which

    @pytest.mark.parametrize("cursor", ["", "x", "ä", "bnVsbA", "WyJhIl0", "WzEsMl0", "\x00", "W3RydWVd"])
    async def test_a_cursor_that_was_never_given_out_is_refused(self, engine: Engine, cursor: str) -> None:
        if not cursor:
            assert await engine.sessions(Page(1, cursor)) == ([], None)
            return
        for listing in (
            engine.sessions(Page(1, cursor)),
            engine.calls(CallFilter(), Page(1, cursor)),
            engine.dead_sends(Page(1, cursor)),
            engine.interactions(Page(1, cursor)),
        ):
            with pytest.raises(InvalidRequest):
                await listing

    async def test_a_cursor_of_another_list_is_refused(self, engine: Engine) -> None:
        await open_session(engine, BOB)
        await open_session(engine)
        for number in range(2):
            asks = InteractionChange(InteractionId(f"i-{number}"), "waiting", "question.asked", number + 2)
            await engine.commit(Step(ALICE, (asked(f"n-{number}"),), (call(f"c-{number}"),), interactions=(asks,)))
        lists: Sequence[Callable[[Page], Awaitable[tuple[Sequence[object], str | None]]]] = (
            engine.sessions,
            partial(engine.calls, CallFilter()),
            engine.interactions,
        )
        cursors = [(await listing(Page(1)))[1] for listing in lists]
        assert None not in cursors
        for place, listing in enumerate(lists):
            for given_by, cursor in enumerate(cursors):
                if given_by == place:
                    rows, following = await listing(Page(1, cursor))
                    assert (len(rows), following) == (1, None)
                else:
                    with pytest.raises(InvalidRequest):
                        await listing(Page(1, cursor))

    async def test_every_event_updates_the_time_of_the_session(self, engine: Engine, clock: FakeClock) -> None:
        await open_session(engine)
        clock.turn(DAY)
        await engine.commit(Step(ALICE, (said(recorded_at=START + DAY),)))
        row = await row_of(engine)
        assert (row.opened_at, row.updated_at) == (START, START + DAY)


async def _open(engine: Engine, name: SessionId, native_id: str) -> tuple[SessionRow, bool]:
    return await engine.open_session(
        NewSession(session_id=name, runtime="finn", protocol="test/1", native_id=native_id, labels={}, first=said())
    )

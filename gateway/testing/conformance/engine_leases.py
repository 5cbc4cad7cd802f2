"""Engine conformance: leases of instances, owners and fences of sessions, held names and notifications."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import groupby
from pathlib import Path

import pytest

from gateway.errors import Fenced, Stale
from gateway.events import Opaque, SessionId
from gateway.store.port import Engine
from gateway.store.rows import Instance, Page, RetentionPolicy, SessionRow
from gateway.store.step import HANDOVER, Enqueue, SendChange, Step
from gateway.testing.conformance.engine_words import (
    ALICE,
    BOB,
    FakeClock,
    close_session,
    new,
    open_session,
    row_of,
    said,
    texts,
)

LONG = timedelta(hours=1)
"""A lease that outlives the test."""
SHORT = timedelta(milliseconds=40)
"""The rest of a lease that is to expire at once."""
A, B, C = "instance-a", "instance-b", "instance-c"
RUNTIMES = frozenset({"finn"})


async def live(engine: Engine, *instances: str, ttl: timedelta = LONG) -> None:
    """Acquire or renew leases."""
    for instance in instances:
        assert await engine.beat(instance, url=f"http://{instance}", ttl=ttl)


async def take_over(
    engine: Engine, instance: str, *, runtimes: Collection[str] = RUNTIMES, limit: int = 100
) -> set[SessionId]:
    rows = await engine.take_over(instance, runtimes=runtimes, limit=limit)
    for row in rows:
        assert row.owner == instance
        assert await engine.session(row.session_id) == row
    return {row.session_id for row in rows}


async def open_many(engine: Engine, count: int) -> set[SessionId]:
    names = [SessionId(f"s-{number:05}") for number in range(count)]
    for start in range(0, count, 20):
        await asyncio.gather(*(open_session(engine, name) for name in names[start : start + 20]))
    return set(names)


class LeaseSuite:
    """Instances and their sessions."""

    ttl: timedelta = timedelta(seconds=6)
    """The time of a renewed lease; with a real clock it is shorter, but longer than a machine may stall."""
    many: int = 10_000
    """The number of sessions that two instances take over concurrently."""

    async def pass_time(self, clock: FakeClock, span: timedelta) -> None:
        """Advance the engine's clock; with a real clock, sleep instead."""
        clock.turn(span)

    async def lapse(self, engine: Engine, clock: FakeClock, *instances: str) -> None:
        """Let leases expire; they are shortened only now, so that none expires too early."""
        await live(engine, *instances, ttl=SHORT)
        await self.pass_time(clock, SHORT * 2)

    # Heartbeats

    async def test_a_lease_lives_as_long_as_it_is_renewed(self, engine: Engine, clock: FakeClock) -> None:
        for _ in range(4):
            await live(engine, A, ttl=self.ttl)
            await self.pass_time(clock, self.ttl * 0.3)
        assert await engine.instances() == [Instance(A, f"http://{A}", True, 0)]

    async def test_a_lease_that_ran_out_is_never_revived(self, engine: Engine, clock: FakeClock) -> None:
        await live(engine, A)
        await self.lapse(engine, clock, A)
        for _ in range(3):
            assert not await engine.beat(A, url=f"http://{A}", ttl=LONG)
        assert [one for one in await engine.instances() if one.alive] == []
        await live(engine, B)
        assert [one.instance_id for one in await engine.instances() if one.alive] == [B]

    async def test_a_beat_may_change_the_length_and_the_url(self, engine: Engine, clock: FakeClock) -> None:
        await live(engine, A, ttl=self.ttl)
        assert await engine.beat(A, url="http://elsewhere", ttl=LONG)
        await self.pass_time(clock, self.ttl * 1.25)
        assert await engine.instances() == [Instance(A, "http://elsewhere", True, 0)]

    async def test_instances_are_live_or_dead_with_sessions(self, engine: Engine, clock: FakeClock) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        await live(engine, A, B)
        await engine.take(A, ALICE)
        await engine.take(A, BOB)
        await close_session(engine, BOB)
        await self.lapse(engine, clock, A, B)
        await live(engine, C)
        found = {one.instance_id: one for one in await engine.instances()}
        assert found == {A: Instance(A, f"http://{A}", False, 1), C: Instance(C, f"http://{C}", True, 0)}
        assert await take_over(engine, C) == {ALICE}
        assert await engine.instances() == [Instance(C, f"http://{C}", True, 1)]

    # Owning

    async def test_a_session_belongs_to_the_first_instance_that_takes_it(self, engine: Engine) -> None:
        await open_session(engine)
        await live(engine, A, B)
        before = await row_of(engine)
        assert (before.owner, before.fence) == (None, 0)
        row = await engine.take(A, ALICE)
        assert row is not None
        assert (row.owner, row.fence, row.updated_at) == (A, 1, before.updated_at)
        assert row == await row_of(engine)
        assert await engine.take(B, ALICE) is None
        assert await engine.take(A, ALICE) == row
        assert await row_of(engine) == row

    async def test_of_many_that_take_a_session_at_once_one_has_it(self, engine: Engine) -> None:
        await open_session(engine)
        names = [f"instance-{number}" for number in range(10)]
        await live(engine, *names)
        taken = await asyncio.gather(*(engine.take(name, ALICE) for name in names))
        (row,) = [row for row in taken if row is not None]
        assert row.fence == 1
        assert row == await row_of(engine)

    async def test_only_open_sessions_are_taken_and_only_by_the_living(self, engine: Engine, clock: FakeClock) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        await close_session(engine, BOB)
        await live(engine, A, B)
        assert await engine.take(A, BOB) is None
        assert await engine.take(A, SessionId("nobody")) is None
        assert await engine.take("never-lived", ALICE) is None
        assert await take_over(engine, "never-lived") == set()
        mine = await engine.take(B, ALICE)
        assert mine is not None
        await self.lapse(engine, clock, B)
        assert await engine.take(B, ALICE) is None
        assert await take_over(engine, B) == set()
        assert await row_of(engine) == mine

    async def test_a_session_of_the_dead_can_be_taken_and_the_fence_grows(
        self, engine: Engine, clock: FakeClock
    ) -> None:
        await open_session(engine)
        await live(engine, A)
        await engine.take(A, ALICE)
        await engine.commit(Step(ALICE, (said("from a"),), fence=1))
        await live(engine, B)
        assert await engine.take(B, ALICE) is None
        await self.lapse(engine, clock, A)
        row = await engine.take(B, ALICE)
        assert row is not None
        assert (row.owner, row.fence, row.last_sequence) == (B, 2, 2)
        with pytest.raises(Fenced):
            await engine.commit(Step(ALICE, (said("too late"),), fence=1))
        done = await engine.commit(Step(ALICE, (said("from b"),), fence=2))
        assert done.last_sequence == 3
        await engine.release(B)
        await live(engine, C)
        row = await engine.take(C, ALICE)
        assert row is not None
        assert row.fence == 3
        with pytest.raises(Fenced):
            await engine.commit(Step(ALICE, (said("too late"),), fence=2))
        assert (await row_of(engine)).last_sequence == 3

    async def test_a_fenced_out_instance_may_hand_over_events_only_to_the_owner(
        self, engine: Engine, clock: FakeClock
    ) -> None:
        await open_session(engine)
        await live(engine, A)
        await engine.take(A, ALICE)
        await self.lapse(engine, clock, A)
        await live(engine, B)
        await engine.take(B, ALICE)
        heard = [Opaque(channel="handed-over", payload={"json": letter * 2**18}) for letter in "xy"]
        step = Step(ALICE, tuple(new(event) for event in heard), sends=(Enqueue(0, HANDOVER), Enqueue(1, HANDOVER)))
        with pytest.raises(Fenced):
            await engine.commit(replace(step, fence=1))
        assert await engine.pending_sends(target=HANDOVER) == []
        await engine.commit(step)
        rows = await engine.pending_sends(target=HANDOVER)
        assert [(row.session_id, row.sequence, row.envelope.event) for row in rows] == [
            (ALICE, 2, heard[0]),
            (ALICE, 3, heard[1]),
        ]
        taken = Step(ALICE, (said("decided"),), send_changes=(SendChange(2, HANDOVER, "delivered"),))
        with pytest.raises(Fenced):
            await engine.commit(replace(taken, fence=1))
        with pytest.raises(Stale):
            # The owner finds newer events in its history.
            await engine.commit(replace(taken, fence=2, last_sequence=1))
        assert len(await engine.pending_sends(target=HANDOVER)) == 2
        await engine.commit(replace(taken, fence=2, last_sequence=3))
        assert [row.sequence for row in await engine.pending_sends(session_id=ALICE, target=HANDOVER)] == [3]

    async def test_concurrent_commits_and_takeovers_never_mix_fences(self, engine: Engine) -> None:
        await open_session(engine)
        names = [f"instance-{number}" for number in range(8)]
        await live(engine, *names)

        async def carry(name: str) -> int:
            row = None
            while row is None:
                row = await engine.take(name, ALICE)
                await asyncio.sleep(0)
            steps = (Step(ALICE, (said(name),), fence=row.fence) for _ in range(5))
            await asyncio.gather(*(engine.commit(step) for step in steps))
            late = asyncio.ensure_future(engine.commit(Step(ALICE, (said("late"),), fence=row.fence - 1)))
            await engine.release(name, {ALICE})
            with pytest.raises(Fenced):
                await late
            return row.fence

        async with asyncio.timeout(60):
            assert sorted(await asyncio.gather(*map(carry, names))) == list(range(1, 9))
        # Each instance owned the session alone, so its messages are contiguous.
        assert [len(list(said_together)) for _, said_together in groupby(await texts(engine))] == [5] * 8

    async def test_a_fence_that_moves_among_steps_of_one_moment_divides_them(self, engine: Engine) -> None:
        await open_session(engine)
        await live(engine, A, B)
        await engine.take(A, ALICE)
        for fence in range(1, 20):
            giver, taker = (A, B) if fence % 2 else (B, A)
            done = await asyncio.gather(
                engine.commit(Step(ALICE, (said("old"),), fence=fence)),
                engine.release(giver, {ALICE}),
                engine.take(taker, ALICE),
                engine.commit(Step(ALICE, (said("old or late"),), fence=fence)),
                return_exceptions=True,
            )
            assert {type(one) for one in done if isinstance(one, BaseException)} <= {Fenced}
            await engine.take(taker, ALICE)
            with pytest.raises(Fenced):
                await engine.commit(Step(ALICE, (said("late"),), fence=fence))
            await engine.commit(Step(ALICE, (said("new"),), fence=fence + 1))
        spoken = await texts(engine)
        assert (await row_of(engine)).last_sequence == 1 + len(spoken)
        assert "late" not in spoken

    async def test_the_owner_is_a_live_instance(self, engine: Engine, clock: FakeClock) -> None:
        await open_session(engine)
        await open_session(engine, BOB)
        await live(engine, A)
        assert await engine.owner(ALICE) is None
        assert await engine.owner(SessionId("nobody")) is None
        await engine.take(A, ALICE)
        await engine.take(A, BOB)
        assert await engine.owner(ALICE) == Instance(A, f"http://{A}", True, 2)
        await self.lapse(engine, clock, A)
        assert await engine.owner(ALICE) is None
        assert (await row_of(engine)).owner == A
        await live(engine, B)
        await engine.take(B, ALICE)
        assert await engine.owner(ALICE) == Instance(B, f"http://{B}", True, 1)

    async def test_a_session_keeps_its_fence_over_closing_and_opening_again(self, engine: Engine) -> None:
        await open_session(engine)
        await live(engine, A, B)
        await engine.take(A, ALICE)
        await engine.commit(Step(ALICE, (said(),), state="closed", fence=1))
        await engine.release(A, {ALICE})
        await open_session(engine)
        assert await engine.take(B, ALICE) is not None
        with pytest.raises(Fenced):
            await engine.commit(Step(ALICE, (said(),), fence=1))
        assert (await row_of(engine)).fence == 2

    # Taking over

    async def test_only_open_orphans_of_runtimes_named_are_taken_over(self, engine: Engine, clock: FakeClock) -> None:
        names = await open_many(engine, 6)
        await open_session(engine, SessionId("odd"), runtime="odd")
        await open_session(engine, BOB)
        await close_session(engine, BOB)
        await live(engine, A)
        assert await take_over(engine, A, runtimes=()) == set()
        assert await take_over(engine, A, runtimes={"unknown"}) == set()
        assert await take_over(engine, A) == names
        assert await take_over(engine, A) == set()
        await self.lapse(engine, clock, A)
        await live(engine, B)
        assert await take_over(engine, B, runtimes={"finn", "odd"}) == names | {"odd"}
        assert {(await row_of(engine, name)).fence for name in names} == {2}
        assert (await row_of(engine, SessionId("odd"))).fence == 1
        assert (await row_of(engine, BOB)).fence == 0

    async def test_no_more_than_the_limit_is_taken_over(self, engine: Engine) -> None:
        names = await open_many(engine, 5)
        await live(engine, A)
        assert await take_over(engine, A, limit=0) == set()
        first = await take_over(engine, A, limit=2)
        second = await take_over(engine, A, limit=2)
        third = await take_over(engine, A, limit=2)
        assert (len(first), len(second), len(third)) == (2, 2, 1)
        assert first | second | third == names

    async def test_no_instance_takes_over_more_than_a_fair_share(self, engine: Engine, clock: FakeClock) -> None:
        names = await open_many(engine, 10)
        await live(engine, A, B, C)
        first = await take_over(engine, A)
        second = await take_over(engine, B)
        third = await take_over(engine, C)
        assert (len(first), len(second), len(third)) == (4, 4, 2)
        assert first | second | third == names
        await self.lapse(engine, clock, B)
        assert len(await take_over(engine, A)) == 1
        assert len(await take_over(engine, C)) == 3
        await engine.release(A)
        assert len(await take_over(engine, C, limit=4)) == 4
        assert len(await take_over(engine, C)) == 1

    async def test_two_that_take_over_the_same_orphans_at_once_never_share_one(self, engine: Engine) -> None:
        names = await open_many(engine, self.many)
        await live(engine, A, B)

        async def gather(instance: str) -> list[SessionRow]:
            mine: list[SessionRow] = []
            while found := await engine.take_over(instance, runtimes=RUNTIMES, limit=500):
                mine += found
            return mine

        both = await asyncio.gather(gather(A), gather(B))
        shares = [{row.session_id for row in rows} for rows in both]
        assert shares[0] | shares[1] == names
        assert not shares[0] & shares[1]
        assert [len(rows) for rows in both] == [-(-self.many // 2), self.many // 2]
        assert {(row.owner, row.fence) for rows in both for row in rows} == {(A, 1), (B, 1)}
        assert sorted(one.sessions for one in await engine.instances()) == [self.many // 2, -(-self.many // 2)]

    # Releasing

    async def test_some_sessions_are_released_and_the_others_stay_owned(self, engine: Engine) -> None:
        names = [SessionId(f"s-{number}") for number in range(4)]
        for name in names:
            await open_session(engine, name)
        await live(engine, A, B)
        await engine.hold(A, "sweep")
        await engine.take(B, names[3])
        assert await take_over(engine, A) == {*names[:2]}
        await engine.take(A, names[2])
        await engine.release(A, {names[0], names[3], SessionId("nobody")})
        await engine.release(A, ())
        owners = [(await row_of(engine, name)).owner for name in names]
        assert owners == [None, A, A, B]
        assert not await engine.hold(B, "sweep")
        assert await engine.take(B, names[0]) is not None

    async def test_releasing_everything_ends_the_lease_at_once(self, engine: Engine) -> None:
        await open_many(engine, 3)
        await live(engine, A)
        await take_over(engine, A)
        await engine.hold(A, "sweep")
        await engine.release(A)
        assert await engine.instances() == []
        assert not await engine.beat(A, url=f"http://{A}", ttl=LONG)
        await live(engine, B)
        assert await engine.hold(B, "sweep")
        assert len(await take_over(engine, B)) == 3
        # A late release does not affect the new holder.
        await engine.release(A)
        assert await engine.hold(B, "sweep")
        assert (await engine.instances())[0].sessions == 3

    async def test_an_unknown_instance_releases_nothing(self, engine: Engine) -> None:
        await engine.release("never-lived")
        await engine.release("never-lived", {ALICE})
        assert await engine.instances() == []

    # Continuing under a new lease

    async def test_a_new_instance_regains_the_sessions_of_its_former_one(
        self, engine: Engine, clock: FakeClock
    ) -> None:
        names = sorted(await open_many(engine, 6))
        await live(engine, A)
        for name in names[:5]:
            await engine.take(A, name)
        await engine.commit(Step(names[1], (said(), said()), fence=1))
        await close_session(engine, names[4])
        await self.lapse(engine, clock, A)
        await live(engine, B, C)
        assert await engine.take(C, names[3]) is not None
        found = {one.session_id: (one.fence, one.last_sequence) for one in await engine.regain(B, former={A, "other"})}
        assert found == {names[0]: (2, 1), names[1]: (2, 3), names[2]: (2, 1)}
        owners = [((await row_of(engine, name)).owner, (await row_of(engine, name)).fence) for name in names]
        assert owners == [(B, 2), (B, 2), (B, 2), (C, 2), (owners[4][0], 1), (None, 0)]
        with pytest.raises(Fenced):
            await engine.commit(Step(names[0], (said(),), fence=1))
        await engine.commit(Step(names[0], (said(),), fence=2))
        # A repeated request after a lost response does not raise the fence again.
        again = {one.session_id: (one.fence, one.last_sequence) for one in await engine.regain(B, former={A})}
        assert again == {**found, names[0]: (2, 2)}

    async def test_a_new_instance_ends_the_lease_of_its_former_one(self, engine: Engine) -> None:
        await open_session(engine)
        await live(engine, A)
        await engine.take(A, ALICE)
        assert await engine.hold(A, "sweep")
        await live(engine, B)
        assert [one.fence for one in await engine.regain(B, former={A})] == [2]
        assert not await engine.beat(A, url=f"http://{A}", ttl=LONG)
        assert await engine.take(A, ALICE) is None
        assert await engine.hold(B, "sweep")
        assert await engine.instances() == [Instance(B, f"http://{B}", True, 1)]

    async def test_an_instance_without_a_lease_regains_nothing(self, engine: Engine, clock: FakeClock) -> None:
        await open_session(engine)
        await live(engine, A, B)
        await engine.take(A, ALICE)
        await self.lapse(engine, clock, B)
        for nobody in (B, "never-lived"):
            assert await engine.regain(nobody, former={A}) == []
        assert await engine.take(A, ALICE) is not None
        assert (await row_of(engine)).fence == 1

    async def test_a_session_is_regained_or_taken_over_and_never_both(self, engine: Engine, clock: FakeClock) -> None:
        count = min(self.many, 500)
        await open_many(engine, count)
        await live(engine, A)
        while await take_over(engine, A):
            pass
        await self.lapse(engine, clock, A)
        await live(engine, B, C)

        async def take_over_all() -> set[SessionId]:
            got: set[SessionId] = set()
            while found := await take_over(engine, C, limit=20):
                got |= found
            return got

        regained, taken = await asyncio.gather(engine.regain(B, former={A}), take_over_all())
        mine = {one.session_id for one in regained}
        assert not mine & taken
        rows = [row for row in (await engine.sessions(Page(limit=10_000)))[0] if row.owner != A]
        assert {(row.owner, row.fence) for row in rows} <= {(B, 2), (C, 2)}
        assert {row.session_id for row in rows if row.owner == B} == mine
        assert len(mine | taken) == len(rows) == count

    # Holding

    async def test_one_living_instance_holds_a_name(self, engine: Engine, clock: FakeClock) -> None:
        await live(engine, A, B)
        assert not await engine.hold("never-lived", "sweep")
        assert await engine.hold(A, "sweep")
        assert await engine.hold(A, "sweep")
        assert not await engine.hold(B, "sweep")
        assert await engine.hold(B, "destination:log")
        await self.lapse(engine, clock, A)
        assert not await engine.hold(A, "sweep")
        assert await engine.hold(B, "sweep")
        assert not await engine.hold(A, "sweep")

    async def test_a_released_name_is_free_for_others_at_once(self, engine: Engine) -> None:
        await live(engine, A, B)
        await engine.release_name(A, "never-held")
        assert await engine.hold(A, "key")
        assert await engine.hold(A, "sweep")
        await engine.release_name(B, "key")
        assert not await engine.hold(B, "key")
        await engine.release_name(A, "key")
        assert await engine.hold(B, "key")
        assert not await engine.hold(A, "key")
        await engine.release_name(A, "key")
        assert not await engine.hold(A, "key")
        assert not await engine.hold(B, "sweep")

    async def test_a_sweep_takes_no_name_from_the_living(self, engine: Engine, clock: FakeClock) -> None:
        await live(engine, A, B, C)
        assert await engine.hold(A, "key")
        assert await engine.hold(B, "sweep")
        await self.lapse(engine, clock, A)
        await engine.sweep(RetentionPolicy())
        assert not await engine.hold(C, "sweep")
        assert await engine.hold(C, "key")
        assert await engine.hold(B, "sweep")

    async def test_of_many_concurrent_holds_of_a_name_one_succeeds(self, engine: Engine) -> None:
        names = [f"instance-{number}" for number in range(10)]
        await live(engine, *names)
        held = await asyncio.gather(*(engine.hold(name, "sweep") for name in names))
        assert held.count(True) == 1
        winner = names[held.index(True)]
        await engine.release(winner)
        others = [name for name in names if name != winner]
        held = await asyncio.gather(*(engine.hold(name, "sweep") for name in others))
        assert held.count(True) == 1


class NotifierSuite:
    """Notifications between engines on one store."""

    def build(self, folder: Path, clock: FakeClock) -> Engine:
        raise NotImplementedError

    shared: bool = True
    """Whether several engines may share one store."""

    async def test_the_sender_does_not_receive_its_notification(self, engine: Engine) -> None:
        heard: list[str | None] = []
        stop = engine.listen(heard.append)
        engine.notify("sessions")
        await asyncio.sleep(0.05)
        assert "sessions" not in heard
        stop()
        stop()

    async def test_a_notification_reaches_other_engines_after_its_commit(
        self, engine: Engine, tmp_path: Path, clock: FakeClock
    ) -> None:
        if not self.shared:
            pytest.skip("one engine alone has this store")
        await open_session(engine)
        async with self.build(tmp_path, clock) as other:
            heard: asyncio.Queue[str | None] = asyncio.Queue()
            stop = other.listen(heard.put_nowait)
            await _until_it_hears(engine, heard)
            await engine.commit(Step(ALICE, (said(),)))
            engine.notify("session:alice")
            await _next(heard, "session:alice")
            assert (await row_of(other)).last_sequence == 2
            other.notify("session:bob")
            engine.notify("session:carol")
            stop()
            engine.notify("session:dora")
            await asyncio.sleep(0.05)
            assert not {"session:bob", "session:carol", "session:dora"} & set(_drain(heard))

    async def test_every_listener_receives_and_topics_are_distinguished(
        self, engine: Engine, tmp_path: Path, clock: FakeClock
    ) -> None:
        if not self.shared:
            pytest.skip("one engine alone has this store")
        async with self.build(tmp_path, clock) as second, self.build(tmp_path, clock) as third:
            ears = [asyncio.Queue[str | None]() for _ in range(3)]
            for listener, ear in zip((second, second, third), ears, strict=True):
                listener.listen(ear.put_nowait)
            for ear in ears:
                await _until_it_hears(engine, ear)
            topics = {f"topic-{number}-ä" for number in range(50)}
            for topic in topics:
                engine.notify(topic)
            for ear in ears:
                missing = set(topics)
                async with asyncio.timeout(20):
                    while missing:
                        missing.discard(await ear.get() or "")

    async def test_ringing_never_fails(self, tmp_path: Path, clock: FakeClock) -> None:
        engine = self.build(tmp_path, clock)
        engine.notify("before")
        async with engine:
            for number in range(5_000):
                engine.notify(f"topic-{number}")
        engine.notify("after")


async def _until_it_hears(engine: Engine, ear: asyncio.Queue[str | None]) -> None:
    # A listener receives notifications only shortly after `listen`.
    async with asyncio.timeout(20):
        while True:
            engine.notify("hello")
            try:
                async with asyncio.timeout(0.2):
                    while await ear.get() != "hello":
                        pass
            except TimeoutError:
                continue
            return


async def _next(ear: asyncio.Queue[str | None], topic: str) -> None:
    async with asyncio.timeout(20):
        while await ear.get() != topic:
            pass


def _drain(ear: asyncio.Queue[str | None]) -> Sequence[str | None]:
    return [ear.get_nowait() for _ in range(ear.qsize())]

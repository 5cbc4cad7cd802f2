"""Copies of events: what has arrived is marked in few steps, and hardly anything of it is sent again."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from gateway.core.session import RetryPolicy
from gateway.executors.port import Copied
from gateway.guard import Tasks, guard
from gateway.runtime.delivery.links import Links
from gateway.runtime.delivery.notices import Notices
from gateway.runtime.delivery.subscriptions import DeliveryRules, EventDelivery, target_of
from gateway.runtime.policy import copying_of
from gateway.runtime.system_clock import SystemIds
from gateway.settings.model import DestinationSpec
from gateway.store.rows import Page, Send
from gateway.store.sqlite import TemporaryEngine
from gateway.store.step import Committed, Enqueue, Step
from gateway.testing.conformance.engine_words import ALICE, BOB, FakeClock, open_session, said
from tests.pace import PATIENCE

SESSIONS = (ALICE, BOB)
LOG = target_of("log")
EACH = 40
WITHIN = timedelta(hours=1)
POLICY: RetryPolicy = copying_of(DestinationSpec.model_validate({"url": "http://127.0.0.1:9/", "attempts": 3}))


class CountingEngine(TemporaryEngine):
    """A store that notes the steps that change sends."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.marks: list[list[int]] = []

    async def commit(self, step: Step) -> Committed:
        committed = await super().commit(step)
        if step.send_changes:
            self.marks.append([change.sequence for change in step.send_changes])
        return committed


class Receiver:
    """A destination that says of each copy when it has arrived."""

    def __init__(self, take: Callable[[int], Copied | float] = lambda _: 0.0) -> None:
        self.taken: list[tuple[str, int]] = []
        self._take = take

    async def copy(self, *, key: str, kind: str, at: datetime, data: dict[str, Any], attempt: int) -> Copied:
        del key, kind, at, attempt
        self.taken.append((data["session_id"], data["sequence"]))
        said = self._take(data["sequence"])
        if isinstance(said, Copied):
            return said
        # As long as it takes.
        await asyncio.sleep(said)
        return Copied("delivered")

    async def __aenter__(self) -> "Receiver":
        return self

    async def __aexit__(self, *exc: object) -> None:
        return

    def of(self, session_id: str) -> list[int]:
        return [sequence for name, sequence in self.taken if name == session_id]


@asynccontextmanager
async def delivering(
    receiver: Receiver, *, each: int = EACH
) -> AsyncGenerator[tuple[CountingEngine, EventDelivery, "asyncio.Task[None]"]]:
    """Deliver so many copies of each session."""
    clock = FakeClock()
    async with CountingEngine(clock) as engine, Tasks() as tasks:
        for session_id in SESSIONS:
            await open_session(engine, session_id)
            copied = tuple(Enqueue(number, LOG, "turn") for number in range(each))
            await engine.commit(Step(session_id, tuple(said(str(number)) for number in range(each)), sends=copied))
        delivery = EventDelivery(
            "log",
            receiver,
            DeliveryRules(POLICY, concurrency=4, longest_sleep=30.0, reconnect_within=WITHIN),
            Notices(engine, clock, Links(engine, clock, SystemIds(clock), key=b"key"), local_url=None),
            engine=engine,
            clock=clock,
            jitter=lambda: 0.5,
        )
        yield engine, delivery, guard("copies", delivery.run, tasks, again=False)
        await tasks.close()


async def pending(engine: CountingEngine) -> list[Send]:
    return [*await engine.pending_sends(target=LOG)]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def test_copies_that_arrive_together_are_marked_in_one_step_of_their_session() -> None:
    receiver = Receiver()
    async with delivering(receiver) as (engine, _, _):
        await until(lambda: sum(map(len, engine.marks)) == 2 * EACH)
        assert await pending(engine) == []
        in_order = [*range(2, EACH + 2)]
        assert engine.marks == [in_order, in_order]
        assert (receiver.of(ALICE), receiver.of(BOB)) == (in_order, in_order)


async def test_a_copy_that_has_to_wait_is_marked_with_those_before_it_and_holds_back_those_behind() -> None:
    receiver = Receiver(lambda sequence: Copied("again", "busy") if sequence == 5 else 0.0)
    async with delivering(receiver) as (engine, _, _):
        await until(lambda: len(engine.marks) == 2)
        assert engine.marks == [[2, 3, 4, 5]] * 2
        assert receiver.of(ALICE) == [2, 3, 4, 5]
        first = (await pending(engine))[0]
        assert (first.sequence, first.attempt, first.reason) == (5, 1, "busy")
        assert first.due_at is not None


async def test_what_has_arrived_is_marked_where_delivery_is_broken_off() -> None:
    receiver = Receiver(lambda sequence: 60.0 if sequence == 9 else 0.0)
    async with delivering(receiver) as (engine, _, running):
        await until(lambda: len(receiver.taken) == 2 * 8)
        assert engine.marks == []
        running.cancel()
        await asyncio.wait({running})
        assert engine.marks == [[*range(2, 9)]] * 2


async def test_a_slow_destination_has_its_copies_marked_each_second() -> None:
    receiver = Receiver(lambda _: 0.4)
    async with delivering(receiver, each=9) as (engine, _, _):
        await until(lambda: len(engine.marks) >= 2)
        assert engine.marks[:2] == [[2, 3, 4], [2, 3, 4]]


async def test_a_process_that_finishes_marks_what_has_arrived_and_begins_no_other_copy() -> None:
    receiver = Receiver(lambda sequence: 0.2 if sequence == 3 else 0.0)
    async with delivering(receiver) as (engine, delivery, running):
        await until(lambda: receiver.of(ALICE) == receiver.of(BOB) == [2, 3])
        delivery.finish()
        await asyncio.wait_for(asyncio.wait({running}), PATIENCE)
        assert engine.marks == [[2, 3]] * 2
        assert receiver.of(ALICE) == [2, 3]


async def test_a_copy_that_could_not_be_sent_uses_up_no_attempt_and_waits_for_its_destination() -> None:
    away = [True]
    receiver = Receiver(lambda _: Copied("unsent", "no connection") if away[0] else 0.0)
    async with delivering(receiver, each=1) as (engine, delivery, _):
        for tries in range(1, 2 * POLICY.attempts):
            await until(lambda tries=tries: len(engine.marks) >= 2 * tries)
            rows = await pending(engine)
            assert [(row.attempt, row.reason) for row in rows] == [(0, "no connection")] * 2
            assert all(row.due_at is not None for row in rows)
            # The pause doubles, as the time does for which it has been away.
            engine.clock.turn(timedelta(seconds=5 * 2**tries))
            delivery.wake()
        away[0] = False
        engine.clock.turn(timedelta(minutes=10))
        delivery.wake()
        await until(lambda: len(receiver.taken) > 4 * POLICY.attempts - 2)
        await until(lambda: len(engine.marks) >= 4 * POLICY.attempts)
        assert await pending(engine) == []


async def test_copies_are_dead_when_their_destination_was_unreachable_for_too_long() -> None:
    receiver = Receiver(lambda _: Copied("unsent", "no connection"))
    async with delivering(receiver, each=1) as (engine, delivery, _):
        await until(lambda: len(engine.marks) >= 2)
        engine.clock.turn(WITHIN)
        delivery.wake()
        await until(lambda: len(engine.marks) >= 4)
        dead, _ = await engine.dead_sends(Page(10))
        assert [(row.state, row.attempt) for row in dead] == [("dead", 0)] * 2
        assert all((row.reason or "").startswith("unreachable since ") for row in dead)

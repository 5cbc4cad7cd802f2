"""The PostgreSQL engine, which several gateways may share. A commit returns when it is on the server's disk.

It needs PostgreSQL 14 or newer and uses one schema. Steps are committed in batches (`commits`); all other work uses
`pool`. Each transaction is executed exactly once (`once`). If the server is unreachable, commits wait ten seconds and
queries five. Then they raise EngineUnavailable, and nothing was written.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

import orjson
import structlog

from gateway.clock import Clock
from gateway.errors import EngineUnavailable, EngineUnusable, InvalidRequest, NotFound
from gateway.events import CallId, SessionId
from gateway.store.encoding import encode_event
from gateway.store.outage import StoreOutage
from gateway.store.port import NewSession, Report, Settled, report_nothing
from gateway.store.postgres import leases, upkeep
from gateway.store.postgres.commits import LANES, CommitLanes
from gateway.store.postgres.connection import Address
from gateway.store.postgres.notifier import PostgresNotifier
from gateway.store.postgres.once import ExactlyOnce, Line
from gateway.store.postgres.pool import Pool
from gateway.store.postgres.schema import FORGET_FOREIGN, check, migrate
from gateway.store.postgres.store import BEGIN_EVENTS
from gateway.store.postgres.tables import NEWEST
from gateway.store.postgres.tuning import PRODUCTION, PostgresTuning
from gateway.store.questions import order
from gateway.store.questions.answers import AnswersQuestions
from gateway.store.questions.question import Question, T
from gateway.store.records import micros
from gateway.store.retention import RemovedRows
from gateway.store.rows import EngineHealth, Holder, Instance, Position, Regained, SessionRow, StoredAnswer
from gateway.store.settling import encode, report_soon
from gateway.store.shared_probe import SharedProbe
from gateway.store.step import Committed, Step

log = structlog.get_logger(__name__)

_ENDED = """
SELECT (extract(epoch FROM clock_timestamp() - ended_at) * 1000000)::bigint, finished_at
FROM @calls WHERE call_id = $1 AND finished_at IS NOT NULL
"""
RESERVED = LANES + 1
"""The number of connections that run no queries: two write steps, one renews the lease."""


@dataclass(frozen=True, slots=True)
class _Open:
    lanes: CommitLanes
    pool: Pool
    pulse: Pool
    """A separate connection for the lease, so that no query delays a heartbeat."""
    notifier: PostgresNotifier


class PostgresEngine(AnswersQuestions):
    """Stores all data in one schema of the database at `dsn`; any number of gateways may share it."""

    def __init__(
        self,
        dsn: str,
        clock: Clock,
        *,
        direct_dsn: str | None = None,
        schema: str = "dragoman",
        connections: int = 8,
        tuning: PostgresTuning = PRODUCTION,
    ) -> None:
        self.report: Report = report_nothing
        """Gets the steps of a start; set it before the engine is entered."""
        self._tuning = tuning
        self._address = Address(dsn, schema, tuning)
        self._clock = clock
        self.outage = StoreOutage(clock)
        self._questions = max(connections - RESERVED, 1)
        self._notified_at = Address(direct_dsn or dsn, schema, tuning)
        self._now_open: _Open | None = None
        self._doubts: set[str] = set()
        self._stack = AsyncExitStack()
        self._probing = SharedProbe(self._address.place, self._probe, patience=tuning.probe)

    async def __aenter__(self) -> Self:
        await self._prepare()
        once = ExactlyOnce()
        async with AsyncExitStack() as stack:
            pool = Pool(self._address, once, size=self._questions, answer=self._tuning.ask)
            stack.push_async_callback(pool.close)
            pulse = Pool(self._address, once, size=1, answer=self._tuning.beat)
            stack.push_async_callback(pulse.close)
            lanes = CommitLanes(self._address, once, self._clock)
            stack.push_async_callback(lanes.stop)
            stack.push_async_callback(self._probing.close)
            notifier = PostgresNotifier(self._notified_at)
            stack.push_async_callback(notifier.stop)
            self._now_open = _Open(lanes, pool, pulse, notifier)
            await self._read_generation()
            notifier.start()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._now_open = None
        await self._stack.aclose()

    async def _prepare(self) -> None:
        """Check the server's settings and migrate the schema.

        Raises:
            EngineUnusable, SchemaTooNew: an operator must act, or the server stayed unreachable for too long.
        """
        loop, tuning = asyncio.get_running_loop(), self._tuning
        line, until, pause = Line(self._address), loop.time() + tuning.start, tuning.pause_first
        try:
            while True:
                self.report(f"waiting for {self._address.place}", 1 - (until - loop.time()) / tuning.start)
                try:
                    link = await line.link()
                    found = await check(link)
                    await migrate(link, self.report)
                    await link.ask(FORGET_FOREIGN)
                    break
                except EngineUnavailable as exc:
                    if loop.time() + pause > until:
                        raise EngineUnusable(str(exc)) from exc
                await asyncio.sleep(pause)
                pause = min(pause * 2, tuning.pause_longest)
        finally:
            await line.close()
        self._show(found)

    def _show(self, found: Mapping[str, str]) -> Mapping[str, str]:
        """Log each problem of the server once; return all settings for the operator."""
        doubts = {name for name in found if name.startswith("warning ")}
        for name in sorted(doubts - self._doubts):
            log.warning("the database server needs attention", place=self._address.place, reason=found[name])
        self._doubts = doubts
        return {
            "place": self._address.place,
            "schema": f"{self._address.schema} {NEWEST}",
            "pooler": "no" if self._address.direct else "yes",
            **found,
        }

    @property
    def _open(self) -> _Open:
        if self._now_open is None:
            raise EngineUnavailable(f"{self._address.place} is not open")
        return self._now_open

    @property
    def _pool(self) -> Pool:
        return self._open.pool

    async def _answer(self, question: Question[T]) -> T:
        rows = await self._pool.ask(question.for_postgres, *question.values)
        return question.read_postgres([tuple(row) for row in rows])

    def _now(self) -> int:
        return micros(self._clock.now())

    # Journal

    async def commit(self, step: Step) -> Committed:
        return await self._open.lanes.commit(step, encode(step.events))

    def submit(self, steps: Sequence[Step], settled: Settled) -> int:
        try:
            lanes = self._open.lanes
        except EngineUnavailable as exc:
            report_soon([(settled, (step, exc)) for step in steps])
            return len(steps)
        return lanes.submit(steps, settled)

    # Order

    async def end(self) -> Position:
        return await self._bound(), 0, 0

    async def _bound(self) -> int:
        # In a statement before the one that reads, so that the reader sees every transaction that has ended.
        bound, doubtful = await self._answer(order.bound())
        oldest = await self._answer(order.still_running(doubtful)) if doubtful else None
        return bound if oldest is None else min(bound, oldest)

    async def held_back_by(self) -> Holder | None:
        return await self._answer(order.holder())

    # Registry

    async def open_session(self, new: NewSession) -> tuple[SessionRow, bool]:
        try:
            labels = orjson.dumps(dict(new.labels)).decode()
        except orjson.JSONEncodeError as exc:
            raise InvalidRequest(f"the labels cannot be stored: {exc}") from exc
        found, is_new = await self._pool.transact(
            upkeep.open_session(new, labels, encode_event(new.first), now=self._now()), begin=BEGIN_EVENTS
        )
        row = await self.session(found)
        if row is None:
            raise NotFound(f"no session {found!r}")
        return row, is_new

    async def erase(self, session_id: SessionId) -> None:
        reached: int | None = 0
        while reached is not None:
            reached = await self._pool.transact(upkeep.erase(session_id, reached))

    # Ledger

    async def ended_for(self, call_id: CallId) -> timedelta | None:
        rows = await self._pool.ask(_ENDED, call_id)
        if not rows:
            return None
        span, finished_at = rows[0]
        # Uses the gateway's clock only if the row of an earlier release or a transfer has no server time.
        return timedelta(microseconds=self._now() - finished_at if span is None else span)

    async def revive(self, session_id: SessionId, sequence: int, target: str, *, due_at: datetime) -> bool:
        return await self._pool.transact(upkeep.revive(session_id, sequence, target, micros(due_at)))

    async def dismiss(self, session_id: SessionId, sequence: int, target: str, *, reason: str) -> bool:
        return await self._pool.transact(upkeep.dismiss(session_id, sequence, target, reason))

    # Memory

    async def remember(self, *, key: str, scope: str, answer: StoredAnswer) -> bool:
        return await self._pool.transact(upkeep.remember(key, scope, answer, self._now()))

    async def set_note(self, name: str, value: str | None) -> None:
        await self._pool.transact(upkeep.set_note(name, value))

    # Leases

    async def beat(self, instance: str, *, url: str, ttl: timedelta) -> bool:
        return await leases.beat(self._open.pulse, instance, url, ttl)

    async def take(self, instance: str, session_id: SessionId) -> SessionRow | None:
        return await leases.take(self._pool, instance, session_id)

    async def take_over(self, instance: str, *, runtimes: Collection[str], limit: int) -> Sequence[SessionRow]:
        return await self._pool.transact(leases.take_over(instance, runtimes, limit))

    async def regain(self, instance: str, *, former: Collection[str]) -> Sequence[Regained]:
        return await self._pool.transact(leases.regain(instance, former))

    async def release(self, instance: str, session_ids: Collection[SessionId] | None = None) -> None:
        await leases.release(self._pool, instance, session_ids)

    async def owner(self, session_id: SessionId) -> Instance | None:
        return await leases.owner(self._pool, session_id)

    async def instances(self) -> Sequence[Instance]:
        return await leases.instances(self._pool)

    async def hold(self, instance: str, name: str) -> bool:
        return await leases.hold(self._pool, instance, name)

    async def release_name(self, instance: str, name: str) -> None:
        await leases.release_name(self._pool, instance, name)

    # Notifier

    def notify(self, topic: str) -> None:
        if self._now_open is not None:
            self._now_open.notifier.notify(topic)

    def listen(self, heard: Callable[[str | None], None]) -> Callable[[], None]:
        return self._open.notifier.listen(heard)

    # Upkeep

    async def _cut(self, firsts: Mapping[SessionId, int], copies_from: int) -> RemovedRows:
        return await self._pool.transact(upkeep.cut(firsts, copies_from))

    async def _drop_calls(self, before: int, budget: int) -> int:
        return await self._pool.transact(upkeep.drop_calls(before, budget, self._now()))

    async def health(self) -> EngineHealth:
        return await self._probing.ask()

    async def _probe(self) -> EngineHealth:
        self._open.lanes.check_writes()
        size, found = await self._pool.transact(upkeep.probe(self._address.schema))
        return EngineHealth(writable=True, bytes_used=size, extra=self._show(found))

"""Commits steps in batches that share a transaction, in two lanes by session.

A batch contains the steps that arrived during the previous commit. They are settled after COMMIT has returned. If
PostgreSQL rejects a step, only this step fails: its batch is rolled back and retried in halves.

A lane remembers the rows that it has written. If it knows all sessions of a batch, the batch is one statement, which
commits only if these sessions are unchanged. All other batches, and a batch after a failed statement, use a
transaction that locks and reads the sessions first.

If another transaction locks rows of a session for longer than a statement waits, the steps of this session are
isolated in their own batches until one succeeds. Each failed attempt ends with EngineUnavailable.

While the server is unreachable, up to WAITING steps or `waiting_bytes` bytes are queued; later callers wait for a free
slot. A step that has waited for `commit` seconds (see the tuning) ends with EngineUnavailable and is certainly not
written. Only a batch that lost its connection during the commit waits until its fate is known. The session
fails the API requests of its clients and retries all other inputs.
"""

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from gateway.clock import Clock
from gateway.errors import DragomanError, EngineUnavailable, InvalidRequest, OperatorError
from gateway.events import SessionId
from gateway.guard import FAULTS, Tasks, guard
from gateway.store.apply import Writes, decide
from gateway.store.byte_budget import ByteBudget
from gateway.store.port import Settled
from gateway.store.postgres.connection import Address, Connection
from gateway.store.postgres.faults import RowHeld
from gateway.store.postgres.known import KnownRows
from gateway.store.postgres.once import ExactlyOnce, Line, Transaction
from gateway.store.postgres.store import ALONE, lock, write, writing
from gateway.store.records import EventRecord, micros
from gateway.store.settling import Result, into, offer, report_soon
from gateway.store.step import Committed, Step

LANES = 2
BATCH_BYTES = 8 * 1024**2
"""The limit of a batch in bytes of events; a single step may have more."""
WAITING = 1_024
"""The limit of the queue in steps; later callers wait for a free slot."""
ISOLATION_SECONDS = 1.0
"""If rows of a batch are locked, its steps are written one by one for this time; the others fail and are retried."""
LOCKED_FOR = 30.0
"""Seconds for which the steps of a session with locked rows are isolated; a session that runs here retries sooner."""
REFUSED_FOR = 5.0
"""Seconds for which a lane counts as unable to write after a failure, unless a write succeeds."""
CLOSING = 15.0
"""Seconds to write the queued steps when the engine closes."""


class Job(NamedTuple):
    """A step to decide and write."""

    step: Step
    events: Sequence[EventRecord]
    weight: int
    """The size of its events in bytes."""
    settled: Settled
    since: float


Verdict = tuple[Job, Committed | None, Exception | None]


class _Written(NamedTuple):
    verdicts: list[Verdict]
    link: Connection
    writes: Writes
    version: str


class CommitLanes:
    """Commits steps in two lanes, from construction until `stop`."""

    def __init__(self, address: Address, once: ExactlyOnce, clock: Clock) -> None:
        self._address = address
        self._patience = address.tuning.commit
        self._slots = ByteBudget(WAITING)
        self._weight = ByteBudget(address.tuning.waiting_bytes)
        self._lanes = [_Lane(address, once, clock, self._leave) for _ in range(LANES)]
        self._tasks = Tasks()
        # Not a task group, because one task may start the engine and another one stop it.
        self._running = [guard("postgres lane", lane.run, self._tasks) for lane in self._lanes]
        self._closing = False

    async def stop(self) -> None:
        """Write the queued steps and stop; steps that cannot be written in time fail."""
        self._closing = True
        for lane in self._lanes:
            lane.close()
        await asyncio.wait(self._running, timeout=CLOSING)
        await self._tasks.close()

    async def commit(self, step: Step, events: Sequence[EventRecord]) -> Committed:
        loop = asyncio.get_running_loop()
        since = loop.time()
        self._check_open()
        size = _size(events)
        if not self._takes(size):
            await self._enter(size, since)
        future: asyncio.Future[Committed] = loop.create_future()
        self._lane_of(step).put(Job(step, events, size, into(future), since))
        return await future

    def submit(self, steps: Sequence[Step], settled: Settled) -> int:
        try:
            self._check_open()
        except EngineUnavailable as exc:
            report_soon([(settled, (step, exc)) for step in steps])
            return len(steps)
        return offer(steps, settled, partial(self._submit, settled))

    def _submit(self, settled: Settled, step: Step, events: Sequence[EventRecord]) -> bool:
        size = _size(events)
        if not self._takes(size):
            return False
        self._lane_of(step).put(Job(step, events, size, settled, asyncio.get_running_loop().time()))
        return True

    def _lane_of(self, step: Step) -> "_Lane":
        return self._lanes[zlib.crc32(step.session_id.encode(errors="replace")) % LANES]

    def _takes(self, size: int) -> bool:
        """Take a slot and the bytes of a step if both are free at once."""
        if not self._slots.takes(1):
            return False
        if not self._weight.takes(size):
            self._slots.leave(1)
            return False
        return True

    def _leave(self, size: int) -> None:
        self._slots.leave(1)
        self._weight.leave(size)

    async def _enter(self, size: int, since: float) -> None:
        try:
            async with asyncio.timeout_at(since + self._patience):
                await self._weight.enter(size)
                try:
                    await self._slots.enter(1)
                except BaseException:
                    self._weight.leave(size)
                    raise
        except TimeoutError as exc:
            raise EngineUnavailable(f"{self._address.place} is too slow: too many steps are queued") from exc
        if self._closing:
            self._leave(size)
            self._check_open()

    def check(self) -> None:
        """Check that every lane is running.

        Raises:
            EngineUnavailable: a lane has ended.
        """
        if any(lane.ended for lane in self._lanes):
            raise EngineUnavailable(f"a writer of {self._address.place} has failed: restart the gateway")

    def check_writes(self) -> None:
        """Check that the recent writes of every lane succeeded.

        Raises:
            EngineUnavailable: a lane has ended, or its last write has failed.
        """
        self.check()
        for lane in self._lanes:
            if (reason := lane.refusal) is not None:
                raise EngineUnavailable(reason)

    def _check_open(self) -> None:
        if self._closing:
            raise EngineUnavailable(f"{self._address.place} is closed")
        self.check()


class _Lane:
    def __init__(self, address: Address, once: ExactlyOnce, clock: Clock, leave: Callable[[int], None]) -> None:
        """Prepare; `leave` frees the slot and the bytes of a step."""
        self._tuning = address.tuning
        self._line = Line(address)
        self._once = once
        self._clock = clock
        self._leave = leave
        self._link: Connection | None = None
        self._known = KnownRows(self._tuning.remembered)
        self._waiting: deque[Job] = deque()
        self._news = asyncio.Event()
        self._locked: dict[SessionId, float] = {}
        """The time at which rows were last locked by another transaction, by session."""
        self._refused = 0.0, ""
        self._closing = False
        self.ended = False

    @property
    def refusal(self) -> str | None:
        """The reason of the recent failure; None if there is none."""
        at, reason = self._refused
        return reason if reason and asyncio.get_running_loop().time() - at < REFUSED_FOR else None

    def put(self, job: Job) -> None:
        if self.ended:
            self._refuse([job])
        else:
            self._waiting.append(job)
            self._news.set()

    def close(self) -> None:
        self._closing = True
        self._news.set()

    async def run(self) -> None:
        batch: list[Job] = []
        self.ended = False
        try:
            while True:
                await self._news.wait()
                batch = _take(self._waiting, self._tuning.batch)
                if batch:
                    verdicts = await self._process(batch)
                    self._note(verdicts)
                    self._resolve(verdicts)
                    batch = []
                elif self._closing:
                    return
                else:
                    self._news.clear()
        finally:
            # Also after a failure, so that no caller waits forever.
            self.ended = True
            unwritten = [*batch, *self._waiting]
            self._waiting.clear()
            self._refuse(unwritten)
            await self._line.close()

    def _refuse(self, jobs: Sequence[Job]) -> None:
        text = f"the writer of {self._line.address.place} has stopped"
        self._resolve([(job, None, EngineUnavailable(text)) for job in jobs])

    def _resolve(self, verdicts: Sequence[Verdict]) -> None:
        results: list[tuple[Settled, Result]] = []
        for job, value, error in verdicts:
            self._leave(job.weight)
            results.append((job.settled, (job.step, value or error or EngineUnavailable("no response"))))
        # Not in the task of this lane, which an exception of a receiver must not end.
        report_soon(results)

    def _note(self, verdicts: Sequence[Verdict]) -> None:
        """Record whether writes succeed; locked rows of one session do not count as a failure of the lane."""
        if any(value is not None for _, value, _ in verdicts):
            self._refused = 0.0, ""
            return
        reason = next((str(error) for _, _, error in verdicts if isinstance(error, EngineUnavailable)), None)
        if reason is not None and {job.step.session_id for job, _, _ in verdicts} != self._locked.keys():
            self._refused = asyncio.get_running_loop().time(), reason

    async def _process(self, batch: Sequence[Job]) -> list[Verdict]:
        if not self._locked:
            return await self._write(batch)
        oldest = asyncio.get_running_loop().time() - LOCKED_FOR
        self._locked = {session_id: at for session_id, at in self._locked.items() if at > oldest}
        isolated = [job for job in batch if job.step.session_id in self._locked]
        others = [job for job in batch if job.step.session_id not in self._locked]
        verdicts = await self._write(others) if others else []
        return [*verdicts, *(await self._write(isolated, hurried=True) if isolated else ())]

    async def _write(self, batch: Sequence[Job], *, hurried: bool = False) -> list[Verdict]:
        sessions = {job.step.session_id for job in batch}
        try:
            verdicts = None if hurried else await self._write_at_once(batch)
            if verdicts is not None:
                return verdicts
            until = 0.0 if hurried else min(job.since for job in batch) + self._tuning.commit
            begin = lock(sessions, hurried=hurried)
            done = await self._once.run(self._line, partial(self._attempt, batch), begin=begin, until=until)
        except EngineUnavailable as exc:
            if isinstance(exc, RowHeld) or isinstance(exc.__cause__, RowHeld):
                return await self._write_one_by_one(batch, exc)
            return [(job, None, exc) for job in batch]
        except OperatorError as exc:
            return [(job, None, _unavailable(exc)) for job in batch]
        except (InvalidRequest, ValueError, TypeError, OverflowError) as exc:
            if len(batch) == 1:
                return [(batch[0], None, _refused(exc))]
        # Nothing was written. Halving the batch finds the failing session.
        except Exception as exc:  # noqa: BLE001
            if len(batch) == 1:
                FAULTS.get().note("postgres lane", exc, session_id=batch[0].step.session_id)
                return [(batch[0], None, exc)]
        else:
            if done.link is not self._link:
                await self._adopt(done.link)
            self._known.keep(done.writes, done.version)
            if self._locked:
                self._locked = {session_id: at for session_id, at in self._locked.items() if session_id not in sessions}
            return done.verdicts
        half = len(batch) // 2
        return [
            *await self._write(batch[:half], hurried=hurried),
            *await self._write(batch[half:], hurried=hurried),
        ]

    async def _write_one_by_one(self, batch: Sequence[Job], exc: EngineUnavailable) -> list[Verdict]:
        """Write steps one by one to find the sessions with locked rows."""
        loop = asyncio.get_running_loop()
        until = loop.time() + ISOLATION_SECONDS
        verdicts: list[Verdict] = []
        for job in batch:
            if len(batch) > 1 and loop.time() < until:
                verdicts += await self._write([job], hurried=True)
            else:
                self._locked[job.step.session_id] = loop.time()
                verdicts.append((job, None, exc))
        return verdicts

    async def _write_at_once(self, batch: Sequence[Job]) -> list[Verdict] | None:
        """Commit a batch in one statement if all its rows are known; return None if they must be read first."""
        link, fresh = self._link, self._tuning.fresh
        if link is None or not link.answered_within(fresh) or not self._known.suffice(job.step for job in batch):
            return None
        writes = Writes(micros(self._clock.now()))
        try:
            verdicts: list[Verdict] = [
                (job, decide(job.step, job.events, known=self._known, writes=writes), None) for job in batch
            ]
            rows = await self._once.run_statement(self._line, link, *writing(writes, self._known))
        except RowHeld:
            self._known.forget(job.step.session_id for job in batch)
            raise
        except (DragomanError, ValueError, TypeError, OverflowError):
            # The remembered rows may be outdated, so the caller reads the stored ones.
            self._known.forget(job.step.session_id for job in batch)
            return None
        for version, _ in rows:
            self._known.keep(writes, version)
        return verdicts

    async def _adopt(self, link: Connection) -> None:
        """Prepare a new connection for statements without a transaction, and forget all remembered rows."""
        # The connection may lead to another server.
        self._link, self._known = None, KnownRows(self._tuning.remembered)
        if link.address.direct:
            try:
                await link.run(ALONE)
            except EngineUnavailable:
                # The next batch reports the failure if it persists.
                return
            self._link = link

    async def _attempt(self, batch: Sequence[Job], turn: Transaction) -> _Written:
        known = self._known if turn.link is self._link else KnownRows(self._tuning.remembered)
        await known.fetch(turn.link, (job.step for job in batch))
        writes = Writes(micros(self._clock.now()))
        verdicts: list[Verdict] = []
        for job in batch:
            try:
                verdicts.append((job, decide(job.step, job.events, known=known, writes=writes), None))
            except DragomanError as exc:
                verdicts.append((job, None, exc))
        version = ""
        if writes.heads:
            version = await write(turn.link, writes, known=known, token=turn.token, spent=turn.spent)
            turn.marked = True
        else:
            turn.idle = True
        return _Written(verdicts, turn.link, writes, version)


def _size(events: Sequence[EventRecord]) -> int:
    return sum([event.size for event in events])


def _take(waiting: deque[Job], most: int) -> list[Job]:
    batch: list[Job] = []
    weight = 0
    while waiting and len(batch) < most:
        weight += waiting[0].weight
        if batch and weight > BATCH_BYTES:
            break
        batch.append(waiting.popleft())
    return batch


def _unavailable(exc: OperatorError) -> DragomanError:
    # The DSN and the permissions were valid at the start, so this failure may be temporary.
    error = EngineUnavailable(str(exc))
    error.__cause__ = exc
    return error


def _refused(exc: Exception) -> DragomanError:
    if isinstance(exc, DragomanError):
        return exc
    error = InvalidRequest(f"the step cannot be stored: {exc}")
    error.__cause__ = exc
    return error

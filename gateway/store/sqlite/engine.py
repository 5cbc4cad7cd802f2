"""The default engine: one SQLite file, written by one thread, nothing acknowledged before the disk has it.

The lock on the file keeps other processes out, so no lease outlives the process, and the notifier reaches nobody.
"""

import asyncio
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Self

import orjson
import structlog

from gateway.clock import Clock
from gateway.errors import EngineUnavailable, InvalidRequest, NotFound
from gateway.events import CallId, SessionId
from gateway.store.encoding import encode_event
from gateway.store.outage import StoreOutage
from gateway.store.port import NewSession, Report, Settled, report_nothing
from gateway.store.questions.answers import AnswersQuestions
from gateway.store.questions.question import Question, T
from gateway.store.records import micros
from gateway.store.retention import RemovedRows
from gateway.store.roster import Roster
from gateway.store.rows import EngineHealth, Instance, Regained, SessionRow, StoredAnswer
from gateway.store.settling import report_soon
from gateway.store.shared_probe import SharedProbe
from gateway.store.sqlite import leases, upkeep
from gateway.store.sqlite.dialect import answer
from gateway.store.sqlite.file_guard import FileGuard
from gateway.store.sqlite.lock import FileLock, check_place, locate
from gateway.store.sqlite.privacy import make_private
from gateway.store.sqlite.readers import Readers
from gateway.store.sqlite.tuning import PRODUCTION, SqliteTuning
from gateway.store.sqlite.writer import Writer
from gateway.store.step import Committed, Step

log = structlog.get_logger(__name__)

_LOG_PAUSE = 0.1
_SYNCHRONOUS = {0: "off", 1: "normal", 2: "full", 3: "extra"}


class SqliteEngine(AnswersQuestions):
    """Keep everything in the file at `path`; its folder must exist and be on a local disk."""

    def __init__(
        self, path: Path, clock: Clock, *, tuning: SqliteTuning = PRODUCTION, report: Report = report_nothing
    ) -> None:
        self._report = report
        self._tuning = tuning
        self._path = locate(path)
        self._clock = clock
        self.outage = StoreOutage(clock)
        self._lock = FileLock(self._path)
        self._opened: tuple[Writer, Readers, Roster] | None = None
        self._probing = SharedProbe(f"the disk of {str(self._path)!r}", self._probe, patience=tuning.probe)

    async def __aenter__(self) -> Self:
        check_place(self._path)
        self._lock.acquire()
        try:
            make_private(self._path)
            guard = FileGuard(self._path, confirm=self._tuning.confirm)
            writer = self._make_writer(guard)
            await writer.start()
        except BaseException:
            self._lock.release()
            raise
        self._opened = writer, Readers(self._path, guard), Roster(self._clock)
        await self._read_generation()
        return self

    async def __aexit__(self, *exc: object) -> None:
        writer, readers, _ = self._open
        self._opened = None
        try:
            await self._probing.close()
            await readers.close()
        finally:
            try:
                await writer.stop()
            finally:
                self._lock.release()

    def _make_writer(self, guard: FileGuard) -> Writer:
        return Writer(self._path, self._clock, guard, self._tuning, report=self._report)

    @property
    def _open(self) -> tuple[Writer, Readers, Roster]:
        if self._opened is None:
            raise EngineUnavailable(f"the database {str(self._path)!r} is not open")
        return self._opened

    @property
    def _write(self) -> Writer:
        return self._open[0]

    @property
    def _read(self) -> Readers:
        return self._open[1]

    @property
    def _roster(self) -> Roster:
        return self._open[2]

    async def _answer(self, question: Question[T]) -> T:
        return await self._read.ask(answer, question)

    def _now(self) -> int:
        return micros(self._clock.now())

    # Journal

    async def commit(self, step: Step) -> Committed:
        return await self._open[0].commit(step)

    def submit(self, steps: Sequence[Step], settled: Settled) -> int:
        try:
            writer = self._write
        except EngineUnavailable as exc:
            report_soon([(settled, (step, exc)) for step in steps])
            return len(steps)
        return writer.submit(steps, settled)

    # Registry

    async def open_session(self, new: NewSession) -> tuple[SessionRow, bool]:
        try:
            labels = orjson.dumps(dict(new.labels)).decode()
        except orjson.JSONEncodeError as exc:
            raise InvalidRequest(f"the labels cannot be kept: {exc}") from exc
        found, is_new = await self._write.run(upkeep.open_session(new, labels, encode_event(new.first)))
        row = await self.session(found)
        if row is None:
            raise NotFound(f"no session {found!r}")
        return row, is_new

    async def erase(self, session_id: SessionId) -> None:
        reached: int | None = 0
        while reached is not None:
            reached = await self._write.run(upkeep.erase(session_id, reached), how="alone")
        tries = 0
        while not await self._write.run(upkeep.empty_log, how="outside"):
            tries += 1
            if tries == self._tuning.log_tries:
                raise EngineUnavailable(
                    f"another process reads {str(self._path)!r} (a backup?), so that its log still holds "
                    "what was erased: erase it again later"
                )
            await asyncio.sleep(_LOG_PAUSE)

    # Ledger

    async def ended_for(self, call_id: CallId) -> timedelta | None:
        # One process has the file for itself: its clock is the store's.
        row = await self.call(call_id)
        return None if row is None or row.finished_at is None else self._clock.now() - row.finished_at

    async def revive(self, session_id: SessionId, sequence: int, target: str, *, due_at: datetime) -> bool:
        return bool(await self._write.run(upkeep.revive(session_id, sequence, target, micros(due_at))))

    async def dismiss(self, session_id: SessionId, sequence: int, target: str, *, reason: str) -> bool:
        return bool(await self._write.run(upkeep.dismiss(session_id, sequence, target, reason)))

    # Memory

    async def remember(self, *, key: str, scope: str, answer: StoredAnswer) -> bool:
        return bool(await self._write.run(upkeep.remember(key, scope, answer)))

    async def set_note(self, name: str, value: str | None) -> None:
        await self._write.run(upkeep.set_note(name, value))

    # Leases

    async def beat(self, instance: str, *, url: str, ttl: timedelta) -> bool:
        return self._roster.beat(instance, url, ttl)

    async def take(self, instance: str, session_id: SessionId) -> SessionRow | None:
        return await self._write.run(leases.take(instance, session_id, self._roster), how="alone")

    async def take_over(self, instance: str, *, runtimes: Collection[str], limit: int) -> Sequence[SessionRow]:
        return await self._write.run(leases.take_over(instance, runtimes, limit, self._roster), how="alone")

    async def regain(self, instance: str, *, former: Collection[str]) -> Sequence[Regained]:
        if instance not in self._roster.living():
            return []
        for one in former:
            self._roster.end(one)
        return await self._write.run(leases.regain(instance, former), how="alone")

    async def release(self, instance: str, session_ids: Collection[SessionId] | None = None) -> None:
        if session_ids is None:
            self._roster.end(instance)
        await self._write.run(leases.release(instance, session_ids), how="alone")

    async def owner(self, session_id: SessionId) -> Instance | None:
        owner = await self._read.ask(leases.read_owner, session_id)
        return next((one for one in await self.instances() if one.alive and one.instance_id == owner), None)

    async def instances(self) -> Sequence[Instance]:
        return self._roster.show(await self._read.ask(leases.count_owned))

    async def hold(self, instance: str, name: str) -> bool:
        return self._roster.hold(instance, name)

    async def release_name(self, instance: str, name: str) -> None:
        self._roster.release_name(instance, name)

    # Notifier

    def notify(self, topic: str) -> None:
        """Do nothing: there is no other instance."""

    def listen(self, heard: Callable[[str | None], None]) -> Callable[[], None]:
        """Hear nothing: there is no other instance."""
        del heard
        return lambda: None

    # Upkeep

    async def _cut(self, firsts: Mapping[SessionId, int], copies_from: int) -> RemovedRows:
        return await self._write.run(upkeep.cut(firsts, copies_from), how="alone")

    async def _drop_calls(self, before: int, budget: int) -> int:
        return await self._write.run(upkeep.drop_calls(before, budget), how="alone")

    async def health(self) -> EngineHealth:
        return await self._probing.ask()

    async def _probe(self) -> EngineHealth:
        try:
            found = await self._write.run(upkeep.probe)
            free = shutil.disk_usage(self._path.parent).free
        except OSError as exc:
            raise EngineUnavailable(f"the disk of the database cannot be read: {exc}") from exc
        return EngineHealth(
            writable=True,
            bytes_used=found["page_count"] * found["page_size"],
            extra={
                "path": str(self._path),
                "journal_mode": found["journal_mode"],
                "synchronous": _SYNCHRONOUS[found["synchronous"]],
                "schema": str(found["user_version"]),
                "disk_free_bytes": str(free),
            },
        )

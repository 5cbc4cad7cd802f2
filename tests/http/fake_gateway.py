"""A gateway that keeps sessions, events and calls in memory, for tests of the HTTP face alone."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import orjson

from gateway.adapter.port import Capabilities
from gateway.errors import Conflict, Gone, NotFound
from gateway.events import (
    ApprovalAsked,
    CallId,
    CallProgressed,
    Direction,
    Envelope,
    Event,
    EventId,
    InteractionId,
    Live,
    Origin,
    SessionId,
    SessionOpened,
    ToolFinished,
    ToolRequested,
)
from gateway.executors.port import Answered
from gateway.runtime.app import (
    CallHistory,
    Gap,
    Gateway,
    Heartbeat,
    InteractionItem,
    InteractionShown,
    LinkStatus,
    Missed,
    Readiness,
    Reloaded,
    RuntimeStatus,
    StreamItem,
)
from gateway.runtime.calls.dead_letters import DeadLetters, id_of
from gateway.settings.model import Settings
from gateway.store.call import Call
from gateway.store.port import Engine
from gateway.store.rows import (
    ANY_DEAD,
    CallFilter,
    DeadFilter,
    Instance,
    InteractionRow,
    Page,
    Send,
    SessionRow,
    StoredAnswer,
)
from gateway.store.step import InteractionState, Keep

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
STATES = {"success": "succeeded", "failure": "failed", "canceled": "canceled", "expired": "expired"}


class _DeadStore:
    """What dead letters are looked up in: the unknown calls, and one dead copy of each session's first event."""

    def __init__(self, gateway: "MemoryGateway") -> None:
        self._gateway = gateway

    async def calls(self, which: CallFilter, page: Page) -> tuple[Sequence[Call], str | None]:
        rows, _ = await self._gateway.calls(replace(which, dead=None, unknown=True), page)
        return [replace(row, dead=True) for row in rows], None

    async def call(self, call_id: CallId) -> Call | None:
        row = self._gateway.call_rows.get(call_id)
        return None if row is None else replace(row, dead=row.unknown)

    async def dead_sends(self, page: Page, which: DeadFilter = ANY_DEAD) -> tuple[Sequence[Send], str | None]:
        del page
        found = [row for name in self._gateway.journal for row in await self.sends_of(SessionId(name), 1)]
        return [row for row in found if which.target in {None, row.target}], None

    async def sends_of(self, session_id: SessionId, sequence: int) -> Sequence[Send]:
        first = self._gateway.journal.get(session_id, [])[:1] if sequence == 1 else []
        target, reason = "destination:log", "answered 500"
        return [Send(session_id, 1, target, "turn", "dead", 10, START, reason, one, START) for one in first]

    async def read(self, session_id: SessionId, *, after: int, limit: int) -> Sequence[Envelope]:
        return self._gateway.journal[session_id][after : after + limit]


class MemoryGateway(Gateway):
    """Does what the contract says, without runtimes and without a store."""

    def __init__(self, settings: Settings) -> None:
        self.version = "9.9.9"
        self.settings = settings
        store = cast("Engine", _DeadStore(self))
        self.dead_letters = DeadLetters(store, redrive=self.redrive, redeliver=self.redeliver, dismiss=self._note)
        self.faults: dict[str, Exception] = {}
        """Raised by the method of this name."""
        self.journal: dict[str, list[Envelope]] = {}
        self.rows: dict[str, SessionRow] = {}
        self.call_rows: dict[str, Call] = {}
        self.asked: dict[str, tuple[InteractionRow, Envelope]] = {}
        self.held: set[str] = set()
        """Names that this instance, or where the test says so another one, holds."""
        self.remembered: dict[tuple[str, str], StoredAnswer] = {}
        self.redelivered: list[tuple[str, int, str]] = []
        self.dismissed: list[tuple[str, str]] = []
        self.enabled: list[str] = []
        self.erased: list[str] = []
        self.canceled: list[str | None] = []
        self.ready_checks = {"engine": "ok"}
        self.first_sequence = 1
        self.heartbeat = 60.0
        self.following = 0
        self.follow_ended = asyncio.Event()
        self.follow_changed = asyncio.Event()
        self.posting = asyncio.Event()
        """Posts wait for this."""
        self.posting.set()
        self._queues: list[asyncio.Queue[StreamItem]] = []

    async def _note(self, row: Call | Send, by: str) -> Call | Send:
        self.dismissed.append((id_of(row), by))
        return row

    # What tests do -----------------------------------------------------------------------------------

    def record(self, session_id: str, event: Event, direction: Direction = "from_runtime") -> Envelope:
        """Put an event into the journal and show it to followers."""
        events = self.journal[session_id]
        envelope = Envelope(
            event_id=EventId(f"E{len(events) + 1:025d}"),
            session_id=SessionId(session_id),
            sequence=len(events) + 1,
            recorded_at=START + timedelta(seconds=len(events)),
            direction=direction,
            event=event,
            origin=Origin("huma-0.2", "huma/0.2.0", "n1") if direction == "from_runtime" else None,
        )
        events.append(envelope)
        self.rows[session_id] = replace(self.rows[session_id], last_sequence=envelope.sequence)
        self.tell(envelope)
        return envelope

    def tell(self, item: StreamItem) -> None:
        for queue in self._queues:
            queue.put_nowait(item)

    def live(self, session_id: str, event: Event) -> None:
        self.tell(Live(event, len(self.journal[session_id])))

    def attach(self, native_id: str = "agent-7") -> str:
        session_id = f"s-{native_id}"
        self.rows[session_id] = SessionRow(
            session_id=SessionId(session_id),
            runtime="finn",
            protocol="huma/0.2.0",
            native_id=native_id,
            state="idle",
            labels={},
            last_sequence=0,
            first_sequence=1,
            opened_at=START,
            updated_at=START,
            snapshot=b"never shown",
            cursor="never shown",
        )
        self.journal[session_id] = []
        self.record(session_id, SessionOpened(runtime="finn", protocol="huma/0.2.0", native_id=native_id))
        return session_id

    def ask(self, session_id: str, call_id: str = "c-1", tool: str = "ask_for_cards") -> str:
        asked = self.record(session_id, ToolRequested(native_call_id=f"n-{call_id}", tool=tool, call_id=call_id))
        self.call_rows[call_id] = Call(
            call_id=CallId(call_id),
            session_id=SessionId(session_id),
            runtime="finn",
            native_call_id=f"n-{call_id}",
            n=0,
            tool=tool,
            args_sha="0" * 64,
            state="accepted",
            attempt=1,
            created_at=START,
            deadline_at=START + timedelta(seconds=600),
            request_sequence=asked.sequence,
            executor="cards",
        )
        return call_id

    def ask_person(self, session_id: str) -> str:
        asked = self.record(session_id, ApprovalAsked(id="a-1", tool="rm"))
        row = InteractionRow(
            InteractionId("i-1"), SessionId(session_id), "approval.asked", "waiting", asked.sequence, None, None
        )
        self.asked["i-1"] = (row, asked)
        return "i-1"

    def _check(self, name: str) -> None:
        if name in self.faults:
            raise self.faults[name]

    # The contract ------------------------------------------------------------------------------------

    async def open_session(
        self, runtime: str, *, native_id: str | None, labels: Mapping[str, str]
    ) -> tuple[SessionRow, bool]:
        self._check("open_session")
        if runtime != "finn":
            raise NotFound(f"no runtime is called {runtime!r}")
        native = native_id or "created"
        if f"s-{native}" in self.rows:
            return self.rows[f"s-{native}"], False
        session_id = self.attach(native)
        self.rows[session_id] = replace(self.rows[session_id], labels=dict(labels))
        return self.rows[session_id], True

    async def session(self, session_id: SessionId) -> SessionRow:
        self._check("session")
        if session_id not in self.rows:
            raise NotFound(f"no session {session_id[:50]!r}")
        return self.rows[session_id]

    async def sessions(self, page: Page, *, runtime: str | None = None) -> tuple[Sequence[SessionRow], str | None]:
        rows = [row for row in self.rows.values() if runtime in {None, row.runtime}]
        start = int(page.after or 0)
        after = start + page.limit
        return rows[start:after], str(after) if after < len(rows) else None

    async def close_session(self, session_id: SessionId, *, erase: bool) -> None:
        await self.session(session_id)
        if erase:
            self.erased.append(session_id)
        self.rows[session_id] = replace(self.rows[session_id], state="closed")

    async def post(
        self, session_id: SessionId, events: Sequence[Event], *, by: str, keep: Keep | None = None
    ) -> Sequence[Envelope]:
        del by
        self._check("post")
        await self.session(session_id)
        await self.posting.wait()
        envelopes = [self.record(session_id, event, "to_runtime") for event in events]
        if keep is not None:
            response = orjson.dumps({"session_id": session_id, "sequences": [one.sequence for one in envelopes]})
            answer = StoredAnswer(keep.request_sha, response, keep.expires_at)
            self.remembered.setdefault((keep.scope, keep.key), answer)
        return envelopes

    async def read(self, session_id: SessionId, *, after: int, limit: int) -> Sequence[Envelope]:
        await self.session(session_id)
        if after + 1 < self.first_sequence:
            raise Gone("the events were removed", first_sequence=self.first_sequence)
        return self.journal[session_id][after : after + limit]

    async def follow(self, session_id: SessionId, *, after: int | None) -> AsyncIterator[StreamItem]:
        queue: asyncio.Queue[StreamItem] = asyncio.Queue()
        self._queues.append(queue)
        self.following += 1
        self.follow_changed.set()
        try:
            if after is not None:
                if after + 1 < self.first_sequence:
                    yield Gap(self.first_sequence)
                    after = self.first_sequence - 1
                for envelope in self.journal[session_id][after:]:
                    yield envelope
            while True:
                self._check("follow")
                try:
                    async with asyncio.timeout(self.heartbeat):
                        item = await queue.get()
                except TimeoutError:
                    item = Heartbeat()
                yield item
        finally:
            self._queues.remove(queue)
            self.following -= 1
            self.follow_ended.set()
            self.follow_changed.set()

    async def calls(self, which: CallFilter, page: Page) -> tuple[Sequence[Call], str | None]:
        del page
        rows = [
            row
            for row in self.call_rows.values()
            if which.session_id in {None, row.session_id}
            and which.runtime in {None, row.runtime}
            and which.tool in {None, row.tool}
            and (not which.states or row.state in which.states)
            and which.unknown in {None, row.unknown}
        ]
        return rows, None

    def _row_of(self, call_id: str) -> Call:
        if call_id not in self.call_rows:
            raise NotFound(f"no call {call_id[:50]!r}")
        return self.call_rows[call_id]

    async def call_story(self, call_id: CallId) -> CallHistory:
        row = self._row_of(call_id)
        envelopes = tuple(e for e in self.journal[row.session_id] if getattr(e.event, "call_id", None) == call_id)
        send = Send(
            row.session_id, envelopes[-1].sequence, "runtime", "turn", "delivered", 1, None, None, envelopes[-1], START
        )
        return CallHistory(row, envelopes, (send,))

    def callback_allowed(self, call_id: CallId, token: str) -> bool:
        return token == f"token-{call_id}"

    async def settle(self, call_id: CallId, answer: Answered, *, size: int = 0) -> Call:
        del size
        self._check("settle")
        row = self._row_of(call_id)
        sha = answer.outcome.model_dump_json()
        if row.outcome_sha not in {None, sha}:
            raise Conflict("the call has already ended")
        if row.outcome_sha is None:
            event = ToolFinished(native_call_id=row.native_call_id, call_id=call_id, outcome=answer.outcome.outcome)
            done = self.record(row.session_id, event, "to_runtime")
            state: Any = STATES[answer.outcome.outcome]
            row = replace(row, state=state, outcome_sha=sha, outcome_sequence=done.sequence, finished_at=START)
            self.call_rows[call_id] = row
        return row

    async def progress(self, call_id: CallId, data: dict[str, Any], *, size: int = 0) -> None:
        del size
        row = self._row_of(call_id)
        self.record(row.session_id, CallProgressed(native_call_id=row.native_call_id, data=data, call_id=call_id))

    async def cancel(self, call_id: CallId, *, reason: str | None) -> Call:
        self.canceled.append(reason)
        return replace(self._row_of(call_id), canceling_until=START)

    async def redrive(self, call_id: CallId, *, new_key: bool, deliver: bool) -> Call:
        return replace(
            self._row_of(call_id),
            call_id=CallId("c-again"),
            redrive_of=call_id,
            deliver=deliver,
            key=None if new_key else call_id,
        )

    async def redeliver(self, session_id: SessionId, sequence: int, target: str) -> None:
        await self.session(session_id)
        self.redelivered.append((session_id, sequence, target))

    async def interactions(
        self, page: Page, *, session_id: SessionId | None, state: InteractionState | None
    ) -> tuple[Sequence[tuple[InteractionRow, Envelope]], str | None]:
        del page
        rows = [
            (row, asked)
            for row, asked in self.asked.values()
            if session_id in {None, row.session_id} and state in {None, row.state}
        ]
        return rows, None

    async def follow_interactions(self) -> AsyncIterator[InteractionItem]:
        for row, asked in self.asked.values():
            yield InteractionShown(row, asked)
        yield Missed()
        yield Heartbeat()

    async def answer(self, interaction_id: InteractionId, body: Mapping[str, Any], *, by: str) -> InteractionRow:
        if interaction_id not in self.asked:
            raise NotFound("no such interaction")
        row, asked = self.asked[interaction_id]
        if row.state != "waiting":
            raise Conflict("it is already answered")
        row = replace(row, state="answered", answered_by=",".join([by, *(f"{name}={body[name]}" for name in body)]))
        self.asked[interaction_id] = (row, asked)
        return row

    async def enable_destination(self, name: str) -> None:
        if name != "log":
            raise NotFound(f"no destination is called {name[:50]!r}")
        self.enabled.append(name)

    async def instances(self) -> Sequence[Instance]:
        return [Instance("here", "http://127.0.0.1:8080", alive=True, sessions=len(self.rows))]

    def runtimes(self) -> Sequence[RuntimeStatus]:
        able = Capabilities(
            accepts=frozenset({"message.posted", "context.updated"}),
            emits=frozenset({"tool.requested"}),
            turns="inferred",
            delivery="silence",
            confirms_messages=timedelta(seconds=30),
            limits={"result_utf16_units": 65_536},
        )
        links = tuple(LinkStatus(row.session_id, row.native_id, "up", START) for row in self.rows.values())
        return [RuntimeStatus("finn", "huma-0.2", "huma/0.2.0", able, links)]

    async def ready(self) -> Readiness:
        return Readiness(all(text == "ok" for text in self.ready_checks.values()), self.ready_checks, sessions=3)

    async def reload(self) -> Reloaded:
        self._check("reload")
        return Reloaded(("routes",))

    async def recall(self, *, key: str, scope: str) -> StoredAnswer | None:
        return self.remembered.get((scope, key))

    def keep(self, *, key: str, scope: str, request_sha: str, keep: timedelta) -> Keep:
        return Keep(key, scope, request_sha, START + keep, events=())

    async def remember(self, *, key: str, scope: str, request_sha: str, response: bytes, keep: timedelta) -> bool:
        self._check("remember")
        answer = StoredAnswer(request_sha, response, START + keep)
        return self.remembered.setdefault((scope, key), answer) is answer

    async def hold(self, name: str) -> bool:
        free = name not in self.held
        self.held.add(name)
        return free

    async def let_go(self, name: str) -> None:
        self._check("let_go")
        self.held.discard(name)

    def render_metrics(self) -> bytes:
        self._check("render_metrics")
        return b"# TYPE dragoman_calls_total counter\n"

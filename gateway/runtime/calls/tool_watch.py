"""Watches whether the agents of native sessions list their tools after each start."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

import structlog

from gateway.clock import Clock
from gateway.errors import EngineUnavailable
from gateway.events import Envelope, SessionId
from gateway.guard import Tasks, guard
from gateway.runtime.calls.tickets import Ticket, Tickets, listing_note
from gateway.store.port import Engine

log = structlog.get_logger(__name__)

_REMEMBERED = 10_000
_UNREACHED = "can the runtime reach its `mcp_url`, else `public_url`?"
_FORGOTTEN = (
    "a runtime that restarts an agent forgets the tools it got at creation; set `tools: settings` if the runtime has"
    " that option, or create a new session"
)


@dataclass(slots=True)
class _Watched:
    """The state of one session that this process owns."""

    runtime: str
    unlinked_since: datetime | None
    """The time of the link's loss; a start that the next link replays may have happened since then."""
    started_at: datetime | None = None
    """The earliest possible time of the agent's last start."""
    settled_at: datetime | None = None
    """The time at which the start was complete; an agent lists its tools before that."""
    listed: bool = False
    """Whether a `tools/list` has arrived since `started_at`."""
    keeping: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a start is written, so that an older start never replaces a newer one."""


class ToolWatch:
    """Compares agent starts, as reported by the runtimes, with the `tools/list` requests that arrive.

    The owner of a session stores the last start as a note, and any instance stores the last listing, so both survive a
    restart and a takeover. A request that names its session counts for that session. A request at a runtime's shared
    address names no session; it counts for all sessions of the runtime that are starting at that moment.
    """

    def __init__(self, engine: Engine, clock: Clock, tickets: Tickets, tasks: Tasks, *, late: float) -> None:
        """Prepare; `late` is the time in seconds within which a started agent must list its tools."""
        self._engine = engine
        self._clock = clock
        self._tickets = tickets
        self._tasks = tasks
        self._late = timedelta(seconds=late)
        self._began = clock.now()
        self._sessions: dict[SessionId, _Watched] = {}
        self._written: dict[str, datetime] = {}
        """The last listing that this process stored, by note."""

    # Reports of sessions ---------------------------------------------------------------------------------

    def opened(self, session_id: SessionId, runtime: str, *, since: datetime) -> None:
        """Watch a new session; its agent was not started before `since`."""
        self._sessions[session_id] = _Watched(runtime, since)

    def drop(self, session_id: SessionId) -> None:
        """Forget a session that no longer runs here; the notes stay."""
        self._sessions.pop(session_id, None)

    def note(self, session_id: SessionId, runtime: str, envelopes: Iterable[Envelope]) -> None:
        """Note agent starts and link changes among newly recorded events."""
        for envelope in envelopes:
            event = envelope.event
            if event.kind == "link.changed":
                watched = self._watched(session_id, runtime)
                up = event.state == "up"
                watched.unlinked_since = None if up else watched.unlinked_since or envelope.recorded_at
            elif event.kind == "session.moved" and envelope.direction == "from_runtime":
                watched = self._watched(session_id, runtime)
                if event.state == "starting":
                    watched.started_at = watched.unlinked_since or envelope.recorded_at
                    watched.settled_at, watched.listed = None, False
                elif watched.started_at is not None and watched.settled_at is None:
                    watched.settled_at = envelope.recorded_at
                else:
                    continue
                keep = partial(self._keep_start, session_id, watched)
                guard("tools", keep, self._tasks, times=1, session_id=session_id)

    def _watched(self, session_id: SessionId, runtime: str) -> _Watched:
        return self._sessions.setdefault(session_id, _Watched(runtime, self._began))

    async def _keep_start(self, session_id: SessionId, watched: _Watched) -> None:
        try:
            async with watched.keeping:
                started_at, settled_at = watched.started_at, watched.settled_at
                assert started_at is not None
                settled = "" if settled_at is None else settled_at.isoformat()
                await self._engine.set_note(_start(session_id), f"{started_at.isoformat()} {settled}")
                if settled_at is None:
                    return
                shared_at = await self._time(_shared(watched.runtime))
                if shared_at is not None and shared_at >= started_at:
                    # Later listings at the shared address belong to other sessions. The note stores the time of this
                    # listing, since the agent may have been restarted meanwhile.
                    if not _reaches(await self._time(_listing(session_id)), started_at):
                        await self._write(_listing(session_id), shared_at)
                    self._mark(session_id, started_at)
        except EngineUnavailable as exc:
            self._engine.outage.failed(exc, "note of an agent's start")

    def _mark(self, session_id: SessionId, started_at: datetime | None) -> None:
        watched = self._sessions.get(session_id)
        if watched is not None and watched.started_at == started_at:
            watched.listed = True

    # Requests of MCP clients -----------------------------------------------------------------------------

    async def note_listed(self, session_id: SessionId | None, ticket: Ticket | None = None) -> None:
        """Note that the agent of a session has listed its tools; the session of a ticket may not exist yet."""
        name, now = _listing_of(session_id, ticket), self._clock.now()
        watched = None if session_id is None else self._sessions.get(session_id)
        if watched is not None:
            if not watched.listed:
                started_at = watched.started_at
                await self._write(name, now)
                assert session_id is not None
                self._mark(session_id, started_at)
            return
        written = self._written.get(name)
        if written is not None:
            started = None if session_id is None else (await self._read_start(session_id))[0]
            if started is None or started <= written:
                return
        await self._write(name, now)

    async def note_shared_listed(self, runtime: str) -> None:
        """Note that an agent of a runtime has listed the tools without naming its session."""
        now = self._clock.now()
        await self._write(_shared(runtime), now)
        starting = [
            (session_id, watched.started_at)
            for session_id, watched in self._sessions.items()
            if watched.runtime == runtime
            and watched.started_at is not None
            and watched.started_at <= now
            and watched.settled_at is None
            and not watched.listed
        ]
        for session_id, started_at in starting:
            await self._write(_listing(session_id), now)
            self._mark(session_id, started_at)

    async def _write(self, name: str, listed_at: datetime) -> None:
        await self._engine.set_note(name, listed_at.isoformat())
        if len(self._written) >= _REMEMBERED:
            self._written.clear()
        self._written[name] = listed_at

    # Status for operators --------------------------------------------------------------------------------

    async def why_lacking(
        self, session_id: SessionId, *, runtime: str, shared: bool, problem: str | None
    ) -> str | None:
        """Explain why the agent of a session has no tools; None if it has them, was offered none, or is not late.

        `shared` says whether the runtime's own settings name the tools for all sessions; `problem` is the reason if
        they do not.
        """
        watched = self._sessions.get(session_id)
        if watched is not None and watched.listed:
            return None
        ticket = await self._tickets.of(session_id)
        started, settled = await self._read_start(session_id)
        if watched is not None and watched.started_at is not None:
            started, settled = watched.started_at, watched.settled_at
        given_at = None if ticket is None else ticket.given_at
        if ticket is None and not shared:
            return None
        since = max((at for at in (started, given_at) if at is not None), default=None)
        if since is None or self._clock.now() < since + self._late:
            return None
        listed = [await self._time(_listing(session_id))]
        if ticket is not None:
            listed.append(await self._time(listing_note(ticket.ticket_id)))
        if shared:
            at = await self._time(_shared(runtime))
            listed.append(at if at is not None and (settled is None or at <= settled) else None)
        if any(_reaches(at, since) for at in listed):
            self._mark(session_id, started)
            return None
        when = f"{since:%Y-%m-%d %H:%M:%S} UTC"
        if problem is not None:
            return f"its agent was started at {when} and has not listed the tools: {problem}"
        if started is None or (given_at is not None and started <= given_at) or shared:
            event = "started" if started is not None else "created"
            return f"it was {event} at {when} and has not listed the tools: {_UNREACHED}"
        return f"its agent was restarted at {when} and has not listed the tools: {_FORGOTTEN}"

    async def erase(self, session_id: SessionId) -> None:
        """Remove the notes of an erased session."""
        for name in (_start(session_id), _listing(session_id)):
            await self._engine.set_note(name, None)
            self._written.pop(name, None)
        self.drop(session_id)

    async def _read_start(self, session_id: SessionId) -> tuple[datetime | None, datetime | None]:
        written = await self._engine.note(_start(session_id))
        if written is None:
            return None, None
        started, _, settled = written.partition(" ")
        return datetime.fromisoformat(started), datetime.fromisoformat(settled) if settled else None

    async def _time(self, name: str) -> datetime | None:
        written = await self._engine.note(name)
        return None if written is None else datetime.fromisoformat(written)


def _reaches(listed_at: datetime | None, since: datetime) -> bool:
    return listed_at is not None and listed_at >= since


def _listing_of(session_id: SessionId | None, ticket: Ticket | None) -> str:
    if ticket is not None:
        return listing_note(ticket.ticket_id)
    assert session_id is not None
    return _listing(session_id)


def _start(session_id: SessionId) -> str:
    return f"tools-start:{session_id}"


def _listing(session_id: SessionId) -> str:
    return f"tools-listed:{session_id}"


def _shared(runtime: str) -> str:
    return f"tools-listed-by:{runtime}"

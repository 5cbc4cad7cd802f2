"""Finds who owns a session, and asks it: every order of a client ends up in its session's worker."""

import asyncio
from typing import Any

from gateway.errors import Conflict, Elsewhere, NotFound, Overloaded, Unconfigured
from gateway.events import CallId, SessionId
from gateway.runtime.session.owned_session import OwnedSession
from gateway.runtime.session.sessions import Sessions
from gateway.runtime.session.signals import ClientSignal
from gateway.runtime.session.worker import SessionWorker
from gateway.store.call import Call
from gateway.store.port import Engine
from gateway.store.rows import SessionRow


class SessionDirectory:
    """Looks up sessions and calls, and the worker that works for them here."""

    def __init__(self, engine: Engine, sessions: Sessions, *, patience: float) -> None:
        """Prepare; `patience` is how many seconds a client waits for a session that does not get to its order."""
        self._engine = engine
        self._sessions = sessions
        self.patience = patience

    async def session(self, session_id: SessionId) -> SessionRow:
        """Find a session, or raise NotFound."""
        row = await self._engine.session(session_id)
        if row is None:
            raise NotFound(f"no session {session_id!r}")
        return row

    async def call(self, call_id: CallId) -> Call:
        """Find a call, or raise NotFound."""
        row = await self._engine.call(call_id)
        if row is None:
            raise NotFound(f"no call {call_id!r}")
        return row

    def owned(self, session_id: SessionId) -> OwnedSession | None:
        """Find a session that is at work here."""
        return self._sessions.owned(session_id)

    async def worker(self, session_id: SessionId) -> SessionWorker:
        """Find the worker of an open session.

        Raises:
            NotFound, Conflict, Unconfigured, Elsewhere: there is none here, and why.
        """
        carried = self._sessions.owned(session_id)
        if carried is not None:
            return carried.worker
        row = await self.session(session_id)
        if row.state == "closed":
            raise Conflict("the session is closed")
        raise await self.not_here(row)

    async def not_here(self, row: SessionRow) -> Unconfigured | Elsewhere:
        """Say why an open session is not carried here."""
        known = self._sessions.runtimes.keys() | self._sessions.unconnected
        if row.runtime not in known and await self._engine.owner(row.session_id) is None:
            return Unconfigured(
                f"the runtime {row.runtime!r} of this session is not in the configuration: "
                "put it back and reload, or close the session"
            )
        return Elsewhere(row.session_id, "another instance carries the session, or none yet")

    async def ask(self, worker: SessionWorker, signal: ClientSignal) -> Any:
        """Put a signal in and wait for what became of it.

        Raises:
            Conflict, Elsewhere: the session was closed, or given up here, before it got to this.
            Overloaded: it did not get to this in time.
        """
        reply: asyncio.Future[Any] = signal.reply
        worker.put(signal)
        await asyncio.wait({reply, worker.closed}, timeout=self.patience, return_when=asyncio.FIRST_COMPLETED)
        if reply.done():
            return reply.result()
        if worker.closed.done():
            if worker.lost:
                raise Elsewhere(worker.view.session_id, "the session has changed hands meanwhile")
            raise Conflict("the session is closed")
        reply.cancel()
        raise Overloaded(f"the session did not get to this within {self.patience:.0f} s")


def reply_slot() -> "asyncio.Future[Any]":
    """Make the place where a signal's answer is put."""
    return asyncio.get_running_loop().create_future()

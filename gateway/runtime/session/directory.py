"""Finds the actor of a session and sends it the requests of clients."""

import asyncio
from typing import Any

from gateway.errors import Conflict, Elsewhere, NotFound, Overloaded, Unconfigured
from gateway.events import CallId, SessionId
from gateway.runtime.session.actor import Actor
from gateway.runtime.session.owned_session import OwnedSession
from gateway.runtime.session.sessions import Sessions
from gateway.runtime.session.signals import ClientSignal
from gateway.store.call import Call
from gateway.store.port import Engine
from gateway.store.rows import SessionRow


class SessionDirectory:
    """Looks up sessions, calls, and the actors of owned sessions."""

    def __init__(self, engine: Engine, sessions: Sessions, *, patience: float) -> None:
        """Prepare; `patience` is how many seconds a client request waits for its session."""
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
        """Return a session if this process owns it."""
        return self._sessions.owned(session_id)

    async def actor(self, session_id: SessionId) -> Actor:
        """Return the actor of an open session.

        Raises:
            NotFound: there is no such session.
            Conflict: the session is closed.
            Unconfigured: its runtime is not in the configuration.
            Elsewhere: this process does not own it.
        """
        owned = self._sessions.owned(session_id)
        if owned is not None:
            return owned.actor
        row = await self.session(session_id)
        if row.state == "closed":
            raise Conflict("the session is closed")
        raise await self.not_here(row)

    async def not_here(self, row: SessionRow) -> Unconfigured | Elsewhere:
        """Return the error for an open session that this process does not own."""
        known = self._sessions.runtimes.keys() | self._sessions.unconnected
        if row.runtime not in known and await self._engine.owner(row.session_id) is None:
            return Unconfigured(
                f"the runtime {row.runtime!r} of this session is not in the configuration: "
                "put it back and reload, or close the session"
            )
        return Elsewhere(row.session_id, "another instance owns the session, or none yet")

    async def ask(self, actor: Actor, signal: ClientSignal) -> Any:
        """Send a client request to an actor and return the reply.

        Raises:
            Conflict: the session was closed first.
            Elsewhere: the session was released first.
            Overloaded: the reply took longer than `patience`.
        """
        reply: asyncio.Future[Any] = signal.reply
        actor.inbox.put(signal)
        await asyncio.wait({reply, actor.closed}, timeout=self.patience, return_when=asyncio.FIRST_COMPLETED)
        if reply.done():
            return reply.result()
        if actor.closed.done():
            if actor.lost:
                raise Elsewhere(actor.view.session_id, "the session has moved to another instance")
            raise Conflict("the session is closed")
        reply.cancel()
        raise Overloaded(f"the session did not process the request within {self.patience:.0f} s")


def reply_slot() -> "asyncio.Future[Any]":
    """Return a future for the reply to a signal."""
    return asyncio.get_running_loop().create_future()

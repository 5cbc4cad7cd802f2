"""Recognizes a repeated call without a key: it joins the equal open call that has lost its listener.

An agent with a ticket makes one call at a time, and repeats one after a lost connection. If the first call has ended
meanwhile, the repeat takes its outcome instead of running the tool again.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from gateway.clock import Clock, Ids
from gateway.core.calls import fingerprint
from gateway.core.own_actions import TICKET
from gateway.events import CallId, SessionId
from gateway.runtime.lease import LeaseKeeper
from gateway.runtime.session.registry import Sessions
from gateway.store.call import CALLER, Call
from gateway.store.port import Engine
from gateway.store.rows import CallFilter, Page, StoredAnswer

_GENERATED = "unkeyed-"
"""Prefix of the keys generated for calls without one."""
_AGENTS = f"{CALLER}:{TICKET}:{_GENERATED}"
"""Prefix of the native ids of an agent's calls without a key."""
_UNRECEIVED = timedelta(minutes=2)
"""The time after its end in which an outcome that its agent has not received answers a repeat."""
_SCOPE = "received outcomes"
_SEARCHED = 100
"""Calls of the tool in the session that are searched for the repeated one."""


class CallDeduplicator:
    """Counts the listeners of each call on this instance; a named lease shows those on other instances."""

    def __init__(self, engine: Engine, sessions: Sessions, clock: Clock, ids: Ids, keeper: LeaseKeeper) -> None:
        self._engine = engine
        self._sessions = sessions
        self._clock = clock
        self._ids = ids
        self._keeper = keeper
        self._listeners = Counter[CallId]()

    def generate_key(self) -> str:
        """Generate the key of a call whose caller gives none."""
        return _GENERATED + self._ids.event_id()

    async def listen(self, call_id: CallId) -> None:
        """Register a listener of a call that is stored or about to be."""
        await self._register(call_id)

    async def stop_listening(self, call_id: CallId) -> None:
        """Remove a listener; without listeners, a repeat may join the call."""
        self._unregister(call_id)
        if self._keeper.shared and not self._listeners[call_id]:
            await self._keeper.release_name(_lease_name(call_id))

    async def join_open_call(
        self, session_id: SessionId, caller: str, tool: str, arguments: dict[str, Any]
    ) -> Call | None:
        """Find an equal open call of the same caller without listeners, and listen to it."""
        sha, prefix = fingerprint(tool, arguments), f"{CALLER}:{caller}:{_GENERATED}"
        for row in await self._open_calls(session_id):
            if row.tool != tool or row.args_sha != sha or not row.native_call_id.startswith(prefix):
                continue
            if not await self._register(row.call_id, only=True):
                continue
            call = await self._engine.call(row.call_id)
            # A repeat must not join a call that is being canceled.
            if call is not None and call.is_open and call.canceling_until is None:
                return call
            await self.stop_listening(row.call_id)
        return None

    async def take_unreceived(self, session_id: SessionId, tool: str, arguments: dict[str, Any]) -> Call | None:
        """Find the newest equal call of the agent if it has ended and its outcome was not received; only once.

        Returns None if it was canceled: the agent wants the tool after all.
        """
        sha = fingerprint(tool, arguments)
        rows, _ = await self._engine.calls(CallFilter(session_id=session_id, tool=tool), Page(_SEARCHED))
        equal = (row for row in rows if row.args_sha == sha and row.native_call_id.startswith(_AGENTS))
        newest = next(equal, None)
        if newest is None or newest.is_open or newest.state == "canceled":
            return None
        ended = await self._engine.ended_for(newest.call_id)
        if ended is None or ended > _UNRECEIVED:
            return None
        # Its listener, if there is one, is receiving the outcome.
        async with self.listening_alone(newest.call_id) as alone:
            return newest if alone and await self.note_received(newest) else None

    async def note_received(self, call: Call) -> bool:
        """Record that an agent received the outcome of a call without a key; False if it is on record, or another's."""
        if not call.native_call_id.startswith(_AGENTS):
            return False
        expires_at = self._clock.now() + 2 * _UNRECEIVED
        return await self._engine.remember(key=call.call_id, scope=_SCOPE, answer=StoredAnswer("", b"", expires_at))

    async def _open_calls(self, session_id: SessionId) -> Collection[Call]:
        owned = self._sessions.owned(session_id)
        if owned is not None:
            return tuple(owned.view.calls.values())
        return await self._engine.open_calls(session_id)

    @asynccontextmanager
    async def listening_alone(self, call_id: CallId) -> AsyncGenerator[bool]:
        """Listen to a call that has no listener; yield False if it has one."""
        alone = await self._register(call_id, only=True)
        try:
            yield alone
        finally:
            if alone:
                await self.stop_listening(call_id)

    async def _register(self, call_id: CallId, *, only: bool = False) -> bool:
        """Register a listener; return False if it was to be the `only` one and another exists."""
        if only and self._listeners[call_id]:
            return False
        # Counted before the lease is taken: no other request on this instance may join meanwhile.
        self._listeners[call_id] += 1
        registered = False
        try:
            registered = not self._keeper.shared or await self._keeper.hold(_lease_name(call_id)) or not only
        finally:
            if not registered:
                self._unregister(call_id)
        return registered

    def _unregister(self, call_id: CallId) -> None:
        self._listeners[call_id] -= 1
        if not self._listeners[call_id]:
            del self._listeners[call_id]


def _lease_name(call_id: CallId) -> str:
    return f"listen:{call_id}"

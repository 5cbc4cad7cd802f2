"""Calls from API and MCP clients: opens a call and waits for its outcome, on any instance."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager

from gateway.clock import Ids
from gateway.core.callers import CallRequest, id_of, same_call
from gateway.errors import EngineUnavailable, Overloaded
from gateway.events import CallId, CallProgressed, Envelope, SessionId, ToolFinished
from gateway.runtime.drain import Drain
from gateway.runtime.session.actor import Actor
from gateway.runtime.session.registry import Sessions, reply_slot
from gateway.runtime.signals import CallAsked
from gateway.runtime.views import Heartbeat, News, StreamItem
from gateway.runtime.wakeup import wait_any
from gateway.store.call import Call
from gateway.store.port import Engine

MAX_HELD = 4_096
"""Requests that wait for calls in one process at once."""
MOST_HELD_OF_ONE = 64
"""Requests that wait for calls of one session."""

_NEARLY = 0.9
"""The fraction of a beat after which a heartbeat triggers it; heartbeats arrive slightly early or late."""

Follow = Callable[[SessionId, int, float], AsyncGenerator[StreamItem]]
Tell = Callable[[CallProgressed | None], Awaitable[object]]
"""Receives each progress report of an executor, and None for a beat."""


class Callers:
    """Opens calls for callers, and holds their requests until the calls have ended."""

    def __init__(
        self, engine: Engine, sessions: Sessions, ids: Ids, follow: Follow, *, beat: float, drain: Drain
    ) -> None:
        """Prepare; `follow` yields the events after a sequence, new events as they come, and heartbeats.

        At the end of the `drain`, waiting requests return at once with calls that are still open.
        """
        self._engine = engine
        self._sessions = sessions
        self._ids = ids
        self._follow = follow
        self._beat = beat
        self._drain = drain
        self._held = Counter[SessionId]()

    @property
    def held(self) -> int:
        """The number of waiting requests."""
        return self._held.total()

    @property
    def held_by_session(self) -> Mapping[SessionId, int]:
        """The number of waiting requests by session."""
        return self._held

    def fresh_key(self) -> str:
        """Generate the key of a call whose caller gives none."""
        return self._ids.event_id()

    async def ask(self, session_id: SessionId, request: CallRequest) -> Call:
        """Open a call, or return the stored call with the same key.

        Raises:
            CallDiffers, UnknownTool, InvalidArguments, Overloaded: the request is rejected.
            NotFound, Conflict, Elsewhere: the session is unknown, closed, or runs on another instance.
            Draining: the gateway is stopping, and the call would be new.
        """
        if not request.fresh:
            session = await self._sessions.session(session_id)
            known = await self._engine.call(id_of(session.runtime, session.native_id, request))
            if known is not None:
                same_call(known, request)
                return known
        actor = await self._sessions.actor(session_id)
        self._drain.refuse_new()
        call_id: CallId = await self._sessions.ask(actor, CallAsked(request, reply_slot()))
        return actor.view.calls.get(call_id) or await self._sessions.call(call_id)

    async def wait(self, call_id: CallId, seconds: float) -> Call:
        """Wait until a call ends, `seconds` have passed, or the gateway stops.

        Raises:
            NotFound: the call is unknown. Overloaded: too many requests wait already.
        """
        call = await self._sessions.call(call_id)
        if seconds <= 0 or not call.is_open:
            return call
        with self.holding(call.session_id):
            try:
                await self._wait_outcome(call, seconds)
                return await self._sessions.call(call_id)
            except EngineUnavailable:
                # The caller sees an open call and can wait again.
                return call

    async def outcome(self, call: Call, seconds: float, tell: Tell | None = None) -> tuple[Call, ToolFinished | None]:
        """Wait for the outcome like `wait`, within `holding`; `tell` receives progress meanwhile."""
        try:
            if call.is_open:
                finished = await self._wait_outcome(call, seconds, tell)
                if finished is not None:
                    return call, finished
                call = await self._sessions.call(call.call_id)
            return call, await self.finished(call)
        except EngineUnavailable:
            if not call.is_open:
                raise
            return call, None

    async def finished(self, call: Call) -> ToolFinished | None:
        """Read the outcome of a call; None while it is open or if the outcome was removed."""
        if call.outcome_sequence is None:
            return None
        page = await self._engine.read(call.session_id, after=call.outcome_sequence - 1, limit=1)
        event = page[0].event if page else None
        return event if isinstance(event, ToolFinished) else None

    async def _wait_outcome(self, call: Call, seconds: float, tell: Tell | None = None) -> ToolFinished | None:
        try:
            async with asyncio.timeout(seconds):
                return await self._watch(call, tell)
        except TimeoutError:
            return None

    async def _watch(self, call: Call, tell: Tell | None) -> ToolFinished | None:
        owned = self._sessions.owned(call.session_id)
        if owned is not None and tell is None:
            finished = await self._watch_here(call, owned)
            if finished is not None:
                return finished
        loop = asyncio.get_running_loop()
        told_at = loop.time()
        async with aclosing(self._follow(call.session_id, call.request_sequence, self._beat / 2)) as items:
            async for item in items:
                if isinstance(item, Heartbeat) and not (await self._sessions.call(call.call_id)).is_open:
                    # Without a lease this instance receives no news; another instance ended the call.
                    return None
                for one in item.items if isinstance(item, News) else ():
                    event = one.event
                    if isinstance(event, ToolFinished) and event.call_id == call.call_id:
                        return event
                    # The gateway's own notes about the call are for operators.
                    if tell is None or (isinstance(one, Envelope) and one.synthetic):
                        continue
                    if isinstance(event, CallProgressed) and event.call_id == call.call_id:
                        await tell(event)
                        told_at = loop.time()
                if tell is not None and loop.time() - told_at >= self._beat * _NEARLY:
                    await tell(None)
                    told_at = loop.time()
        return None

    async def _watch_here(self, call: Call, actor: Actor) -> ToolFinished | None:
        """Wait for the outcome of a call whose session runs here, without reading the journal.

        Returns None if the journal must be read: the call has ended already, or the session was released.
        """
        with actor.feed.watching(call.call_id) as watch:
            while call.call_id in actor.view.calls and not actor.feed.closed and not self._drain.over.happened:
                woke = await wait_any(watch, self._drain.over, within=self._beat / 2)
                if watch.outcome is not None:
                    return watch.outcome
                if not woke and not (await self._sessions.call(call.call_id)).is_open:
                    # Without a lease this instance receives no news; another instance ended the call.
                    break
            return watch.outcome

    @contextmanager
    def holding(self, session_id: SessionId) -> Generator[None]:
        """Count a request as waiting, within the limits.

        Raises:
            Overloaded: too many requests wait already.
        """
        if self.held >= MAX_HELD or self._held[session_id] >= MOST_HELD_OF_ONE:
            raise Overloaded("too many requests are waiting for calls; retry without `wait`")
        self._held[session_id] += 1
        try:
            yield
        finally:
            self._held[session_id] -= 1
            if not self._held[session_id]:
                del self._held[session_id]

"""Repeats of callers that send no keys: an equal call that broke off is gone on with, as a best effort."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import structlog

from gateway.clock import Clock, Ids
from gateway.core.calls import fingerprint
from gateway.errors import EngineUnavailable
from gateway.events import CallId, SessionId
from gateway.guard import Tasks, awaited, guard, guard_call
from gateway.runtime.cluster.lease import LeaseKeeper
from gateway.store.call import CALLER, Call
from gateway.store.port import Engine
from gateway.store.rows import CallFilter, Page, StoredAnswer

log = structlog.get_logger(__name__)

Key = TypeVar("Key")

_OURS = "unkeyed-"
"""Begins the keys that we make."""
_SCOPE = "heard"
_REMEMBERED = 4_096
"""Of how many calls is remembered what the store need not be asked again then."""
_EARLIER = 200
"""Calls of a session, newest first, among which is looked for what an earlier process has left."""
_WRITTEN_AFTER = 1.0
"""Seconds for which it may be put off to write which outcomes were heard, where no other instance asks."""
_LOOKED_AT = 50
"""Calls of a session and tool, newest first, among which a repeat is looked for."""


class Repeats:
    """Knows who listens to which call, here and by its lease elsewhere, and which outcomes were heard."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        ids: Ids,
        keeper: LeaseKeeper,
        tasks: Tasks,
        *,
        read_only: Callable[[str], bool],
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._ids = ids
        self._keeper = keeper
        self._tasks = tasks
        self._read_only = read_only
        self._listening = Counter[CallId]()
        self._heard = dict[CallId, None]()
        self._left = dict[tuple[SessionId, str], None]()
        """Sessions and fingerprints of what may have calls that were left; what has none runs without a look."""
        self._looked = dict[SessionId, None]()
        """Sessions of which is known what an earlier process has left."""
        self._unwritten = dict[CallId, StoredAnswer]()
        """Outcomes that were heard, which is known here and not on record yet."""
        self._writing: asyncio.TimerHandle | None = None

    def fresh_key(self) -> str:
        """Make the key of a call whose caller gives none."""
        return _OURS + self._ids.event_id()

    def listeners(self, call_id: CallId) -> int:
        """Count who listens to a call here."""
        return self._listening[call_id]

    async def listen(self, call_id: CallId) -> None:
        """Listen to a call that is on record, or about to be; an instance that is gone listens until its lease ends."""
        await self._join(call_id)

    async def leave(self, call_id: CallId, unheard: tuple[SessionId, str] | None = None) -> None:
        """Listen no more; its session and fingerprint where its outcome is `unheard`."""
        if unheard is not None:
            _keep(self._left, unheard)
        self._forget(call_id)
        if self._keeper.shared and not self.listeners(call_id):
            await self._keeper.let_go(_name(call_id))

    async def find(
        self, session_id: SessionId, caller: str, tool: str, arguments: dict[str, Any], unheard: timedelta
    ) -> Call | None:
        """Find an equal call of the same caller to which nobody listens, and listen to it; or take an outcome that
        nobody heard, once.
        """
        if not unheard:
            return None
        sha, begins = fingerprint(tool, arguments), f"{CALLER}:{caller}:{_OURS}"
        if not self._keeper.shared and not await self._may_be_left(session_id, sha):
            return None
        since = self._clock.now() - unheard
        rows, _ = await self._engine.calls(CallFilter(session_id=session_id, tool=tool), Page(_LOOKED_AT))
        for row in rows:
            if row.args_sha != sha or not row.native_call_id.startswith(begins):
                continue
            if row.state == "canceled" or row.canceling_until is not None:
                # Its caller, or an operator, wanted it no more; the repeat is asked for now.
                continue
            if row.is_open:
                if await self._join(row.call_id, alone=True):
                    if not await self._was_canceled(row.call_id):
                        return row
                    await self.leave(row.call_id)
            elif (
                row.finished_at is not None
                and row.finished_at > since
                and not self._read_only(tool)
                and await self.heard(row, unheard)
            ):
                return row
        self._left.pop((session_id, sha), None)
        return None

    async def _may_be_left(self, session_id: SessionId, sha: str) -> bool:
        """Whether a call may have been left by this process, which is the only one, or by one before."""
        if session_id not in self._looked:
            rows, _ = await self._engine.calls(CallFilter(session_id=session_id), Page(_EARLIER))
            for row in rows:
                if row.native_call_id.startswith(f"{CALLER}:"):
                    _keep(self._left, (session_id, row.args_sha))
            _keep(self._looked, session_id)
        return (session_id, sha) in self._left

    async def heard(self, call: Call, unheard: timedelta) -> bool:
        """Put on record that an outcome was heard; False where it is already. Nobody asks any more after a while."""
        if not self._may_be_heard(call, unheard):
            return False
        first = await self._engine.remember(key=call.call_id, scope=_SCOPE, answer=self._fact(unheard))
        _keep(self._heard, call.call_id)
        return first

    async def note_heard(self, call: Call, unheard: timedelta) -> None:
        """Take note that an outcome was heard; it is on record soon, and at once where another instance may ask."""
        if self._keeper.shared:
            await self.heard(call, unheard)
        elif self._may_be_heard(call, unheard):
            _keep(self._heard, call.call_id)
            self._unwritten[call.call_id] = self._fact(unheard)
            if self._writing is None:
                write = guard_call("repeats", self._begin_writing)
                self._writing = asyncio.get_running_loop().call_later(_WRITTEN_AFTER, write)

    def _may_be_heard(self, call: Call, unheard: timedelta) -> bool:
        ours = call.native_call_id.partition(":")[2].partition(":")[2].startswith(_OURS)
        return bool(unheard) and ours and call.call_id not in self._heard

    def _fact(self, unheard: timedelta) -> StoredAnswer:
        return StoredAnswer("", b"", self._clock.now() + 2 * unheard)

    def _begin_writing(self) -> None:
        guard("repeats", self.write, self._tasks, again=False)

    async def write(self) -> None:
        """Put on record what was heard and is not yet."""
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        facts, self._unwritten = self._unwritten, {}
        try:
            async with Tasks() as tasks:
                # Side by side, so that they are one commit.
                writing = [
                    awaited("repeats", self._engine.remember(key=call_id, scope=_SCOPE, answer=fact), tasks)
                    for call_id, fact in facts.items()
                ]
                for one in writing:
                    await one
        except EngineUnavailable as exc:
            # All that is lost is that a repeat behind a restart may hear them again.
            log.warning("not on record that outcomes were heard", count=len(facts), reason=str(exc))

    async def _was_canceled(self, call_id: CallId) -> bool:
        """Check whether a call was canceled between the list that it was found in and the moment it was joined."""
        call = await self._engine.call(call_id)
        return call is None or call.state == "canceled" or call.canceling_until is not None

    @asynccontextmanager
    async def listening_alone(self, call_id: CallId) -> AsyncGenerator[bool]:
        """Listen to a call if nobody else does, so that nobody joins it meanwhile; yield False if somebody does."""
        alone = await self._join(call_id, alone=True)
        try:
            yield alone
        finally:
            if alone:
                await self.leave(call_id)

    async def _join(self, call_id: CallId, *, alone: bool = False) -> bool:
        """Begin to listen; False where somebody does already, and it was to be `alone`."""
        if alone and self.listeners(call_id):
            return False
        # Counted first: while it is held for the other instances, nobody here takes it for left.
        self._listening[call_id] += 1
        joined = False
        try:
            joined = not self._keeper.shared or await self._keeper.hold(_name(call_id)) or not alone
        finally:
            if not joined:
                self._forget(call_id)
        return joined

    def _forget(self, call_id: CallId) -> None:
        self._listening[call_id] -= 1
        if not self._listening[call_id]:
            del self._listening[call_id]


def _keep(remembered: dict[Key, None], key: Key) -> None:
    remembered[key] = None
    if len(remembered) > _REMEMBERED:
        del remembered[next(iter(remembered))]


def _name(call_id: CallId) -> str:
    return f"listen:{call_id}"

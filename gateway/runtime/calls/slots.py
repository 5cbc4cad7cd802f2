"""Concurrency slots, rate limits and fair queues, per executor and per session.

- A free slot goes to the waiting sessions in turn, and within a session to the call that waited longest.
- A rate limit is a token bucket with one second's worth of calls, at least one. After an idle second all of them may
  start at once.
- A call that ends while it waits leaves its queue at once. `limits.open_calls` bounds a session's waiting calls, so the
  queues need no bound.
- While an executor's breaker is not closed, only one call at a time gets a slot. The other calls wait until the
  executor has been unreachable for `reconnect_within`; then they are turned away.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.events import CallId, SessionId
from gateway.guard import guard_call
from gateway.runtime.calls.breaker import Breakers
from gateway.runtime.signals import Signal, SlotFree, TurnedAway
from gateway.runtime.views import ExecutorStatus

_LEAST_WAIT = 0.001

Limit = tuple[int, float | None]
"""Maximum number of concurrent calls, and of calls started per second."""


# A dictionary without values keeps the order of arrival and removes a call in constant time.
_Queue = dict[CallId, None]


@dataclass(slots=True)
class _Bucket:
    """A token bucket that holds one second's worth of calls, at least one."""

    rate: float
    tokens: float
    filled_at: float

    @classmethod
    def full(cls, rate: float) -> "_Bucket":
        return cls(rate, max(1.0, rate), asyncio.get_running_loop().time())

    def wait(self) -> float:
        """Return the seconds until a call may start; 0 if it may start now."""
        now = asyncio.get_running_loop().time()
        self.tokens = min(max(1.0, self.rate), self.tokens + (now - self.filled_at) * self.rate)
        self.filled_at = now
        return 0.0 if self.tokens >= 1.0 else max(_LEAST_WAIT, (1.0 - self.tokens) / self.rate)

    def take(self) -> None:
        self.tokens -= 1.0


def _set_rate(bucket: _Bucket | None, rate: float | None) -> _Bucket | None:
    """Change the rate of a bucket; it keeps its tokens."""
    if rate is None:
        return None
    if bucket is None:
        return _Bucket.full(rate)
    bucket.rate = rate
    return bucket


@dataclass(slots=True)
class _Executor:
    name: str
    most: int
    bucket: _Bucket | None
    running: int = 0
    queues: OrderedDict[SessionId, _Queue] = field(default_factory=OrderedDict[SessionId, _Queue])
    timer: asyncio.TimerHandle | None = None


class Slots:
    """Counts calls in flight; a free slot goes to the sessions in turn."""

    def __init__(
        self,
        breakers: Breakers,
        executors: Mapping[str, Limit],
        *,
        session: Limit,
        signal: Callable[[SessionId, Signal], None],
    ) -> None:
        """Set the limits; `signal` puts a signal into the inbox of a session."""
        self._signal = signal
        self._breakers = breakers
        self._per_session, self._session_rate = session
        self._executors: dict[str, _Executor] = {}
        self._sessions: dict[SessionId, int] = {}
        self._paces: dict[SessionId, _Bucket] = {}
        """Buckets of the sessions that have started a call, until they end; empty if sessions have no rate."""
        self._paused = False
        self._queued = False
        """Whether any queue may hold a call; usually none does."""
        self.configure(executors, session=session)

    def configure(self, executors: Mapping[str, Limit], *, session: Limit) -> None:
        """Set the limits of each executor and of every session; queues and counts are kept."""
        self._per_session, self._session_rate = session
        for name in list(self._paces):
            pace = _set_rate(self._paces.pop(name), self._session_rate)
            if pace is not None:
                self._paces[name] = pace
        for name, (most, rate) in executors.items():
            known = self._executors.get(name)
            if known is None:
                self._executors[name] = _Executor(name, most, _set_rate(None, rate))
                continue
            known.most, known.bucket = most, _set_rate(known.bucket, rate)
        for name in list(self._executors):
            self._grant(name)

    def pause(self) -> None:
        """Start no more calls; the process is about to exit."""
        self._paused = True

    def take(self, executor: str, session: SessionId) -> bool:
        """Take a slot if one is free and no call waits for it."""
        state = self._executors.get(executor)
        if state is None or state.queues or self._wait(state, session) != 0:
            return False
        self._hold(state, session)
        return True

    def refusal(self, executor: str) -> str | None:
        """Return the reason why a call without a slot must not wait for one; None if it may wait."""
        return self._breakers.refusal(executor)

    def wait(self, executor: str, session: SessionId, call_id: CallId) -> None:
        """Queue for a slot; the session receives `SlotFree` when it holds the slot, or `TurnedAway`."""
        state = self._executors.get(executor)
        if state is None:
            self._signal(session, TurnedAway(call_id, f"executor {executor!r} is no longer configured"))
            return
        state.queues.setdefault(session, {})[call_id] = None
        self._queued = True
        self.look(executor)

    def withdraw(self, executor: str, session: SessionId, call_id: CallId) -> None:
        """Remove an ended call from its queue."""
        state = self._executors.get(executor)
        queue = state.queues.get(session) if state is not None else None
        if state is None or queue is None:
            return
        queue.pop(call_id, None)
        if not queue:
            del state.queues[session]

    def look(self, executor: str) -> None:
        """Grant free slots, and turn waiting calls away if they must not wait for the executor."""
        state = self._executors.get(executor)
        if state is None:
            return
        self._grant(executor)
        reason = self._breakers.refusal(executor)
        # A process that is about to exit leaves waiting calls to the next one.
        if reason is None or self._paused:
            return
        waiting, state.queues = state.queues, OrderedDict()
        for session, queue in waiting.items():
            for call_id in queue:
                self._signal(session, TurnedAway(call_id, reason))

    def release(self, executor: str, session: SessionId) -> None:
        """Return a slot."""
        state = self._executors.get(executor)
        if state is not None:
            state.running -= 1
        remaining = self._sessions.get(session, 1) - 1
        if remaining > 0:
            self._sessions[session] = remaining
        else:
            self._sessions.pop(session, None)
        if self._queued:
            for name, other in self._executors.items():
                if other.queues:
                    self._grant(name)
            self._queued = any(other.queues for other in self._executors.values())

    def forget(self, session: SessionId) -> None:
        """Remove a session's waiting calls from all queues."""
        self._paces.pop(session, None)
        for state in self._executors.values():
            state.queues.pop(session, None)

    @property
    def held(self) -> int:
        """The number of slots in use, over all executors."""
        return sum(state.running for state in self._executors.values())

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a slot."""
        return sum(len(queue) for state in self._executors.values() for queue in state.queues.values())

    def executors(self) -> Sequence[ExecutorStatus]:
        """Return the configured executors, sorted by name."""
        return [
            ExecutorStatus(
                name=name,
                breaker=breaker.state,
                since=breaker.since if breaker.state != "closed" else None,
                refuses=breaker.refuses,
                failed_at=breaker.failed_at,
                reason=breaker.reason or None,
                running=state.running,
                waiting=sum(map(len, state.queues.values())),
            )
            for name, state in sorted(self._executors.items())
            if (breaker := self._breakers.of(name)) is not None
        ]

    def _wait(self, state: _Executor, session: SessionId) -> float | None:
        """Return the seconds until a call may start; None if it waits for anything other than time.

        The decision and its timer use the same result, since a time that passes between two looks would set no timer.
        """
        if self._paused or state.running >= state.most or self._sessions.get(session, 0) >= self._per_session:
            return None
        wait = self._breakers.wait(state.name) if state.name in self._breakers.moved else 0.0
        if wait is None or (state.bucket is None and not self._paces):
            return wait
        return max(wait, self._rate_wait(state, session))

    def _rate_wait(self, state: _Executor, session: SessionId) -> float:
        """Return the seconds until the rates of the executor and the session allow a call."""
        pace = self._paces.get(session)
        return max(state.bucket.wait() if state.bucket else 0.0, pace.wait() if pace else 0.0)

    def _hold(self, state: _Executor, session: SessionId) -> None:
        state.running += 1
        if state.bucket is not None:
            state.bucket.take()
        if self._session_rate is not None:
            pace = self._paces.get(session)
            if pace is None:
                pace = self._paces[session] = _Bucket.full(self._session_rate)
            pace.take()
        self._sessions[session] = self._sessions.get(session, 0) + 1
        if state.name in self._breakers.moved:
            self._breakers.reserve(state.name)

    def _grant(self, executor: str) -> None:
        state, waits = self._executors[executor], list[float]()
        granted = True
        while granted:
            granted = False
            waits.clear()
            for session in list(state.queues):
                if (wait := self._wait(state, session)) is None:
                    continue
                if wait:
                    waits.append(wait)
                    continue
                granted = True
                queue = state.queues[session]
                call_id = next(iter(queue))
                del queue[call_id]
                if queue:
                    # The next free slot is for another session.
                    state.queues.move_to_end(session)
                else:
                    del state.queues[session]
                self._hold(state, session)
                self._signal(session, SlotFree(call_id, executor))
        if state.queues and not self._paused:
            if patience := self._breakers.patience(executor):
                waits.append(patience)
            if waits:
                self._look_in(min(waits), executor, state)

    def _look_in(self, wait: float, executor: str, state: _Executor) -> None:
        """Set a timer for the next call that the breaker or a rate allows; all other causes call `look` themselves."""
        loop = asyncio.get_running_loop()
        if state.timer is not None:
            if state.timer.when() <= loop.time() + wait:
                return
            state.timer.cancel()

        def again() -> None:
            state.timer = None
            self.look(executor)

        state.timer = loop.call_later(max(wait, _LEAST_WAIT), guard_call("slots", again))

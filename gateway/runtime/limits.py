"""Who may work now: slots per executor and per session, a rate per executor, fair queues behind them."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.envelope import CallId


class Waiter(Protocol):
    """A session that can have calls waiting."""

    def slot_free(self, call_id: CallId, executor: str) -> None:
        """Tell that a slot is now held for this call."""
        ...


@dataclass(slots=True)
class _Executor:
    most: int
    rate: float | None = None
    running: int = 0
    tokens: float = 0.0
    filled_at: float = 0.0
    queues: "OrderedDict[Waiter, deque[CallId]]" = field(default_factory=OrderedDict["Waiter", deque[CallId]])
    timer: asyncio.TimerHandle | None = None


class Slots:
    """Counts calls in flight; a free slot goes to the sessions in turn."""

    def __init__(self, *, per_session: int) -> None:
        self._per_session = per_session
        self._executors: dict[str, _Executor] = {}
        self._sessions: dict[Waiter, int] = {}
        self._paused = False

    def configure(self, limits: Mapping[str, tuple[int, float | None]], *, per_session: int) -> None:
        """Set slots and rate per second of each executor; queues and counts are kept."""
        self._per_session = per_session
        for name, (most, rate) in limits.items():
            known = self._executors.get(name)
            if known is None:
                self._executors[name] = _Executor(most, rate, tokens=max(1.0, rate or 1.0))
            else:
                known.most, known.rate = most, rate
        for name in list(self._executors):
            self._grant(name)

    def pause(self) -> None:
        """Let nothing new begin any more; the process is about to end."""
        self._paused = True

    def take(self, executor: str, session: Waiter) -> bool:
        """Take a slot if one is free and nobody waits for it."""
        state = self._executors.get(executor)
        if state is None or state.queues or not self._fits(state, session):
            return False
        self._hold(state, session)
        return True

    def wait(self, executor: str, session: Waiter, call_id: CallId) -> None:
        """Queue for a slot; `session.slot_free` tells when it is held."""
        state = self._executors.get(executor)
        if state is None:
            return
        state.queues.setdefault(session, deque()).append(call_id)
        self._grant(executor)

    def release(self, executor: str, session: Waiter) -> None:
        """Give a slot back."""
        state = self._executors.get(executor)
        if state is not None:
            state.running -= 1
        left = self._sessions.get(session, 1) - 1
        if left > 0:
            self._sessions[session] = left
        else:
            self._sessions.pop(session, None)
        for name, other in self._executors.items():
            if other.queues:
                self._grant(name)

    def forget(self, session: Waiter) -> None:
        """Take a session's waiting calls out of all queues."""
        for state in self._executors.values():
            state.queues.pop(session, None)

    def _fits(self, state: _Executor, session: Waiter) -> bool:
        if self._paused or state.running >= state.most or self._sessions.get(session, 0) >= self._per_session:
            return False
        return state.rate is None or self._has_token(state)

    def _has_token(self, state: _Executor) -> bool:
        assert state.rate is not None
        now = asyncio.get_running_loop().time()
        state.tokens = min(max(1.0, state.rate), state.tokens + (now - state.filled_at) * state.rate)
        state.filled_at = now
        return state.tokens >= 1.0

    def _hold(self, state: _Executor, session: Waiter) -> None:
        state.running += 1
        if state.rate is not None:
            state.tokens -= 1.0
        self._sessions[session] = self._sessions.get(session, 0) + 1

    def _grant(self, executor: str) -> None:
        state = self._executors[executor]
        granted = True
        while granted:
            granted = False
            for session in list(state.queues):
                if not self._fits(state, session):
                    continue
                granted = True
                queue = state.queues[session]
                call_id = queue.popleft()
                if not queue:
                    del state.queues[session]
                self._hold(state, session)
                session.slot_free(call_id, executor)
        self._wake_for_rate(executor, state)

    def _wake_for_rate(self, executor: str, state: _Executor) -> None:
        if state.rate is None or not state.queues or state.timer is not None or state.running >= state.most:
            return
        loop = asyncio.get_running_loop()
        wait = max(0.001, (1.0 - state.tokens) / state.rate)

        def again() -> None:
            state.timer = None
            self._grant(executor)

        state.timer = loop.call_later(wait, again)

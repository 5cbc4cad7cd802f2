"""Runs attempts at executors as tasks, and turns every way they can end into a signal.

Retry decisions are the core's (core.calls.judge). A task reports by its done-callback: one that is
canceled before its first step, or dies of a fault of ours, reports as well.
"""

import asyncio
from asyncio import Task
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, cast

import structlog

from gateway.clock import Clock
from gateway.core.calls import failure
from gateway.core.effects import Ask, Dispatch, Release, call_data
from gateway.core.session import RetryPolicy
from gateway.core.state import SessionView
from gateway.events import CallId
from gateway.executors.port import (
    Accepted,
    Answer,
    Answered,
    Cancellation,
    Executor,
    NeverSent,
    NotProcessed,
    Replied,
    Request,
    Uncertain,
)
from gateway.guard import FAULTS, Tasks, awaited, guard, guard_call, is_fault
from gateway.runtime.calls.breaker import Breakers
from gateway.runtime.calls.callbacks import Callbacks
from gateway.runtime.calls.quotes import Quotes
from gateway.runtime.calls.slots import Slots
from gateway.runtime.delivery.backends import Backends
from gateway.runtime.metrics import AttemptResult, Metrics
from gateway.runtime.session.inbox import Inbox
from gateway.runtime.session.signals import Attempted, ExecutorReplied
from gateway.store.call import Call

log = structlog.get_logger(__name__)

_ANSWERS = (Answered, Accepted, NeverSent, NotProcessed, Replied, Uncertain)

_CANCEL_TIMEOUT = timedelta(seconds=5)
MOST_TOLD = 1_000
"""Cancels that are told to executors at once; the next are not told, as they are best effort."""
_SLACK = timedelta(seconds=2)
_FAIR = 0.5
"""An attempt with less than this part of the time it should have says nothing about an executor that was silent."""
_NAME = 64
"""How much of a member's name is logged."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """How an attempt ended, and whether that tells something about the executor being there."""

    answer: Answer
    telling: bool = True


class Dispatcher:
    """Runs every request to an executor."""

    def __init__(
        self,
        *,
        clock: Clock,
        metrics: Metrics,
        slots: Slots,
        breakers: Breakers,
        jitter: Callable[[], float],
        callbacks: Callbacks,
        quotes: Quotes,
        backends: Backends,
        tasks: Tasks,
    ) -> None:
        self._clock = clock
        self._metrics = metrics
        self._slots = slots
        self._breakers = breakers
        self._jitter = jitter
        self._callbacks = callbacks
        self._quotes = quotes
        self._backends = backends
        self._tasks = tasks
        self._attempts: dict[CallId, Task[_Tried]] = {}
        self._telling = 0
        self._noted: set[str] = set()
        """Executors of which it was logged that they say more than anybody knows."""
        self._of: dict[Inbox, set[Task[Any]]] = {}
        """All that is under way, by the session that hears of its end."""

    def stop(self) -> None:
        """Break off what is under way; the calls are taken up again by the next process."""
        for task in list(self._attempts.values()):
            task.cancel()

    @property
    def in_flight(self) -> int:
        """How many attempts are under way."""
        return len(self._attempts)

    def busy(self, session: Inbox) -> bool:
        """Whether an attempt of a session's calls is under way."""
        of_session = self._of.get(session)
        return of_session is not None and any(task in of_session for task in self._attempts.values())

    def abandon(self, session: Inbox) -> None:
        """Break off all that is under way for a session that goes on elsewhere; executors are told nothing."""
        for task in list(self._of.get(session, ())):
            task.cancel()

    def _keep(self, session: Inbox, task: Task[Any]) -> None:
        self._of.setdefault(session, set()).add(task)
        task.add_done_callback(guard_call("dispatcher", partial(self._forget, session)))

    def _forget(self, session: Inbox, task: Task[Any]) -> None:
        of_session = self._of.get(session, set())
        of_session.discard(task)
        if not of_session:
            self._of.pop(session, None)

    # Calls -----------------------------------------------------------------------------------------------

    def dispatch(self, session: Inbox, effect: Dispatch, view: SessionView, *, protocol: str) -> None:
        """Start one attempt of a call that holds a slot."""
        call = effect.call
        task = awaited("attempt", self._attempt(call, view, protocol), self._tasks)
        self._attempts[call.call_id] = task
        epoch = self._breakers.began(call.executor or "")
        task.add_done_callback(guard_call("dispatcher", partial(self._ended, session, call, epoch)))
        self._keep(session, task)

    async def _attempt(self, call: Call, view: SessionView, protocol: str) -> _Tried:
        found = self._backends.executor(call.executor or "")
        if found is None:
            return _Tried(failure(f"The tool {call.tool!r} is no longer available here."), telling=False)
        executor, policy = found
        left = call.deadline_at - self._clock.now()
        if left <= timedelta(0):
            return _Tried(NeverSent("no time was left for this attempt"), telling=False)
        links = self._callbacks.addresses(call.call_id)
        request = Request(
            kind="tool.requested",
            key=call.idempotency_key,
            data=call_data(
                view,
                call,
                protocol=protocol,
                callback=links.outcome if links else None,
                progress=links.progress if links else None,
            ),
            attempt=call.attempt,
            timeout=min(policy.timeout, left),
        )
        # The executor keeps to `timeout`; one that does not is broken off when the call's deadline ends the call.
        return await self._execute(executor, request, policy, executor=call.executor, call_id=call.call_id)

    async def _execute(self, asked: Executor, request: Request, policy: RetryPolicy, **about: str | None) -> _Tried:
        """Ask an executor; the dispatcher's edge: whatever it does, an answer comes out."""
        try:
            answer = await asked.execute(request)
            if not isinstance(cast("object", answer), _ANSWERS):
                raise TypeError(f"an executor answers with one of its answers, not {type(answer).__name__}")
        except TimeoutError:
            raise
        except BaseException as exc:
            if not is_fault(exc):
                raise
            FAULTS.note("executor", exc, text="an executor failed", **about)
            text = f"the executor failed inside the gateway ({type(exc).__name__})"
            return _Tried(Uncertain(text), telling=False)
        return _Tried(answer, telling=_is_telling(answer, request, policy))

    def _ended(self, session: Inbox, call: Call, epoch: int, task: Task[_Tried]) -> None:
        if self._attempts.get(call.call_id) is task:
            del self._attempts[call.call_id]
        if call.executor is not None:
            self._slots.release(call.executor, session)
        if task.cancelled():
            self._tell_breaker(call.executor or "", epoch, None)
            self._metrics.attempt(call.executor or "", "canceled")
            return
        problem = task.exception()
        text = f"the attempt failed ({type(problem).__name__})"
        if problem:
            FAULTS.note("attempt", problem, call_id=call.call_id)
        tried = _Tried(Uncertain(text), telling=False) if problem else task.result()
        answer = tried.answer
        self._tell_breaker(call.executor or "", epoch, answer if tried.telling else None)
        self._metrics.attempt(call.executor or "", _result_of(answer))
        if isinstance(answer, Answered):
            answer = self.look_through(call.executor, answer)
        else:
            log.info(
                "attempt ended",
                call_id=call.call_id,
                attempt=call.attempt,
                executor=call.executor,
                result=_result_of(answer),
                reason=getattr(answer, "reason", None),
            )
        session.put(Attempted(call.call_id, call.attempt, answer))

    def look_through(self, executor: str | None, answer: Answered) -> Answered:
        """Note what is strange in an answer, and mask what its error quotes."""
        self._note_ignored(executor, answer)
        return self._quotes.look_through(executor, answer)

    def _note_ignored(self, executor: str | None, answer: Answered) -> None:
        """Log, once per executor, that members of its answer are known to nobody."""
        if executor is None or executor in self._noted or not answer.ignored:
            return
        self._noted.add(executor)
        members = [name[:_NAME] for name in answer.ignored]
        log.warning("members of an outcome are unknown and ignored", executor=executor, members=members)

    def _tell_breaker(self, executor: str, epoch: int, answer: Answer | None) -> None:
        if self._breakers.ended(executor, epoch, answer):
            self._slots.turn_away(executor)

    def release(self, effect: Release) -> None:
        """A call is over, or should be: break its attempt off and tell the executor."""
        task = self._attempts.get(effect.call_id)
        if task is not None and effect.stop:
            task.cancel()
        found = self._backends.executor(effect.executor or "")
        if found is None or effect.tell is None:
            return
        cancellation = Cancellation(key=f"{effect.key}.cancel", data=effect.tell, timeout=_CANCEL_TIMEOUT)
        if self._telling >= MOST_TOLD:
            log.warning("an executor was not told of a cancel", key=cancellation.key, reason="too many at once")
            return
        self._telling += 1
        telling = guard("cancel", partial(self._tell, found[0], cancellation), self._tasks, again=False)
        telling.add_done_callback(guard_call("dispatcher", self._told))

    def _told(self, _task: Task[None]) -> None:
        self._telling -= 1

    async def _tell(self, executor: Executor, cancellation: Cancellation) -> None:
        # Best effort by contract: whatever goes wrong here is told to the log and changes nothing.
        async with asyncio.timeout((cancellation.timeout + _SLACK).total_seconds()):
            await executor.cancel(cancellation)

    # Questions -------------------------------------------------------------------------------------------

    def ask(self, session: Inbox, effect: Ask) -> None:
        """Start asking an executor about a routed event."""
        asking = guard("question", partial(self._ask_until_deadline, session, effect), self._tasks, times=3)
        self._keep(session, asking)

    async def _ask_until_deadline(self, session: Inbox, effect: Ask) -> None:
        answer = await self._ask(effect)
        session.put(ExecutorReplied(effect.sequence, answer))

    async def _ask(self, effect: Ask) -> Answer:
        found = self._backends.executor(effect.executor)
        if found is None:
            return failure(f"there is no executor {effect.executor!r}")
        executor, policy = found
        reason = "no time was left"
        for attempt in range(1, policy.attempts + 1):
            left = effect.deadline_at - self._clock.now()
            if left <= timedelta(0):
                break
            if not self._breakers.admits(effect.executor):
                return failure(self._breakers.reason(effect.executor) or reason)
            self._breakers.reserve(effect.executor)
            epoch = self._breakers.began(effect.executor)
            request = Request(
                kind=effect.kind,
                key=effect.key,
                data={**effect.data, "attempt": attempt},
                attempt=attempt,
                timeout=min(policy.timeout, left),
            )
            tried: _Tried | None = None
            try:
                tried = await self._ask_once(executor, request, policy)
            finally:
                self._tell_breaker(effect.executor, epoch, tried.answer if tried and tried.telling else None)
            answer = tried.answer
            self._metrics.attempt(effect.executor, _result_of(answer))
            match answer:
                case Answered() | Replied():
                    return answer
                case Accepted():
                    return failure("the backend must answer at once; a 202 confirms nothing")
                case Uncertain(reason) if not policy.idempotent:
                    return failure(f"unknown: {reason}", unknown=True)
                case NotProcessed(reason, retry_after):
                    wait = retry_after or policy.delay(attempt, self._jitter())
                case NeverSent(reason) | Uncertain(reason):
                    wait = policy.delay(attempt, self._jitter())
            if attempt == policy.attempts or self._clock.now() + wait >= effect.deadline_at:
                break
            await asyncio.sleep(wait.total_seconds())
        return failure(reason)

    async def _ask_once(self, executor: Executor, request: Request, policy: RetryPolicy) -> _Tried:
        try:
            async with asyncio.timeout((request.timeout + _SLACK).total_seconds()):
                return await self._execute(executor, request, policy, kind=request.kind, key=request.key)
        except TimeoutError:
            answer = Uncertain("the executor did not end in time")
            return _Tried(answer, telling=_is_telling(answer, request, policy))


def _is_telling(answer: Answer, request: Request, policy: RetryPolicy) -> bool:
    """Whether an answer says something about the executor: silence only where there was a fair time for an answer."""
    return not isinstance(answer, Uncertain) or request.timeout >= _FAIR * min(policy.timeout, policy.deadline)


def _result_of(answer: Answer) -> AttemptResult:
    match answer:
        case Answered() | Replied():
            return "answered"
        case Accepted():
            return "accepted"
        case NeverSent():
            return "never_sent"
        case NotProcessed():
            return "not_processed"
        case Uncertain():
            return "uncertain"

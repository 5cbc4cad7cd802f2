"""Runs attempts at executors, and turns every end of an attempt into a signal.

The core decides about retries of calls (core.calls.judge); a question is retried here, in its own task. An attempt is
the future that the executor returned, or a task around its coroutine. Both report from their done-callback, so an
attempt also reports if it is canceled before its first step or fails with a gateway fault.
"""

import asyncio
from asyncio import Future, Task
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from functools import partial
from logging import INFO, WARNING
from typing import Any

import structlog

from gateway.core.calls import failure
from gateway.core.effects import Ask, AwaitCopy, Dispatch, Release, call_data
from gateway.core.session import RetryPolicy
from gateway.core.state import SessionView
from gateway.core.trace_context import attempt_context
from gateway.errors import EngineUnavailable
from gateway.events import CallId, SessionId
from gateway.executors.port import (
    WITHHELD,
    Accepted,
    Answer,
    Answered,
    Cancellation,
    Executor,
    HttpExchange,
    NeverSent,
    NotProcessed,
    Replied,
    Request,
    Uncertain,
)
from gateway.guard import FAULTS, guard, guard_call, is_fault, spawn
from gateway.runtime.calls.breaker import Breakers
from gateway.runtime.calls.callbacks import Callbacks
from gateway.runtime.calls.reports import Report
from gateway.runtime.calls.secret_scanner import SecretScanner
from gateway.runtime.calls.slots import Slots
from gateway.runtime.delivery.backends import Backends
from gateway.runtime.delivery.subscriptions import target_of
from gateway.runtime.metrics import AttemptResult
from gateway.runtime.services import Services
from gateway.runtime.signals import Attempted, ExecutorReplied, Signal
from gateway.store.call import Call
from gateway.traces.spans import post_span

log = structlog.get_logger(__name__)

_CANCEL_TIMEOUT = timedelta(seconds=5)
MOST_CANCELS = 1_000
"""Cancels that are sent to executors at once; more are not sent, since they are best effort."""
_SLACK = timedelta(seconds=2)
_NO_TIME = timedelta(0)
_FAIR = 0.5
"""If an attempt had less than this fraction of its full timeout, a timeout says nothing about the executor."""
_LOOK_AGAIN = 0.2
"""Seconds between two looks whether a question may be sent."""
_COPY_LOOK, _LONGEST_COPY_LOOK = 0.05, 1.0
"""The first and the longest pause, in seconds, between two looks at a copy that confirms a message."""
_NAME = 64
"""Characters of a member's name that are logged."""

_WARNED = frozenset({"refused", "not_processed", "uncertain"})
"""The results that are logged as warnings."""
_ATTEMPTS: Mapping[AttemptResult, str] = {
    "accepted": "attempt accepted",
    "refused": "attempt refused",
    "never_sent": "attempt not sent",
    "not_processed": "attempt not processed",
    "uncertain": "attempt failed",
}


class Dispatcher:
    """Runs every request to an executor."""

    def __init__(
        self,
        services: Services,
        *,
        slots: Slots,
        breakers: Breakers,
        callbacks: Callbacks,
        scanner: SecretScanner,
        backends: Backends,
        signal: Callable[[SessionId, Signal], None],
        may_start: Callable[[SessionId], bool],
    ) -> None:
        """Prepare; `signal` puts a signal into the inbox of a session.

        `may_start` tells whether this process may start work for a session now.
        """
        self._signal = signal
        self._may_start = may_start
        self._clock = services.clock
        self._engine = services.engine
        self._metrics = services.metrics
        self._slots = slots
        self._breakers = breakers
        self._jitter = services.jitter
        self._callbacks = callbacks
        self._scanner = scanner
        self._backends = backends
        self._tasks = services.tasks
        self._draining = services.drain.begun
        self._traces = services.traces
        self._attempts: dict[SessionId, dict[CallId, Future[Answer]]] = {}
        """The running attempts of each session."""
        self._broken_off: dict[Future[Answer], None] = {}
        """Canceled attempts whose end is not reported."""
        self._questions: dict[SessionId, dict[Task[None], None]] = {}
        self._asking = Counter[tuple[SessionId, str]]()
        """The number of requests about routed events on the wire, by session and executor."""
        self._report_end = guard_call("dispatcher", self._handle_end)
        self._canceling = 0
        """The number of cancels on the wire."""
        self._noted: set[str] = set()
        """Executors whose unknown outcome members were logged."""
        self._unaddressed: set[str] = set()
        """Executors that have answered 202 while the gateway had no callback address."""

    def stop(self) -> None:
        """Cancel all attempts; the next process continues the calls."""
        for session in list(self._attempts):
            self._break_off(*self._attempts[session].values())

    def busy(self, session: SessionId) -> bool:
        """Whether an attempt for a session is on the wire."""
        return session in self._attempts or any(name == session for name, _ in self._asking)

    def attempts(self, view: SessionView) -> Counter[str]:
        """Count a session's attempts on the wire by executor."""
        session, found = view.session_id, Counter[str]()
        for call_id in self._attempts.get(session, ()):
            call = view.calls.get(call_id)
            found[(call.executor if call is not None else None) or "-"] += 1
        for (name, executor), count in self._asking.items():
            if name == session:
                found[executor] += count
        return found

    def abandon(self, session: SessionId) -> None:
        """Cancel the attempts of a session that continues elsewhere, without sending cancels to executors."""
        self._break_off(*self._attempts.get(session, {}).values())
        for question in self._questions.get(session, ()):
            question.cancel()

    def _break_off(self, *attempts: Future[Answer]) -> None:
        for attempt in attempts:
            self._broken_off[attempt] = None
            attempt.cancel()

    # Calls -----------------------------------------------------------------------------------------------

    def dispatch(self, session: SessionId, effect: Dispatch, view: SessionView, *, protocol: str) -> None:
        """Start one attempt of a call that holds a slot."""
        call = effect.call
        epoch = self._breakers.start_attempt(call.executor or "")
        found = self._backends.executor(call.executor or "")
        if found is None:
            answer = NeverSent(f"executor {call.executor!r} is no longer configured", withheld=True)
            self._finish(session, call, epoch, answer, "never_sent", is_evidence=False)
            return
        # The stop may have begun while the step was being committed.
        if self._draining.happened:
            self._finish(session, call, epoch, WITHHELD, "never_sent", is_evidence=False)
            return
        executor, policy = found
        if call.state == "accepted":
            log.warning(
                "accepted call sent again",
                call_id=call.call_id,
                attempt=call.attempt,
                executor=call.executor,
                reason="no sign of life, or an operator's order",
            )
        # The executor enforces the timeout. If it does not, the call's deadline cancels the attempt.
        timeout = min(policy.timeout, call.deadline_at - self._clock.now())
        if timeout <= _NO_TIME:
            answer = NeverSent("the deadline had passed before this attempt", withheld=True)
            self._finish(session, call, epoch, answer, "never_sent", is_evidence=False)
            return
        report = Report(session, call.call_id, self._signal)
        try:
            links = self._callbacks.addresses(call.call_id)
            data = call_data(
                view,
                call,
                protocol=protocol,
                callback=links.outcome if links else None,
                progress=links.progress if links else None,
            )
            context = attempt_context(call)
            request = Request(
                "tool.requested",
                call.idempotency_key,
                data,
                call.attempt,
                timeout,
                call.written,
                report,
                str(context),
                None if self._traces is None else HttpExchange(),
                context.state or None,
                partial(self._may_start, session),
            )
            attempt = executor.execute(request)
            if not isinstance(attempt, Future):
                attempt = spawn("attempt", attempt, self._tasks)
        # An executor may raise anything; every attempt must end with an answer.
        except BaseException as exc:
            if not is_fault(exc):
                raise
            report.end()
            answer = _note_fault(exc, executor=call.executor, call_id=call.call_id)
            self._finish(session, call, epoch, answer, "uncertain", is_evidence=False)
            return
        if request.exchange is not None:
            trace = partial(self._trace, call, request.exchange, self._clock.now())
            attempt.add_done_callback(guard_call("traces", trace))
        self._attempts.setdefault(session, {})[call.call_id] = attempt
        attempt.add_done_callback(partial(self._report_end, report, call, epoch, timeout, policy))

    def _trace(self, call: Call, exchange: HttpExchange, started_at: datetime, attempt: Future[Answer]) -> None:
        failed = attempt.cancelled() or attempt.exception() is not None
        span = post_span(call, exchange, None if failed else attempt.result(), started_at, self._clock.now())
        if self._traces is not None and span is not None:
            self._traces.put(span)

    def _handle_end(
        self, report: Report, call: Call, epoch: int, timeout: timedelta, policy: RetryPolicy, attempt: Future[Answer]
    ) -> None:
        report.end()
        session = report.session
        of_session = self._attempts.get(session, {})
        if of_session.get(call.call_id) is attempt:
            del of_session[call.call_id]
            if not of_session:
                del self._attempts[session]
        answer, result, is_evidence = None, "canceled", False
        try:
            answer = attempt.result()
            result = _result_of(answer)
            is_evidence = _is_evidence(answer, result, timeout, policy)
        # An attempt that was canceled, but not by the dispatcher, has failed like any other.
        except BaseException as exc:  # noqa: BLE001
            if not attempt.cancelled() or attempt not in self._broken_off:
                answer, result = _note_fault(exc, executor=call.executor, call_id=call.call_id), "uncertain"
        self._broken_off.pop(attempt, None)
        self._finish(session, call, epoch, answer, result, is_evidence=is_evidence)

    def _finish(
        self,
        session: SessionId,
        call: Call,
        epoch: int,
        answer: Answer | None,
        result: AttemptResult,
        *,
        is_evidence: bool,
    ) -> None:
        """Finish an attempt; `is_evidence` says whether its answer shows that the executor is available or not."""
        name = call.executor or ""
        # The breaker moves first, so that the free slot goes to a call that may start.
        moved = self._breakers.end_attempt(name, epoch, answer if is_evidence else None)
        # The answer comes before the slot, for which the same call may wait.
        if answer is not None:
            self._report_answer(session, call, answer, result)
        if call.executor is not None:
            self._slots.release(name, session)
        if moved:
            self._slots.look(name)
        self._metrics.attempt(name, result)

    def _report_answer(self, session: SessionId, call: Call, answer: Answer, result: AttemptResult) -> None:
        """Log what is unusual about an answer, and pass it to the session."""
        name = call.executor or ""
        if result == "accepted" and self._callbacks.public_url is None and name not in self._unaddressed:
            self._unaddressed.add(name)
            log.warning(
                "an executor answered 202 without a callback address; only POST /v1/calls/{call_id}/outcome can end the"
                " call",
                call_id=call.call_id,
                executor=name,
                fix="set `public_url`",
            )
        if isinstance(answer, Answered) and (answer.may_quote or answer.ignored):
            answer = self.scan_answer(call.executor, answer)
        if result != "answered":
            reason = answer.outcome.error if isinstance(answer, Answered) else getattr(answer, "reason", None)
            log.log(
                WARNING if result in _WARNED else INFO,
                _ATTEMPTS[result],
                reason=reason,
                call_id=call.call_id,
                attempt=call.attempt,
                executor=call.executor,
            )
        self._signal(session, Attempted(call.call_id, call.attempt, answer))

    def scan_answer(self, executor: str | None, answer: Answered) -> Answered:
        """Log unknown members of an outcome, and mask secrets in its error."""
        if executor is None:
            return answer
        if answer.ignored and executor not in self._noted:
            self._noted.add(executor)
            members = [name[:_NAME] for name in answer.ignored]
            log.warning("unknown members of an outcome ignored", executor=executor, members=members)
        return self._scanner.scan(executor, answer)

    def release(self, session: SessionId, effect: Release) -> None:
        """Cancel the attempt of a call that has ended or is being canceled, and notify the executor."""
        attempt = self._attempts.get(session, {}).get(effect.call_id)
        if attempt is not None and effect.stop:
            self._break_off(attempt)
        found = self._backends.executor(effect.executor or "")
        if found is None or effect.tell is None:
            return
        traceparent, tracestate = (None, None) if effect.trace is None else (str(effect.trace), effect.trace.state)
        cancellation = Cancellation(
            f"{effect.key}.cancel", effect.tell, _CANCEL_TIMEOUT, traceparent, tracestate or None
        )
        if self._canceling >= MOST_CANCELS:
            log.warning("cancel not sent", key=cancellation.key, reason="too many at once")
            return
        self._canceling += 1
        canceling = guard("cancel", partial(self._cancel, found[0], cancellation), self._tasks, again=False)
        canceling.add_done_callback(guard_call("dispatcher", self._end_cancel))

    def _end_cancel(self, _task: Task[None]) -> None:
        self._canceling -= 1

    async def _cancel(self, executor: Executor, cancellation: Cancellation) -> None:
        # Cancels are best effort: a failure is logged and changes nothing.
        try:
            async with asyncio.timeout((cancellation.timeout + _SLACK).total_seconds()):
                await executor.cancel(cancellation)
        except TimeoutError:
            # Also after a stall of the process, in which the executor's own limit has expired too.
            log.warning("cancel failed", key=cancellation.key, reason="the executor did not finish in time")

    # Questions -------------------------------------------------------------------------------------------

    def ask(self, session: SessionId, effect: Ask) -> None:
        """Send a routed event to its executor in a new task."""
        self._start_question(session, partial(self._ask_until_deadline, session, effect))

    def await_copy(self, session: SessionId, effect: AwaitCopy) -> None:
        """Report the fate of a copy to its session, in a new task."""
        self._start_question(session, partial(self._await_copy, session, effect))

    def _start_question(self, session: SessionId, question: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asking = guard("question", question, self._tasks, times=3)
        self._questions.setdefault(session, {})[asking] = None
        asking.add_done_callback(guard_call("dispatcher", partial(self._forget, session)))

    def _forget(self, session: SessionId, question: Task[None]) -> None:
        of_session = self._questions.get(session, {})
        of_session.pop(question, None)
        if not of_session:
            self._questions.pop(session, None)

    async def _ask_until_deadline(self, session: SessionId, effect: Ask) -> None:
        answer = await self._ask(session, effect)
        self._signal(session, ExecutorReplied(effect.sequence, answer, effect.executor))

    async def _await_copy(self, session: SessionId, effect: AwaitCopy) -> None:
        # Another instance may deliver the copy, and this one may restart meanwhile: only the ledger knows.
        pause = _COPY_LOOK
        while self._clock.now() < effect.deadline_at:
            answer = await self._fate_of_copy(effect)
            if answer is not None:
                self._signal(session, ExecutorReplied(effect.sequence, answer))
                return
            await asyncio.sleep(pause)
            pause = min(_LONGEST_COPY_LOOK, pause * 1.5)

    async def _fate_of_copy(self, effect: AwaitCopy) -> Answer | None:
        """Read whether a copy was delivered; None if that is not known yet."""
        try:
            rows = await self._engine.sends_of(effect.session_id, effect.sequence)
        except EngineUnavailable as exc:
            self._engine.outage.failed(exc, "read of a copy")
            return None
        row = next((row for row in rows if row.target == target_of(effect.destination)), None)
        if row is None:
            return failure(f"no route copies this message to {effect.destination!r}")
        if row.state == "pending":
            return None
        if row.state == "delivered":
            return Replied({"delivered": True})
        return failure(f"{effect.destination!r} did not take the message: {row.reason or row.state}")

    async def _ask(self, session: SessionId, effect: Ask) -> Answer:
        found = self._backends.executor(effect.executor)
        if found is None:
            return failure(f"there is no executor {effect.executor!r}")
        executor, policy = found
        reason, attempt, unsent = "the deadline had passed", 1, 0
        while (remaining := await self._time_to_ask(session, effect)) > _NO_TIME:
            if (refusal := self._breakers.refusal(effect.executor)) is not None:
                if self._breakers.wait(effect.executor) != 0:
                    return failure(refusal)
                self._breakers.reserve(effect.executor)
            epoch = self._breakers.start_attempt(effect.executor)
            request = Request(
                kind=effect.kind,
                key=effect.key,
                data={**effect.data, "attempt": attempt},
                attempt=attempt,
                timeout=min(policy.timeout, remaining),
                may_start=partial(self._may_start, session),
            )
            evidence: Answer | None = None
            place = session, effect.executor
            self._asking[place] += 1
            try:
                answer, is_evidence = await self._ask_once(executor, request, policy)
                evidence = answer if is_evidence else None
            finally:
                self._asking[place] -= 1
                if not self._asking[place]:
                    del self._asking[place]
                if self._breakers.end_attempt(effect.executor, epoch, evidence):
                    self._slots.look(effect.executor)
            self._metrics.attempt(effect.executor, _result_of(answer))
            match answer:
                case Answered() | Replied():
                    return answer
                case Accepted():
                    return failure("the backend answered 202; this request needs a final response")
                case Uncertain(reason) if not policy.idempotent:
                    return failure(f"unknown: {reason}", unknown=True)
                case NeverSent(reason):
                    # An unsent request uses up no attempt; the breaker decides how long to retry.
                    unsent += 1
                    wait = policy.delay(unsent, self._jitter())
                case NotProcessed(reason, retry_after):
                    attempt, wait = attempt + 1, retry_after or policy.delay(attempt, self._jitter())
                case Uncertain(reason):
                    attempt, wait = attempt + 1, policy.delay(attempt, self._jitter())
            if attempt > policy.attempts or self._clock.now() + wait >= effect.deadline_at:
                break
            await asyncio.sleep(wait.total_seconds())
        return failure(reason)

    async def _time_to_ask(self, session: SessionId, effect: Ask) -> timedelta:
        """Wait until work may start for the session; return the time that remains then.

        Meanwhile the next owner may ask.
        """
        while True:
            remaining = effect.deadline_at - self._clock.now()
            if remaining <= _NO_TIME or self._may_start(session):
                return remaining
            await asyncio.sleep(_LOOK_AGAIN)

    async def _ask_once(self, executor: Executor, request: Request, policy: RetryPolicy) -> tuple[Answer, bool]:
        """Send the request once; the flag says whether the answer shows that the executor is available or not."""
        try:
            async with asyncio.timeout((request.timeout + _SLACK).total_seconds()):
                answer = await executor.execute(request)
        except TimeoutError:
            answer = Uncertain("the executor did not finish in time")
        except BaseException as exc:
            if not is_fault(exc):
                raise
            return _note_fault(exc, kind=request.kind, key=request.key), False
        return answer, _is_evidence(answer, _result_of(answer), request.timeout, policy)


def _is_evidence(answer: Answer, result: AttemptResult, timeout: timedelta, policy: RetryPolicy) -> bool:
    """Whether an answer shows that the executor is available or not; its timeout does only after a fair time."""
    if isinstance(answer, NeverSent):
        return not answer.withheld
    return result != "uncertain" or timeout >= _FAIR * min(policy.timeout, policy.deadline)


def _note_fault(exc: BaseException, **about: str | None) -> Uncertain:
    FAULTS.get().note("executor", exc, text="executor failed", **about)
    return Uncertain(f"the executor failed inside the gateway ({type(exc).__name__})")


def _result_of(answer: object) -> AttemptResult:
    """Return the result of an attempt as a metric label.

    Raises:
        TypeError: a plug-in executor returned something that is not an answer.
    """
    match answer:
        case Answered(refused=True) | Uncertain(refused=True):
            return "refused"
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
        case _:
            raise TypeError(f"an executor must return an `Answer`, not {type(answer).__name__}")

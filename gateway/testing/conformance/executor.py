"""The conformance suite for executors: each attempt must end in one bounded `Answer`.

Inherit `ExecutorSuite`, override `make`, and run pytest with pytest-asyncio in auto mode:

```python
class TestMyExecutor(ExecutorSuite):
    @asynccontextmanager
    async def make(self) -> AsyncGenerator[Executor]:
        async with MyExecutor() as executor:
            yield executor
```

Inherit it again for each way in which the backend can misbehave; `HangingExecutorSuite` is for a backend that hangs.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import orjson

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

MOST_REPORTED = 64 * 1024
"""The limit of a progress report in bytes of JSON."""
BOUND = 30.0
"""The timeout in seconds of each test."""

REPLY_KINDS: Sequence[str] = ("message.posted", "approval.asked", "question.asked")


def make_request(
    kind: str = "tool.requested",
    *,
    key: str = "5f0c2a54-6d1b-5c53-9d0e-2f4a7d3b9c11",
    attempt: int = 1,
    timeout: timedelta = timedelta(seconds=3),
    report: Callable[[dict[str, Any]], None] | None = None,
    **members: Any,
) -> Request:
    """Make a request with all documented members."""
    data = {
        "call_id": key,
        "native_call_id": "native-1",
        "session_id": "session-1",
        "native_session_id": "native-session-1",
        "labels": {},
        "runtime": "finn",
        "protocol": "huma/0.2.0",
        "tool": "ask_for_cards",
        "arguments": {"rank": "7", "player": "Öğe 🂡"},
        "attempt": attempt,
        "deadline": "2026-11-20T12:02:00Z",
        "callback_url": None,
        "progress_url": None,
    }
    request = Request(kind=kind, key=key, data=data | members, attempt=attempt, timeout=timeout)
    return request if report is None else replace(request, report=report)


def check_answer(answer: Answer, *, kind: str, limit: int) -> None:
    """Check an answer: a type that fits the request, a bounded size, printable texts."""
    match answer:
        case Answered(outcome=outcome, updates=updates):
            assert outcome.outcome in ("success", "failure", "canceled")
            assert outcome.outcome == "success" or outcome.error, "every other outcome needs an error for the agent"
            assert not outcome.unknown, "return Uncertain if the outcome is unknown"
            models = [outcome.model_dump(mode="json"), *(update.model_dump(mode="json") for update in updates)]
            assert len(orjson.dumps(models)) <= limit
        case Replied(reply):
            assert kind != "tool.requested", "a call must be answered with an outcome"
            assert len(orjson.dumps(reply)) <= limit
        case Accepted():
            assert kind == "tool.requested", "only a call has a callback"
        case NeverSent(reason) | NotProcessed(reason) | Uncertain(reason):
            assert 0 < len(reason) <= 1_000
            assert reason.isprintable()


class ExecutorSuite:
    """The tests for every executor."""

    answer_limit: ClassVar[int] = 2 * 1024**2
    """The limit of an answer in bytes of JSON."""
    patience: ClassVar[timedelta] = timedelta(seconds=3)
    """The timeout of the suite's attempts; use a short one for a backend that never answers."""
    reports: ClassVar[bool] = False
    """Whether the executor reports progress with `Request.report`."""

    def make(self) -> AbstractAsyncContextManager[Executor]:
        """Make a new executor; the suite enters it."""
        raise NotImplementedError("override make")

    async def test_an_attempt_ends_in_a_bounded_answer(self) -> None:
        async with asyncio.timeout(BOUND), self.make() as executor:
            answer = await executor.execute(make_request(timeout=self.patience))
        check_answer(answer, kind="tool.requested", limit=self.answer_limit)

    async def test_what_it_reports_are_bounded_json_objects_before_its_answer(self) -> None:
        reports: list[Any] = []
        async with asyncio.timeout(BOUND):
            async with self.make() as executor:
                await executor.execute(make_request(timeout=self.patience, report=reports.append))
                before_answer = list(reports)
            assert reports == before_answer, "an attempt must not report after its answer"
        assert bool(reports) == self.reports
        for one in reports:
            assert isinstance(one, dict)
            assert len(orjson.dumps(one)) <= MOST_REPORTED

    async def test_what_is_not_a_call_ends_in_a_bounded_answer_too(self) -> None:
        async with asyncio.timeout(BOUND), self.make() as executor:
            for kind in REPLY_KINDS:
                answer = await executor.execute(make_request(kind, timeout=self.patience))
                check_answer(answer, kind=kind, limit=self.answer_limit)

    async def test_many_attempts_at_once_all_end(self) -> None:
        async with asyncio.timeout(BOUND), self.make() as executor:
            asked = [
                executor.execute(make_request(key=f"call-{number}", timeout=self.patience)) for number in range(20)
            ]
            for answer in await asyncio.gather(*asked):
                check_answer(answer, kind="tool.requested", limit=self.answer_limit)

    async def test_data_that_cannot_be_sent_is_a_failure_or_an_ordinary_answer(self) -> None:
        async with asyncio.timeout(BOUND), self.make() as executor:
            for odd in (2**80, "\ud800", float("nan")):
                answer = await executor.execute(make_request(timeout=self.patience, arguments={"odd": odd}))
                check_answer(answer, kind="tool.requested", limit=self.answer_limit)

    async def test_an_attempt_without_time_ends_at_once(self) -> None:
        async with asyncio.timeout(BOUND), self.make() as executor:
            answer = await executor.execute(make_request(timeout=timedelta(0)))
        check_answer(answer, kind="tool.requested", limit=self.answer_limit)

    async def test_telling_about_a_cancel_never_raises(self) -> None:
        cancellation = Cancellation(
            key="call-1.cancel",
            data={"call_id": "call-1", "session_id": "session-1", "tool": "ask_for_cards", "reason": None},
            timeout=self.patience,
        )
        async with asyncio.timeout(BOUND), self.make() as executor:
            await executor.cancel(cancellation)

    async def test_it_can_be_left_without_having_been_used(self) -> None:
        async with asyncio.timeout(BOUND), self.make():
            pass

    async def test_an_error_of_its_user_passes_through_it(self) -> None:
        class UsersError(Exception):
            pass

        seen = False
        try:
            async with asyncio.timeout(BOUND), self.make():
                raise UsersError
        except UsersError:
            seen = True
        assert seen, "leaving an executor must not suppress the error"


class HangingExecutorSuite(ExecutorSuite):
    """More tests, for a backend that hangs."""

    patience: ClassVar[timedelta] = timedelta(milliseconds=50)

    async def test_an_attempt_that_takes_too_long_ends_with_its_time(self) -> None:
        async with asyncio.timeout(BOUND), self.make() as executor:
            answer = await executor.execute(make_request(timeout=self.patience))
        assert isinstance(answer, Uncertain | NeverSent), "a timeout is not an answer of the backend"

    async def test_a_canceled_attempt_stops_and_says_so(self) -> None:
        async with asyncio.timeout(BOUND), self.make() as executor:
            attempt = asyncio.ensure_future(executor.execute(make_request(timeout=timedelta(minutes=5))))
            await self.wait_until_asked(attempt)
            attempt.cancel()
            await asyncio.wait([attempt], timeout=BOUND)
            assert attempt.cancelled(), "an executor must not suppress cancellation"

    async def test_it_works_on_after_a_canceled_attempt(self) -> None:
        async with asyncio.timeout(BOUND), self.make() as executor:
            attempt = asyncio.ensure_future(executor.execute(make_request(timeout=timedelta(minutes=5))))
            await self.wait_until_asked(attempt)
            attempt.cancel()
            await asyncio.wait([attempt], timeout=BOUND)
            answer = await executor.execute(make_request(key="call-2", timeout=self.patience))
        check_answer(answer, kind="tool.requested", limit=self.answer_limit)

    async def test_a_full_house_ends_with_its_time(self) -> None:
        async with asyncio.timeout(BOUND), self.make() as executor:
            asked = [
                executor.execute(make_request(key=f"call-{number}", timeout=timedelta(milliseconds=200)))
                for number in range(100)
            ]
            for answer in await asyncio.gather(*asked):
                assert isinstance(answer, Uncertain | NeverSent)

    async def wait_until_asked(self, attempt: "asyncio.Future[Answer]") -> None:
        """Wait until the attempt is running; override this if the backend can tell for certain."""
        for _ in range(10):
            await asyncio.sleep(0)
        assert not attempt.done(), "the backend of this suite must hang"

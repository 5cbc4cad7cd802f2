"""What a part raises is logged and counted once and costs that part a pause; nothing else notices."""

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable

import pytest
import structlog
import uvloop
from structlog.testing import capture_logs

from gateway import guard as guarding
from gateway.guard import FAULTS, Faults, Tasks, guard, guard_call, in_thread, loop_faults, spawn, start_thread
from tests.pace import PATIENCE


class Unforeseen(Exception):
    """Raised by nobody but these tests."""


class Baseless(BaseException):
    """Not even an Exception."""


def total(part: str) -> int:
    return FAULTS.get().total[part]


async def cancel_oneself() -> None:
    raise asyncio.CancelledError


def leave() -> None:
    sys.exit(3)


def fail() -> None:
    raise Unforeseen


def fail_baselessly() -> None:
    raise Baseless


@pytest.mark.parametrize("fault", [fail, fail_baselessly, leave])
async def test_a_part_begins_again_whatever_it_raises(fault: Callable[[], None]) -> None:
    began, before = 0, total("part")
    well = asyncio.Event()

    async def work() -> None:
        nonlocal began
        began += 1
        if began < 3:
            fault()
        well.set()

    with capture_logs() as lines:
        async with Tasks() as tasks:
            guard("part", work, tasks, session_id="s1")
            async with asyncio.timeout(PATIENCE):
                await well.wait()
    assert began == 3
    assert total("part") - before == 2
    told = [line for line in lines if line.get("part") == "part"]
    assert [line["session_id"] for line in told] == ["s1", "s1"]
    assert all(line["log_level"] == "error" and line["exc_info"] for line in told)


async def test_the_others_of_a_group_go_on() -> None:
    async with Tasks() as tasks:
        guard("part", cancel_oneself, tasks, again=False)
        broken = guard("part", _raise, tasks, again=False)
        other = spawn("other", _answer(), tasks)
        await asyncio.wait({broken})
        assert broken.exception() is None
        assert await other == 42


async def _raise() -> None:
    raise Unforeseen


async def _answer() -> int:
    await asyncio.sleep(0)
    return 42


async def test_a_cancel_that_a_part_made_up_is_a_fault_and_a_real_one_its_end() -> None:
    before = total("part")
    async with Tasks() as tasks:
        await guard("part", cancel_oneself, tasks, again=False)
        assert total("part") - before == 1
        real = guard("part", asyncio.Event().wait, tasks)
        await asyncio.sleep(0)
        real.cancel()
        await asyncio.wait({real})
        assert real.cancelled()
    assert total("part") - before == 1


async def test_without_again_a_part_ends_with_its_fault() -> None:
    began = 0

    async def work() -> None:
        nonlocal began
        began += 1
        raise Unforeseen

    async with Tasks() as tasks:
        await guard("part", work, tasks, again=False)
    assert began == 1


async def test_who_awaits_gets_what_was_raised_and_nothing_is_counted() -> None:
    before = FAULTS.get().total.total()
    async with Tasks() as tasks:
        with pytest.raises(Unforeseen):
            await spawn("part", _raise(), tasks)
    assert FAULTS.get().total.total() == before


async def test_a_task_canceled_before_its_first_step_leaves_no_coroutine_unawaited() -> None:
    async with Tasks() as tasks:
        work = _answer()
        spawn("part", work, tasks).cancel()
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


async def test_what_somebody_awaits_cannot_end_the_loop() -> None:
    async def work() -> None:
        leave()

    async with Tasks() as tasks:
        with pytest.raises(RuntimeError, match="end the process with 3"):
            await spawn("part", work(), tasks)


async def test_a_group_that_is_left_by_an_error_cancels_and_waits() -> None:
    ended = False

    async def work() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended = True

    async def leave_by_an_error() -> None:
        async with Tasks() as tasks:
            guard("part", work, tasks)
            await asyncio.sleep(0)
            raise Unforeseen

    with pytest.raises(Unforeseen):
        await leave_by_an_error()
    assert ended


async def test_a_closed_group_runs_nothing_more() -> None:
    tasks = Tasks()
    await tasks.close()
    late = guard("part", _answer, tasks)
    await asyncio.wait({late})
    assert late.cancelled()


async def test_timers_and_callbacks_are_logged_and_counted() -> None:
    before, rang = total("timer"), asyncio.Event()
    loop = asyncio.get_running_loop()
    with capture_logs() as lines:
        loop.call_soon(guard_call("timer", fail))
        loop.call_soon(guard_call("timer", leave))
        loop.call_later(0, guard_call("timer", rang.set))
        async with asyncio.timeout(PATIENCE):
            await rang.wait()
    assert total("timer") - before == 2
    assert [line["part"] for line in lines] == ["timer", "timer"]


async def test_what_no_part_was_there_for_is_counted() -> None:
    before, seen = total("loop"), asyncio.Event()
    loop = asyncio.get_running_loop()
    with loop_faults(), capture_logs() as lines:
        loop.call_soon(fail)
        loop.call_soon(seen.set)
        await seen.wait()
    assert total("loop") - before == 1
    assert [line["part"] for line in lines] == ["loop"]


async def test_a_thread_counts_for_the_gateway_that_started_it() -> None:
    FAULTS.set(faults := Faults())
    await in_thread("test", guard_call("test", fail), within=PATIENCE, what="the test")
    assert faults.total == {"test": 1}


def test_pauses_grow_to_half_a_minute_with_jitter() -> None:
    pauses = [[Faults().pause_after(times) for _ in range(200)] for times in range(1, 14)]
    assert all(guarding.FIRST_PAUSE <= pause <= guarding.LONGEST_PAUSE for some in pauses for pause in some)
    assert max(pauses[0]) < 0.3
    assert min(pauses[-1]) >= guarding.LONGEST_PAUSE / 2
    assert len(set(pauses[5])) > 100


def test_a_part_that_fails_on_is_shown_until_it_has_stood_for_a_while() -> None:
    key, now = object(), 100.0
    for _ in range(2):
        now += FAULTS.get().pause("shown", key, now=now)
    assert "shown" not in FAULTS.get().failing(now)
    now += FAULTS.get().pause("shown", key, now=now)
    assert "shown" in FAULTS.get().failing(now)
    assert "shown" not in FAULTS.get().failing(now + 60)
    # It stood, so that this one counts from the first again.
    FAULTS.get().pause("shown", key, now=now + 61)
    assert "shown" not in FAULTS.get().failing(now + 61)
    FAULTS.get().forget("shown", key)


async def test_what_nobody_waits_for_logs_of_whom_it_belongs_to_and_not_of_who_has_begun_it():
    found: list[object] = []

    async def look() -> None:
        found.append(structlog.contextvars.get_contextvars())

    async with Tasks() as of_gateway:
        with structlog.contextvars.bound_contextvars(request_id="r-1"):
            await guard("test", look, of_gateway)
            # Whoever awaits something works on the request, and so does what belongs to it.
            await spawn("test", look(), of_gateway)
            async with Tasks() as of_request:
                guard("test", look, of_request)
    assert found == [{}, {"request_id": "r-1"}, {"request_id": "r-1"}]


@pytest.mark.parametrize("make", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
@pytest.mark.parametrize("fault", [None, Unforeseen("late")])
def test_a_thread_that_finishes_after_its_loop_ends_quietly(
    make: Callable[[], asyncio.AbstractEventLoop],
    fault: Exception | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, may_end, raised = make(), threading.Event(), list[object]()
    monkeypatch.setattr(threading, "excepthook", raised.append)

    def work() -> None:
        may_end.wait(PATIENCE)
        if fault is not None:
            raise fault

    async def abandon() -> asyncio.Future[None]:
        return start_thread("test", work)

    answer = loop.run_until_complete(abandon())
    (thread,) = [one for one in threading.enumerate() if one.name == "dragoman-test"]
    loop.close()
    may_end.set()
    thread.join(PATIENCE)
    assert (thread.is_alive(), answer.done()) == (False, False)
    assert (raised, caplog.records) == ([], [])

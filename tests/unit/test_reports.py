"""Reports of progress reach the session in its own thread, whichever thread they come from."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from gateway.events import CallId, SessionId
from gateway.runtime.calls.reports import Report
from gateway.runtime.signals import ProgressGiven, Signal
from gateway.strict_json import MEMBERS, Members
from tests.pace import PATIENCE


class Listening:
    """Notes the signals of reports, with the threads in which they come."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[Signal, int]] = asyncio.Queue()

    def report(self) -> Report:
        return Report(SessionId("finn"), CallId("c-1"), self._hear)

    def _hear(self, session_id: SessionId, signal: Signal) -> None:
        assert session_id == "finn"
        self.heard.put_nowait((signal, threading.get_ident()))


def in_a_loop_of_its_own(report: Report) -> None:
    async def say() -> None:
        report({"percent": 40})

    asyncio.run(say())


def without_a_loop(report: Report) -> None:
    report({"percent": 40})


@pytest.mark.parametrize("say", [without_a_loop, in_a_loop_of_its_own])
async def test_a_report_from_another_thread_is_passed_on_in_the_thread_of_the_session(
    say: Callable[[Report], None],
) -> None:
    inbox = Listening()
    await asyncio.to_thread(say, inbox.report())
    async with asyncio.timeout(PATIENCE):
        signal, thread = await inbox.heard.get()
    assert isinstance(signal, ProgressGiven)
    assert signal.progress == {"percent": 40}
    assert thread == threading.get_ident()


async def test_a_report_from_another_thread_is_read_by_the_limit_of_the_gateway() -> None:
    inbox, limit = Listening(), Members()
    MEMBERS.set(limit)
    limit.most = 2
    report = inbox.report()
    with capture_logs() as lines:
        # Unlike `asyncio.to_thread`, such a thread has not the context of the loop.
        thread = threading.Thread(target=report, args=({"percent": 40, "text": "much", "of": "it"},))
        thread.start()
        thread.join()
    assert [line["reason"] for line in lines] == ["it cannot be stored: more than 2 members in all (limits.members)"]
    assert inbox.heard.empty()


async def test_a_report_from_the_thread_of_the_session_is_passed_on_at_once() -> None:
    inbox = Listening()
    inbox.report()({"percent": 40})
    assert inbox.heard.qsize() == 1

"""Messages that a V1 server has stored and that nothing runs: the next link lets the agent work on them."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from adapters.openhands.v1.connector import open_connector
from gateway.adapter.port import Frame
from gateway.testing.conformance.collector import Collector, within
from gateway.testing.runtimes.openhands_v1.server import AgentServer, Manners
from tests.adapters.openhands.raw_agent_server import (
    CONVERSATION,
    RawAgentServer,
    RestAnswer,
    snapshot,
    status,
    user_message,
)
from tests.adapters.openhands.v1_links import SHORT, VERSIONS, cursor, linked, options_for

TEXT: list[dict[str, Any]] = [{"type": "text", "text": "Hi"}]
ECHO = user_message("m-1", TEXT)
BUSY = RestAnswer(429, {"detail": "No capacity."})
SAVED = RestAnswer(429, {"detail": "Message saved, but no capacity."})


def message(*, run: bool = True) -> Frame:
    return Frame("POST events", {"role": "user", "content": TEXT, "run": run})


def at_rest(version: str = "1.58.2", **more: Any) -> RawAgentServer:
    server = RawAgentServer(version)
    server.stored, server.first_state = [status("status-0", "idle")], snapshot("idle", **more)
    return server


async def store(server: RawAgentServer, *later: dict[str, Any], run: bool = True) -> str | None:
    """Send a message that is stored, end the link before it runs, and return the newest cursor."""
    record = Collector()
    async with linked(server, record) as link:
        await record.wait_for(2)
        sending = asyncio.ensure_future(link.send_all([message(run=run)]))
        await within(server.asked("/events"))
        server.store(ECHO, *later)
        await record.wait_for(3 + len(later))
        server.close_all(1012)
        assert await within(link.wait_closed())
        sending.cancel()
        await asyncio.wait([sending])
    server.requests.clear()
    server.answers["run"].clear()
    return cursor(record)


async def settled(server: RawAgentServer, resume_after: str | None) -> list[str]:
    """Connect again, and return what was posted by the time that the link answers a send."""
    record = Collector()
    async with linked(server, record, resume_after=resume_after) as link:
        while "full_state" not in str(record.frames):
            await record.wait_for(len(record.frames) + 1)
        # Sends leave one after the other, so a run of the link's own would precede it.
        assert (await link.send_all([Frame("POST condense", {})])).state == "delivered"
    return server.paths("POST")


@pytest.mark.requirement("OV25")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("policy", ["NeverConfirm", "AlwaysConfirm"])
async def test_a_saved_message_whose_link_ends_before_its_run_is_run_by_the_next(version: str, policy: str) -> None:
    server = at_rest(version, policy=policy)
    server.answers["events"] += [SAVED] * (policy == "NeverConfirm")
    server.answers["run"] += [BUSY] * 10_000
    async with server.serve():
        place = await store(server)
        async with linked(server, Collector(), resume_after=place):
            await within(server.asked("/run"))
        assert server.paths("POST") == ["/run"]


@pytest.mark.requirement("OV25")
async def test_the_next_link_also_runs_a_message_whose_echo_the_last_one_has_not_seen() -> None:
    server, record = at_rest(), Collector()
    server.answers["events"].append(SAVED)
    server.answers["run"] += [BUSY] * 10_000
    async with server.serve(), open_connector(options_for(server.url), SHORT) as connector:
        async with connector.connect(CONVERSATION, record) as link:
            await record.wait_for(2)
            sending = asyncio.ensure_future(link.send_all([message()]))
            await within(server.asked("/run"))
            sending.cancel()
            await asyncio.wait([sending])
        server.stored.append(ECHO)
        server.requests.clear()
        server.answers["run"].clear()
        async with connector.connect(CONVERSATION, Collector(), resume_after=cursor(record)):
            await within(server.asked("/run"))


@pytest.mark.requirement("OV25")
@pytest.mark.parametrize("later", ["running", "paused"])
async def test_a_message_that_ran_or_that_the_user_stopped_is_not_run_again(later: str) -> None:
    server = at_rest()
    server.answers["events"].append(SAVED)
    server.answers["run"] += [BUSY] * 10_000
    async with server.serve():
        place = await store(server, status("s-1", later))
        assert await settled(server, place) == ["/condense"]


@pytest.mark.requirement("OV25")
async def test_what_happened_while_no_link_was_up_decides_about_the_run() -> None:
    server = at_rest()
    server.answers["events"].append(SAVED)
    server.answers["run"] += [BUSY] * 10_000
    async with server.serve():
        place = await store(server)
        server.stored += [status("s-1", "running"), status("s-2", "finished")]
        assert await settled(server, place) == ["/condense"]


@pytest.mark.requirement("OV28")
async def test_a_message_that_wakes_nobody_is_not_run() -> None:
    async with (server := at_rest()).serve():
        place = await store(server, run=False)
        assert await settled(server, place) == ["/condense"]


@pytest.mark.requirement("OV25")
async def test_a_lost_response_that_refused_the_run_costs_no_run() -> None:
    server, record = at_rest(), Collector()
    server.fail_next_send("break")
    async with server.serve(), linked(server, record) as link:
        await record.wait_for(2)
        sending = asyncio.ensure_future(link.send_all([message()]))
        await within(server.asked("/events"))
        server.store(ECHO)
        assert (await within(sending)).state == "delivered"
        assert server.paths("POST") == ["/events", "/run"]


@pytest.mark.requirement("OV25")
@pytest.mark.parametrize("version", VERSIONS)
async def test_an_agent_works_on_a_message_that_was_saved_before_a_cut(version: str) -> None:
    async with AgentServer(manners=Manners(version=version)) as server:
        work, record = server.add(), Collector()
        server.refuse_runs(4)
        options = options_for(server.url, conversation_id=work.conversation_id, session_api_key=None)
        # One that does not try again in time.
        async with (
            open_connector(options, replace(SHORT, again=60)) as connector,
            connector.connect(work.conversation_id, record) as link,
        ):
            await record.wait_until_caught_up()
            sending = asyncio.ensure_future(link.send_all([message()]))
            while "MessageEvent" not in str(record.frames):
                await record.wait_for(len(record.frames) + 1)
            server.cut(work.conversation_id)
            assert await within(link.wait_closed())
            sending.cancel()
            await asyncio.wait([sending])
        async with (
            open_connector(options, SHORT) as connector,
            connector.connect(work.conversation_id, Collector(), resume_after=cursor(record)),
        ):
            await work.wait_status("running")
        assert work.violations == server.violations == []

"""The V1 link against the simulated agent-server, which is as unkind as the real one."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from adapters.openhands.v1.connector import open_connector
from adapters.openhands.v1.options import OpenHandsV1Options
from adapters.openhands.v1.tuning import V1Tuning
from gateway.adapter.port import Frame
from gateway.errors import LinkLost
from gateway.testing.conformance.collector import Collector, within
from gateway.testing.runtimes.openhands_v1.server import AgentServer, Conversation, Manners

KEY = "oh_test-canary-key-0123456789"
VERSIONS = ("1.58.2", "1.44.0")
ACCEPT = Frame("POST respond_to_confirmation", {"accept": True})
DENY = Frame("POST respond_to_confirmation", {"accept": False, "reason": "No."})
INTERRUPT = Frame("POST interrupt", {})
TUNING = V1Tuning(first_frame=0.2)


def message(words: str, *, run: bool = True) -> Frame:
    return Frame("POST events", {"role": "user", "content": [{"type": "text", "text": words}], "run": run})


class Record(Collector):
    """A receiver that knows the statuses, and which events were passed on twice."""

    async def status(self, value: str) -> None:
        """Wait for a snapshot with this status; of `running` there is only the status itself."""
        await self._wait(lambda: any(_shows(frame, value) for frame in self.frames), f"nothing shows {value}")

    @property
    def ids(self) -> list[str]:
        cursors = zip(self.frames, self.cursors, strict=True)
        return [_event(frame)["id"] for frame, cursor in cursors if cursor is not None]


def _event(frame: Frame) -> dict[str, Any]:
    return frame.payload.get("event", frame.payload)


def _shows(frame: Frame, value: str) -> bool:
    event = _event(frame)
    if value == "running":
        return event.get("key") == "execution_status" and event["value"] == value
    return event.get("key") == "full_state" and event["value"]["execution_status"] == value


@asynccontextmanager
async def linked(
    server: AgentServer, work: Conversation, record: Record, *, resume_after: str | None = None, **more: Any
) -> AsyncGenerator[Any]:
    given = {"adapter": "openhands-v1", "url": server.url, "session_api_key": KEY, **more}
    options = OpenHandsV1Options.model_validate({**given, "conversation_id": work.conversation_id})
    async with (
        open_connector(options, TUNING) as connector,
        connector.connect(work.conversation_id, record, resume_after=resume_after) as link,
    ):
        yield link


def serve(version: str = "1.58.2", **manners: Any) -> AgentServer:
    return AgentServer(session_api_key=KEY, manners=Manners(version=version, **manners))


@pytest.mark.requirement("OV34", "OV35", "OV36")
@pytest.mark.parametrize("version", VERSIONS)
async def test_held_actions_run_after_an_accept_and_after_nothing_else(version: str) -> None:
    async with serve(version) as server:
        work, record = server.add(confirmation_policy={"kind": "AlwaysConfirm"}), Record()
        async with linked(server, work, record) as link:
            assert (await link.send_all([message("Tidy up.")])).state == "delivered"
            running = asyncio.ensure_future(work.agent_runs("rm a.txt", "", gated=True))
            await record.status("waiting_for_confirmation")
            assert (await link.send_all([message("No, wait!")])).state == "busy"
            assert (await link.send_all([ACCEPT])).state == "delivered"
            assert (await within(running))["kind"] == "ObservationEvent"
            before = len(work.events) - 1
            denied = asyncio.ensure_future(work.agent_runs("rm b.txt", "", gated=True))
            await work.wait_event(lambda event: event.get("value") == "waiting_for_confirmation", after=before)
            # At once: the link waits for the snapshot.
            assert (await link.send_all([DENY])).state == "delivered"
            assert (await within(denied))["kind"] == "UserRejectObservation"
        assert work.violations == server.violations == []
        assert len(record.ids) == len(set(record.ids))


@pytest.mark.requirement("OV25")
async def test_a_message_without_capacity_is_saved_once_and_run_later() -> None:
    async with serve() as server:
        work, record = server.add(), Record()
        async with linked(server, work, record) as link:
            await record.status("idle")
            server.refuse_runs(2)
            assert (await link.send_all([message("Hi")])).state == "delivered"
            await work.finish("Done.")
            await record.status("finished")
        assert [event["kind"] for event in work.events].count("MessageEvent") == 1


@pytest.mark.requirement("OV29")
async def test_a_message_whose_answer_is_lost_is_found_and_not_sent_again() -> None:
    async with serve() as server:
        work, record = server.add(), Record()
        async with linked(server, work, record) as link:
            await record.status("idle")
            server.lose_answers()
            assert (await link.send_all([message("Hi")])).state == "delivered"
        assert [event["kind"] for event in work.events].count("MessageEvent") == 1


@pytest.mark.requirement("OV20", "OV21")
@pytest.mark.parametrize("version", VERSIONS)
async def test_cuts_in_a_run_with_large_events_lose_and_repeat_nothing(version: str) -> None:
    async with serve(version, biggest_event=50_000) as server:
        work, first, second = server.add(), Record(), Record()
        async with linked(server, work, first) as link:
            await link.send_all([message("Work.")])
            for number in range(5):
                await work.agent_runs(f"cat {number}", "x" * (80_000 if number % 2 else 10))
            server.cut(work.conversation_id)
            assert await within(link.wait_closed())
        cursor = next(one for one in reversed(first.cursors) if one is not None)
        for number in range(5, 9):
            await work.agent_runs(f"cat {number}", "x" * (80_000 if number % 2 else 10))
        async with linked(server, work, second, resume_after=cursor):
            await work.finish("Done.")
            await second.status("finished")
        assert [*first.ids, *second.ids] == [event["id"] for event in work.events]


@pytest.mark.requirement("OV13", "OV31")
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_link_opens_beside_a_running_tool_and_its_interrupt_does_not_wait(version: str) -> None:
    async with serve(version) as server:
        work, first = server.add(), Record()
        async with linked(server, work, first) as link:
            await link.send_all([message("Work.")])
            await work.agent_starts("sleep 600")
            async with linked(server, work, Record()) as beside:
                assert (await within(beside.send_all([INTERRUPT]))).state == "delivered"
            await first.status("paused")


@pytest.mark.requirement("OV60")
@pytest.mark.parametrize("end", ["interrupt", "error"])
async def test_an_acp_agent_is_never_prompted_twice_with_one_message(end: str) -> None:
    async with serve() as server:
        work, record = server.add_acp(), Record()
        async with linked(server, work, record) as link:
            await record.status("idle")
            await link.send_all([message("one")])
            await work.wait_prompt("one")
            if end == "interrupt":
                assert (await within(link.send_all([INTERRUPT]))).state == "delivered"
                await record.status("paused")
            else:
                work.fails("overloaded")
                await record.status("error")
            assert (await within(link.send_all([message("two")]))).state == "delivered"
            await work.wait_prompt("two")
            assert work.prompts == ["one", "two"]


@pytest.mark.requirement("OV59")
async def test_a_message_in_the_turn_of_an_acp_agent_gets_the_next_turn() -> None:
    async with serve() as server:
        work, record = server.add_acp(), Record()
        async with linked(server, work, record) as link:
            await record.status("idle")
            await link.send_all([message("one")])
            await work.wait_prompt("one")
            await record.status("running")
            assert (await within(link.send_all([message("two")]))).state == "delivered"
            assert work.prompts == ["one"]
            await work.agent_says("Done.")
            await work.wait_prompt("two")
            assert work.prompts == ["one", "two"]


async def test_a_server_that_stops_ends_the_link_and_a_later_one_goes_on() -> None:
    async with serve() as server:
        work, first, second = server.add(), Record(), Record()
        async with linked(server, work, first) as link:
            await link.send_all([message("Hi")])
            await work.finish("Done.")
            await first.status("finished")
            await server.stop()
            assert await within(link.wait_closed())
            with pytest.raises(LinkLost) as lost:
                await link.send_all([message("Again")])
            assert lost.value.unsent
        await server.start()
        cursor = next(one for one in reversed(first.cursors) if one is not None)
        async with linked(server, work, second, resume_after=cursor):
            pass
        assert second.ids == []

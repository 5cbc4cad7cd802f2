"""More than there is room for: limits hold, each call gets exactly one answer, and no cancel or result is lost."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest

from gateway.core.inbound import OVERLOADED
from gateway.runtime.session.inbox import MOST_REQUESTS
from gateway.runtime.system_clock import SystemClock
from gateway.store.sqlite import SqliteEngine
from gateway.store.step import Committed, Step
from gateway.testing.runtimes.huma.server import HumaServer, SimAgent
from tests.scenarios.environment import GOOD, Running, Scene, ended, until
from tests.scenarios.fleet import Environment, condition, herm_environment, openhands_environment
from tests.scenarios.hooks import Asked, Gate, Said, success
from tests.submits import SubmitsByCommit

BURST = 200


class SlowDisk(SubmitsByCommit, SqliteEngine):
    """The store of an environment, on a disk that is slow while it is `held_up`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "dragoman.db", SystemClock())
        self._gate: Gate | None = None
        self._held: list[Step] = []

    @contextmanager
    def held_up(self) -> Generator[list[Step]]:
        """Let no commit get to the disk meanwhile; yields what is held."""
        gate = self._gate = Gate()
        yield self._held
        gate.open()

    async def commit(self, step: Step) -> Committed:
        if self._gate is not None:
            self._held.append(step)
            await self._gate.wait()
        return await SqliteEngine.commit(self, step)


async def test_a_burst_beyond_the_inbox_is_answered_call_by_call(both: Scene) -> None:
    both.configure({"limits": {"inbound_frames": 50}, "executors": {"cards": {"concurrency": 300}}})
    async with both.running() as gateway:
        calls = [await both.agent.call("free", {"n": number}) for number in range(BURST)]
        readings = [await ended(call) for call in calls]
        assert {reading.outcome for reading in readings} <= {"success", "failure"}
        refused = [reading for reading in readings if reading.outcome == "failure"]
        assert {reading.error for reading in refused} <= {OVERLOADED}
        assert len(both.hooks.asked) == BURST - len(refused)
        assert (await ended(await both.agent.call("ask", GOOD))).outcome == "success"
        assert len(await gateway.events(kind="tool.finished")) == BURST + 1
    assert all(len(call.results) == 1 for call in calls)


@pytest.mark.parametrize("bounded", ["from the start", "by a reload"])
async def test_a_session_that_is_held_up_refuses_new_calls_and_loses_no_cancel(both: Scene, bounded: str) -> None:
    both.engine = disk = SlowDisk(both.folder)
    if bounded == "from the start":
        both.configure({"limits": {"inbound_frames": 10}})
    gate = Gate()
    both.hooks.scripts["ask"] = gate.answering(success("never"))
    async with both.running() as gateway:
        waiting = [await both.agent.call("ask", GOOD) for _ in range(5)]
        await both.hooks.wait_for(5)
        if bounded == "by a reload":
            both.configure({"limits": {"inbound_frames": 10}})
            assert await gateway.post("/v1/reload", status=200) == {"changed": ["limits"], "restarted": []}
        with disk.held_up():
            first = await both.agent.call("free", {"first": True})
            for call in waiting[:4]:
                await both.agent.cancel(call, "enough")
            more = [await both.agent.call("free", {"n": number}) for number in range(BURST)]
            await both.agent.cancel(waiting[4], "enough")
        readings = [await ended(call) for call in (first, *more)]
        outcomes = [reading.outcome for reading in readings]
        assert {reading.error for reading in readings if reading.outcome == "failure"} == {OVERLOADED}
        assert outcomes[0] == "success"
        assert "failure" in outcomes
        assert [(await ended(call)).outcome for call in waiting] == ["canceled"] * 5
        gate.open()
        assert (await ended(await both.agent.call("free", {}))).outcome == "success"
    assert all(len(call.results) == 1 for call in (*waiting, first, *more))


@pytest.mark.parametrize("limit", ["executor", "session"])
async def test_no_more_calls_are_in_flight_than_the_configuration_allows(both: Scene, limit: str) -> None:
    gate = Gate()

    async def work(_asked: Asked) -> Said:
        if both.hooks.running >= 3:
            gate.open()
        await gate.wait()
        return success()

    both.hooks.scripts["free"] = work
    both.configure(
        {"executors": {"cards": {"concurrency": 3}}} if limit == "executor" else {"limits": {"session_concurrency": 3}}
    )
    async with both.running():
        calls = [await both.agent.call("free", {"n": number}) for number in range(30)]
        for call in calls:
            assert (await ended(call)).outcome == "success"
    assert both.hooks.most_running == 3
    came = [asked.data["arguments"]["n"] for asked in both.hooks.asked]
    assert sorted(came) == list(range(30))
    # First come, first served; the three on their way at once may pass each other on the network.
    assert all(abs(number - place) < 3 for place, number in enumerate(came))


async def test_one_busy_session_does_not_keep_others_from_a_shared_executor(newer: Scene) -> None:
    gate = Gate()
    newer.hooks.scripts["free"] = gate.answering(success())
    newer.configure({"executors": {"cards": {"concurrency": 4}}, "limits": {"session_concurrency": 2}})
    other = newer.huma.agent("other")
    async with newer.running() as gateway:
        await gateway.post("/v1/sessions", {"runtime": "finn", "native_id": "other"}, status=201)
        await other.wait_connected()
        busy = [await newer.agent.call("free", {}) for _ in range(10)]
        await newer.hooks.wait_for(2)
        assert (await ended(await other.call("ask", GOOD))).outcome == "success"
        gate.open()
        for call in busy:
            await ended(call)


@pytest.mark.parametrize("limit", ["executor", "session"])
async def test_a_rate_is_kept(newer: Scene, limit: str) -> None:
    newer.configure({"executors": {"cards": {"rate": 20}}} if limit == "executor" else {"limits": {"session_rate": 20}})
    async with newer.running():
        started = time.monotonic()
        calls = [await newer.agent.call("free", {}) for _ in range(30)]
        await asyncio.gather(*(call.result() for call in calls))
        # The first 20 are the second's worth that may come at once; the other ten take half a second.
        assert time.monotonic() - started >= 0.45


# A store that does not answer -----------------------------------------------------------------------------


@asynccontextmanager
async def with_others(environment: Environment) -> AsyncGenerator[list[SimAgent]]:
    """Have the gateway keep more links, whose inboxes stay empty."""
    async with HumaServer("0.2") as huma:
        others = [huma.agent(f"other-{number}") for number in range(8)]
        options = {"adapter": "huma-0.2", "url": huma.url, "api_key": huma.api_key}
        runtimes = {other.agent_id: options | {"agent_id": other.agent_id} for other in others}
        environment.configure({"limits": {"inbound_frames": 10}, "runtimes": runtimes})
        yield others


async def _stays_cut(gateway: Running, others: list[SimAgent], made: Callable[[], int]) -> None:
    """The link is down because of the full inbox, and is not made again while others are, one after the other."""

    async def down() -> bool:
        link = await gateway.link()
        return link is not None and link["state"] == "down" and "inbox is full" in link["reason"]

    await until(down)
    before = made()
    for other in others:
        await other.drop()
        await other.wait_connections(2)
    # It may have been cut once before, when the step that is held up had made room.
    assert made() <= before + 1
    assert await down()


async def test_a_herm_link_is_cut_when_the_inbox_is_full_and_nothing_is_lost(tmp_path: Path) -> None:
    calls = 60
    async with herm_environment(tmp_path) as environment, with_others(environment) as others:
        environment.engine = disk = SlowDisk(environment.folder)
        async with environment.running() as gateway:
            for other in others:
                await other.wait_connections(1)
            await environment.agent.call("ask", GOOD).answered()
            with disk.held_up():
                first = environment.agent.call_all([("free", {"n": 0})])
                more = environment.agent.call_all([("free", {"n": n}) for n in range(1, calls)])
                await _stays_cut(gateway, others, lambda: environment.agent.streams_opened)
                assert environment.hooks.of("free") == []
            for call in (*first, *more):
                await call.answered()
            await gateway.wait_link("up")
            assert sorted(one.data["arguments"]["n"] for one in environment.hooks.of("free")) == list(range(calls))
            assert all(len(call.answers) == 1 for call in (*first, *more))
            assert len(await gateway.events(kind="tool.requested")) == calls + 1
        assert environment.agent.violations == []


async def test_an_openhands_link_is_cut_when_the_inbox_is_full_and_nothing_is_lost(tmp_path: Path) -> None:
    async with openhands_environment(tmp_path) as environment, with_others(environment) as others:
        environment.engine = disk = SlowDisk(environment.folder)
        async with environment.running() as gateway:
            for other in others:
                await other.wait_connections(1)
            await environment.agent.agent_says("before", waits=False)
            await gateway.wait_events("message.posted")
            with disk.held_up():
                for number in range(60):
                    await environment.agent.agent_says(f"said {number}", waits=False)
                await _stays_cut(gateway, others, lambda: environment.agent.connections)
            posted = await gateway.wait_events("message.posted", 61)
            await gateway.wait_link("up")
        said = [one["event"]["content"][0]["text"] for one in posted]
        assert said == ["before", *(f"said {number}" for number in range(60))]
        assert environment.agent.violations == []


@pytest.mark.slow
async def test_requests_of_clients_are_refused_at_once_where_too_many_wait_for_the_store(newer: Scene) -> None:
    newer.engine = disk = SlowDisk(newer.folder)
    event = {"kind": "context.updated", "name": "news", "context": {"a": 1}}
    # By itself the library opens a hundred connections only.
    many = httpx.Limits(max_connections=None)
    async with (
        newer.running() as gateway,
        httpx.AsyncClient(base_url=gateway.url, headers=gateway.http.headers, limits=many, timeout=30) as client,
    ):
        path = f"/v1/sessions/{await gateway.session()}/events"
        with disk.held_up() as held:
            first = asyncio.create_task(client.post(path, json=event))
            # The first is in the step that cannot be written, so that it is none of those that wait.
            await condition(lambda: any(one.event.kind == "context.updated" for step in held for one in step.events))
            posting = [asyncio.create_task(client.post(path, json=event)) for _ in range(MOST_REQUESTS + 20)]
            await condition(lambda: sum(task.done() for task in posting) >= 20, within=28)
            done, waiting = await asyncio.wait(posting, timeout=0.5)
            assert len(done) == 20
            assert {task.result().status_code for task in done} == {503}
            waiting.add(first)
        answers = await asyncio.gather(*waiting)
        assert {answer.status_code for answer in answers} == {202}
        assert len(await gateway.events(kind="context.updated")) == len(answers)


async def test_a_session_past_the_number_that_a_process_carries_is_not_opened(newer: Scene) -> None:
    newer.configure({"limits": {"sessions": 2}})
    async with newer.running() as gateway:
        await gateway.post("/v1/sessions", {"runtime": "finn", "native_id": "second"}, status=201)
        refused = await gateway.post("/v1/sessions", {"runtime": "finn", "native_id": "third"}, status=503)
        assert refused["type"].endswith("/overloaded")
        # One that is open is found as before.
        await gateway.post("/v1/sessions", {"runtime": "finn", "native_id": "second"}, status=200)


async def test_events_past_what_may_wait_for_a_runtime_are_refused_until_it_is_back(newer: Scene) -> None:
    newer.configure({"limits": {"outbound": 100}})
    async with newer.running() as gateway:
        await newer.huma.stop()
        await gateway.wait_link("down")
        path = f"/v1/sessions/{await gateway.session()}/events"
        statuses = [
            (await gateway.http.post(path, json={"kind": "turn.steered", "text": f"hint {n}"})).status_code
            for n in range(110)
        ]
        assert statuses[0] == 202
        assert statuses[-1] == 503
        assert 90 <= statuses.count(202) <= 100


async def test_calls_whose_arguments_take_too_much_together_are_answered_at_once(both: Scene) -> None:
    gate = Gate()
    both.hooks.scripts["free"] = gate.answering(success())
    both.configure({"limits": {"open_bytes": "64KiB"}})
    async with both.running():
        first = await both.agent.call("free", {"text": "x" * 60_000})
        await both.hooks.wait_for()
        refused = await ended(await both.agent.call("free", {"text": "y" * 10_000}))
        assert (refused.outcome, refused.error) == ("failure", OVERLOADED)
        gate.open()
        assert (await ended(first)).outcome == "success"
        assert (await ended(await both.agent.call("free", {"text": "y" * 10_000}))).outcome == "success"


async def test_calls_past_the_number_that_may_be_open_are_answered_at_once(both: Scene) -> None:
    gate = Gate()
    both.hooks.scripts["free"] = gate.answering(success())
    both.configure({"limits": {"open_calls": 20}})
    async with both.running():
        calls = [await both.agent.call("free", {"n": number}) for number in range(30)]
        readings = [await ended(call) for call in calls[20:]]
        assert {(reading.outcome, reading.error) for reading in readings} == {("failure", OVERLOADED)}
        gate.open()
        assert {(await ended(call)).outcome for call in calls[:20]} == {"success"}

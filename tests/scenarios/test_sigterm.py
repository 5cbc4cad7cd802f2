"""SIGTERM in a state that is hard to leave: the process exits in time, and the next one ends each recorded call."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest

from gateway.events import CallProgressed, Envelope, SessionId
from gateway.runtime.system_clock import SystemClock, SystemIds
from gateway.store.postgres import PostgresEngine
from gateway.store.step import Step
from gateway.testing.runtimes.huma.agent import SimAgent
from gateway.testing.runtimes.huma.calls import SimCall
from tests.engines.postgres_server import OwnServer, reach, start_own_server
from tests.faults import shim
from tests.scenarios import odd_links
from tests.scenarios.environment import API_KEY, Scene, plain_http, scene, until
from tests.scenarios.hooks import Gate, success
from tests.scenarios.served import START, Served, serving

pytestmark = pytest.mark.slow

_AFTER_DRAIN = 7.0
"""Seconds after the drain in which a process exits."""
_BUSY = 10.0
"""Further seconds for a busy machine."""
_LEASE = 3.0
_SCHEMA = "sigterm"
_OPEN = "held,queued,dispatched,accepted"
_LANE = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'WITH %' LIMIT 1"
"""Finds a connection that writes steps."""


@dataclass
class Setup:
    """A gateway process between agents and a backend."""

    scene: Scene
    agents: list[SimAgent]
    hang: Path
    """While this file exists, no write reaches the disk."""
    calls: list[SimCall] = field(default_factory=list[SimCall])
    ids: dict[str, str] = field(default_factory=dict[str, str])
    flooding: Awaitable[Any] | None = None
    server: OwnServer | None = None
    stopped: int | None = None
    """The process of the server that stands still."""
    _served: Served | None = None
    _http: httpx.AsyncClient | None = None

    @property
    def served(self) -> Served:
        assert self._served is not None
        return self._served

    @property
    def http(self) -> httpx.AsyncClient:
        assert self._http is not None
        return self._http

    @asynccontextmanager
    async def serve(self, environment: Mapping[str, str]) -> AsyncGenerator[None]:
        """Start a process, and wait until all agents are linked."""
        before = [agent.connections for agent in self.agents]
        async with serving(self.scene, environment=environment) as self._served, plain_http() as self._http:
            self._http.base_url, self._http.headers = self.served.url, {"authorization": f"Bearer {API_KEY}"}
            await until(self.served.ready, within=START)
            for agent in self.agents:
                self.ids[agent.agent_id] = await until(partial(self._open, agent), within=START)
            for agent, count in zip(self.agents, before, strict=True):
                await agent.wait_connections(count + 1, START)
            yield

    async def _open(self, agent: SimAgent) -> str | None:
        """Open the session of an agent; None if the gateway asks to try again, as on a busy machine."""
        answer = await self.http.post("/v1/sessions", json={"runtime": "finn", "native_id": agent.agent_id})
        assert answer.is_success or answer.status_code == 503, answer.text
        return answer.json().get("session_id")

    async def ask(self, tool: str = "free", **arguments: Any) -> None:
        """Let each agent call a tool."""
        self.calls += await asyncio.gather(*(agent.call(tool, arguments) for agent in self.agents))

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def events(self, session_id: str) -> list[Any]:
        """Read the history of a session."""
        return (await self.get(f"/v1/sessions/{session_id}/events", after=0, limit=1000))["data"]

    def repair(self) -> None:
        """Let disk, links and server work as usual again."""
        self.hang.unlink(missing_ok=True)
        odd_links.send(self.scene.folder, "as usual")
        if self.stopped is not None:
            os.kill(self.stopped, signal.SIGCONT)
        if self.server is not None:
            self.server.thaw()

    async def has_received(self, frames: int) -> bool:
        """Whether the process has read so many frames of the agents."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        read = (line for line in lines if line.startswith("dragoman_frames_total{") and 'from_runtime"' in line)
        return sum(float(line.rpartition(" ")[2]) for line in read) >= frames


async def failing_decision(setup: Setup) -> None:
    await setup.agents[0].call("free", {"poison": 1})
    await setup.ask()
    await setup.served.wait_log("the gateway failed on it")


async def bad_send(setup: Setup, how: odd_links.How) -> None:
    odd_links.send(setup.scene.folder, how)
    await setup.ask()
    await setup.served.wait_log("the send of an odd link" if how == "raises" else "must return a Receipt")


async def canceled_send(setup: Setup) -> None:
    odd_links.send(setup.scene.folder, "never ends")
    await setup.ask()
    await until(lambda: _has_event(setup, "tool.finished"))
    await setup.agents[0].cancel(setup.calls[0])
    await until(lambda: _has_event(setup, "tool.canceled"))


async def _has_event(setup: Setup, kind: str) -> bool:
    return any(one["event"]["kind"] == kind for one in await setup.events(setup.ids[odd_links.ODD]))


async def canceled_tool(setup: Setup) -> None:
    await setup.ask("long")
    await until(lambda: _has_started(setup))
    for agent, call in list(zip(setup.agents, setup.calls, strict=True))[::2]:
        await agent.cancel(call)


async def _has_started(setup: Setup) -> bool:
    return len(odd_links.started(setup.scene.folder)) == len(setup.agents)


async def flood(setup: Setup) -> None:
    setup.flooding = asyncio.gather(*map(_flood, setup.agents))
    await setup.ask()
    await until(lambda: setup.has_received(1_000))


async def end_flood(setup: Setup) -> None:
    assert setup.flooding is not None
    await setup.flooding


async def _flood(agent: SimAgent) -> None:
    for number in range(256):
        message = {"type": "messaging", "event": "message_sent", "toolCallId": f"{agent.agent_id}-{number}"}
        await agent.emit("event", {**message, "message": "news", "messageIndex": 0, "messageCount": 1})


async def hung_disk(setup: Setup) -> None:
    setup.hang.touch()
    await setup.ask()
    await setup.ask()
    await until(lambda: setup.has_received(2 * len(setup.agents)))


async def ended_session(setup: Setup) -> None:
    await hung_disk(setup)
    runtimes = setup.scene.settings["runtimes"]
    setup.scene.configure({"runtimes": {"finn": None}})
    setup.served.process.send_signal(signal.SIGHUP)
    await setup.served.wait_log("unrecorded frames dropped")
    setup.scene.configure({"runtimes": runtimes})


async def frozen_server(setup: Setup) -> None:
    assert setup.server is not None
    setup.server.freeze()
    await setup.ask()
    await until(lambda: setup.has_received(len(setup.agents)))


async def frozen_lane(setup: Setup) -> None:
    assert setup.server is not None
    await setup.ask()
    await asyncio.gather(*(call.result(START) for call in setup.calls))
    connection = await reach(setup.server.dsn)
    setup.stopped = await connection.fetchval(_LANE)
    await connection.close()
    assert setup.stopped is not None
    os.kill(setup.stopped, signal.SIGSTOP)
    await setup.ask()
    # The sessions of the other lane continue.
    await until(lambda: _has_some_results(setup))


async def _has_some_results(setup: Setup) -> bool:
    return 0 < sum(bool(call.results) for call in setup.calls[len(setup.agents) :]) < len(setup.agents)


async def lost_lease(setup: Setup, *, foreign_write: bool) -> None:
    assert setup.server is not None
    gate = Gate()
    setup.scene.hooks.scripts["free"] = gate.answering(success())
    await setup.ask()
    await setup.scene.hooks.wait_for(len(setup.agents))
    os.kill(setup.served.process.pid, signal.SIGSTOP)
    # The lease ends meanwhile.
    await asyncio.sleep(1.5 * _LEASE)
    if foreign_write:
        clock = SystemClock()
        async with PostgresEngine(setup.server.dsn, clock, schema=_SCHEMA) as engine:
            session_id = SessionId(setup.ids[odd_links.ODD])
            event = CallProgressed(native_call_id="another", call_id="another", data={})
            at = datetime.now(UTC)
            written = Envelope(SystemIds(clock).event_id(), session_id, 0, at, "to_runtime", event, synthetic=True)
            await engine.commit(Step(session_id, (written,)))
    gate.open()


async def go_on(setup: Setup) -> None:
    os.kill(setup.served.process.pid, signal.SIGCONT)


async def heal(setup: Setup) -> None:
    """Let the disk answer while the process waits for it."""
    await setup.served.wait_log("draining")
    setup.hang.unlink()


async def nothing(_: Setup) -> None:
    return


@dataclass(frozen=True)
class State:
    """A state at the signal."""

    enter: Callable[[Setup], Awaitable[None]]
    agents: int = 8
    code: int = 0
    drain: float = 2.0
    then: Callable[[Setup], Awaitable[None]] = nothing
    """The events after the signal."""
    postgres: bool = False
    fault: str = "no fault"
    """The exception that the state consists of."""


STATES: Mapping[str, State] = {
    "a decision that fails": State(failing_decision, agents=256, fault="TypeError"),
    "a send that fails": State(partial(bad_send, how="raises"), fault="the send of an odd link"),
    "a send without a receipt": State(partial(bad_send, how="is None"), fault="must return a Receipt"),
    "a send that never ends, of a canceled call": State(canceled_send),
    "a tool of ten minutes that is canceled": State(canceled_tool),
    "a flood": State(flood, agents=64, then=end_flood),
    "a disk that hangs": State(hung_disk, agents=300, code=1),
    "a disk that answers late": State(hung_disk, agents=300, then=heal),
    "a step of a session that has ended": State(ended_session, code=1),
    "a database that does not answer": State(frozen_server, postgres=True, code=1),
    "a lane that stands still": State(frozen_lane, postgres=True, drain=20.0),
    "a lease that has ended": State(partial(lost_lease, foreign_write=False), then=go_on, postgres=True),
    "a lease that has ended before a foreign write": State(
        partial(lost_lease, foreign_write=True), then=go_on, postgres=True
    ),
}


@pytest.mark.parametrize("name", STATES)
async def test_sigterm_ends_the_process_in_time_and_loses_and_repeats_no_recorded_call(
    tmp_path: Path, name: str
) -> None:
    state = STATES[name]
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(scene(tmp_path))
        server = stack.enter_context(start_own_server()) if state.postgres else None
        environment = odd_links.install(tmp_path) | await shim.preload(tmp_path) | shim.hang_while(tmp_path / "hang")
        long = {"type": "python", "call": f"{odd_links.__name__}:wait_ten_minutes", "timeout": "15m", "deadline": "20m"}
        made.configure(
            {
                "tools": {"long": {"description": "Takes ten minutes."}},
                "runtimes": {"finn": {"adapter": "odd-huma", "agent_id": odd_links.ODD}},
                "executors": {"cards": {"idempotent": False}, "long": long},
                "routes": [{"match": {"tool": "long"}, "to": "long"}, {"match": {"tool": "*"}, "to": "cards"}],
                "limits": {"drain": f"{state.drain:g}s"},
            }
        )
        if server is not None:
            made.configure({"engine": {"type": "postgres", "path": None, "dsn": server.dsn, "schema": _SCHEMA}})
            made.configure({"instance": {"lease": f"{_LEASE:g}s"}})
        agents = [made.huma.agent(odd_links.ODD if not number else f"a{number}") for number in range(state.agents)]
        setup = Setup(made, agents, tmp_path / "hang", server=server)
        async with setup.serve(environment):
            await state.enter(setup)
            began = monotonic()
            setup.served.process.send_signal(signal.SIGTERM)
            await state.then(setup)
            code = await setup.served.ended()
            assert monotonic() - began < state.drain + _AFTER_DRAIN + _BUSY
            said = setup.served.log.read_text()
            assert code == state.code, said[-3000:]
            assert [line for line in said.splitlines() if "Traceback" in line and state.fault not in line] == []
        setup.repair()
        async with setup.serve(environment):
            await until(lambda: _none_open(setup))
            await until(lambda: _has_all_results(setup))
            assert await setup.served.stop() == 0
            assert "Traceback" not in setup.served.log.read_text()
        keys = Counter(asked.key for asked in made.hooks.of("free")) + Counter(odd_links.started(tmp_path))
        assert set(keys.values()) <= {1}
        assert not any(agent.violations for agent in agents)


async def _none_open(setup: Setup) -> bool:
    return not (await setup.get("/v1/calls", state=_OPEN))["data"]


async def _has_all_results(setup: Setup) -> bool:
    """Whether each recorded call has one outcome, and its agent has heard it or withdrawn the call."""
    calls, missing = {call.call_id: call for call in setup.calls}, list[str]()
    for session_id in setup.ids.values():
        events = await setup.events(session_id)
        assert [one["sequence"] for one in events] == list(range(1, len(events) + 1))
        kinds = Counter(one["event"]["kind"] for one in events)
        assert kinds["tool.requested"] == kinds["tool.finished"]
        recorded = [one["event"]["native_call_id"] for one in events if one["event"]["kind"] == "tool.requested"]
        missing += [one for one in recorded if one in calls and not (calls[one].results or calls[one].cancel_asked)]
    return not missing

"""Several gateways of one process on one PostgreSQL schema, each with an HTTP server of its own."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from gateway.adapter.port import Adapter
from gateway.clock import Clock
from gateway.errors import EngineUnavailable, Stale
from gateway.events import CallId, Envelope, SessionId
from gateway.http.app import build_app
from gateway.http.server import make_server
from gateway.runtime.app import Gateway
from gateway.runtime.system_clock import SystemClock
from gateway.serve import parts_for, read_configuration
from gateway.settings.load import load
from gateway.settings.model import Settings
from gateway.store.call import Call
from gateway.store.postgres import PostgresEngine
from gateway.store.rows import Rows, SessionRow
from gateway.store.step import Committed, Step
from tests.engines.postgres_server import dsn, temporary_schema
from tests.pace import PATIENCE
from tests.scenarios.environment import API_KEY, Running, Scene, plain_http, until
from tests.scenarios.fleet import Environment
from tests.submits import SubmitsByCommit

LEASE = 4.0
"""Seconds; long enough that nobody loses it because the machine stood still for one."""


class Faulty(SubmitsByCommit, PostgresEngine):
    """The store as one instance sees it: it can be cut off, and its notifications can get lost."""

    def __init__(self, schema: str) -> None:
        super().__init__(dsn(), SystemClock(), schema=schema)
        self.cut_off = False
        self.broken = False
        self.deaf = False
        self.stale = 0
        """So many steps fail as if somebody else had written just before."""
        self.stale_kind = ""
        """Only steps with an event of this kind."""
        self.spoiled = ""
        """The session whose events cannot be read, as if they were damaged."""
        self.before_call: Callable[[], Awaitable[None]] | None = None
        """Carried out whenever a call is looked up."""

    def _reach(self) -> None:
        if self.cut_off:
            raise EngineUnavailable("the store is out of reach")

    async def commit(self, step: Step) -> Committed:
        self._reach()
        if self.broken:
            raise ValueError("the engine fails in a way that nobody foresaw")
        if self.stale and (not self.stale_kind or any(it.event.kind == self.stale_kind for it in step.events)):
            self.stale -= 1
            raise Stale("somebody else was faster")
        return await PostgresEngine.commit(self, step)

    async def read(
        self, session_id: SessionId, *, after: int = 0, limit: int = 500, excerpts: bool = False
    ) -> Rows[Envelope]:
        if session_id == self.spoiled:
            raise ValueError("the events are damaged")
        return await super().read(session_id, after=after, limit=limit, excerpts=excerpts)

    async def call(self, call_id: CallId) -> Call | None:
        if self.before_call is not None:
            await self.before_call()
        return await super().call(call_id)

    async def beat(self, instance: str, *, url: str, ttl: timedelta) -> bool:
        self._reach()
        return await super().beat(instance, url=url, ttl=ttl)

    async def take_over(self, instance: str, *, runtimes: Collection[str], limit: int) -> Sequence[SessionRow]:
        self._reach()
        return await super().take_over(instance, runtimes=runtimes, limit=limit)

    def notify(self, topic: str) -> None:
        if not self.deaf:
            super().notify(topic)


@dataclass
class Replica(Running):
    """One of several gateways at work."""

    store: Faulty | None = None

    @property
    def faults(self) -> Faulty:
        assert self.store is not None
        return self.store

    async def owner(self, session_id: str) -> str | None:
        return (await self.get(f"/v1/sessions/{session_id}"))["owner"]

    async def carries(self, session_id: str) -> bool:
        """Whether it has the session's link, as it says itself."""
        links = [link for one in (await self.get("/v1/runtimes"))["data"] for link in one["links"]]
        return any(link["session_id"] == session_id and link["state"] == "up" for link in links)

    async def wait_carries(self, session_id: str, *, within: float = PATIENCE) -> None:
        await until(lambda: self.carries(session_id), within=within)


@dataclass
class Cluster:
    """A schema and the gateways on it."""

    scene: Scene | Environment
    schema: str
    adapters: Mapping[str, Adapter] | None = None
    """Instead of those that are installed."""
    clock: Clock | None = None
    """Instead of the system's."""

    def read(self) -> Settings:
        if self.adapters is None:
            return read_configuration(self.scene.config).settings
        return load(self.scene.config, adapters=self.adapters, env={}).settings

    @asynccontextmanager
    async def replica(
        self, *, lease: float = LEASE, prepare: Callable[[Faulty], None] | None = None, **settings: Any
    ) -> AsyncGenerator[Replica]:
        """Run one more gateway."""
        self.scene.configure(
            {"engine": {"type": "memory", "path": None}, "instance": {"lease": f"{round(lease * 1000)}ms"}, **settings}
        )
        config = self.read()
        engine = Faulty(self.schema)
        if prepare is not None:
            prepare(engine)
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        made = parts_for(config, reread=self.read, url=url)
        parts = replace(
            made,
            engine=engine,
            shared=True,
            adapters=self.adapters or made.adapters,
            clock=self.clock or made.clock,
            tuning=self.scene.tuning,
        )
        with listener:
            async with Gateway.running(config, parts) as gateway:
                server = make_server(build_app(gateway), config.limits)
                serving = asyncio.create_task(server.serve(sockets=[listener]))
                http = plain_http()
                http.base_url, http.headers = url, {"authorization": f"Bearer {API_KEY}"}
                async with http:
                    try:
                        async with asyncio.timeout(PATIENCE):
                            # Uvicorn has no event for it.
                            while not server.started:  # noqa: ASYNC110
                                await asyncio.sleep(0)
                        yield Replica(gateway, url, http, store=engine)
                    finally:
                        await gateway.drain()
                        server.should_exit = True
                        async with asyncio.timeout(PATIENCE):
                            await serving


def cluster(scene: Scene | Environment) -> Cluster:
    """Make an empty store for gateways of a scene; all of them know the same callback address."""
    scene.configure({"public_url": "http://127.0.0.1:9"})
    return Cluster(scene, temporary_schema())


async def owner_and_other(session_id: str, replicas: Sequence[Replica]) -> tuple[Replica, Replica]:
    """Wait until one of two replicas carries a session, and return it with the other one."""

    async def look() -> tuple[Replica, Replica] | None:
        for number, one in enumerate(replicas):
            if await one.carries(session_id):
                return one, replicas[1 - number]
        return None

    return await until(look)

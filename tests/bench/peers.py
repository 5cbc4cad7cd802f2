"""The process of all fake peers: takes one JSON order a line, answers each with one line."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from itertools import cycle
from typing import Any

import orjson
import uvloop

from tests.bench.agent_server import BusyAgents
from tests.bench.followers import Audience, Burst
from tests.bench.herm import FakeHerm
from tests.bench.load import Load, Order
from tests.bench.runtime import FakeRuntime
from tests.bench.steady import Steady
from tests.bench.webhook import Webhook

Deed = Callable[[dict[str, Any]], Awaitable[object]]


class Peers:
    """What one process plays: the runtimes, the backend and the followers."""

    def __init__(self) -> None:
        self.runtime = FakeRuntime()
        self.webhook = Webhook()
        self.herm = FakeHerm()
        self.agents = BusyAgents()
        self._steady: Steady | None = None

    async def connected(self, order: dict[str, Any]) -> object:
        """Wait until agents have their host."""
        await self.runtime.connected(order["agents"], within=order["patience"])
        return None

    async def left(self, order: dict[str, Any]) -> object:
        """Wait until no agent has a host any more."""
        await self.runtime.left(order["agents"], within=order["patience"])
        return None

    async def run(self, order: dict[str, Any]) -> object:
        """Measure a load."""
        self.webhook.delays = cycle(order.pop("delays"))
        return await Load(self.runtime, self.webhook, Order(**order)).run()

    async def burst(self, order: dict[str, Any]) -> object:
        """Follow an event stream through a burst."""
        return await Audience(Burst(**order)).run()

    async def listens(self, order: dict[str, Any]) -> object:
        """Wait until somebody streams a Herm session."""
        async with asyncio.timeout(order["patience"]):
            while order["session"] not in self.herm.listeners:  # noqa: ASYNC110 -- once, at the start
                await asyncio.sleep(0.05)
        return None

    async def chunks(self, order: dict[str, Any]) -> object:
        """Stream pieces of a message."""
        await self.herm.stream(order["session"], order["chunks"])
        return None

    async def begin(self, order: dict[str, Any]) -> object:
        """Begin a steady load, which goes on until it is stopped."""
        self.webhook.delays = cycle(order.pop("delays"))
        self._steady = Steady(self.runtime, **order)
        self._steady.start()
        return self._steady.look()

    async def look(self, _order: dict[str, Any]) -> object:
        """Count what the steady load has seen."""
        return self._at_work.look()

    async def drop(self, order: dict[str, Any]) -> object:
        """Break the link of an agent."""
        await self._at_work.drop(order["agent"])
        return None

    async def stop(self, _order: dict[str, Any]) -> object:
        """End the steady load."""
        return await self._at_work.stop()

    @property
    def _at_work(self) -> Steady:
        assert self._steady is not None, "nothing was begun"
        return self._steady


async def serve() -> None:
    """Listen on free ports, say which, and obey until stdin ends."""
    loop = asyncio.get_running_loop()
    peers = Peers()
    deeds: dict[str, Deed] = {
        "connected": peers.connected,
        "left": peers.left,
        "run": peers.run,
        "burst": peers.burst,
        "listens": peers.listens,
        "chunks": peers.chunks,
        "agents": peers.agents.add,
        "followed": peers.agents.followed,
        "act": peers.agents.act,
        "begin": peers.begin,
        "look": peers.look,
        "drop": peers.drop,
        "stop": peers.stop,
    }
    runtime = await loop.create_server(peers.runtime.connect, "127.0.0.1", 0, backlog=4096)
    webhook = await loop.create_server(peers.webhook.connect, "127.0.0.1", 0, backlog=4096)
    herm = await loop.create_server(peers.herm.connect, "127.0.0.1", 0)
    pings = asyncio.create_task(peers.runtime.keep_alive())
    lines = asyncio.StreamReader(limit=16 * 1024 * 1024)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    servers = {"runtime": runtime, "webhook": webhook, "herm": herm}
    _say({name: server.sockets[0].getsockname()[1] for name, server in servers.items()})
    while line := await lines.readline():
        order = orjson.loads(line)
        try:
            _say({"answer": await deeds[order.pop("do")](order)})
        except TimeoutError:
            _say({"problem": f"not in time: {line[:200]!r}"})
    pings.cancel()


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(answer) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())

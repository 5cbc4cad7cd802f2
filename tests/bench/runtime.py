"""The fast HUMA 0.2.0 runtime: raw Engine.IO over hand-written websockets, one connection for each agent."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import orjson

from tests.bench import wire

PING_EVERY = 25.0
TOOL = "ask_for_cards"

Hear = Callable[["AgentConnection", dict[str, Any]], None]


def floor_agents(name: str, count: int) -> list[str]:
    """Name the agents of a floor that serves `count` of them; floors of several sizes share none."""
    return [f"{name}-{count}-{number}" for number in range(count)]


class FakeRuntime:
    """All agents; whoever connects with an `agentId` is that agent's host."""

    def __init__(self) -> None:
        self.agents: dict[str, AgentConnection] = {}
        self.heard: Hear = _ignore
        """Who takes the results; a load while one is running."""
        self._changed = asyncio.Event()

    def connect(self) -> asyncio.Protocol:
        """Make the protocol of one connection."""
        return AgentConnection(self)

    def came(self, connection: "AgentConnection") -> None:
        """Note that an agent has its host."""
        self.agents[connection.agent] = connection
        self._changed.set()

    def went(self, connection: "AgentConnection") -> None:
        """Note that an agent has lost its host."""
        if self.agents.get(connection.agent) is connection:
            del self.agents[connection.agent]
            self._changed.set()

    async def connected(self, agents: list[str], *, within: float) -> None:
        """Wait until all these agents have a host."""
        async with asyncio.timeout(within):
            while not all(agent in self.agents for agent in agents):
                self._changed.clear()
                await self._changed.wait()

    async def left(self, agents: list[str], *, within: float) -> None:
        """Wait until none of these agents has a host."""
        async with asyncio.timeout(within):
            while any(agent in self.agents for agent in agents):
                self._changed.clear()
                await self._changed.wait()

    async def keep_alive(self) -> None:
        """Send the pings of Engine.IO for ever."""
        ping = wire.server_frame(wire.ENGINE_PING)
        while True:
            await asyncio.sleep(PING_EVERY)
            for connection in list(self.agents.values()):
                connection.write(ping)


def tool_call(call: str, arguments: bytes) -> bytes:
    """Write the websocket frame of one tool call."""
    return wire.server_frame(
        b'42["event",{"type":"tool-call","toolCallId":"%b","toolName":"%b","arguments":%b}]'
        % (call.encode(), TOOL.encode(), arguments)
    )


class AgentConnection(asyncio.Protocol):
    """One agent's connection to its host."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self.agent = ""
        self._runtime = runtime
        self._frames = wire.FrameReader()
        self._head: bytes | None = b""
        self._transport: asyncio.Transport
        self._reading = False
        self._out: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none by inheritance.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._runtime.went(self)

    def write(self, frame: bytes) -> None:
        """Send a frame; while a chunk is being read, all of its answers leave together."""
        if self._reading:
            self._out.append(frame)
        else:
            self._transport.write(frame)

    def drop(self) -> None:
        """Break the connection without a word; from here on nothing is written to it."""
        # The transport tells us only some turns of the loop later.
        self._runtime.went(self)
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            data = self._shake_hands(self._head + data)
        self._reading = True
        for opcode, payload in self._frames.feed(data):
            self._take(opcode, payload)
        self._reading = False
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def _shake_hands(self, data: bytes) -> bytes:
        head, found, rest = data.partition(b"\r\n\r\n")
        if not found:
            self._head = data
            return b""
        self._head = None
        answer, query = wire.accept_upgrade(head)
        self.agent = query["agentId"]
        self._transport.write(answer + wire.server_frame(wire.OPEN))
        return rest

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == wire.TEXT and payload.startswith(b"42"):
            channel, message = orjson.loads(payload[2:])
            if channel == "message":
                self._runtime.heard(self, message)
        elif opcode == wire.TEXT and payload.startswith(b"40"):
            self.write(wire.server_frame(wire.CONNECTED))
            self._runtime.came(self)
        elif opcode == wire.PING:
            self.write(wire.pong_frame(payload))
        elif opcode == wire.CLOSE or payload.startswith(b"41"):
            self._transport.close()


def _ignore(_connection: AgentConnection, _message: dict[str, Any]) -> None:
    return

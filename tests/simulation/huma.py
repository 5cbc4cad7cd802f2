"""HUMA servers of both versions: the strict rules of the simulated runtime over simulated connections."""

from collections.abc import Callable
from typing import Any

from gateway.testing.runtimes.huma.agent import Manners, SimAgent
from gateway.testing.runtimes.huma.rules import Dialect
from tests.simulation.loop import Process
from tests.simulation.network import Network, Wire
from tests.simulation.servers import SocketIOConn, SocketServer

KEY = "ak_simulated"
_PING, _PONG_WITHIN = 25.0, 20.0


def _ignore(*_: object) -> None:
    """Take a frame that nobody judges."""


class HumaServer(SocketServer):
    """A server with one agent."""

    def __init__(self, net: Network, dialect: Dialect, agent_id: str, port: int, manners: Manners) -> None:
        self._net = net
        self._port = port
        self._conns: dict[str, SocketIOConn] = {}
        self._made = 0
        self.refusing: str | None = None
        """A code with which connections are refused."""
        self.received: list[tuple[Process | None, Any]] = []
        """Each message, with the process that sent it."""
        self.on_frame: Callable[[Any, Wire], None] = _ignore
        """Takes each message and its connection, which knows its sender, and when and with which stamp it was sent."""
        self.agent = SimAgent(agent_id, dialect, self, manners)
        self.start()

    def start(self) -> None:
        """Accept connections."""
        self._net.listeners[self._port] = lambda: SocketIOConn(self)

    def stop(self) -> None:
        """Accept none, and break all."""
        self._net.listeners.pop(self._port, None)
        self.cut(self.agent.agent_id)

    def silence(self) -> None:
        """Let the current connections carry nothing more."""
        for conn in self._conns.values():
            conn.wire.silence()

    # Called by connections

    def joining(self, conn: SocketIOConn) -> None:
        if self.refusing is not None:
            conn.refuse({"message": self.refusing})
            return
        if conn.query.get("apiKey") != KEY or conn.query.get("agentId") != self.agent.agent_id:
            conn.refuse({"message": "UNAUTHORIZED"})
            return
        conn.admit()
        self._made += 1
        sid = f"s{self._made}"
        self._conns[sid] = conn
        self.agent.join(sid)
        self._ping_later(conn)

    def left(self, conn: SocketIOConn) -> None:
        for sid in [sid for sid, one in self._conns.items() if one is conn]:
            del self._conns[sid]
            self.agent.leave(sid)

    def message(self, conn: SocketIOConn, channel: str, payload: Any) -> None:
        sid = next((sid for sid, one in self._conns.items() if one is conn), None)
        if sid is not None and channel == "message":
            self.received.append((conn.wire.owner, payload))
            self.on_frame(payload, conn.wire)
            self._net.loop.create_task(self.agent.accept(sid, payload))

    def _ping_later(self, conn: SocketIOConn) -> None:
        def ping() -> None:
            if not conn.over:
                conn.ping()
                self._net.call_at(self._net.loop.now + _PONG_WITHIN, check)

        def check() -> None:
            if not conn.over and not conn.answered:
                conn.reset()
                conn.ended()
            elif not conn.over:
                self._net.call_at(self._net.loop.now + _PING - _PONG_WITHIN, ping)

        self._net.call_at(self._net.loop.now + _PING, ping)

    # Called by the agent

    async def broadcast(self, agent_id: str, channel: str, payload: Any) -> None:
        del agent_id
        for conn in tuple(self._conns.values()):
            conn.emit(channel, payload)

    async def broadcast_text(self, agent_id: str, packet: str) -> None:
        del agent_id
        for conn in tuple(self._conns.values()):
            conn.write_text(f"4{packet}")

    async def tell(self, sid: str, channel: str, payload: Any) -> None:
        if (conn := self._conns.get(sid)) is not None:
            conn.emit(channel, payload)

    async def disconnect(self, sid: str) -> None:
        if (conn := self._conns.get(sid)) is not None:
            conn.write_text("41")
            conn.close()
            conn.ended()

    def cut(self, agent_id: str) -> int:
        del agent_id
        found = tuple(self._conns.values())
        for conn in found:
            conn.reset()
            conn.ended()
        return len(found)

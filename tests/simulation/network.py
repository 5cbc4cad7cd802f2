"""A network in memory: connections with delays, splits, cuts and partitions, below every parser."""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from tests.simulation.loop import PROCESS, Process, SimLoop, acts

_KERNEL = 128 * 1024
"""Bytes that a kernel takes before a writer notices that its peer does not read."""
_HIGH = 64 * 1024

Address = tuple[str, int]


class Conn:
    """The server's side of a connection; subclasses read bytes."""

    wire: "Wire"

    def received(self, data: bytes) -> None:
        """Take bytes of the client."""

    def ended(self) -> None:
        """The client has closed, or the connection is broken."""

    def send(self, data: bytes) -> None:
        self.wire.to_client.put(data)

    def close(self) -> None:
        """Close after all that was sent."""
        self.wire.to_client.put(None)

    def reset(self) -> None:
        """Break the connection at once; bytes in flight are lost."""
        if self.wire.to_client.silent:
            self.wire.net.call_at(self.wire.net.loop.now, self.ended)
        else:
            self.wire.cut()


Accept = Callable[[], Conn | None]
"""Makes the server's side; None refuses the connection."""


class _Pipe:
    """One direction: bytes arrive in order, each piece after its delay."""

    def __init__(self, net: "Network", owner: Process | None, deliver: Callable[[bytes | None], None]) -> None:
        self._net, self._owner = net, owner
        self._deliver = deliver
        self._queue: deque[tuple[float, bytes | None, Any, float]] = deque()
        self._last = 0.0
        self.size = 0
        self.cut = False
        self.silent = False
        """Whether all bytes are lost, and nobody is told."""
        self.stamp: Any = None
        """What the network said when the last delivered piece was written."""
        self.written_at = 0.0
        """When that was."""
        self._timer: asyncio.TimerHandle | None = None

    def put(self, data: bytes | None) -> None:
        if self.cut:
            return
        if self.silent:
            self.size += len(data or b"")
            return
        random = self._net.loop.random
        pieces, stamp = list[bytes | None]([data]), self._net.stamp()
        if data and len(data) > 1 and random.random() < self._net.splits:
            at = random.randrange(1, len(data))
            pieces = [data[:at], data[at:]]
        for piece in pieces:
            self._last = max(self._last, self._net.loop.now + self._net.delay()) + 1e-6
            self.size += len(piece or b"")
            self._queue.append((self._last, piece, stamp, self._net.loop.now))
        self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._queue:
            self._timer = self._net.call_at(self._queue[0][0], self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self.cut:
            return
        if self._net.holds(self._owner):
            self._net.held.append(self._ring)
            return
        now = self._net.loop.now
        while self._queue and self._queue[0][0] <= now + 0.001 and not self.cut:
            _, piece, self.stamp, self.written_at = self._queue.popleft()
            self.size -= len(piece or b"")
            self._deliver(piece)
        if not self.cut:
            self._arm()

    def drop(self) -> None:
        self.cut = True
        self._queue.clear()
        self.size = 0


class Wire:
    """One connection: the client's transport, the server's side, and a pipe in each direction."""

    def __init__(self, net: "Network", protocol: asyncio.Protocol, conn: Conn, owner: Process | None) -> None:
        self.net, self.conn, self.owner = net, conn, owner
        self.protocol = protocol
        conn.wire = self
        self._context = copy_context()
        self.to_server = _Pipe(net, owner, self._at_server)
        self.to_client = _Pipe(net, owner, self._to_client)
        self.transport = _Transport(self)
        self.over = False

    def open(self) -> None:
        self.protocol.connection_made(self.transport)

    def _at_server(self, data: bytes | None) -> None:
        if data is None:
            self.conn.ended()
            self.cut(ended=True)
            return
        self.conn.received(data)
        self.transport.drained()

    def _to_client(self, data: bytes | None) -> None:
        """Hand over in the client's process."""
        self.net.loop.call_soon(self._at_client, data, context=self._context)

    def _at_client(self, data: bytes | None) -> None:
        if self.over:
            return
        if data is None:
            keep = self.protocol.eof_received()
            if not keep:
                self.transport.close()
                self.lose(None)
            return
        if self.transport.reading:
            self.protocol.data_received(data)
        else:
            self.transport.unread.append(data)

    def lose(self, exc: Exception | None) -> None:
        if not self.over:
            self.over = True
            self.net.wires.pop(self, None)
            self.net.loop.call_soon(self.protocol.connection_lost, exc, context=self._context)

    def silence(self) -> None:
        """Lose all bytes from now on, as a route that vanishes does: neither side hears of it."""
        for pipe in (self.to_server, self.to_client):
            pipe.drop()
            pipe.cut, pipe.silent = False, True

    def cut(self, *, ended: bool = False) -> None:
        """Break it: what is in flight is lost, and both sides notice."""
        self.to_server.drop()
        self.to_client.drop()
        if self.over:
            return
        if not ended and not self.to_server.silent:
            self.net.call_at(self.net.loop.now + self.net.delay(), self.conn.ended)
        error = None if ended else ConnectionResetError(104, "Connection reset by peer")
        self.lose(error)


class _Socket:
    """Answers what a library asks of a socket."""

    family = socket.AF_UNIX

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def fileno(self) -> int:
        pending = self._wire.over or self._wire.to_client.size or self._wire.to_client.cut
        return self._wire.net.readable if pending else self._wire.net.quiet

    def setsockopt(self, *args: object) -> None:
        """Accept every option."""


class _Transport(asyncio.Transport):
    def __init__(self, wire: Wire) -> None:
        super().__init__({"socket": _Socket(wire), "peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self._wire = wire
        self._closing = False
        self._paused = False
        self.reading = True
        self.unread: deque[bytes] = deque()

    def write(self, data: Any) -> None:
        wire = self._wire
        if self._closing or wire.over or not acts() or _gone(wire):
            return
        wire.to_server.put(bytes(data))
        if not self._paused and wire.to_server.size > _KERNEL + _HIGH:
            self._paused = True
            wire.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def drained(self) -> None:
        if self._paused and self._wire.to_server.size <= _KERNEL:
            self._paused = False
            self._wire.net.loop.call_soon(self._wire.protocol.resume_writing)

    def get_write_buffer_size(self) -> int:
        return max(0, self._wire.to_server.size - _KERNEL)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._wire.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._wire.protocol = protocol

    def is_closing(self) -> bool:
        return self._closing or self._wire.over

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        while self.unread and self.reading:
            self._wire.protocol.data_received(self.unread.popleft())

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if self._closing or self._wire.over:
            return
        self._closing = True
        if not _gone(self._wire):
            self._wire.to_server.put(None)
            # The close is complete for this side at once: what was written is with the kernel.
            self._wire.lose(None)

    def abort(self) -> None:
        self._closing = True
        if not _gone(self._wire):
            self._wire.cut()


def _gone(wire: Wire) -> bool:
    owner = wire.owner
    return owner is not None and owner.dead


class Network:
    """Listeners and connections of one world."""

    def __init__(self, loop: "NetLoop") -> None:
        self.loop = loop
        self.listeners: dict[int, Accept] = {}
        self.wires: dict[Wire, None] = {}
        self.slow = 0.01
        self.splits = 0.1
        self.partitioned = False
        self.isolated: dict[Process, None] = {}
        """The processes whose connections carry nothing."""
        self.stamp: Callable[[], Any] = lambda: None
        """Says what the world wants to know of the moment at which bytes are written."""
        self._held_at = float("-inf")
        self.held: deque[Callable[[], None]] = deque()
        self.world = copy_context()
        self.quiet, self._other = os.pipe()
        self.readable, self._written = os.pipe()
        os.write(self._written, b"x")

    def close(self) -> None:
        for descriptor in (self.quiet, self._other, self.readable, self._written):
            os.close(descriptor)

    def delay(self) -> float:
        return self.slow * self.loop.random.random() ** 3

    def call_at(self, when: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call in the world, not in a process."""
        return self.loop.call_at(when, call, context=self.world)

    def holds(self, owner: Process | None) -> bool:
        """Whether the connections of a process carry nothing now."""
        is_held = self.partitioned or owner in self.isolated
        if is_held:
            self._held_at = self.loop.now
        return is_held

    def was_held(self, since: float) -> bool:
        """Whether something was held after a time."""
        return self._held_at >= since

    def heal(self) -> None:
        self.partitioned = False
        self.isolated.clear()
        held, self.held = self.held, deque()
        for ring in held:
            self.call_at(self.loop.now, ring)

    def cut_of(self, process: Process) -> None:
        """Break all connections of a process that has died."""
        for wire in [wire for wire in self.wires if wire.owner is process]:
            wire.to_client.drop()
            # What it had written may still arrive.
            if self.loop.random.random() < 0.5:
                wire.to_server.drop()
                self.call_at(self.loop.now + self.delay(), wire.conn.ended)
            else:
                wire.to_server.put(None)
            wire.over = True
            self.wires.pop(wire, None)

    async def connect(self, address: Address) -> None:
        while self.holds(PROCESS.get()):  # noqa: ASYNC110 - the world has no event for it
            await asyncio.sleep(0.5)
        await asyncio.sleep(self.delay())
        if address[1] not in self.listeners:
            raise ConnectionRefusedError(111, "Connection refused")

    def open(self, factory: Callable[[], asyncio.BaseProtocol], address: Address) -> Wire:
        conn = self.world.run(self.listeners[address[1]]) if address[1] in self.listeners and acts() else None
        if conn is None:
            raise ConnectionResetError(104, "Connection reset by peer")
        protocol = factory()
        assert isinstance(protocol, asyncio.Protocol)
        wire = Wire(self, protocol, conn, owner := PROCESS.get())
        if owner is not None:
            owner.connected = True
        self.wires[wire] = None
        return wire


class NetLoop(SimLoop):
    """A loop whose connections lead into a simulated network."""

    def __init__(self, random: Any) -> None:
        super().__init__(random)
        self.net = Network(self)
        self._connected: dict[int, Address] = {}

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        await self.net.connect((address[0], address[1]))
        self._connected[sock.fileno()] = (address[0], address[1])

    async def create_connection(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *_: Any, sock: socket.socket, **__: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        address = self._connected.pop(sock.fileno())
        sock.close()
        wire = self.net.open(protocol_factory, address)
        wire.open()
        await asyncio.sleep(0)
        return wire.transport, wire.protocol

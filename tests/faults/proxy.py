"""A TCP proxy on a loopback port whose connections can be cut, gone half-open, slowed and broken at a byte.

async with Proxy(("127.0.0.1", 5432)) as wire:
    wire.half_open()      # both sides believe in a connection that carries nothing any more
    wire.heal()           # new connections work again, and so do those that were only held
"""

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal, Self

from tests.faults.judge import Span

Side = Literal["client", "server"]
Mode = Literal["pass", "hold", "refuse"]

_CHUNK = 64 * 1024
_CONNECT = 5.0
_RESET = struct.pack("ii", 1, 0)
"""Linger of zero: closing sends a RST and throws away what was not sent."""


@dataclass
class Break:
    """Cut a connection once these bytes have come from one side; `pass_on` says whether the other side gets them."""

    after: bytes
    side: Side = "client"
    pass_on: bool = True
    times: int = 1
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the last of the cuts was made."""


class _Pair:
    """One connection through the proxy: two sockets and the two tasks that carry bytes between them."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.writers: dict[Side, asyncio.StreamWriter] = {"client": client, "server": server}
        self.tails: dict[Side, bytes] = {"client": b"", "server": b""}

    def reset(self) -> None:
        """End both halves with a RST, without a goodbye."""
        for writer in self.writers.values():
            raw = writer.get_extra_info("socket")
            if raw is not None and raw.fileno() != -1:
                with contextlib.suppress(OSError):
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


class Proxy:
    """Passes bytes on to one server until it is told otherwise."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._mode: Mode = "pass"
        self._flows = asyncio.Event()
        self._flows.set()
        self._delay = 0.0
        self._breaks: list[Break] = []
        self.faults: list[Span] = []
        """When its connections were reset, or carried nothing."""
        self.port = 0
        self.opened = 0
        """How many connections were passed on."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def open(self) -> int:
        """How many connections stand."""
        return len(self._pairs)

    def cut(self) -> int:
        """Reset all connections; new ones are passed on. Returns how many there were."""
        now = monotonic()
        self.faults.append(Span(now, now))
        pairs = list(self._pairs)
        for pair in pairs:
            pair.reset()
        return len(pairs)

    def refuse(self) -> None:
        """Reset all connections and every new one, as a host without the service does."""
        self._mode = "refuse"
        self.cut()
        self.faults.append(Span(monotonic()))

    def half_open(self) -> None:
        """Swallow what both sides say from now on, on new connections as well, and close nothing."""
        self._mode = "hold"
        self._flows.clear()
        self.faults.append(Span(monotonic()))

    def delay(self, seconds: float) -> None:
        """Hold each piece for so long, in order; zero is no delay."""
        self._delay = seconds

    def break_after(self, pattern: bytes, *, side: Side = "client", pass_on: bool = True, times: int = 1) -> Break:
        """Cut the connection on which these bytes come next, before or after they are passed on."""
        made = Break(pattern, side, pass_on, times)
        self._breaks.append(made)
        for pair in self._pairs:
            pair.tails = {"client": b"", "server": b""}
        return made

    def heal(self, *, keep: bool = False) -> None:
        """Pass everything on again; connections that carried nothing are reset, or kept and what was held goes on."""
        held, self._mode = self._mode == "hold", "pass"
        self._delay = 0.0
        self._breaks.clear()
        if held and not keep:
            self.cut()
        self._flows.set()
        self.faults = [Span(one.begin, min(one.end, monotonic())) for one in self.faults]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=_CONNECT)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(asyncio.CancelledError):
            await self._carry(reader, writer)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == "refuse":
            _Pair(writer, writer).reset()
            return
        try:
            async with asyncio.timeout(_CONNECT):
                beyond, server = await asyncio.open_connection(*self._target)
        except (OSError, TimeoutError):
            _Pair(writer, writer).reset()
            return
        pair = _Pair(writer, server)
        self._pairs.add(pair)
        self.opened += 1
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(pair, reader, "client", server))
                group.create_task(self._pass(pair, beyond, "server", writer))
        finally:
            self._pairs.discard(pair)
            pair.reset()

    async def _pass(self, pair: _Pair, source: asyncio.StreamReader, side: Side, goal: asyncio.StreamWriter) -> None:
        try:
            while piece := await source.read(_CHUNK):
                if self._delay:
                    await asyncio.sleep(self._delay)
                await self._flows.wait()
                broken = self._broken(pair, side, piece)
                if broken is None or broken.pass_on:
                    goal.write(piece)
                    await goal.drain()
                if broken is not None:
                    # What was passed on must be taken before the reset throws it away.
                    await asyncio.sleep(0.02 if broken.pass_on else 0)
                    broken.times -= 1
                    if not broken.times:
                        self._breaks.remove(broken)
                        broken.done.set()
                    pair.reset()
                    return
            goal.write_eof()
        except (OSError, RuntimeError):
            # One half is gone, so the other one is of no use.
            pair.reset()

    def _broken(self, pair: _Pair, side: Side, piece: bytes) -> Break | None:
        seen = pair.tails[side] + piece
        pair.tails[side] = seen[-256:]
        return next((one for one in self._breaks if one.side == side and one.after in seen), None)

"""A simulated HUMA agent: calls tools, sends messages, and records the responses of its clients."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Protocol
from uuid import uuid4

from gateway.testing.change import PATIENCE, Change, Received as Received
from gateway.testing.runtimes.huma.calls import Confirmation, SimBurst, SimCall
from gateway.testing.runtimes.huma.rules import (
    AddonFrame,
    ChatFrame,
    ClientFrame,
    ContextFrame,
    Dialect,
    Frame,
    ResultFrame,
    Violation,
    read_frame,
)

KEPT_FRAMES = 10_000
KEPT_CALLS = 10_000


class Wire(Protocol):
    """Sends to the sockets that are connected to an agent."""

    async def broadcast(self, agent_id: str, channel: str, payload: Any) -> None: ...
    async def broadcast_text(self, agent_id: str, packet: str) -> None: ...
    async def tell(self, sid: str, channel: str, payload: Any) -> None: ...
    async def disconnect(self, sid: str) -> None: ...
    def cut(self, agent_id: str) -> int: ...


@dataclass(frozen=True, slots=True)
class Manners:
    """The server's behavior in points that the protocol leaves open."""

    confirmation_timeout: timedelta = timedelta(seconds=30)
    """The time limit of a message's confirmation; after it success is assumed."""
    heartbeat: timedelta = timedelta(seconds=25)
    """The interval of the server's pings; a connection without a pong within 80 % of it is dropped."""
    interrupts: bool = False
    """Whether a triggering update cancels the open tool calls, as a real 0.2.0 agent does."""


@dataclass(slots=True)
class Conversation:
    """The agent's memory, which survives a lost connection."""

    context: Frame = field(default_factory=dict[str, Any])
    calls: dict[str, SimCall] = field(default_factory=dict[str, SimCall])
    bursts: dict[str, SimBurst] = field(default_factory=dict[str, SimBurst])


@dataclass(slots=True)
class SimLink:
    """The start and end of one socket, by the loop's clock."""

    began: float
    ended: float | None = None


class SimAgent:
    """One agent; it emits to all connected sockets.

    It sends everything once: the protocol has no acknowledgements, so a frame without a receiver is lost.
    """

    def __init__(self, agent_id: str, dialect: Dialect, wire: Wire, manners: Manners) -> None:
        self.agent_id = agent_id
        self.dialect: Dialect = dialect
        self.state: Literal["CREATED", "CONNECTED", "ACTIVE", "ENDED"] = "CREATED"
        self.metadata: Frame = {}
        """The metadata of `POST /api/agents`."""
        self.sockets: set[str] = set()
        self.connections = 0
        """The number of sockets that have ever connected."""
        self.links: dict[str, SimLink] = {}
        """The start and end of all sockets."""
        self.dropped: list[float] = []
        """The times at which their connections were reset."""
        self.received: list[Received] = []
        self.violations: list[str] = []
        """Every protocol violation by a client."""
        self.addons: set[str] = set()
        """Call ids of other addons, which also accept `addon-tool-event`."""
        self._count = 0
        self._wire = wire
        self._manners = manners
        self._known = Conversation()
        self._change = Change()

    @property
    def context(self) -> Frame:
        """The newest state that a client has sent."""
        return self._known.context

    @property
    def calls(self) -> dict[str, SimCall]:
        """The calls by id; the newest one of a reused id."""
        return self._known.calls

    @property
    def connected(self) -> bool:
        return bool(self.sockets)

    # Actions of the agent

    async def call(self, tool: str, arguments: object, call_id: str | None = None) -> SimCall:
        """Call a tool; the same id with the same arguments repeats a call."""
        call_id = call_id or (str(uuid4()) if self.dialect == "0.2" else f"tc_{uuid4().hex[:12]}")
        call = repeats = self.calls.get(call_id)
        if call is None or (call.tool, call.arguments) != (tool, arguments):
            call, repeats = SimCall(call_id, tool, arguments, change=self._change), None
            self._remember(call)
        await self._say({"type": "tool-call", "toolCallId": call_id, "toolName": tool, "arguments": arguments})
        if repeats is None:
            call.written = self._now()
        return call

    async def cancel(self, call: SimCall, reason: str | None = None, *, with_name: bool = True) -> None:
        """Withdraw a call; `with_name=False` omits the tool's name, as in the 0.1 documents."""
        call.cancel_asked = True
        frame: Frame = {"type": "cancel-tool-call", "toolCallId": call.call_id}
        if with_name:
            frame["toolName"] = call.tool
        if reason is not None:
            frame["reason"] = reason
        await self._say(frame)

    async def say(
        self,
        texts: list[str],
        extra_args: Frame | None = None,
        *,
        call_id: str | None = None,
        within: float | None = None,
    ) -> list[Confirmation]:
        """Send a burst of messages, each after the previous one was confirmed.

        Returns one confirmation per sent message: the burst ends after a failed one, or when it is aborted. In 0.1,
        which has no confirmations, the messages are sent at once.
        """
        for older in self._known.bursts.values():
            if (
                older.sent
                and not older.aborted
                and older.sent - 1 not in older.confirmations | dict.fromkeys(older.late)
            ):
                await self.abort(older.call_id)
        burst = SimBurst(call_id or str(uuid4()))
        self._known.bursts[burst.call_id] = burst
        common: Frame = {"type": "messaging", "toolCallId": burst.call_id}
        if extra_args is not None:
            common["extra_args"] = extra_args
        confirmations: list[Confirmation] = []
        for index, text in enumerate(texts):
            await self._say({**common, "event": "typing_start"})
            if burst.aborted:
                break
            burst.sent = index + 1
            place: Frame = {"messageIndex": index, "messageCount": len(texts)}
            await self._say({**common, "event": "message_sent", "message": text, **place})
            if self.dialect == "0.1":
                continue
            confirmation = await self._confirmation(burst, index, within)
            if confirmation is None:
                break
            confirmations.append(confirmation)
            if not confirmation.success:
                await self.abort(burst.call_id, reason="delivery failed")
                break
        return confirmations

    async def abort(self, call_id: str, *, reason: str = "canceled") -> None:
        """End a burst before all its messages are sent."""
        self._known.bursts[call_id].aborted = True
        self._change.tell()
        await self._say({"type": "messaging", "event": "typing_end", "toolCallId": call_id, "reason": reason})

    async def emit(self, channel: str, payload: Any) -> None:
        """Send any payload unchanged; remember its call or message, so that the server accepts answers to it."""
        match payload:
            case {"type": "tool-call", "toolCallId": str(call_id), "toolName": str(tool), **rest}:
                self._remember(SimCall(call_id, tool, rest.get("arguments"), change=self._change))
            case {"type": "messaging", "event": "message_sent", "toolCallId": str(call_id), "messageIndex": int(index)}:
                burst = self._known.bursts.setdefault(call_id, SimBurst(call_id))
                burst.sent = max(burst.sent, index + 1)
            case _:
                pass
        await self._wire.broadcast(self.agent_id, channel, payload)

    async def emit_text(self, packet: str) -> None:
        """Send the text of a Socket.IO packet, e.g. `2["event",{…}]`, which may be malformed."""
        await self._wire.broadcast_text(self.agent_id, packet)

    async def drop(self) -> int:
        """Reset the connections of all sockets, as a network failure does; return their number."""
        self.dropped.append(self._now())
        return self._wire.cut(self.agent_id)

    async def disconnect(self) -> None:
        """Close all sockets gracefully, with a Socket.IO DISCONNECT."""
        for sid in list(self.sockets):
            await self._wire.disconnect(sid)

    # Waiting for clients

    async def wait_connected(self, within: float = PATIENCE) -> None:
        """Wait until a socket is connected."""
        await self._change.until(lambda: self.connected or None, within, what=lambda: f"{self.agent_id!r} connected")

    async def wait_disconnected(self, within: float = PATIENCE) -> None:
        """Wait until no socket is connected."""
        await self._change.until(
            lambda: not self.connected or None, within, what=lambda: f"{self.agent_id!r} disconnected"
        )

    async def wait_connections(self, count: int, within: float = PATIENCE) -> None:
        """Wait until `count` sockets have ever connected and one is still connected."""
        await self._change.until(
            lambda: (self.connections >= count and self.connected) or None,
            within,
            what=lambda: f"{count} connections of {self.agent_id!r}, {self.connections} arrived",
        )

    async def wait_for(
        self, predicate: Callable[[Any], bool], within: float = PATIENCE, *, after: int = -1
    ) -> Received:
        """Wait for a frame with a matching payload and a number above `after`."""

        def look() -> Received | None:
            return next((frame for frame in self.received if frame.number > after and predicate(frame.payload)), None)

        def what() -> str:
            return f"a matching frame of {self.agent_id!r}; the last ones were {str(self.received[-5:])[:2000]}"

        return await self._change.until(look, within, what=what)

    # Called by the server

    def join(self, sid: str) -> None:
        """Add a connected socket."""
        self.sockets.add(sid)
        self.links[sid] = SimLink(self._now())
        self.connections += 1
        if self.state == "CREATED":
            self.state = "CONNECTED"
        self._change.tell()

    def leave(self, sid: str) -> None:
        """Remove a disconnected socket."""
        self.sockets.discard(sid)
        self.links[sid].ended = self._now()
        self._change.tell()

    async def accept(self, sid: str, payload: object) -> None:
        """Process a client's `message`; record a violation and respond with an `error`."""
        index = self._count
        self._count += 1
        self.received.append(Received(index, payload))
        if len(self.received) > KEPT_FRAMES:
            del self.received[: KEPT_FRAMES // 10]
        wakes = False
        try:
            frame = read_frame(payload, self.dialect)
            self.state = "ACTIVE"
            self._take(frame, payload)
            wakes = isinstance(frame, ContextFrame) and frame.triggering is True
        except Violation as exc:
            await self.object_to(sid, f"frame {index}", str(exc))
        finally:
            self._change.tell()
        if wakes and self._manners.interrupts:
            for call in [call for call in self.calls.values() if call.reading is None and not call.cancel_asked]:
                await self.cancel(call, reason="interrupted by a new event")

    async def object_to(self, sid: str, what: str, why: str) -> None:
        """Record a violation, and send an error on the dialect's channel for errors."""
        self.violations.append(f"{what}: {why}")
        channel = "error" if self.dialect == "0.2" else "event"
        await self._wire.tell(sid, channel, {"type": "error", "message": why, "code": "INVALID_EVENT"})

    def _take(self, frame: ClientFrame, payload: Any) -> None:
        match frame:
            case ContextFrame():
                self._known.context = frame.context
            case ChatFrame():
                pass
            case ResultFrame():
                if frame.call_id in self._known.bursts:
                    raise Violation("a message of the messaging addon must be confirmed; it accepts no tool-result")
                call = self.calls.get(frame.call_id)
                if call is None:
                    raise Violation(f'unknown "toolCallId" {frame.call_id[:64]!r}')
                call.settle(frame, payload)
                self._known.context |= frame.context or {}
            case AddonFrame():
                self._take_addon(frame)

    def _take_addon(self, frame: AddonFrame) -> None:
        if frame.call_id in self.addons:
            return
        burst = self._known.bursts.get(frame.call_id)
        if burst is None:
            raise Violation(f'unknown "toolCallId" {frame.call_id[:64]!r}')
        burst.confirm(frame.payload)
        self._known.context |= frame.payload.get("context") or {}

    async def _confirmation(self, burst: SimBurst, index: int, within: float | None) -> Confirmation | None:
        started = asyncio.get_running_loop().time()

        def look() -> Frame | Literal["aborted"] | None:
            return burst.confirmations.get(index) or ("aborted" if burst.aborted else None)

        limit = self._manners.confirmation_timeout.total_seconds() if within is None else within
        try:
            found = await self._change.until(look, limit, what=lambda: f"confirmation {index}")
        except TimeoutError:
            burst.late.add(index)
            return Confirmation(index, success=True, payload=None, latency=timedelta(seconds=limit), assumed=True)
        if found == "aborted":
            return None
        latency = timedelta(seconds=asyncio.get_running_loop().time() - started)
        return Confirmation(index, success=found["success"], payload=found, latency=latency)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _say(self, frame: Frame) -> None:
        await self._wire.broadcast(self.agent_id, "event", frame)

    def _remember(self, call: SimCall) -> None:
        self._known.calls[call.call_id] = call
        while len(self._known.calls) > KEPT_CALLS:
            del self._known.calls[next(iter(self._known.calls))]

"""The two WebSockets of a simulated agent-server: bare events, and envelopes with sequence numbers."""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from fastapi import WebSocket, WebSocketDisconnect

from gateway.testing.runtimes.openhands_v1.conversation import Conversation, NoCapacity, read_id
from gateway.testing.runtimes.openhands_v1.events import Frame, server_error
from gateway.testing.runtimes.openhands_v1.log import local, stamped
from gateway.testing.runtimes.openhands_v1.manners import Manners
from gateway.testing.runtimes.openhands_v1.rules import Invalid, Unusable, is_auth, read_message


class KeyedServer(Protocol):
    """A server with conversations, and perhaps a key."""

    @property
    def conversations(self) -> dict[str, Conversation]: ...
    @property
    def session_api_key(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class _Close:
    code: int
    reason: str


class _Refused(Exception):
    """The handshake is refused with 403."""


class SocketListener:
    """One connected socket; it sends in order what it hears."""

    def __init__(self, kind: Literal["events", "session"], manners: Manners) -> None:
        self._kind = kind
        self._manners = manners
        self._queue: asyncio.Queue[str | _Close] = asyncio.Queue()
        self._waiting = 0

    def hear(self, event: Frame, seq: int | None) -> None:
        if self._kind == "events":
            self._put(json.dumps(event))
        elif event["kind"] == "StreamingDeltaEvent":
            return
        elif seq is None:
            self._put(json.dumps({"type": "transient", "event": event}))
        else:
            written = json.dumps({"type": "durable", "seq": seq, "event": event})
            if len(json.dumps(event).encode()) > self._manners.biggest_event:
                self.close(1013, "frame_too_large")
            else:
                self._put(written)

    def hear_frame(self, frame: Frame) -> None:
        if self._kind == "session":
            self._put(json.dumps(frame))

    def close(self, code: int, reason: str) -> None:
        """Close the socket, after what was said before."""
        self._queue.put_nowait(_Close(code, reason))

    def object_to(self, code: str, detail: str) -> None:
        """Answer a bad frame."""
        if self._kind == "events":
            self.hear(stamped(server_error(code, detail)), None)
        else:
            self.hear_frame({"type": "error", "code": code, "detail": detail})

    async def send_all(self, socket: WebSocket) -> _Close:
        """Send until the socket must be closed; return how."""
        while True:
            item = await self._queue.get()
            if isinstance(item, _Close):
                return item
            await socket.send_text(item)
            self._waiting -= len(item)

    def _put(self, text: str) -> None:
        self._waiting += len(text)
        if self._kind == "session" and self._waiting > self._manners.waiting_bytes:
            self.close(1013, "slow_consumer")
        else:
            self._queue.put_nowait(text)


class Sockets:
    """Accepts sockets of both kinds."""

    def __init__(self, server: KeyedServer, manners: Manners) -> None:
        self._server = server
        self._manners = manners
        self.refused: list[str] = []
        """The reasons of refused and closed sockets, in order."""

    async def events(self, socket: WebSocket) -> None:
        """Serve `/sockets/events/{conversation_id}`: the state, a replay if wanted, and live events."""
        await self._serve(socket, "events", _read_resend, self._replay)

    async def session(self, socket: WebSocket) -> None:
        """Serve `/sockets/session/{conversation_id}`: a replay by sequence numbers, the state, and live events."""
        await self._serve(socket, "session", _read_after_seq, self._resume)

    async def _serve(
        self,
        socket: WebSocket,
        kind: Literal["events", "session"],
        read: Callable[[Mapping[str, str]], Any],
        replay: Callable[[Conversation, SocketListener, Any], Awaitable[None]],
    ) -> None:
        try:
            wanted = read(socket.query_params)
            authenticated = self._check_key(socket)
            name = read_id(socket.path_params["conversation_id"])
            if name is None:
                raise _Refused("the id is not a UUID")
        except _Refused as exc:
            self.refused.append(f"403: {exc}")
            await socket.close()
            return
        await socket.accept()
        if not authenticated and not await self._hear_key(socket):
            await self._close(socket, 4001, "Authentication failed")
            return
        conversation = self._server.conversations.get(name)
        if conversation is None:
            code = 1008 if self._manners.proxied else 4004
            await self._close(socket, code, "Conversation not found")
            return
        if conversation.sockets >= self._manners.subscribers:
            await self._close(socket, 1013, "Too many connections for this conversation")
            return
        await self._follow(
            socket, conversation, SocketListener(kind, self._manners), lambda one: replay(conversation, one, wanted)
        )

    async def _follow(
        self,
        socket: WebSocket,
        conversation: Conversation,
        listener: SocketListener,
        replay: Callable[[SocketListener], Awaitable[None]],
    ) -> None:
        receiving = asyncio.create_task(self._receive(socket, conversation, listener))
        sending = asyncio.create_task(listener.send_all(socket))
        subscribing = asyncio.create_task(self._subscribe(conversation, listener, replay))
        tasks: tuple[asyncio.Task[Any], ...] = (receiving, sending, subscribing)
        try:
            await asyncio.wait({receiving, sending}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done() and sending.done() and sending.exception() is None:
                closing = sending.result()
                await self._close(socket, closing.code, closing.reason)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            conversation.forget(listener)

    async def _subscribe(
        self, conversation: Conversation, listener: SocketListener, replay: Callable[[SocketListener], Awaitable[None]]
    ) -> None:
        # A running tool holds the lock: until it ends, nothing at all is sent.
        async with conversation.lock:
            conversation.follow(listener)
            await replay(listener)

    async def _replay(self, conversation: Conversation, listener: SocketListener, since: str | None) -> None:
        listener.hear(stamped(conversation.full_state()), None)
        if since is None:
            return
        conversation.watch(self._replay_later(conversation, listener, since))

    async def _replay_later(self, conversation: Conversation, listener: SocketListener, since: str) -> None:
        # Live events come first, and again in the replay.
        await asyncio.sleep(self._manners.before_replay.total_seconds())
        for seq, event in enumerate(list(conversation.events)):
            if event["timestamp"] >= since:
                listener.hear(event, seq)

    async def _resume(self, conversation: Conversation, listener: SocketListener, after: int | None) -> None:
        last = len(conversation.events) - 1
        since = {} if after is None else {"from_seq": after}
        through = {} if last < 0 else {"through_seq": last}
        listener.hear_frame({"type": "sync", **since, **through})
        for seq, event in list(enumerate(conversation.events))[last + 1 if after is None else after + 1 :]:
            listener.hear(event, seq)
        listener.hear(stamped(conversation.full_state()), None)

    async def _receive(self, socket: WebSocket, conversation: Conversation, listener: SocketListener) -> None:
        while True:
            try:
                text = await socket.receive_text()
            except (WebSocketDisconnect, KeyError):
                return
            try:
                frame: object = json.loads(text)
            except ValueError as exc:
                listener.object_to("JSONDecodeError", str(exc))
                continue
            if is_auth(frame):
                continue
            await self._accept(frame, conversation, listener)

    async def _accept(self, frame: object, conversation: Conversation, listener: SocketListener) -> None:
        try:
            if conversation.deleted:
                raise Unusable("ValueError", "inactive_service")
            await conversation.hear(read_message(frame, over_socket=True))
        except Invalid as exc:
            listener.object_to("ValidationError", f"{exc} [input_value={json.dumps(frame)[:1000]}]")
        except Unusable as exc:
            listener.object_to(exc.code, str(exc))
        except NoCapacity:
            listener.object_to("ConversationRunLimitExceeded", "Maximum number of concurrent runs reached")

    def _check_key(self, socket: WebSocket) -> bool:
        """Return whether the socket has a valid key; without any, its first frame must have it."""
        key = self._server.session_api_key
        if key is None:
            return True
        given = socket.query_params.get("session_api_key", socket.headers.get("x-session-api-key"))
        if given is None:
            return False
        if not is_key(given, key):
            raise _Refused("the key is wrong")
        return True

    async def _hear_key(self, socket: WebSocket) -> bool:
        try:
            async with asyncio.timeout(self._manners.first_frame.total_seconds()):
                frame: Any = json.loads(await socket.receive_text())
        except (TimeoutError, ValueError, KeyError, WebSocketDisconnect):
            return False
        key = self._server.session_api_key
        return is_auth(frame) and frame["type"] == "auth" and is_key(str(frame["session_api_key"]), key)

    async def _close(self, socket: WebSocket, code: int, reason: str) -> None:
        self.refused.append(f"{code}: {reason}")
        del self.refused[:-1000]
        if self._manners.proxied and code not in {1008, 1012, 4001}:
            code, reason = 1000, ""
        await socket.close(code, reason)


def is_key(given: str, key: str | None) -> bool:
    """Compare a key with the server's; a server without one accepts every key."""
    return key is None or hmac.compare_digest(given.encode("utf-8", "surrogatepass"), key.encode())


def _read_resend(query: Mapping[str, str]) -> str | None:
    """Read from which time the history is wanted, as a text in the form of events; None for no history."""
    mode = query.get("resend_mode")
    if mode not in {None, "all", "since"}:
        raise _Refused("resend_mode is unknown")
    try:
        since = local(query["after_timestamp"]) if "after_timestamp" in query else None
    except ValueError as exc:
        raise _Refused("after_timestamp is no time") from exc
    return "" if mode == "all" else since if mode == "since" else None


def _read_after_seq(query: Mapping[str, str]) -> int | None:
    given = query.get("after_seq")
    try:
        return None if given is None else max(int(given), -1)
    except ValueError as exc:
        raise _Refused("after_seq is no number") from exc

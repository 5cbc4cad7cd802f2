"""What the simulated servers use of the library for Socket.IO, which has no types."""

from typing import Protocol


class EngineServer(Protocol):
    """The connections below: a text is written to one as it is."""

    async def send(self, sid: str, data: str) -> None: ...


class ServerManager(Protocol):
    """Which connection belongs to which client."""

    def eio_sid_from_sid(self, sid: str, namespace: str) -> str | None: ...


class SocketServer(Protocol):
    """The server itself."""

    eio: EngineServer
    manager: ServerManager
    not_handled: object
    """Returned by a handler, it keeps the library from acknowledging an event."""

    def on(self, event: str, handler: object) -> None: ...
    async def emit(self, event: str, data: object, *, to: str) -> None: ...
    async def enter_room(self, sid: str, room: str) -> None: ...
    async def disconnect(self, sid: str) -> None: ...
    async def shutdown(self) -> None: ...

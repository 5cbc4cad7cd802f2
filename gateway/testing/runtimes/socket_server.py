"""Types for the parts of python-socketio that the simulated servers use; the library has none."""

from typing import Protocol


class EngineServer(Protocol):
    """The Engine.IO connections, for sending raw text."""

    async def send(self, sid: str, data: str) -> None: ...


class ServerManager(Protocol):
    """Maps clients to connections."""

    def eio_sid_from_sid(self, sid: str, namespace: str) -> str | None: ...


class SocketServer(Protocol):
    """The Socket.IO server."""

    eio: EngineServer
    manager: ServerManager
    not_handled: object
    """A handler returns this to prevent the acknowledgement of an event."""

    def on(self, event: str, handler: object) -> None: ...
    async def emit(self, event: str, data: object, *, to: str) -> None: ...
    async def enter_room(self, sid: str, room: str) -> None: ...
    async def disconnect(self, sid: str) -> None: ...
    async def shutdown(self) -> None: ...

"""A simulated HUMA server of either dialect, on a real socket, speaking raw JSON; run it with `python -m`.

async with HumaServer("0.2", api_key="ak_test") as server:
    finn = server.agent("finn")
    await finn.wait_connected()
    call = await finn.call("ask_for_cards", {"targetPlayer": "Victoria", "rank": "7"})
    print(await call.result())
"""

import asyncio
import hmac
from datetime import UTC, datetime
from typing import Any, NoReturn, Self, cast
from urllib.parse import parse_qs
from uuid import uuid4

# python-socketio has no type stubs; `socket_server` declares the used parts.
import socketio  # pyright: ignore[reportMissingTypeStubs]
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

# Likewise.
from socketio.exceptions import ConnectionRefusedError as Refused  # pyright: ignore[reportMissingTypeStubs]

from gateway.testing.change import PATIENCE
from gateway.testing.runtimes.huma.agent import Manners as Manners, SimAgent as SimAgent
from gateway.testing.runtimes.huma.calls import Confirmation as Confirmation, SimCall as SimCall
from gateway.testing.runtimes.huma.rules import Dialect, Violation, check_agent
from gateway.testing.runtimes.socket_server import SocketServer
from gateway.testing.serving import LOOPBACK, Served
from gateway.testing.wire import Wire

FRAME_LIMIT = 20_000_000
CALL_LIMIT = 120.0


class CallOrder(BaseModel):
    """The tool to call."""

    tool: str
    arguments: dict[str, Any] = {}


class MessagesOrder(BaseModel):
    """The messages to send."""

    messages: list[str] = Field(min_length=1, max_length=10)


class HumaServer:
    """Serves agents; `agent` or a client's HTTP request creates one."""

    def __init__(
        self,
        dialect: Dialect = "0.2",
        *,
        api_key: str = "ak_simulated",
        host: str = LOOPBACK,
        port: int = 0,
        manners: Manners | None = None,
        wire: Wire | None = None,
    ) -> None:
        self.dialect: Dialect = dialect
        self.api_key = api_key
        self.agents: dict[str, SimAgent] = {}
        self.refused: list[str] = []
        """The codes of all refused connections, in order."""
        self._manners = manners or Manners()
        self._refusals: dict[str, str] = {}
        self._agent_of: dict[str, str] = {}
        # async_handlers=False keeps the frames of a socket in order.
        self._sockets = cast(
            "SocketServer",
            socketio.AsyncServer(
                async_mode="asgi",
                async_handlers=False,
                max_http_buffer_size=FRAME_LIMIT,
                cors_allowed_origins=[],
                ping_interval=self._manners.heartbeat.total_seconds(),
                ping_timeout=self._manners.heartbeat.total_seconds() * 0.8,
            ),
        )
        self._sockets.on("connect", self._connect)
        self._sockets.on("message", self._accept)
        self._sockets.on("disconnect", self._disconnect)
        self._sockets.on("*", self._accept_other)
        app = socketio.ASGIApp(self._sockets, other_asgi_app=self._pages())
        self._served = Served(app, host=host, port=port, wire=wire)

    @property
    def url(self) -> str:
        return self._served.url

    def agent(self, agent_id: str) -> SimAgent:
        """Return an agent; create it if it does not exist."""
        if agent_id not in self.agents:
            self.agents[agent_id] = SimAgent(agent_id, self.dialect, self, self._manners)
        return self.agents[agent_id]

    def refuse(self, agent_id: str, code: str | None) -> None:
        """Refuse further connections to an agent with a code such as AGENT_EXPIRED; None allows them again."""
        if code is None:
            self._refusals.pop(agent_id, None)
        else:
            self._refusals[agent_id] = code

    async def start(self) -> None:
        """Start to listen; a restart uses the same port, and agents keep their memory."""
        await self._served.start()

    async def stop(self) -> None:
        """Abort all connections and refuse new ones until the next start, as in a crash."""
        await self._served.pause()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
        await self._served.stop()
        async with asyncio.timeout(PATIENCE):
            await self._sockets.shutdown()

    # Used by agents

    async def broadcast(self, agent_id: str, channel: str, payload: Any) -> None:
        """Send an event to all sockets of an agent."""
        await self._sockets.emit(channel, payload, to=agent_id)

    async def broadcast_text(self, agent_id: str, packet: str) -> None:
        """Send the text of a Socket.IO packet to all sockets of an agent."""
        for sid in list(self.agent(agent_id).sockets):
            connection = self._sockets.manager.eio_sid_from_sid(sid, "/")
            if connection is not None:
                await self._sockets.eio.send(connection, packet)

    async def tell(self, sid: str, channel: str, payload: Any) -> None:
        """Send an event to one socket."""
        await self._sockets.emit(channel, payload, to=sid)

    async def disconnect(self, sid: str) -> None:
        """Close one socket with a Socket.IO DISCONNECT."""
        await self._sockets.disconnect(sid)

    def cut(self, agent_id: str) -> int:
        """Reset the connections of an agent; return their number."""
        return self._served.cut(lambda query: query.get("agentId") == [agent_id])

    # Socket.IO handlers

    async def _connect(self, sid: str, environ: dict[str, Any], _auth: object = None) -> None:
        query = parse_qs(str(environ.get("QUERY_STRING", "")))
        agent_id = query.get("agentId", [""])[0]
        if not agent_id:
            self._reject("MISSING_AGENT_ID")
        if not self._is_key(query.get("apiKey", [""])[0]):
            self._reject("UNAUTHORIZED")
        if agent_id in self._refusals:
            self._reject(self._refusals[agent_id])
        if agent_id not in self.agents:
            self._reject("AGENT_NOT_FOUND")
        self._agent_of[sid] = agent_id
        await self._sockets.enter_room(sid, agent_id)
        self.agents[agent_id].join(sid)

    def _reject(self, code: str) -> NoReturn:
        self.refused.append(code)
        raise Refused(code, {"code": code})

    async def _accept(self, sid: str, *payloads: object) -> None:
        agent = self.agents[self._agent_of[sid]]
        if len(payloads) != 1:
            await agent.object_to(sid, "message", "a message must contain exactly one JSON object")
        else:
            await agent.accept(sid, payloads[0])

    async def _accept_other(self, channel: str, sid: str, *_payloads: object) -> None:
        agent = self.agents[self._agent_of[sid]]
        await agent.object_to(sid, f"channel {channel[:64]!r}", "clients may only emit on `message`")

    async def _disconnect(self, sid: str, _reason: object = None) -> None:
        agent_id = self._agent_of.pop(sid, None)
        if agent_id is not None:
            self.agents[agent_id].leave(sid)

    def _is_key(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self.api_key.encode())

    # HTTP routes

    def _pages(self) -> FastAPI:
        app = FastAPI(title="Simulated HUMA server", docs_url=None, redoc_url=None, openapi_url=None)
        app.add_api_route("/api/agents", self._create_agent, methods=["POST"])
        app.add_api_route("/simulator/agents/{agent_id}/call", self._order_call, methods=["POST"])
        app.add_api_route("/simulator/agents/{agent_id}/say", self._order_messages, methods=["POST"])
        return app

    async def _create_agent(self, request: Request) -> JSONResponse:
        """Create an agent, as in HUMA's API."""
        if not self._is_key(request.headers.get("x-api-key", "")):
            return _problem(401, "Unauthorized", "the X-API-Key header is missing or wrong")
        try:
            body = check_agent(await request.json())
        except Violation as exc:
            return _problem(400, "Bad Request", str(exc))
        except ValueError:
            return _problem(400, "Bad Request", "the body is not JSON")
        agent = self.agent(str(uuid4()))
        agent.metadata = body["metadata"]
        created = {
            "id": agent.agent_id,
            "name": body["name"],
            "agentType": body["agentType"],
            "metadata": agent.metadata,
            "state": agent.state,
            "createdAt": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        return JSONResponse(created, 201)

    async def _order_call(self, agent_id: str, order: CallOrder, request: Request) -> JSONResponse:
        """Let the agent call a tool, and return the raw result; for use with curl."""
        agent = self._ordered(agent_id, request)
        if agent is None:
            return _problem(404, "Not Found", "no such agent, or a wrong X-API-Key")
        call = await agent.call(order.tool, order.arguments)
        try:
            return JSONResponse(await call.result(CALL_LIMIT))
        except TimeoutError as exc:
            return _problem(504, "Gateway Timeout", str(exc))

    async def _order_messages(self, agent_id: str, order: MessagesOrder, request: Request) -> JSONResponse:
        """Let the agent send messages, and return the confirmations; for use with curl."""
        agent = self._ordered(agent_id, request)
        if agent is None:
            return _problem(404, "Not Found", "no such agent, or a wrong X-API-Key")
        confirmations = await agent.say(order.messages)
        return JSONResponse([confirmation.payload for confirmation in confirmations])

    def _ordered(self, agent_id: str, request: Request) -> SimAgent | None:
        allowed = self._is_key(request.headers.get("x-api-key", ""))
        return self.agents.get(agent_id) if allowed else None


def _problem(status: int, error: str, message: str) -> JSONResponse:
    return JSONResponse({"error": error, "message": message, "statusCode": status}, status)

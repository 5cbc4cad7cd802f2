"""A simulated Herm server, on a real socket, speaking raw JSON over REST and SSE; run it with `python -m`.

async with HermServer(api_key="key") as server:
    ada = server.session("session_1")
    await ada.wait_streams()
    print(await ada.agent_calls("ask_for_cards", {"targetPlayer": "Victoria", "rank": "7"}))
    ada.says("I got two.")
    ada.end_turn(title="Fishing")
"""

import asyncio
import contextlib
import hmac
import json
from datetime import UTC, datetime
from typing import Any, Self
from uuid import uuid4

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from pydantic import BaseModel

from gateway.testing.runtimes.herm.asked import Asked as Asked, Interrupted as Interrupted
from gateway.testing.runtimes.herm.questions import questions
from gateway.testing.runtimes.herm.rules import Frame, Objection, read_creation, read_events
from gateway.testing.runtimes.herm.session import ANSWER_LIMIT, Manners as Manners, SimSession as SimSession
from gateway.testing.serving import LOOPBACK, Served
from gateway.testing.wire import Wire

BODY_LIMIT = 16 * 1024**2
SESSION_LIMIT = 1_000
CALL_LIMIT = 120.0


class CallOrder(BaseModel):
    """The tool to call."""

    tool: str
    arguments: dict[str, Any] = {}


class SayOrder(BaseModel):
    """The message to send."""

    text: str


class HermServer:
    """Serves sessions; `session` or a client's HTTP request creates one."""

    def __init__(
        self,
        *,
        api_key: str = "key_simulated",
        host: str = LOOPBACK,
        port: int = 0,
        manners: Manners | None = None,
        wire: Wire | None = None,
    ) -> None:
        self.api_key = api_key
        self.sessions: dict[str, SimSession] = {}
        self.agents: set[str] = {"agent"}
        """The agents for new sessions."""
        self.violations: list[str] = []
        """Protocol violations by clients that belong to no session."""
        self._manners = manners or Manners()
        self._stumbles: list[tuple[str, Response]] = []
        self._lost_answers = 0
        self._may_answer = asyncio.Event()
        self._may_answer.set()
        self.asking = questions(self)
        """Lets a session's agent ask a human."""
        self._served = Served(self._pages(), host=host, port=port, wire=wire)

    @property
    def url(self) -> str:
        return self._served.url

    def session(self, session_id: str, *, agent_id: str = "agent") -> SimSession:
        """Return a session; create it if it does not exist."""
        if session_id not in self.sessions:
            self.sessions[session_id] = SimSession(session_id, agent_id, wire=self, manners=self._manners)
            while len(self.sessions) > SESSION_LIMIT:
                del self.sessions[next(iter(self.sessions))]
        return self.sessions[session_id]

    def stumble(
        self, method: str, status: int, *, code: str = "server_error", retry_after: str | None = None, times: int = 1
    ) -> None:
        """Refuse the next requests with an error; a method is POST, LIST or STREAM."""
        headers = {"Retry-After": retry_after} if retry_after is not None else {}
        body = {"error": code, "message": "as configured in the simulator"}
        self._stumbles += [(method, JSONResponse(body, status, headers=headers))] * times

    def show_page(self, method: str, status: int = 200, *, location: str | None = None, times: int = 1) -> None:
        """Respond to the next requests with an HTML page or a redirect, as a proxy may do."""
        headers = {} if location is None else {"Location": location}
        page = HTMLResponse("<!doctype html><title>Maintenance</title>", status, headers=headers)
        self._stumbles += [(method, page)] * times

    def stop_pages(self) -> None:
        """Process requests again; drop all remaining errors and pages."""
        self._stumbles.clear()

    @property
    def remaining_stumbles(self) -> int:
        """The number of requests that will still get an error."""
        return len(self._stumbles)

    def lose_answers(self, count: int = 1) -> None:
        """Process the next posts, but reset the connection instead of responding."""
        self._lost_answers += count

    def hold_answers(self) -> None:
        """Process posts, but respond only after `release_answers`."""
        self._may_answer.clear()

    def release_answers(self) -> None:
        """Send the held responses, and respond normally again."""
        self._may_answer.set()

    async def start(self) -> None:
        """Start to listen; a restart uses the same port, and sessions keep their events."""
        await self._served.start()

    async def stop(self) -> None:
        """Abort all connections and refuse new ones until the next start, as in a crash."""
        self.asking.stop()
        await self._served.pause()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
        await self._served.stop()

    def cut_streams(self, session_id: str) -> int:
        """Reset the connections that stream a session; return their number."""
        path = f"/v1/sessions/{session_id}/events/stream"
        return self._served.reset(lambda scope: scope["type"] == "http" and scope["path"] == path)

    # Routes

    def _pages(self) -> FastAPI:
        app = FastAPI(title="Simulated Herm server", docs_url=None, redoc_url=None, openapi_url=None)
        app.add_api_route("/v1/agents/{agent_id}/sessions", self._create, methods=["POST"])
        app.add_api_route("/v1/sessions/{session_id}", self._describe, methods=["GET"])
        app.add_api_route("/v1/sessions/{session_id}", self._delete, methods=["DELETE"])
        app.add_api_route("/v1/sessions/{session_id}/archive", self._archive, methods=["POST"])
        app.add_api_route("/v1/sessions/{session_id}/events", self._post, methods=["POST"])
        app.add_api_route("/v1/sessions/{session_id}/events", self._list, methods=["GET"])
        app.add_api_route("/v1/sessions/{session_id}/events/stream", self._stream, methods=["GET"])
        app.add_api_route("/simulator/sessions/{session_id}/call", self._order_call, methods=["POST"])
        app.add_api_route("/simulator/sessions/{session_id}/say", self._order_words, methods=["POST"])
        self.asking.add_page(app)
        app.add_exception_handler(Objection, _to_response)
        return app

    async def _create(self, agent_id: str, request: Request) -> Response:
        self._admit(request)
        if agent_id not in self.agents:
            raise Objection(404, "not_found", "no such agent")
        try:
            creation = read_creation(await self._body(request))
        except Objection as exc:
            self.violations.append(f"POST sessions: {exc}")
            raise
        session = self.session(f"session_{uuid4().hex[:16]}", agent_id=agent_id)
        session.created = creation
        return JSONResponse(_describe(session), 201)

    async def _describe(self, session_id: str, request: Request) -> JSONResponse:
        self._admit(request)
        return JSONResponse(_describe(self._found(session_id)))

    async def _delete(self, session_id: str, request: Request) -> Response:
        self._admit(request)
        self._leave(self._found(session_id), "deleted")
        return Response(status_code=204)

    async def _archive(self, session_id: str, request: Request) -> JSONResponse:
        self._admit(request)
        session = self._found(session_id)
        self._leave(session, "archived")
        return JSONResponse(_describe(session))

    async def _post(self, session_id: str, request: Request) -> Response:
        self._admit(request)
        session = self._found(session_id)
        if stumble := self._stumble("POST"):
            return stumble
        try:
            events = read_events(await self._body(request))
        except Objection as exc:
            session.object_to(exc)
            raise
        taken = session.accept(events)
        if self._lost_answers:
            self._lost_answers -= 1
            client = request.scope["client"]
            self._served.reset(lambda scope: scope["client"] == client)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_LIMIT):
                if self._manners.answers_late:
                    await session.wait_streamed()
                await self._may_answer.wait()
        return JSONResponse({"data": taken}, 202)

    async def _list(self, session_id: str, request: Request) -> Response:
        self._admit(request)
        session = self._found(session_id)
        if stumble := self._stumble("LIST"):
            return stumble
        try:
            return JSONResponse(session.page(dict(request.query_params)))
        except Objection as exc:
            session.object_to(exc)
            raise

    async def _stream(self, session_id: str, request: Request) -> Response:
        self._admit(request)
        session = self._found(session_id)
        if stumble := self._stumble("STREAM"):
            return stumble
        replay_after = request.headers.get("last-event-id")
        headers = {"Cache-Control": "no-cache"}
        return StreamingResponse(session.listen(replay_after), media_type="text/event-stream", headers=headers)

    async def _order_call(self, session_id: str, order: CallOrder, request: Request) -> JSONResponse:
        """Let the agent call a tool, and return the raw result; for use with curl."""
        self._admit(request)
        session = self._found(session_id)
        try:
            return JSONResponse(await session.agent_calls(order.tool, order.arguments, within=CALL_LIMIT))
        except (TimeoutError, Interrupted) as exc:
            raise Objection(504, "no_answer", str(exc)) from exc
        finally:
            if not session.open and session.turn:
                session.end_turn()

    async def _order_words(self, session_id: str, order: SayOrder, request: Request) -> JSONResponse:
        """Let the agent send a message and end its turn; for use with curl."""
        self._admit(request)
        session = self._found(session_id)
        session.says(order.text)
        if not session.open:
            session.end_turn()
        return JSONResponse({}, 202)

    # Helpers

    def _admit(self, request: Request) -> None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or not hmac.compare_digest(key.encode("utf-8", "surrogatepass"), self.api_key.encode()):
            raise Objection(401, "unauthorized", "the key is missing or wrong")

    def _found(self, session_id: str) -> SimSession:
        session = self.sessions.get(session_id)
        if session is None or session.gone == "deleted":
            raise Objection(404, "not_found", "no such session")
        if session.gone == "archived":
            raise Objection(410, "archived", "the session is archived")
        return session

    def _leave(self, session: SimSession, how: Any) -> None:
        session.gone = how
        session.close_streams()

    def _stumble(self, method: str) -> Response | None:
        place = next((n for n, (affected, _) in enumerate(self._stumbles) if affected == method), None)
        return None if place is None else self._stumbles.pop(place)[1]

    async def _body(self, request: Request) -> object:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_LIMIT:
                raise Objection(413, "validation_error", f"a body has at most {BODY_LIMIT} bytes")
        try:
            return json.loads(bytes(body))
        except ValueError as exc:
            raise Objection(400, "validation_error", "the body is not JSON") from exc


def _describe(session: SimSession) -> Frame:
    return {
        "id": session.session_id,
        "agentId": session.agent_id,
        "agentVersion": 1,
        "userId": session.created.get("userId"),
        "title": session.created.get("title"),
        "status": session.gone or ("running" if session.turn else "idle"),
        "createdAt": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }


async def _to_response(_request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, Objection)
    # Prevents automatic retries by client libraries.
    headers = {"x-should-retry": "false"} if exc.status == 409 else {}
    return JSONResponse({"error": exc.code, "message": str(exc)}, exc.status, headers=headers)

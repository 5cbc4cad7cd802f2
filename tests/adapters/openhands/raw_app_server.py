"""An app server of V1 in raw JSON over real sockets: sandboxes, start tasks and conversations."""

import json
from collections import defaultdict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl

from gateway.testing.serving import Served
from tests.adapters.openhands.raw_agent_server import CONVERSATION, KEY, RawAgentServer, RestAnswer

APP_KEY = "app-canary-key-0123456789"
SANDBOX = "sandbox-1"
PLAIN = CONVERSATION.replace("-", "")


class RawApp:
    """One app server with one sandbox, whose agent-server is a raw one."""

    def __init__(self, agent_server: RawAgentServer) -> None:
        self.agent_server = agent_server
        self.statuses: deque[str | None] = deque()
        """What the sandbox is shown as, one for each query; then as `status`. None: unknown."""
        self.status = "RUNNING"
        self.other: dict[str, Any] = {"status": "MISSING", "session_api_key": None, "exposed_urls": None}
        """Another sandbox, which does not have the conversation."""
        self.host: str | None = None
        self.tasks: deque[dict[str, Any]] = deque()
        self.is_listed = True
        """Whether the app server knows the conversation."""
        self.requests: list[tuple[str, str, list[tuple[str, str]], Any]] = []
        self.answers: defaultdict[str, deque[RestAnswer]] = defaultdict(deque)
        self._served = Served(self)

    @property
    def url(self) -> str:
        return self._served.url

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator["RawApp"]:
        """Listen on a free port of loopback."""
        async with self._served, self.agent_server.serve():
            yield self

    def posts(self) -> list[tuple[str, Any]]:
        """Return paths and bodies of the commands, in their order."""
        return [(path, body) for method, path, _, body in self.requests if method == "POST"]

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        path = scope["path"].removeprefix("/api/v1")
        query = parse_qsl(scope["query_string"].decode())
        self.requests.append((scope["method"], path, query, json.loads(body) if body else None))
        key = dict(scope["headers"]).get(b"x-session-api-key", b"").decode()
        answer = RestAnswer(401, {"detail": f"Unauthorized {KEY}"})
        if key == APP_KEY:
            answer = self.answers[path].popleft() if self.answers[path] else self._answer(scope["method"], path, query)
        content = json.dumps(answer.body).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _answer(self, method: str, path: str, query: list[tuple[str, str]]) -> RestAnswer:
        match method, path:
            case "GET", "/sandboxes":
                return RestAnswer(200, [self._sandbox(name) for _, name in query])
            case "GET", "/sandboxes/search":
                # One without an agent-server stands first.
                items = [{"id": "sandbox-0", **self.other}, self._sandbox(SANDBOX)]
                return RestAnswer(200, {"items": [one for one in items if one is not None], "next_page_id": None})
            case "GET", "/app-conversations":
                known = {"id": PLAIN, "sandbox_id": SANDBOX, "sandbox_status": self.status, "session_api_key": KEY}
                return RestAnswer(200, [known if self.is_listed else None for _ in query])
            case "GET", "/app-conversations/start-tasks":
                return RestAnswer(200, [self.tasks.popleft() if len(self.tasks) > 1 else self.tasks[0]])
            case "POST", "/sandboxes":
                return RestAnswer(200, {"id": SANDBOX, "status": "STARTING", "session_api_key": None})
            case "POST", "/app-conversations":
                return RestAnswer(200, {"id": "task1", "status": "WORKING"})
            case "POST", "/sandboxes/sandbox-1/resume":
                self.status = "RUNNING"
                return RestAnswer(200, {"success": True})
            case _:
                return RestAnswer(404, {"detail": "Not Found"})

    def _sandbox(self, name: str) -> dict[str, Any] | None:
        status = self.statuses.popleft() if self.statuses else self.status
        if name != SANDBOX or status is None:
            return None
        url = self.agent_server.url if self.host is None else self.agent_server.url.replace("127.0.0.1", self.host)
        exposed = [{"name": "VSCODE", "url": f"{url}/?tkn={KEY}"}, {"name": "AGENT_SERVER", "url": url}]
        is_running = status == "RUNNING"
        return {
            "id": SANDBOX,
            "status": status,
            "session_api_key": KEY if is_running else None,
            "exposed_urls": exposed if is_running else None,
        }

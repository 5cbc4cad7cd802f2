"""The UI's client of the API: requests of a signed-in operator, served in this process without a socket."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urlencode

from starlette.requests import Request
from starlette.types import Message

from gateway.http.middleware import REQUEST_ID
from gateway.http.reply import dump
from gateway.http.ui.sign_in import Operator

_REFUSED, _NOT_FOUND = 400, 404
_HEADERS = frozenset({b"host", b"user-agent", REQUEST_ID})
"""The headers of a page request that its API requests repeat."""


class ApiProblem(Exception):
    """The API refused a request."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(problem.get("detail"))
        self.status = status
        self.problem = problem


class UiApi:
    """Sends API requests with an operator's key; scopes, forwarding and errors are those of the API."""

    def __init__(self, request: Request, operator: Operator, *, state: Mapping[str, Any] | None = None) -> None:
        """Prepare; `state` is that of each request to the API."""
        self._headers = [one for one in request.scope["headers"] if one[0] in _HEADERS] + operator.credentials
        self.read = ""
        """The path of the last read, with its query."""
        self.key: str | None = None
        """The `Idempotency-Key` of each POST."""
        self._request = request
        self._state = dict(state or {})

    async def get(self, path: str, **query: Any) -> Any:
        """Read a resource; empty query parameters are omitted.

        Raises:
            ApiProblem: the API refused the request.
        """
        given = {name: value for name, value in query.items() if value not in (None, "", [])}
        written = urlencode(given)
        self.read = f"{path}?{written}" if written else path
        return await self._ask("GET", path, written)

    async def find(self, path: str) -> Any:
        """Read a resource; None if there is none.

        Raises:
            ApiProblem: the API refused the request.
        """
        try:
            return await self.get(path)
        except ApiProblem as exc:
            if exc.status != _NOT_FOUND:
                raise
            return None

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Change a resource.

        Raises:
            ApiProblem: the API refused the request.
        """
        headers = [] if self.key is None else [(b"idempotency-key", self.key.encode())]
        if body is None:
            return await self._ask("POST", path, "", *headers)
        return await self._ask("POST", path, "", (b"content-type", b"application/json"), *headers, content=dump(body))

    async def delete(self, path: str) -> None:
        """Remove a resource.

        Raises:
            ApiProblem: the API refused the request.
        """
        await self._ask("DELETE", path, "")

    async def _ask(
        self, method: str, path: str, query: str, *headers: tuple[bytes, bytes], content: bytes = b""
    ) -> Any:
        # Without a client library, whose responses are collected late: a large one would stay in memory.
        given = self._request.scope
        scope = {
            **{name: given[name] for name in ("type", "asgi", "http_version", "scheme", "server", "client")},
            "method": method,
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [*self._headers, *headers, (b"content-length", b"%d" % len(content))],
            "root_path": "",
            "state": {**self._state},
        }
        status, parts, is_sent, ended = 0, list[bytes](), False, asyncio.Event()

        async def receive() -> Message:
            nonlocal is_sent
            if is_sent:
                await ended.wait()
                return {"type": "http.disconnect"}
            is_sent = True
            return {"type": "http.request", "body": content}

        async def send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            parts.append(message.get("body", b""))
            if message["type"] == "http.response.body" and not message.get("more_body"):
                ended.set()

        await self._request.app(scope, receive, send)
        body = b"".join(parts)
        answer: Any = json.loads(body) if body else {}
        if status >= _REFUSED:
            raise ApiProblem(status, answer)
        return answer


def path_of(*parts: str) -> str:
    """Join parts of a path, each of which may be any text."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)

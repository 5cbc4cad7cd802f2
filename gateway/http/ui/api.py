"""The UI's client of the API: requests of a signed-in operator, served in this process without a socket."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx
from starlette.requests import Request

from gateway.http.middleware import REQUEST_ID
from gateway.http.reply import dump
from gateway.http.ui.sign_in import Operator

_NOT_FOUND = 404
_HEADERS = ("host", "user-agent", REQUEST_ID.decode())
"""The headers of a page request that its API requests repeat."""


class ApiProblem(Exception):
    """The API refused a request."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(problem.get("detail"))
        self.status = status
        self.problem = problem


class UiApi:
    """Sends API requests with an operator's key; scopes, forwarding and errors are those of the API."""

    def __init__(self, request: Request, operator: Operator) -> None:
        headers = {name: request.headers[name] for name in _HEADERS if name in request.headers}
        if operator.key is not None:
            headers["authorization"] = f"Bearer {operator.key.get_secret_value()}"
        self.key: str | None = None
        """The `Idempotency-Key` of each POST."""
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(request.app), base_url=f"http://{request.headers['host']}", headers=headers
        )

    async def get(self, path: str, **query: Any) -> Any:
        """Read a resource; empty query parameters are omitted.

        Raises:
            ApiProblem: the API refused the request.
        """
        given = {name: value for name, value in query.items() if value not in (None, "", [])}
        return _read(await self._client.get(path, params=given))

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
        content = None if body is None else dump(body)
        headers = {} if body is None else {"content-type": "application/json"}
        if self.key is not None:
            headers["idempotency-key"] = self.key
        return _read(await self._client.post(path, content=content, headers=headers))

    async def delete(self, path: str) -> None:
        """Remove a resource.

        Raises:
            ApiProblem: the API refused the request.
        """
        _read(await self._client.delete(path))


def path_of(*parts: str) -> str:
    """Join parts of a path, each of which may be any text."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def _read(response: httpx.Response) -> Any:
    if response.is_error:
        raise ApiProblem(response.status_code, response.json())
    return response.json() if response.content else None

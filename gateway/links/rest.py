"""HTTP requests to a runtime's REST interface over httpx; every failure is a link error."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import httpx

from gateway.errors import LinkLost, LinkRefused
from gateway.links import json
from gateway.links.addresses import REDIRECTS, AddressRefused, refused_address, refused_redirect
from gateway.links.http_transport import GuardedTransport
from gateway.links.masking import Mask
from gateway.links.silence import describe_silence
from gateway.strict_json import Malformed

MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of one response; pages of a history may contain images."""
MAX_SHORT = 1024 * 1024
"""Bytes of a response that only describes a created resource or a status."""
MAX_ERROR = 64 * 1024
_AGAIN = frozenset({408, 425, 429})
_LATER = frozenset({409, 423})


@dataclass(frozen=True, slots=True)
class RestAnswer:
    """A response with its body parsed as JSON: `Malformed` if it is not JSON, None if it is empty."""

    status: int
    body: Any
    retry_after: str | None = None
    request: str = ""
    """Method and URL of the request, without its query."""
    is_page: bool = False
    """Whether it is HTML, as from a proxy."""

    @property
    def where(self) -> str:
        """The request and its status, for errors and logs."""
        return f"{self.request}: HTTP {self.status}" if self.request else f"HTTP {self.status}"

    @property
    def code(self) -> str:
        """The error code in the body, or an empty text."""
        match self.body:
            case {"error": str(code)} | {"code": str(code)}:
                return code[:64]
            case {"error": {"type": str(code)} | {"code": str(code)}}:
                return code[:64]
            case _:
                return ""

    @property
    def message(self) -> str:
        """The error message in the body, or an empty text; it may quote the request."""
        match self.body:
            case {"message": str(text)} | {"error": {"message": str(text)}} | {"detail": str(text)}:
                return text[:300]
            case _:
                return ""

    def read_object(self, mask: Mask) -> dict[str, Any]:
        """Return the JSON object of a success.

        Raises:
            LinkRefused: the server refused.
            LinkLost: the error is temporary, or the body is not an object.
        """
        if not 200 <= self.status < 300:
            raise refusal(self, mask)
        body: object = self.body
        if isinstance(body, dict):
            return cast("dict[str, Any]", body)
        reason = f": {body.reason}" if isinstance(body, Malformed) else ""
        raise LinkLost(mask(f"{self.where} without a JSON object{reason}"))


class RestClient:
    """The HTTP connections of one runtime; an async context manager.

    It follows no redirects, keeps no cookies and ignores proxy variables of the environment.
    """

    def __init__(self, base_url: str, *, headers: Mapping[str, str], mask: Mask) -> None:
        self.mask = mask
        self._client = httpx.AsyncClient(
            base_url=base_url,
            # A compressed body would hide its real size.
            headers={**headers, "Accept-Encoding": "identity"},
            # The callers have time limits.
            timeout=httpx.Timeout(None),
            transport=GuardedTransport(),
            follow_redirects=False,
            trust_env=False,
        )

    async def __aenter__(self) -> "RestClient":
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.aclose()

    async def get(
        self, path: str, query: Mapping[str, str | list[str]], *, within: timedelta, most: int = MAX_ANSWER
    ) -> RestAnswer:
        """Send one GET and read the response, of at most `most` bytes; a list gives one parameter for each value.

        Raises:
            LinkLost: no response, or an unreadable one.
            LinkRefused: the address is forbidden.
        """
        return await self._request(self._client.build_request("GET", path, params=dict(query)), within, most)

    async def post(self, path: str, body: object, *, within: timedelta, most: int = MAX_ANSWER) -> RestAnswer:
        """Send one POST and read the response, of at most `most` bytes.

        Raises:
            LinkLost: no response, or an unreadable one; the server may have acted.
            LinkRefused: the address is forbidden.
        """
        # Not stored, because it may contain secrets.
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = self._client.build_request("POST", path, content=content, headers=headers)
        return await self._request(request, within, most)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        if self._client.is_closed:
            # Work that has waited for another response may go on after the end of its link.
            raise LinkLost(f"{self.mask(_line(request))}: the link has ended", unsent=True)
        return await self._client.send(request, stream=True)

    async def _request(self, request: httpx.Request, within: timedelta, most: int) -> RestAnswer:
        request.headers.setdefault("Accept", "application/json")
        response: httpx.Response | None = None
        limit = asyncio.timeout(within.total_seconds())
        unsent = refused = False
        try:
            async with limit:
                response = await self._send(request)
                body = await _read_json(await read_whole(response, most))
        except TimeoutError:
            failure = describe_silence(limit, f"no answer within {within.total_seconds():g} s")
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError, ValueError, MemoryError) as exc:
            failure = explain(exc, self.mask)
            unsent = isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout)
            refused = isinstance(exc, AddressRefused)
        else:
            return _answer(response, body)
        finally:
            if response is not None:
                await response.aclose()
        if response is not None:
            # The status decides, even if the body is unreadable.
            return _answer(response, Malformed(failure))
        # Outside the handlers, so that no chained exception contains the request and its key.
        raise refused_address() if refused else LinkLost(f"{self.mask(_line(request))}: {failure}", unsent=unsent)

    @asynccontextmanager
    async def stream(
        self, path: str, *, headers: Mapping[str, str], within: timedelta, idle: timedelta
    ) -> AsyncGenerator[httpx.Response]:
        """Send a GET and stream the response, with a silence of at most `idle`; entering waits for the head.

        Raises:
            LinkLost: no response, or a temporary error.
            LinkRefused: the server refused.
        """
        silence = httpx.Timeout(None, read=idle.total_seconds())
        request = self._client.build_request("GET", path, headers=dict(headers), timeout=silence)
        failure: LinkLost | LinkRefused | None = None
        response: httpx.Response | None = None
        limit = asyncio.timeout(within.total_seconds())
        try:
            try:
                async with limit:
                    response = await self._send(request)
                    if not response.is_success:
                        content = await _read_json(await read_whole(response, MAX_ERROR))
                        failure = refusal(_answer(response, content), self.mask)
            except TimeoutError:
                silence = describe_silence(limit, f"no answer within {within.total_seconds():g} s")
                failure = LinkLost(f"{self.mask(_line(request))}: {silence}")
            except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError, ValueError) as exc:
                refused = isinstance(exc, AddressRefused)
                reason = f"{self.mask(_line(request))}: {explain(exc, self.mask)}"
                failure = refused_address() if refused else LinkLost(reason)
            if failure is not None or response is None:
                raise failure or LinkLost("no answer")
            yield response
        finally:
            if response is not None:
                await response.aclose()


def _is_page(response: httpx.Response) -> bool:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower() == "text/html"


async def read_whole(response: httpx.Response, most: int) -> bytes:
    """Read a body of at most `most` bytes.

    Raises:
        ValueError: the body is larger, or compressed.
    """
    check_plain(response)
    chunks = bytearray()
    async for chunk in response.aiter_raw():
        chunks += chunk
        if len(chunks) > most:
            raise ValueError(f"the response has more than {most} bytes")
    return bytes(chunks)


def check_plain(response: httpx.Response) -> None:
    """Refuse a compressed body.

    Raises:
        ValueError: the body is compressed.
    """
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
        raise ValueError("the response is compressed, which was not requested")


def explain(exc: Exception, mask: Mask) -> str:
    """Describe an exception without secrets; the transport and the readers have written its cause."""
    return mask(str(exc) or type(exc).__name__)[:300]


def refusal(answer: RestAnswer, mask: Mask) -> LinkLost | LinkRefused:
    """Convert an error response to a link error that names the request and the status."""
    where = mask(answer.where)
    if answer.status in REDIRECTS:
        return refused_redirect(where)
    words = ": ".join(part for part in (answer.code, answer.message) if part)
    detail = f"{where}: {mask(words or 'no reason given')[:300]}"
    if answer.status >= 500 or answer.status in _AGAIN:
        again = f" (Retry-After: {answer.retry_after[:40]})" if answer.retry_after else ""
        return LinkLost(f"{detail}{again}")
    code = "UNAUTHORIZED" if answer.status in {401, 403} else f"HTTP_{answer.status}"
    return LinkRefused(code, detail, terminal=answer.status not in _LATER)


def _answer(response: httpx.Response, body: Any) -> RestAnswer:
    again, line = response.headers.get("Retry-After"), _line(response.request)
    return RestAnswer(response.status_code, body, again, line, is_page=_is_page(response))


def _line(request: httpx.Request) -> str:
    """Return method and URL without query and user, which may contain keys."""
    url = request.url.copy_with(query=None, fragment=None, username=None, password=None)
    return f"{request.method} {url}"


async def _read_json(content: bytes) -> Any:
    return await json.read_answer(content) if content.strip() else None

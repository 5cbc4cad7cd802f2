"""HTTP requests to a runtime's REST interface over httpx, with every way they can end said as a link error."""

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
from gateway.strict_json import Malformed

MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of one answer; a history's pages may hold pictures."""
MAX_SHORT = 1024 * 1024
"""Bytes of an answer that says no more than what was made, or how something is."""
MAX_ERROR = 64 * 1024
_AGAIN = frozenset({408, 425, 429})
_LATER = frozenset({409, 423})


@dataclass(frozen=True, slots=True)
class RestAnswer:
    """What a server answered, its body read as JSON; `Malformed` where it is none, None where it is empty."""

    status: int
    body: Any
    retry_after: str | None = None
    request: str = ""
    """Method and URL of the request, without its query."""
    is_page: bool = False
    """Whether it is HTML, as a proxy answers in place of the server."""

    @property
    def where(self) -> str:
        """Name the request and its status, for errors and logs."""
        return f"{self.request}: HTTP {self.status}" if self.request else f"HTTP {self.status}"

    @property
    def code(self) -> str:
        """The error code in the body, where it has one."""
        match self.body:
            case {"error": str(code)} | {"code": str(code)}:
                return code[:64]
            case {"error": {"type": str(code)} | {"code": str(code)}}:
                return code[:64]
            case _:
                return ""

    @property
    def message(self) -> str:
        """The words in the body, where it has any; they may quote what was sent."""
        match self.body:
            case {"message": str(text)} | {"error": {"message": str(text)}} | {"detail": str(text)}:
                return text[:300]
            case _:
                return ""

    def read_object(self, mask: Mask) -> dict[str, Any]:
        """Give the JSON object of a success.

        Raises:
            LinkRefused: the server said no.
            LinkLost: the answer promises to mend itself, or is no object.
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

    Redirects are not followed, cookies not kept, proxy variables of the environment not obeyed.
    """

    def __init__(self, base_url: str, *, headers: Mapping[str, str], mask: Mask) -> None:
        self.mask = mask
        self._client = httpx.AsyncClient(
            base_url=base_url,
            # Compression would hide how much an answer unfolds to.
            headers={**headers, "Accept-Encoding": "identity"},
            # Every wait is bounded by whoever waits.
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
        self, path: str, query: Mapping[str, str], *, within: timedelta, most: int = MAX_ANSWER
    ) -> RestAnswer:
        """GET once and read the answer, of at most so many bytes.

        Raises:
            LinkLost: no answer, or one that cannot be read.
            LinkRefused: the address is refused.
        """
        return await self._ask(self._client.build_request("GET", path, params=dict(query)), within, most)

    async def post(self, path: str, body: object, *, within: timedelta, most: int = MAX_ANSWER) -> RestAnswer:
        """POST once and read the answer, of at most so many bytes.

        Raises:
            LinkLost: no answer, or one that cannot be read; the server may have acted.
            LinkRefused: the address is refused.
        """
        # Read once and not kept, since it may hold what nobody may see.
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = self._client.build_request("POST", path, content=content, headers=headers)
        return await self._ask(request, within, most)

    async def _ask(self, request: httpx.Request, within: timedelta, most: int) -> RestAnswer:
        request.headers.setdefault("Accept", "application/json")
        response: httpx.Response | None = None
        unsent = refused = False
        try:
            async with asyncio.timeout(within.total_seconds()):
                response = await self._client.send(request, stream=True)
                body = await _read_json(await read_whole(response, most))
        except TimeoutError:
            failure = f"no answer within {within.total_seconds():g} s"
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
            # The status says what became of the request, whatever became of the body.
            return _answer(response, Malformed(failure))
        # Outside the handlers, so that no chained exception holds the request and its key.
        raise refused_address() if refused else LinkLost(f"{self.mask(_line(request))}: {failure}", unsent=unsent)

    @asynccontextmanager
    async def stream(
        self, path: str, *, headers: Mapping[str, str], within: timedelta, idle: timedelta
    ) -> AsyncGenerator[httpx.Response]:
        """GET an answer whose body is read as it comes, with no silence over `idle`; entering waits for its head.

        Raises:
            LinkLost: no answer, or one that promises to mend itself.
            LinkRefused: the server said no.
        """
        silence = httpx.Timeout(None, read=idle.total_seconds())
        request = self._client.build_request("GET", path, headers=dict(headers), timeout=silence)
        failure: LinkLost | LinkRefused | None = None
        response: httpx.Response | None = None
        try:
            try:
                async with asyncio.timeout(within.total_seconds()):
                    response = await self._client.send(request, stream=True)
                    if not response.is_success:
                        content = await _read_json(await read_whole(response, MAX_ERROR))
                        failure = refusal(_answer(response, content), self.mask)
            except TimeoutError:
                failure = LinkLost(f"{self.mask(_line(request))}: no answer within {within.total_seconds():g} s")
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
    """Read a body within bounds.

    Raises:
        ValueError: it is over them, or compressed although nobody asked for that.
    """
    check_plain(response)
    pieces = bytearray()
    async for piece in response.aiter_raw():
        pieces += piece
        if len(pieces) > most:
            raise ValueError(f"the answer is over {most} bytes")
    return bytes(pieces)


def check_plain(response: httpx.Response) -> None:
    """Refuse a compressed body.

    Raises:
        ValueError: it is one.
    """
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
        raise ValueError("the answer is compressed although nobody asked for that")


def explain(exc: Exception, mask: Mask) -> str:
    """Say what went wrong on the wire, without secrets."""
    return mask(f"{type(exc).__name__}: {exc}")[:300]


def refusal(answer: RestAnswer, mask: Mask) -> LinkLost | LinkRefused:
    """Turn an error answer into a link error that names the request and the status."""
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
    """Write method and URL, without query and user: keys travel there."""
    url = request.url.copy_with(query=None, fragment=None, username=None, password=None)
    return f"{request.method} {url}"


async def _read_json(content: bytes) -> Any:
    return await json.read_answer(content) if content.strip() else None

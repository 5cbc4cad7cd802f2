"""HTTP requests to one gateway, with limits on time and size, and safe retries."""

import asyncio
import json
import logging
import os
import random
import re
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any, cast

import httpx
from pydantic import SecretStr, ValidationError

from dragoman.client.errors import ClientError, GatewayUnreachable, RequestRefused, UnexpectedAnswer
from dragoman.hidden import Hidden
from dragoman.models.responses import Problem

NOTHING: Mapping[str, Any] = MappingProxyType({})
_LONGEST_PAUSE = 10.0
"""The maximum number of seconds between attempts."""
_LONGEST_RETRY_AFTER = 60.0
_CONNECT = 10.0
_CONNECTIONS = 1_000
_IDLE = 1.0
"""Seconds for which an idle connection is reused; a proxy in front may close it soon."""
_PASSING = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses of proxies while the gateway behind them is unavailable."""
_JSON = frozenset({"application/json", "application/problem+json"})
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
_MEDIA_TYPE = re.compile(r"[a-z0-9.+-]{1,40}/[a-z0-9.+-]{1,40}")

log = logging.getLogger("dragoman.client")


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a request is retried, and the seconds before the first retry."""

    retries: int
    pause: float


class Transport:
    """The connections to one gateway."""

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        timeout: float,
        retrying: Retries,
        largest_answer: int,
        http_client: httpx.AsyncClient | None,
    ) -> None:
        key = key if key is None else key.strip()
        self.url = _check_url(url.strip())
        self.largest_answer = largest_answer
        self.retries, self.pause = retrying.retries, retrying.pause
        if key is not None and not (key and key.isprintable()):
            raise ValueError("an API key must be printable text on one line")
        self._key = None if key is None else SecretStr(key)
        self._hidden = Hidden(() if key is None else (key,))
        """Masks the key in responses of other servers."""
        self._timeout = timeout
        self._is_own = http_client is None
        # A proxy of the environment cannot reach this machine's loopback addresses, and only TLS needs certificates.
        self._http = http_client or httpx.AsyncClient(
            trust_env=not _is_here(self.url),
            verify=self.url.startswith("https:"),
            limits=httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=20, keepalive_expiry=_IDLE),
        )

    async def close(self) -> None:
        """Close the connections, unless the HTTP client is the caller's."""
        if self._is_own:
            await self._http.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] = NOTHING,
        body: Any = None,
        key: str | None = None,
        repeatable: bool = False,
        hold: float = 0,
        retries: int | None = None,
    ) -> dict[str, Any]:
        """Send a request and return the response's object, empty if there is no body.

        A `repeatable` request is retried after errors that may pass; others only if they certainly did not arrive.
        `key` is the Idempotency-Key; `hold` is the number of seconds that the gateway may wait before it responds.

        Raises:
            ClientError: the request failed.
        """
        headers = {"accept": "application/json"}
        content = None
        if body is not None:
            content, headers["content-type"] = _write(body), "application/json"
        if key is not None:
            headers["idempotency-key"] = key
        request = self._request(method, path, headers, within=self._timeout + hold, query=query, content=content)
        last = self.retries if retries is None else retries
        for number in range(last + 1):
            try:
                return await self._once(request, within=self._timeout + hold)
            except ClientError as exc:
                unsent = isinstance(exc, GatewayUnreachable) and not exc.may_have_arrived
                pause = self.pause_before(number, exc)
                if number == last or pause is None or not (repeatable or unsent):
                    raise
                log.info("retrying %s %s in %.1f s: %s", method, path, pause, exc)
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def stream(
        self, path: str, *, after: int | str | None, silence: float, query: Mapping[str, Any] = NOTHING
    ) -> AsyncGenerator[httpx.Response]:
        """Open a stream of events, which breaks after `silence` seconds without a byte.

        Raises:
            ClientError: the stream could not be opened, or broke.
        """
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        if after is not None:
            headers["last-event-id"] = str(after)
        request = self._request("GET", path, headers, within=silence, query=query)
        with self._convert_errors():
            # The gateway sends the head at once.
            async with asyncio.timeout(self._timeout):
                answer = await self._http.send(request, stream=True, follow_redirects=False)
            try:
                if answer.status_code != HTTPStatus.OK or _media_type(answer) != "text/event-stream":
                    async with asyncio.timeout(self._timeout):
                        self._read(answer, await self._body(answer))
                    raise self._unexpected(answer)
                self._check_plain(answer)
                yield answer
            finally:
                await answer.aclose()

    def _request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        *,
        within: float,
        query: Mapping[str, Any] = NOTHING,
        content: bytes | None = None,
    ) -> httpx.Request:
        whole = {"user-agent": "dragoman-client", "accept-encoding": "identity", **headers}
        if self._key is not None:
            whole["authorization"] = f"Bearer {self._key.get_secret_value()}"
        return self._http.build_request(
            method,
            self.url + path,
            params={name: value for name, value in query.items() if value is not None},
            content=content,
            # A key may contain letters beyond ASCII.
            headers=httpx.Headers(whole, encoding="utf-8"),
            timeout=httpx.Timeout(within, connect=min(within, _CONNECT)),
        )

    async def _once(self, request: httpx.Request, *, within: float) -> dict[str, Any]:
        with self._convert_errors():
            # Limits the complete response, also if it arrives slowly.
            async with asyncio.timeout(within):
                answer = await self._http.send(request, stream=True, follow_redirects=False)
                try:
                    raw = await self._body(answer)
                finally:
                    await answer.aclose()
        return self._read(answer, raw)

    async def _body(self, answer: httpx.Response) -> bytes:
        self._check_plain(answer)
        raw = bytearray()
        async for piece in answer.aiter_raw():
            raw += piece
            if len(raw) > self.largest_answer:
                text = f"the answer of {self.url} is over {self.largest_answer} bytes (`largest_answer`)"
                raise UnexpectedAnswer(text, status=answer.status_code)
        return bytes(raw)

    def _read(self, answer: httpx.Response, raw: bytes) -> dict[str, Any]:
        if answer.status_code == HTTPStatus.NO_CONTENT:
            return {}
        if _media_type(answer) not in _JSON:
            raise self._unexpected(answer)
        try:
            value: Any = json.loads(raw if answer.is_success else self._hidden.mask(raw.decode("utf-8-sig")))
        except (ValueError, RecursionError):
            raise self._unexpected(answer) from None
        if not isinstance(value, dict):
            raise self._unexpected(answer)
        if answer.is_success:
            return cast("dict[str, Any]", value)
        try:
            problem = Problem.model_validate(value)
        except ValidationError:
            raise self._unexpected(answer) from None
        raise RequestRefused(problem, status=answer.status_code, retry_after=_retry_after(answer))

    def _unexpected(self, answer: httpx.Response) -> UnexpectedAnswer:
        status = answer.status_code
        try:
            said = f"{status} {HTTPStatus(status).phrase}"
        except ValueError:
            said = str(status)
        hint = "; it redirects, use the URL of the gateway itself" if answer.is_redirect else ""
        media_type = _media_type(answer) or "no media type"
        text = f"{self.url} does not respond like a Dragoman gateway ({said}, {media_type}){hint}"
        return UnexpectedAnswer(text, status=status, passing=status in _PASSING, retry_after=_retry_after(answer))

    def _check_plain(self, answer: httpx.Response) -> None:
        # The request allows no compression; a small response could expand to any size.
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            raise UnexpectedAnswer(f"the answer of {self.url} is compressed", status=answer.status_code)

    def pause_before(self, number: int, exc: ClientError) -> float | None:
        """Return the seconds to wait after failed attempt `number`, from 0; None if a retry cannot help."""
        if not exc.passing or (exc.retry_after or 0) > _LONGEST_RETRY_AFTER:
            return None
        # Jitter keeps many clients from reconnecting at the same time.
        pause = min(self.pause * 2 ** min(number, 10), _LONGEST_PAUSE) * random.uniform(0.5, 1)  # noqa: S311
        return max(pause, exc.retry_after or 0)

    @contextmanager
    def _convert_errors(self) -> Generator[None]:
        try:
            yield
        except (httpx.TimeoutException, TimeoutError) as exc:
            text = f"{self.url} did not respond in time"
            raise GatewayUnreachable(text, arrived=not isinstance(exc, _NEVER_SENT)) from None
        except (httpx.HTTPError, httpx.StreamError) as exc:
            arrived = not isinstance(exc, _NEVER_SENT)
            # The library's text may quote the response, or say only that all attempts failed.
            why = _cause_of(exc) or (type(exc).__name__ if arrived else str(exc)[:200])
            text = f"the connection to {self.url} broke" if arrived else f"no gateway responds at {self.url}"
            raise GatewayUnreachable(f"{text} ({why})", arrived=arrived) from None


def _cause_of(exc: BaseException) -> str | None:
    """Return what the system said about a connection; None if another library failed."""
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return None


def check_header(given: str, what: str) -> str:
    """Check that a text can be a header; no error shows it.

    Raises:
        ValueError: the text is not a valid header.
    """
    if not given or not given.isascii() or not given.isprintable() or given != given.strip():
        raise ValueError(f"{what} must be printable ASCII on one line, without surrounding spaces")
    return given


def _check_url(given: str) -> str:
    """Parse a URL with httpx, which also connects to it."""
    try:
        url = httpx.URL(given)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in {"http", "https"} or not url.host or url.userinfo or url.query or url.fragment:
        # The text is not shown, because it may contain a password.
        raise ValueError("the gateway's URL must be like https://gateway.example/path, without user and query")
    return str(url).rstrip("/?#")


def _is_here(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return host == "localhost" or host.endswith(".localhost") or ip_address(host).is_loopback
    except ValueError:
        return False


def _write(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _media_type(answer: httpx.Response) -> str:
    given = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    return given if _MEDIA_TYPE.fullmatch(given) else ""


def _retry_after(answer: httpx.Response) -> float | None:
    given = answer.headers.get("retry-after", "").strip()
    if given.isascii() and given.isdigit():
        return float(given[:10])
    try:
        moment = parsedate_to_datetime(given)
        # HTTP dates are always UTC (RFC 9110, 5.6.7).
        wait = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime.now(UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return max(wait.total_seconds(), 0)

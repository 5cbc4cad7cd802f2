"""Calls an HTTP backend: one signed POST per attempt, with its exact result."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

import orjson
import structlog
from yarl import URL

from gateway.clock import Clock
from gateway.executors.port import Answer, Cancellation, HttpExchange, Request
from gateway.executors.webhook.answers import failure, name_status, read_answer
from gateway.executors.webhook.client import HttpClient
from gateway.executors.webhook.reader import AddressForbidden, ConnectionBroken, Exchange, HttpAnswer, NotSent
from gateway.executors.webhook.request import RequestWriter
from gateway.log_limit import limited
from gateway.settings.model import WebhookSpec

_log = structlog.get_logger(__name__)

_CANCEL_TIMEOUT = timedelta(seconds=5)
_CANCEL_CONNECTIONS = 4
_CANCEL_RESPONSE = 64 * 1024


class WebhookExecutor:
    """An executor behind a URL (gateway/executors/README.md); the caller decides about retries."""

    def __init__(self, spec: WebhookSpec, *, clock: Clock) -> None:
        """Prepare without connecting.

        Raises:
            OperatorError: the URL, a secret or a header of the configuration is unusable.
        """
        self._writer = RequestWriter(spec.url, secrets=spec.secret, headers=spec.headers, clock=clock)
        self._read = partial(read_answer, raw=spec.response == "raw", now=clock.now, hidden=self._writer.hidden)
        idle, url = spec.idle_seconds, str(spec.url)
        self._url = str(URL(url, encoded=True).with_query(None).with_fragment(None).with_user(None))
        self._calls = HttpClient(url, concurrency=spec.concurrency, max_response=spec.max_response, idle=idle)
        # Separate connections, so that hanging calls cannot block their own cancels.
        self._cancels = HttpClient(url, concurrency=_CANCEL_CONNECTIONS, max_response=_CANCEL_RESPONSE, idle=idle)

    async def __aenter__(self) -> "WebhookExecutor":
        await self._calls.__aenter__()
        await self._cancels.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self._calls.__aexit__(*exc)
        finally:
            await self._cancels.__aexit__(*exc)

    def execute(self, request: Request) -> Awaitable[Answer]:
        try:
            data = request.data
            if request.arguments is not None:
                data = {**data, "arguments": orjson.Fragment(request.arguments)}
            written = self._writer.write(
                request.key,
                request.kind,
                data=data,
                attempt=request.attempt,
                trace=(request.traceparent, request.tracestate),
            )
        except ValueError as exc:
            return _as_coroutine(failure(f"request not sent to the executor: {exc}"))
        read = partial(self._read, kind=request.kind)
        if (seen := request.exchange) is not None:
            seen.url, seen.host, seen.port = self._url, self._calls.host, self._calls.port
            read = partial(_read_status, seen, read)
        return self._calls.post(written, within=request.timeout, read=read, may_start=request.may_start)

    async def cancel(self, cancellation: Cancellation) -> None:
        try:
            written = self._writer.write(
                cancellation.key,
                "tool.canceled",
                data=cancellation.data,
                trace=(cancellation.traceparent, cancellation.tracestate),
            )
        except ValueError as exc:
            limited(_log.warning, "cancel not sent", per=self, key=cancellation.key, reason=str(exc))
            return
        within = min(cancellation.timeout, _CANCEL_TIMEOUT)
        reason = await self._cancels.post(written, within=within, read=_cancel_error)
        if reason is not None:
            limited(_log.warning, "cancel failed", per=self, key=cancellation.key, reason=reason)


def _read_status(seen: HttpExchange, read: Callable[[Exchange], Answer], exchange: Exchange) -> Answer:
    seen.status = exchange.status if isinstance(exchange, HttpAnswer) else None
    return read(exchange)


async def _as_coroutine(answer: Answer) -> Answer:
    return answer


def _cancel_error(exchange: Exchange) -> str | None:
    match exchange:
        case HttpAnswer(status=status):
            return None if 200 <= status < 300 else f"answered {name_status(status)}"
        case NotSent(reason) | AddressForbidden(reason) | ConnectionBroken(reason):
            return reason

"""Sends one-way copies of events to a URL, signed like calls."""

from datetime import datetime, timedelta
from functools import partial
from typing import Any

from gateway.clock import Clock
from gateway.executors.port import LIVE_CONCURRENCY, Copied
from gateway.executors.webhook.answers import read_copied
from gateway.executors.webhook.client import HttpClient
from gateway.executors.webhook.request import RequestWriter
from gateway.settings.model import DestinationSpec

_MAX_RESPONSE = 64 * 1024


class WebhookDestination:
    """A destination behind a URL; the caller decides when to retry."""

    def __init__(self, spec: DestinationSpec, *, clock: Clock) -> None:
        """Prepare without connecting.

        Raises:
            OperatorError: the URL, a secret or a header of the configuration is unusable.
        """
        self._clock = clock
        self._timeout: timedelta = spec.timeout
        self._writer = RequestWriter(spec.url, secrets=spec.secret, headers=spec.headers, clock=clock)
        # Neither kind of copies waits for the other.
        concurrency = spec.concurrency + LIVE_CONCURRENCY
        self._client = HttpClient(str(spec.url), concurrency=concurrency, max_response=_MAX_RESPONSE)

    async def __aenter__(self) -> "WebhookDestination":
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.__aexit__(*exc)

    async def copy(self, *, key: str, kind: str, at: datetime, data: dict[str, Any], attempt: int) -> Copied:
        try:
            written = self._writer.write(key, kind, data=data, at=at, attempt=attempt)
        except ValueError as exc:
            return Copied("refused", str(exc))
        read = partial(read_copied, now=self._clock.now, hidden=self._writer.hidden)
        return await self._client.post(written, within=self._timeout, read=read)

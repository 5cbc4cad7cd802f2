"""Writes the signed HTTP request that asks an executor, cancels a call or copies an event."""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import parse_qsl, unquote

import orjson
from pydantic import AnyHttpUrl, SecretStr

from gateway.clock import Clock
from gateway.errors import OperatorError
from gateway.executors.webhook.signing import Signer

# These describe the connection, or bodies as our side writes and reads them; other values would break the exchange.
_CONNECTION = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """A request ready to be sent: the headers, and the very bytes that were signed."""

    headers: Mapping[str, str]
    body: bytes


class RequestWriter:
    """Writes requests to one receiver with its secrets and extra headers; those of the contract win over extra ones."""

    def __init__(
        self, url: AnyHttpUrl, *, secrets: Sequence[SecretStr], headers: Mapping[str, str], clock: Clock
    ) -> None:
        """Check everything that can be checked before the first call.

        Raises:
            OperatorError: a secret or an extra header cannot be used.
        """
        self._signer = Signer(secrets)
        self._clock = clock
        extra = {name.lower(): value for name, value in headers.items()}
        _check_headers(extra, credentials_in_url=url.username is not None)
        defaults = {"accept": "application/json", "user-agent": f"dragoman/{_version()}"}
        self._headers = defaults | extra | {"accept-encoding": "gzip", "content-type": "application/json"}
        self.hidden = sent_to(url, secrets, extra)
        """What must not be quoted in a text, should the receiver send it back."""

    def write(
        self, key: str, kind: str, *, data: dict[str, Any], at: datetime | None = None, attempt: int | None = None
    ) -> WebhookRequest:
        """Write `{"type", "timestamp", "data"}`; the timestamp is now unless the event has its own time.

        Raises:
            ValueError: `data` cannot be JSON; the text does not quote it.
        """
        now = self._clock.now()
        try:
            body = orjson.dumps(
                {"type": kind, "timestamp": (at or now).astimezone(UTC), "data": data}, option=orjson.OPT_UTC_Z
            )
        except orjson.JSONEncodeError as exc:
            raise ValueError("the request cannot be written as JSON") from exc
        timestamp = int(now.timestamp())
        headers = self._headers | {
            "webhook-id": key,
            "idempotency-key": key,
            "webhook-timestamp": str(timestamp),
            "traceparent": _traceparent(key, attempt or 0),
        }
        if (signature := self._signer.sign(key, body, timestamp=timestamp)) is not None:
            headers["webhook-signature"] = signature
        if attempt is not None:
            headers["dragoman-attempt"] = str(attempt)
        return WebhookRequest(headers=headers, body=body)


def _traceparent(key: str, attempt: int) -> str:
    """Name a W3C trace after the key, so that all attempts share it, with a span for each attempt.

    Sampled, because the receivers' tracers commonly follow the caller's flag and would else keep nothing.
    """
    digest = hashlib.sha256(key.encode()).digest()
    span = (int.from_bytes(digest[16:24], "big") + attempt) % 2**64
    return f"00-{digest[:16].hex()}-{span:016x}-01"


def _check_headers(names: Iterable[str], *, credentials_in_url: bool) -> None:
    for name in names:
        if name in _CONNECTION:
            raise OperatorError(f"headers: {name} cannot be set here, because it belongs to the connection")
        if name == "authorization" and credentials_in_url:
            raise OperatorError("headers: authorization contradicts the user name in the url; keep one of them")


def sent_to(url: AnyHttpUrl, secrets: Sequence[SecretStr], extra: Mapping[str, str]) -> tuple[str, ...]:
    """Name what a receiver knows from our requests and should not be quoted with, the longest first."""
    hidden = {secret.get_secret_value() for secret in secrets} | set(extra.values())
    # The schemes stand before the actual credential, which may be sent back alone.
    hidden |= {value.partition(" ")[2] for value in extra.values()}
    hidden |= {value for _, value in parse_qsl(url.query or "")}
    if url.password is not None:
        user, password = unquote(url.username or ""), unquote(url.password)
        hidden |= {url.password, password, base64.b64encode(f"{user}:{password}".encode()).decode()}
    # Short values (versions, tenant names) would turn ordinary words into asterisks.
    return tuple(sorted((value for value in hidden if len(value) >= 8), key=len, reverse=True))


def _version() -> str:
    try:
        return version("dragoman")
    except PackageNotFoundError:
        return "dev"

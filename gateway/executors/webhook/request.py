"""Writes the HTTP request of a call, a cancel or an event copy, and signs it according to Standard Webhooks."""

import base64
import hmac
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import orjson
from pydantic import AnyHttpUrl, SecretStr
from yarl import URL

from dragoman.webhook_secret import decode_secret
from gateway.clock import Clock
from gateway.errors import OperatorError
from gateway.executors.webhook.sent import sent_to


class Signer:
    """Signs bodies with every configured secret: two signatures while a secret is rotated, none without secrets."""

    def __init__(self, secrets: Sequence[SecretStr]) -> None:
        """Decode the secrets.

        Raises:
            OperatorError: a secret is invalid; the text gives its number and the reason, never the secret.
        """
        keys = [_decode(secret, place=f"{number} of {len(secrets)}") for number, secret in enumerate(secrets, 1)]
        # Preparing a key costs as much as signing; copying a prepared key is cheap.
        self._prepared = tuple(hmac.new(key, digestmod="sha256") for key in keys)

    def sign(self, key: str, body: bytes, *, timestamp: int) -> str | None:
        """Return the `webhook-signature` header over `key.timestamp.body`; None without a secret."""
        if not self._prepared:
            return None
        head = f"{key}.{timestamp}.".encode()
        signatures: list[str] = []
        for prepared in self._prepared:
            mac = prepared.copy()
            mac.update(head)
            mac.update(body)
            signatures.append("v1," + b2a_base64(mac.digest(), newline=False).decode())
        return " ".join(signatures)


def _decode(secret: SecretStr, *, place: str) -> bytes:
    try:
        return decode_secret(secret.get_secret_value())
    except ValueError as exc:
        raise OperatorError(f"secret {place}: {exc}") from None


class RequestWriter:
    """Writes requests to one receiver with its secrets and extra headers, which the settings have validated."""

    def __init__(
        self, url: AnyHttpUrl, *, secrets: Sequence[SecretStr], headers: Mapping[str, str], clock: Clock
    ) -> None:
        """Prepare the signatures and the constant part of the head."""
        self._signer = Signer(secrets)
        self._clock = clock
        extra = {name.lower(): value for name, value in headers.items()}
        self._head = _write_head(url, extra)
        self.hidden = sent_to(url, secrets, extra)
        """Secrets to mask in texts, since the receiver may send them back."""

    def write(
        self,
        key: str,
        kind: str,
        *,
        data: dict[str, Any],
        at: datetime | None = None,
        attempt: int | None = None,
        trace: tuple[str | None, str | None] = (None, None),
    ) -> bytes:
        """Write the whole request, with the body `{"type", "timestamp", "data"}`.

        The timestamp is `at`, by default now; the signature covers the exact bytes of the body. `trace` is the
        `traceparent`, which by default derives from the key, and the `tracestate`.

        Raises:
            ValueError: `data` cannot be JSON, or `key` cannot be a header; the text quotes neither.
        """
        if not key.isprintable():
            raise ValueError("its key cannot be sent as a header")
        now = self._clock.now()
        event_time = now if at is None else at.astimezone(UTC)
        try:
            body = orjson.dumps({"type": kind, "timestamp": event_time, "data": data}, option=orjson.OPT_UTC_Z)
        except orjson.JSONEncodeError as exc:
            raise ValueError("the request cannot be written as JSON") from exc
        timestamp = int(now.timestamp())
        traceparent, tracestate = trace
        head = (
            f"{self._head}webhook-id: {key}\r\nidempotency-key: {key}\r\nwebhook-timestamp: {timestamp}\r\n"
            f"traceparent: {traceparent or _derive_trace(key, attempt or 0)}\r\ncontent-length: {len(body)}\r\n"
        )
        if (signature := self._signer.sign(key, body, timestamp=timestamp)) is not None:
            head += f"webhook-signature: {signature}\r\n"
        if tracestate is not None:
            head += f"tracestate: {tracestate}\r\n"
        if attempt is not None:
            head += f"dragoman-attempt: {attempt}\r\n"
        return f"{head}\r\n".encode() + body


def _derive_trace(key: str, attempt: int) -> str:
    """Derive a W3C trace context from the key: all attempts share the trace, and each has its own span.

    It is flagged as sampled, because tracers of receivers commonly follow this flag.
    """
    trace = sha256(key.encode()).hexdigest()
    span = (int(trace[32:48], 16) + attempt) % 2**64
    return f"00-{trace[:32]}-{span:016x}-01"


def _write_head(url: AnyHttpUrl, extra: dict[str, str]) -> str:
    """Write the constant part of every request: the request line and the fixed headers."""
    where = URL(str(url), encoded=True)
    headers = {"host": where.host_port_subcomponent or ""}
    if where.user is not None:
        pair = f"{where.user}:{where.password or ''}"
        headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    headers |= {"accept": "application/json", "user-agent": f"dragoman/{_version()}"} | extra
    headers |= {"accept-encoding": "gzip", "content-type": "application/json"}
    lines = [f"POST {where.raw_path_qs} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "".join(f"{line}\r\n" for line in lines)


@cache
def _version() -> str:
    try:
        return version("dragoman")
    except PackageNotFoundError:
        return "dev"

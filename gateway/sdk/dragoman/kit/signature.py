"""Verifies the gateway's signature: Standard Webhooks 1.0, with one or more secrets. Pure."""

import hmac
from base64 import b64encode
from collections.abc import Mapping, Sequence

from dragoman.webhook_secret import decode_secret

TOLERANCE = 300
"""The maximum difference of a timestamp, in seconds."""


class BadSignature(ValueError):
    """The request is not from the gateway, is too old, or was modified."""


def verify(keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, *, now: float) -> None:
    """Check the signature of the received bytes.

    Raises:
        BadSignature: names the error.
    """
    key, stamp, given = (headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    if not (key and stamp and given):
        raise BadSignature("the request is not signed")
    if not stamp.isascii() or not stamp.isdigit() or abs(int(stamp[:20]) - now) > TOLERANCE:
        raise BadSignature("the timestamp is too far from this machine's clock")
    wanted = [_sign(secret, f"{key}.{stamp}.".encode() + body) for secret in keys]
    versions = (one.partition(",") for one in given.split(" ")[:16])
    shown = [signature.encode() for version, _, signature in versions if version == "v1"]
    if not any(hmac.compare_digest(one, other) for one in shown for other in wanted):
        raise BadSignature("the signature does not match any configured secret")


def _sign(secret: bytes, content: bytes) -> bytes:
    return b64encode(hmac.digest(secret, content, "sha256"))


def read_secrets(secret: str | Sequence[str]) -> tuple[bytes, ...]:
    """Decode one secret, or several during a rotation.

    Raises:
        ValueError: names the invalid secret and the fix.
    """
    secrets = (secret,) if isinstance(secret, str) else tuple(secret)
    if not secrets:
        raise ValueError("missing secret: use the executor's `secret` in the gateway's YAML")
    keys: list[bytes] = []
    for number, one in enumerate(secrets, 1):
        try:
            keys.append(decode_secret(one))
        except ValueError as exc:
            raise ValueError(f"secret {number} of {len(secrets)} {exc}") from None
    return tuple(keys)

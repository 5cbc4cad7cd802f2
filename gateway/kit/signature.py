"""Whether a request is the gateway's: Standard Webhooks 1.0, with as many secrets as are in use. Pure."""

import hmac
from base64 import b64encode
from collections.abc import Mapping, Sequence

from gateway.settings.webhook_secret import decode_secret

TOLERANCE = 300
"""Seconds that a timestamp may be off."""


class BadSignature(ValueError):
    """The request is not the gateway's, is too old, or was changed on its way."""


def verify(keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, *, now: float) -> None:
    """Check a signature over the bytes as they came.

    Raises:
        BadSignature: says what is wrong with it.
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
        raise BadSignature("no signature fits a secret of this backend")


def _sign(secret: bytes, content: bytes) -> bytes:
    return b64encode(hmac.digest(secret, content, "sha256"))


def read_secrets(secret: str | Sequence[str]) -> tuple[bytes, ...]:
    """Take the keys out of one secret, or out of several while one is rotated.

    Raises:
        ValueError: which of them is no secret, and the mend.
    """
    secrets = (secret,) if isinstance(secret, str) else tuple(secret)
    if not secrets:
        raise ValueError("no secret is given: the executor's `secret` in the gateway's YAML")
    keys: list[bytes] = []
    for number, one in enumerate(secrets, 1):
        try:
            keys.append(decode_secret(one))
        except ValueError as exc:
            raise ValueError(f"secret {number} of {len(secrets)} {exc}") from None
    return tuple(keys)

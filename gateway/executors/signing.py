"""Signs request bodies the Standard Webhooks way, so that any of its libraries can verify them. Pure."""

import base64
import hmac
from collections.abc import Sequence

from pydantic import SecretStr

from gateway.errors import OperatorError
from gateway.settings.webhook_secret import decode_secret


class Signer:
    """Signs with every configured secret: two signatures while a secret is rotated, none without secrets."""

    def __init__(self, secrets: Sequence[SecretStr]) -> None:
        """Decode the secrets.

        Raises:
            OperatorError: says which secret cannot be used and why, and never quotes it.
        """
        self._keys = tuple(
            _decode(secret, place=f"{number} of {len(secrets)}") for number, secret in enumerate(secrets, 1)
        )

    def sign(self, key: str, body: bytes, *, timestamp: int) -> str | None:
        """Write the `webhook-signature` header over `key.timestamp.body`, or None where there is no secret."""
        if not self._keys:
            return None
        signed = b"%s.%d.%s" % (key.encode(), timestamp, body)
        return " ".join([_sign_once(secret, signed) for secret in self._keys])


def _sign_once(secret: bytes, signed: bytes) -> str:
    return "v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()


def _decode(secret: SecretStr, *, place: str) -> bytes:
    try:
        return decode_secret(secret.get_secret_value())
    except ValueError as exc:
        raise OperatorError(f"secret {place}: {exc}") from None

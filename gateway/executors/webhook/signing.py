"""Signs request bodies according to Standard Webhooks, so that its libraries can verify them. Pure."""

import hmac
from binascii import b2a_base64
from collections.abc import Sequence

from pydantic import SecretStr

from dragoman.webhook_secret import decode_secret
from gateway.errors import OperatorError


class Signer:
    """Signs with every configured secret: two signatures while a secret is rotated, none without secrets."""

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

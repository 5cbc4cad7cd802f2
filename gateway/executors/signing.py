"""Signs request bodies the Standard Webhooks way, so that any of its libraries can verify them. Pure."""

import base64
import binascii
import hmac
from collections.abc import Sequence

from pydantic import SecretStr

from gateway.errors import OperatorError

_PREFIX = "whsec_"


class Signer:
    """Signs with every configured secret: two signatures while a secret is rotated, none without secrets."""

    def __init__(self, secrets: Sequence[SecretStr]) -> None:
        """Decode the secrets.

        Raises:
            OperatorError: says which secret cannot be used and why, and never quotes it.
        """
        self._keys = tuple(
            _decode_secret(secret, place=f"{number} of {len(secrets)}") for number, secret in enumerate(secrets, 1)
        )

    def sign(self, key: str, body: bytes, *, timestamp: int) -> str | None:
        """Write the `webhook-signature` header over `key.timestamp.body`, or None where there is no secret."""
        if not self._keys:
            return None
        signed = b"%s.%d.%s" % (key.encode(), timestamp, body)
        return " ".join([_sign_once(secret, signed) for secret in self._keys])


def _sign_once(secret: bytes, signed: bytes) -> str:
    return "v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()


def _decode_secret(secret: SecretStr, *, place: str) -> bytes:
    """Read `whsec_` + base64; without the prefix the whole text is taken as base64.

    This is what the `standardwebhooks` package does with the same string, down to missing padding
    and to skipping characters outside the alphabet, so both sides can be given the same secret.
    """
    encoded = secret.get_secret_value().removeprefix(_PREFIX)
    try:
        key = base64.b64decode(encoded + "==")
    except (binascii.Error, ValueError):
        # Without a cause: the library's error could quote what it could not read.
        raise OperatorError(_complain(place, "is not base64")) from None
    if not key:
        raise OperatorError(_complain(place, "has nothing in it that is base64"))
    return key


def _complain(place: str, fault: str) -> str:
    return f"secret {place}: {fault}; write whsec_ and 24 to 64 random bytes in base64 (openssl rand -base64 32)"

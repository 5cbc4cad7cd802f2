"""Reads a webhook secret as Standard Webhooks writes it: `whsec_` and base64. Pure."""

import base64
import binascii

_PREFIX = "whsec_"
MEND = "write whsec_ and 24 to 64 random bytes in base64 (openssl rand -base64 32)"


def decode_secret(secret: str) -> bytes:
    """Take the key out of a secret; without the prefix the whole text is taken as base64.

    This is what the `standardwebhooks` package does with the same string, down to missing padding
    and to skipping characters outside the alphabet, so both sides can be given the same secret.

    Raises:
        ValueError: what is wrong, in a text that never quotes the secret.
    """
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX) + "==")
    except (binascii.Error, ValueError):
        # Without a cause: the library's error could quote what it could not read.
        raise ValueError(f"is not base64; {MEND}") from None
    if not key:
        raise ValueError(f"has nothing in it that is base64; {MEND}")
    return key

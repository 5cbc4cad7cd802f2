"""Decodes a webhook secret of Standard Webhooks: `whsec_` and base64. Pure."""

import base64
import binascii

_PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64
"""Bytes of a key that Standard Webhooks allows."""
FIX = "write whsec_ and 24 to 64 random bytes in base64 (openssl rand -base64 32)"


def decode_secret(secret: str) -> bytes:
    """Decode the key of a secret; the prefix and the padding are optional.

    Surrounding white space is ignored, since environment variables and files often end in a line break. Valid base64
    gives the same key as in the `standardwebhooks` package. Other characters are rejected, since skipping them would
    give an unintended key.

    Raises:
        ValueError: the text gives the reason and never quotes the secret.
    """
    try:
        text = secret.strip().removeprefix(_PREFIX).rstrip("=")
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        # Without a cause, since the library's error could quote the secret.
        raise ValueError(f"is not base64; {FIX}") from None
    if not key:
        raise ValueError(f"contains no key; {FIX}")
    return key

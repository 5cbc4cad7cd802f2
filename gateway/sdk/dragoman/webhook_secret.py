"""Reads a webhook secret as Standard Webhooks writes it: `whsec_` and base64. Pure."""

import base64
import binascii

_PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64
"""Bytes of a key, as Standard Webhooks wants them."""
MEND = "write whsec_ and 24 to 64 random bytes in base64 (openssl rand -base64 32)"


def decode_secret(secret: str) -> bytes:
    """Take the key out of a secret; without the prefix the whole text is taken as base64.

    White space around it is ignored: environment variables and files often end in a line break.

    Of what is base64 it makes what the `standardwebhooks` package makes of it, missing padding included, so that both
    sides can be given the same secret; a text with anything else in it would be read as a key that nobody meant.

    Raises:
        ValueError: what is wrong, in a text that never quotes the secret.
    """
    try:
        text = secret.strip().removeprefix(_PREFIX).rstrip("=")
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        # Without a cause: the library's error could quote what it could not read.
        raise ValueError(f"is not base64; {MEND}") from None
    if not key:
        raise ValueError(f"has nothing in it that is base64; {MEND}")
    return key

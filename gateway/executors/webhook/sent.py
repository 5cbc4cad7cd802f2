"""Collects the secrets that are sent to a backend, to mask them in its responses. Pure."""

import base64
from collections.abc import Mapping, Sequence
from urllib.parse import unquote, unquote_plus

from pydantic import AnyHttpUrl, SecretStr

from dragoman.hidden import Hidden

_SHORTEST = 8
"""Shorter values (versions, tenant names) would turn ordinary words into asterisks."""


def sent_to(url: AnyHttpUrl, secrets: Sequence[SecretStr], headers: Mapping[str, str]) -> Hidden:
    """Collect the secrets that a receiver knows from our requests: secrets, header values, query values, password."""
    hidden = {secret.get_secret_value() for secret in secrets} | set(headers.values())
    # The credential without its scheme (`Bearer`), since a receiver may send it back alone.
    hidden |= {value.partition(" ")[2] for value in headers.values()}
    for pair in (url.query or "").split("&"):
        written = pair.partition("=")[2]
        value = unquote_plus(written)
        hidden |= {value, written}
    if url.password is not None:
        user, password = unquote(url.username or ""), unquote(url.password)
        hidden |= {url.password, password, base64.b64encode(f"{user}:{password}".encode()).decode()}
    return Hidden(value for value in hidden if len(value) >= _SHORTEST)

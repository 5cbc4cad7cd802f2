"""What was sent to a backend and must not be quoted, should it be sent back. Pure."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import parse_qsl, unquote

from pydantic import AnyHttpUrl, SecretStr

_SHORTEST = 8
"""Shorter values (versions, tenant names) would turn ordinary words into asterisks."""
_ESCAPES = {
    '"': b'\\"',
    "\\": b"\\\\",
    "/": b"\\/",
    "\b": b"\\b",
    "\f": b"\\f",
    "\n": b"\\n",
    "\r": b"\\r",
    "\t": b"\\t",
}


class Hidden:
    """Texts that may not be told again, the longest first, so that of two that overlap the whole goes."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts = tuple(sorted(texts, key=len, reverse=True))
        # A letter can also be written by its number, and some by an escape of their own.
        escapes = [escape for letter, escape in _ESCAPES.items() if any(letter in text for text in self.texts)]
        written = [text.encode("utf-8", "replace") for text in self.texts]
        self._signs = (*written, *escapes, b"\\u") if written else ()

    def may_be_in(self, body: bytes) -> bool:
        """Whether a JSON text may hold one of them, in any way it can be written; False is certain."""
        # A loop, as one that is made for `any` takes twice as long; for `find` see `holds_forbidden_key`.
        for sign in self._signs:  # noqa: SIM110
            if body.find(sign) >= 0:
                return True
        return False

    def mask(self, text: str) -> str:
        """Take them out of a text."""
        for hidden in self.texts:
            text = text.replace(hidden, "***")
        return text


NOTHING = Hidden()


def sent_to(url: AnyHttpUrl, secrets: Sequence[SecretStr], headers: Mapping[str, str]) -> Hidden:
    """Name what a receiver knows from our requests and should not be quoted with."""
    hidden = {secret.get_secret_value() for secret in secrets} | set(headers.values())
    # The schemes stand before the actual credential, which may be sent back alone.
    hidden |= {value.partition(" ")[2] for value in headers.values()}
    hidden |= {value for _, value in parse_qsl(url.query or "")}
    if url.password is not None:
        user, password = unquote(url.username or ""), unquote(url.password)
        hidden |= {url.password, password, base64.b64encode(f"{user}:{password}".encode()).decode()}
    return Hidden(value for value in hidden if len(value) >= _SHORTEST)

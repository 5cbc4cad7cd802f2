"""Masks secrets in texts: literally, and in percent, JSON and base64 form. Pure.

This is a safety net for logs and error texts, not a filter: it cannot find a secret in any other form.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from functools import cached_property

MASK = "***"

_PLAIN = re.compile(r"[A-Za-z0-9]+")
"""Characters that have the same form everywhere."""
_SHORTEST_BASE64 = 8
"""Shorter base64 forms occur in ordinary words."""
_TOKEN = re.compile(r"\b(?:whsec|dtt|dlk)_[A-Za-z0-9+/=_-]+")
"""The tokens and signing secrets that the gateway makes."""


_STARTS = ("whsec_", "dtt_", "dlk_")


class Hidden:
    """A set of secrets that a text may not show."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        # The longest first: if one secret begins with another, the whole of it is masked.
        self.texts = tuple(sorted({text for text in texts if text}, key=len, reverse=True))
        forms = [form for text in self.texts for form in (text, *_base64_forms(text))]
        self.signs = tuple(dict.fromkeys(max(_PLAIN.findall(form), key=len, default="") for form in forms))
        """Parts that any form of a secret contains; most texts contain none of them."""
        self._signs = (*(sign.encode() for sign in self.signs), b"\\u") if self.signs else ()

    def may_be_in(self, body: bytes) -> bool:
        """Return False only if no value in a JSON text contains a secret."""
        # A loop: a generator for `any` takes twice as long, on each response of an executor.
        for sign in self._signs:  # noqa: SIM110
            if sign in body:
                return True
        return False

    def mask(self, text: str) -> str:
        """Replace each secret in a text."""
        if not self._sign.search(text):
            return text
        if self.signs:
            text = self._forms.sub(MASK, text)
        return _TOKEN.sub(MASK, text)

    @cached_property
    def _sign(self) -> re.Pattern[str]:
        return re.compile("|".join((*_STARTS, *self.signs)))

    @cached_property
    def _forms(self) -> re.Pattern[str]:
        expressions = ["".join(map(_expression, text)) for text in self.texts]
        base64 = (form for text in self.texts for form in _base64_forms(text))
        return re.compile("|".join((*expressions, *map(_base64_expression, base64))))


def _expression(character: str) -> str:
    """Match a character itself, and its percent and JSON forms."""
    if _PLAIN.fullmatch(character):
        return character
    percent = "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
    encoded = {percent, f"\\u{ord(character):04x}", json.dumps(character)[1:-1], f"\\{character}"} - {character}
    itself = "[ +]" if character == " " else re.escape(character)
    return f"(?:(?i:{'|'.join(map(re.escape, sorted(encoded)))})|{itself})"


def _base64_forms(text: str) -> Iterator[str]:
    """Yield the characters that every base64 text with the secret has, for each position of the secret."""
    raw = text.encode("utf-8", "surrogatepass")
    for before in range(3):
        encoded = b64encode(bytes(before) + raw).decode().rstrip("=")
        # The characters at the ends also hold bits of the neighbors.
        first = (0, 2, 3)[before]
        last = len(encoded) - (1 if (before + len(raw)) % 3 else 0)
        if last - first >= _SHORTEST_BASE64:
            yield encoded[first:last]


def _base64_expression(form: str) -> str:
    return form.replace("+", "[+-]").replace("/", "[/_]")


NOTHING = Hidden()

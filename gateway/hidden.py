"""Finds secrets in texts and takes them out, however they are written there. Pure."""

import json
import re
from collections.abc import Iterable
from functools import cached_property

MASK = "***"

_PARTS = re.compile(r"([A-Za-z0-9_.-]+)|\\+|.", re.DOTALL)
"""The letters that everybody writes as they are, and the others."""


def spellings(secret: str) -> str:
    """Write the expression for a secret as it is, and as URLs, JSON, JSON within JSON, and Python write it.

    Nothing that it matches is longer than it.
    """
    plain = secret.encode("utf-8", "backslashreplace").decode()
    return "".join(_spelling(part[0], same=part[1] is not None) for part in _PARTS.finditer(plain))


def _spelling(part: str, *, same: bool) -> str:
    if same:
        return re.escape(part)
    if part[0] == "\\":
        return rf"(?:{re.escape(part)}\\{{0,{3 * len(part)}}}|(?i:{'%5c' * len(part)}))"
    escapes = {rf"\u{ord(part):04x}", json.dumps(part)[1:-1], repr(part)[1:-1]} - {part}
    ways = ["".join(f"%{byte:02x}" for byte in part.encode())]
    # JSON within JSON writes up to three backslashes where JSON writes one.
    ways += [re.escape(escape).replace(r"\\", r"\\{1,3}") for escape in sorted(escapes)]
    # A space is a plus in a query.
    itself = r"[ +]" if part == " " else re.escape(part)
    return rf"(?:(?i:{'|'.join(ways)})|\\{{0,3}}{itself})"


class Hidden:
    """Texts that may not be told."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        # The longest first, so that of two one of which begins the other the whole goes.
        self.texts = tuple(sorted({text for text in texts if text}, key=len, reverse=True))
        longest = (max((part[1] or "" for part in _PARTS.finditer(text)), key=len) for text in self.texts)
        self.signs = tuple(dict.fromkeys(longest))
        """Of each text a part that is in all of its spellings."""
        self._signs = (*(sign.encode() for sign in self.signs), b"\\u") if self.signs else ()

    # Not before there is something to mask: both take a while, and most texts need the first only.
    @cached_property
    def _sign(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.signs)))

    @cached_property
    def _spellings(self) -> re.Pattern[str]:
        return re.compile("|".join(map(spellings, self.texts)))

    def may_be_in(self, body: bytes) -> bool:
        """Whether a JSON text may hold one of them, in any way it can be written; False is certain."""
        # A loop, as one that is made for `any` takes twice as long; `find` takes half as long as `in`.
        for sign in self._signs:  # noqa: SIM110
            if body.find(sign) >= 0:
                return True
        return False

    def mask(self, text: str) -> str:
        """Take them out of a text."""
        return self._spellings.sub(MASK, text) if self.texts and self._sign.search(text) else text


NOTHING = Hidden()

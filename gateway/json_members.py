"""How many members one JSON value from outside may have, all levels together: what is done with each of them adds up.

One number for the process, as one event loop does the work for all.
"""

from gateway.events.weight import count_most

MOST = 20_000
_SHORTEST = 2
"""Bytes that a member takes at least: a digit and its comma."""
_QUOTES = 4
"""Quotes of a member at most: those of its key, and of its text."""


class Members:
    """The bound; the configuration may set another one."""

    def __init__(self) -> None:
        self.most = MOST

    def too_many(self, text: str | bytes) -> str | None:
        """Say what is wrong with a JSON text that has too many members, before anybody parses it."""
        if len(text) <= _SHORTEST * self.most:
            return None
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        if count_most(raw) <= self.most or not self._has_more(raw):
            return None
        return f"more than {self.most} members in all (limits.members)"

    def _has_more(self, raw: bytes) -> bool:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
        if raw.count(b'"') > _QUOTES * (self.most + 1):
            return True
        # Every text is now "", and no two containers look the same but the empty ones.
        bare = b'"'.join(raw.split(b'"')[::2]).translate(None, b" \t\r\n")
        filled = bare.count(b"{") + bare.count(b"[") - bare.count(b"{}") - bare.count(b"[]")
        return bare.count(b",") + filled > self.most


MEMBERS = Members()

"""How many members one JSON value from outside may have, all levels together: what is done with each of them adds up.

One number for the process, as one event loop does the work for all.
"""

from typing import cast

MOST = 20_000


class Members:
    """The bound; the configuration may set another one."""

    def __init__(self) -> None:
        self.most = MOST

    def surely_too_many(self, raw: bytes) -> str | None:
        """Say what is wrong with a text that has far too many members, before anybody parses it."""
        # A quote with a colon behind it ends a key, or begins a text with a colon in front: a member, or half of one.
        found = raw.count(b'":') - raw.count(b'\\":')
        return None if found <= 2 * self.most else f"more than {self.most} members in all"

    def too_many(self, text: str | bytes, value: object) -> str | None:
        """Say what is wrong with a parsed text that has too many members; counted only where it may have."""
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        # Each member but the first of its object or array has a comma before it.
        if raw.count(b",") + raw.count(b"{") + raw.count(b"[") <= self.most or self._count(value) <= self.most:
            return None
        return f"more than {self.most} members in all"

    def _count(self, value: object) -> int:
        count = 0
        waiting: list[object] = [value]
        while waiting and count <= self.most:
            current = waiting.pop()
            inner: list[object] = []
            if isinstance(current, dict):
                inner = list(cast("dict[str, object]", current).values())
            elif isinstance(current, list):
                inner = cast("list[object]", current)
            count += len(inner)
            if count <= self.most:
                waiting += [one for one in inner if isinstance(one, dict | list)]
        return count


MEMBERS = Members()

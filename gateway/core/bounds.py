"""Limits a session's memory by count and size: the oldest entries are dropped first, the newest never. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

KEPT_BYTES = 4 * 1024 * 1024
"""Most bytes of each: questions, actions, unanswered calls, unconfirmed messages, unechoed events; one always fits."""
HISTORY_LINES = 200
HISTORY_BYTES = 32 * 1024
_MOST_HELD = 20
_HELD_BYTES = 256 * 1024
LINE = HISTORY_BYTES // 4
"""Characters of one line."""


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


SizedEntry = TypeVar("SizedEntry", bound=_Sized)


class Bounded(dict[str, SizedEntry]):
    """Entries by native id, oldest first, with their total size; immutable once remembered."""

    __slots__ = ("size",)

    def __init__(self, entries: Mapping[str, SizedEntry]) -> None:
        super().__init__(entries)
        # A copy has the size of its source.
        self.size: int = (
            entries.size if isinstance(entries, Bounded) else sum([entry.size for entry in entries.values()])
        )


def with_entry(entries: Mapping[str, SizedEntry], native: str, entry: SizedEntry, most: int) -> Bounded[SizedEntry]:
    """Add or replace an entry; drop the oldest ones beyond the bounds."""
    kept = Bounded(entries)
    known = kept.get(native)
    kept.size += entry.size if known is None else entry.size - known.size
    kept[native] = entry
    while len(kept) > most or (kept.size > KEPT_BYTES and len(kept) > 1):
        kept.size -= kept.pop(next(iter(kept))).size
    return kept


def fits(entries: Mapping[str, SizedEntry], native: str, most: int) -> bool:
    """Return whether an entry of the size of its id fits without dropping another one."""
    return native in entries or (len(entries) < most and Bounded(entries).size + len(native) <= KEPT_BYTES)


def without(entries: Mapping[str, SizedEntry], native: str) -> Mapping[str, SizedEntry]:
    """Return the entries without one; the same object if it has no such entry."""
    if native not in entries:
        return entries
    kept = Bounded(entries)
    kept.size -= kept.pop(native).size
    return kept


def newest(entries: tuple[SizedEntry, ...], most: int) -> tuple[SizedEntry, ...]:
    """Keep the newest entries that fit."""
    kept = entries[-most:]
    return kept[_surplus([entry.size for entry in kept], KEPT_BYTES) :]


def newest_texts(texts: tuple[str, ...], most_bytes: int) -> tuple[str, ...]:
    """Keep the newest texts that fit."""
    sizes = [len(text.encode()) + 1 for text in texts]
    return texts[_surplus(sizes, most_bytes) :]


def with_held(held: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Add a context to those that wait for the next message, and drop the oldest ones beyond the bounds."""
    return newest_texts((*held, text)[-_MOST_HELD:], _HELD_BYTES)


def with_line(history: tuple[str, ...], at: datetime, name: str, text: str) -> tuple[str, ...]:
    """Add a line to a conversation, unless there is nothing in it."""
    flat = " ".join(text.split())
    if not flat:
        return history
    return newest_texts((*history, f"[{at:%H:%M}] {name}: {flat}"[:LINE])[-HISTORY_LINES:], HISTORY_BYTES)


def _surplus(sizes: Sequence[int], most_bytes: int) -> int:
    """Return how many of the oldest must be dropped."""
    over, first = sum(sizes) - most_bytes, 0
    while over > 0 and first < len(sizes) - 1:
        over -= sizes[first]
        first += 1
    return first

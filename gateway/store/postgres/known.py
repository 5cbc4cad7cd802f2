"""Remembers the rows that a lane has read and written, so that most batches need no read."""

from collections.abc import Iterable
from itertools import islice

from gateway.events import CallId, SessionId
from gateway.store.apply import DedupeKey, Writes
from gateway.store.call import Call, Open
from gateway.store.postgres.connection import Connection
from gateway.store.postgres.tuning import PRODUCTION
from gateway.store.records import CALL_COLUMNS, Head, call_from
from gateway.store.step import Step

_KNOWN = f"""
SELECT
    ARRAY(SELECT ROW({", ".join(Head._fields)}, xmin::text) FROM @sessions WHERE session_id = ANY ($1::text[])),
    ARRAY(SELECT ROW({", ".join(CALL_COLUMNS)}) FROM @calls WHERE call_id = ANY ($2::text[])),
    ARRAY(
        SELECT ROW(e.session_id, e.direction, e.dedupe_key)
        FROM unnest($3::text[], $4::text[], $5::text[]) AS k (session_id, direction, dedupe_key)
        JOIN @events e ON e.session_id = k.session_id AND e.direction = k.direction
            AND e.dedupe_key = k.dedupe_key AND e.dedupe_key IS NOT NULL
    )
"""


class KnownRows:
    """The stored rows that this lane has read or written; the `Known` of `decide`."""

    def __init__(self, remembered: int = PRODUCTION.remembered) -> None:
        self._remembered = remembered
        self._heads: dict[SessionId, tuple[Head, str]] = {}
        self._calls: dict[CallId, Call] = {}
        self._ended: dict[CallId, Call] = {}
        self._seen: set[DedupeKey] = set()

    def head(self, session_id: SessionId) -> Head | None:
        found = self._heads.get(session_id)
        return None if found is None else found[0]

    def version(self, session_id: SessionId) -> str:
        """Return the known version of a session's head: the transaction that wrote it."""
        return self._heads[session_id][1]

    def call(self, call_id: CallId) -> Call | None:
        return self._calls.get(call_id) or self._ended.get(call_id)

    def seen(self, key: DedupeKey) -> bool:
        return key in self._seen

    def suffice(self, steps: Iterable[Step]) -> bool:
        """Return whether these steps can be decided from memory and written in one statement.

        Absent calls and dedupe keys need not be known, because a unique index rejects a second one.
        """
        opened: set[CallId] = set()
        for step in steps:
            # Interactions and answers need separate statements.
            if step.session_id not in self._heads or step.interactions or step.keeps:
                return False
            for change in step.calls:
                if isinstance(change, Open):
                    opened.add(change.call_id)
                elif change.call_id not in self._calls and change.call_id not in opened:
                    return False
        return True

    async def fetch(self, link: Connection, steps: Iterable[Step]) -> None:
        """Read the rows that these steps need; their sessions must be locked."""
        sessions, calls, keys = _keys_of(steps)
        columns = list(zip(*keys, strict=True)) or [(), (), ()]
        ((heads, known, seen),) = await link.ask(_KNOWN, [*sessions], [*calls], *columns)
        self.forget(sessions)
        self._heads.update((row[0], (Head._make(row[:-1]), row[-1])) for row in heads)
        for call in map(call_from, known):
            (self._calls if call.is_open else self._ended)[call.call_id] = call
        self._seen = set(seen)

    def keep(self, writes: Writes, version: str) -> None:
        """Remember the heads and open calls of a commit."""
        self._seen.clear()
        self._ended.clear()
        for session_id, head in writes.heads.items():
            # The most recently written head is forgotten last.
            self._heads.pop(session_id, None)
            self._heads[session_id] = head, version
        for call_id, call in writes.calls.items():
            if call.is_open:
                self._calls[call_id] = call
            else:
                self._calls.pop(call_id, None)
        if len(self._heads) > self._remembered:
            # Forgets a quarter at once, because each time all open calls are scanned.
            self.forget([*islice(self._heads, len(self._heads) - self._remembered * 3 // 4)])

    def forget(self, sessions: Iterable[SessionId]) -> None:
        """Forget these sessions and their calls."""
        forgotten = {session_id for session_id in sessions if self._heads.pop(session_id, None) is not None}
        if forgotten:
            self._calls = {call_id: call for call_id, call in self._calls.items() if call.session_id not in forgotten}


def _keys_of(steps: Iterable[Step]) -> tuple[set[SessionId], set[CallId], set[DedupeKey]]:
    sessions: set[SessionId] = set()
    calls: set[CallId] = set()
    keys: set[DedupeKey] = set()
    for step in steps:
        sessions.add(step.session_id)
        calls.update([change.call_id for change in step.calls])
        keys.update([(step.session_id, e.direction, e.dedupe_key) for e in step.events if e.dedupe_key is not None])
    return sessions, calls, keys

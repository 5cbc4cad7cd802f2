"""What a batch must know before it decides, and how its rows are written: one statement each way.

Rows travel as one array per column (`unnest`), so that a statement is the same text whatever the batch.
Heads are locked before anything else is read, by a statement of their own, so that what is read after it
is what others committed before they let go.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from gateway.events import CallId, SessionId
from gateway.store.apply import DedupeKey, Writes
from gateway.store.call import Call
from gateway.store.postgres.connection import Connection, write_text
from gateway.store.records import (
    CALL_COLUMNS,
    SEND_CHANGE_COLUMNS,
    SEND_COLUMNS,
    EventRecord,
    Head,
    InteractionMove,
    InteractionRecord,
    SnapshotRecord,
    call_from,
    call_row,
    send_after,
    send_change_row,
    send_row,
)
from gateway.store.rows import Send
from gateway.store.step import CallOpen, SendChange, Step

BEGIN = """
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '8s';
SET LOCAL idle_in_transaction_session_timeout = '3s';
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
"""
"""No transaction of ours may hold a row for long, whatever happens to the gateway or the network; and none
may be acknowledged before it is on disk."""

# A plan made while the tables were small must not scan them once they are large.
_BY_KEY = "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off;"

_INTEGERS = frozenset(
    {
        "seq", "recorded_at", "n", "attempt", "created_at", "deadline_at", "request_seq", "due_at", "canceling_until",
        "outcome_seq", "unknown", "deliver", "finished_at", "dead", "late", "progressed", "last_seq", "size",
        "expires_at", "keep_from",
    }
)  # fmt: skip
_BYTES = frozenset({"body", "about", "snapshot"})


class _Part(NamedTuple):
    """A piece of the statement that writes a batch: `text` around the arrays of `columns`."""

    text: str
    columns: tuple[str, ...]


def _add(table: str, columns: tuple[str, ...]) -> _Part:
    return _Part(f"INSERT INTO @{table} ({', '.join(columns)}) SELECT * FROM {{rows}}", columns)


_MOVED = (
    "call_id", "state", "attempt", "deadline_at", "due_at", "canceling_until", "outcome_seq", "outcome_sha", "unknown",
    "error", "finished_at", "dead", "late", "progressed",
)  # fmt: skip
_CHANGED = itemgetter(*map(CALL_COLUMNS.index, _MOVED))


def _move(table: str, columns: tuple[str, ...], keys: tuple[str, ...], *, more: str = "") -> _Part:
    changes = ", ".join(f"{name} = n.{name}" for name in columns if name not in keys) + more
    where = " AND ".join(f"t.{name} = n.{name}" for name in keys)
    return _Part(f"UPDATE @{table} t SET {changes} FROM {{rows}} n ({', '.join(columns)}) WHERE {where}", columns)


_ENDED = """, ended_at = CASE
    WHEN n.finished_at IS NULL THEN NULL
    WHEN t.finished_at IS NULL THEN clock_timestamp()
    ELSE t.ended_at
END"""

_PARTS = {
    "events": _add("events", EventRecord._fields),
    "opened": _add("calls", CALL_COLUMNS),
    "moved": _move("calls", _MOVED, ("call_id",), more=_ENDED),
    "sends": _add("outbound", SEND_COLUMNS),
    "send_changes": _move("outbound", SEND_CHANGE_COLUMNS, ("session_id", "seq", "target")),
    "snapshots": _Part(
        "INSERT INTO @snapshots (session_id, snapshot, keep_from) SELECT * FROM {rows}"
        " ON CONFLICT (session_id) DO UPDATE SET snapshot = excluded.snapshot, keep_from = excluded.keep_from",
        SnapshotRecord._fields,
    ),
    "heads": _Part(
        "UPDATE @sessions t SET state = n.state, last_seq = n.last_seq, size = n.size, updated_at = n.recorded_at,"
        " cursor = coalesce(n.cursor, t.cursor)"
        " FROM {rows} n (session_id, state, last_seq, size, recorded_at, cursor) WHERE t.session_id = n.session_id",
        ("session_id", "state", "last_seq", "size", "recorded_at", "cursor"),
    ),
    "asked": _Part(
        f"INSERT INTO @interactions AS t ({', '.join(InteractionRecord._fields)}) SELECT * FROM {{rows}}"
        " ON CONFLICT (interaction_id) DO UPDATE SET state = excluded.state,"
        " expires_at = coalesce(excluded.expires_at, t.expires_at),"
        " answered_by = coalesce(excluded.answered_by, t.answered_by) WHERE t.session_id = excluded.session_id",
        InteractionRecord._fields,
    ),
    "answered": _Part(
        "UPDATE @interactions t SET state = n.state, expires_at = coalesce(n.expires_at, t.expires_at),"
        " answered_by = coalesce(n.answered_by, t.answered_by)"
        f" FROM {{rows}} n ({', '.join(InteractionMove._fields)})"
        " WHERE t.interaction_id = n.interaction_id AND t.session_id = n.session_id",
        InteractionMove._fields,
    ),
}

_KNOWN = f"""
SELECT
    ARRAY(SELECT ROW({", ".join(Head._fields)}) FROM @sessions WHERE session_id = ANY ($1::text[])),
    ARRAY(SELECT ROW({", ".join(CALL_COLUMNS)}) FROM @calls WHERE call_id = ANY ($2::text[])),
    ARRAY(
        SELECT ROW(e.session_id, e.direction, e.dedupe_key)
        FROM unnest($3::text[], $4::text[], $5::text[]) AS k (session_id, direction, dedupe_key)
        JOIN @events e ON e.session_id = k.session_id AND e.direction = k.direction
            AND e.dedupe_key = k.dedupe_key AND e.dedupe_key IS NOT NULL
    )
"""


KEEP_ANSWERS = """
INSERT INTO @idempotency AS t (scope, key, request_sha, response, expires_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::bigint[])
ON CONFLICT (scope, key) DO UPDATE
    SET request_sha = excluded.request_sha, response = excluded.response, expires_at = excluded.expires_at
    WHERE t.expires_at <= $6
RETURNING 1
"""
"""Keeps answers, each unless one that has not expired is kept already; no key may come twice."""


class KnownRows:
    """What the store held before a batch; `decide` reads it as its `Known`."""

    def __init__(self) -> None:
        self._heads: dict[SessionId, Head] = {}
        self._calls: dict[CallId, Call] = {}
        self._seen: set[DedupeKey] = set()

    def head(self, session_id: SessionId) -> Head | None:
        return self._heads.get(session_id)

    def call(self, call_id: CallId) -> Call | None:
        return self._calls.get(call_id)

    def seen(self, key: DedupeKey) -> bool:
        return key in self._seen

    async def fetch(self, link: Connection, steps: Iterable[Step]) -> None:
        """Read what deciding these steps needs; their sessions are locked already."""
        sessions, calls, keys = _wanted(steps)
        columns = list(zip(*keys, strict=True)) or [(), (), ()]
        ((heads, known, seen),) = await link.ask(_KNOWN, [*sessions], [*calls], *columns)
        self._heads.update((row[0], Head._make(row)) for row in heads)
        self._calls.update((row[0], call_from(row)) for row in known)
        self._seen.update(seen)


def _wanted(steps: Iterable[Step]) -> tuple[set[SessionId], set[CallId], set[DedupeKey]]:
    sessions: set[SessionId] = set()
    calls: set[CallId] = set()
    keys: set[DedupeKey] = set()
    for step in steps:
        sessions.add(step.session_id)
        calls.update([change.call_id for change in step.calls])
        calls.update([one.call_id for one in step.expects if isinstance(one, CallOpen)])
        keys.update([(step.session_id, e.direction, e.dedupe_key) for e in step.events if e.dedupe_key is not None])
    return sessions, calls, keys


def lock(sessions: Iterable[SessionId]) -> str:
    """Write the script that begins a batch: its transaction, and the locks on its sessions, sorted so that
    batches never wait for each other in a circle."""
    return " ".join(
        (
            BEGIN,
            _BY_KEY,
            "SELECT 1 FROM @sessions WHERE session_id = ANY (ARRAY[",
            ", ".join(_literal(session_id) for session_id in sorted(sessions)),
            "]::text[]) ORDER BY session_id FOR UPDATE",
        )
    )


def _literal(text: str) -> str:
    # As hexadecimal digits, so that no text whatever can end the literal.
    return f"convert_from('\\x{write_text(text).encode().hex()}', 'UTF8')"


async def write(link: Connection, writes: Writes, now: int, *, token: str, spent: Sequence[str]) -> None:
    """Write a batch's rows and its token; the transaction is the caller's."""
    cursors, fresh = writes.cursors, set(writes.opened)
    sends, changes = _fold(writes)
    given: dict[str, Sequence[Sequence[Any]]] = {
        "events": writes.events,
        "opened": [call_row(writes.calls[call_id]) for call_id in writes.opened],
        "moved": [_CHANGED(call_row(call)) for call_id, call in writes.calls.items() if call_id not in fresh],
        "sends": [send_row(send) for send in sends],
        "send_changes": [send_change_row(*change) for change in changes],
        "snapshots": [*writes.snapshots.values()],
        "heads": [
            (head.session_id, head.state, head.last_seq, head.size, now, cursors.get(head.session_id))
            for head in writes.heads.values()
        ],
    }
    given = {name: rows for name, rows in given.items() if rows}
    columns = [column for rows in given.values() for column in zip(*rows, strict=True)]
    await link.ask(_statement(tuple(given), marked=True), *columns, token, spent)
    for name, rows in _interactions(writes):
        await link.ask(_statement((name,)), *zip(*rows, strict=True))
    if writes.answers:
        # Of two under one key the first stays; sorted, so that batches never wait for each other in a circle.
        first = {answer[:2]: answer for answer in reversed(writes.answers)}
        await link.ask(KEEP_ANSWERS, *zip(*(first[key] for key in sorted(first)), strict=True), now)


def _fold(writes: Writes) -> tuple[list[Send], list[tuple[SessionId, SendChange]]]:
    """One statement touches a row once: changes of rows that are born in the batch are part of their birth."""
    sends = {(send.session_id, send.sequence, send.target): send for send in writes.sends}
    changes: dict[tuple[str, int, str], tuple[SessionId, SendChange]] = {}
    for session_id, change in writes.send_changes:
        place = (session_id, change.sequence, change.target)
        if place in sends:
            sends[place] = send_after(sends[place], change)
        else:
            changes[place] = session_id, change
    return [*sends.values()], [*changes.values()]


def _interactions(writes: Writes) -> Iterable[tuple[str, list[Any]]]:
    # In their order, and never one of them twice in a statement.
    round_: list[tuple[str, InteractionRecord | InteractionMove]] = []
    seen: set[str] = set()
    for change in writes.interactions:
        if change.interaction_id in seen:
            yield from _by_kind(round_)
            round_, seen = [], set()
        seen.add(change.interaction_id)
        round_.append(("answered" if isinstance(change, InteractionMove) else "asked", change))
    yield from _by_kind(round_)


def _by_kind(changes: list[tuple[str, Any]]) -> Iterable[tuple[str, list[Any]]]:
    for name, group in groupby(sorted(changes, key=lambda one: one[0]), key=lambda one: one[0]):
        yield name, [change for _, change in group]


@lru_cache(maxsize=256)
def _statement(names: tuple[str, ...], *, marked: bool = False) -> str:
    texts: list[str] = []
    number = 0
    for name in names:
        text, columns = _PARTS[name]
        arrays = [f"${number + place}::{_type(column)}[]" for place, column in enumerate(columns, 1)]
        number += len(columns)
        texts.append(text.format(rows=f"unnest({', '.join(arrays)})"))
    if marked:
        texts.append(_mark(number + 1))
        texts.append(_forget(number + 2))
    first = ", ".join(f"part{place} AS ({text})" for place, text in enumerate(texts[:-1]))
    return f"WITH {first} {texts[-1]}" if first else texts[-1]


def _type(column: str) -> str:
    return "bigint" if column in _INTEGERS else "bytea" if column in _BYTES else "text"


def _mark(place: int) -> str:
    return (
        "INSERT INTO @commits (token, fate, asked, at)"
        f" VALUES (${place}::text, 'committed', 0, clock_timestamp())"
    )  # fmt: skip


def _forget(place: int) -> str:
    return f"DELETE FROM @commits WHERE token = ANY (${place}::text[])"


MARK = _statement((), marked=True)
"""Leaves a transaction's token, and removes those that nobody asks about any more."""

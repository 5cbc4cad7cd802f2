"""The statements that lock the sessions of a batch and write its rows.

Rows are sent as one JSON text per table, so that a statement has the same text for every batch; with arrays of columns
the driver takes several times as long.

Rows are read in a separate statement after the heads of their sessions are locked, so the read sees every earlier
commit. A write succeeds only if each head still has the version that the decision used. Each commit changes the heads
of its sessions, and a lock on a head waits for a running commit, so remembered rows need no further check.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import orjson

from gateway.events import SessionId
from gateway.store.apply import Writes
from gateway.store.postgres.connection import Connection, write_text
from gateway.store.postgres.known import KnownRows
from gateway.store.records import (
    CALL_COLUMNS,
    CALL_MOVE_COLUMNS,
    SEND_CHANGE_COLUMNS,
    SEND_COLUMNS,
    EventRecord,
    InteractionMove,
    InteractionRecord,
    SnapshotRecord,
    call_move_row,
    call_row,
    send_row_after,
)

BEGIN = """
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '8s';
SET LOCAL idle_in_transaction_session_timeout = '3s';
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
"""
"""The limits of every transaction: it never holds a row for long, even if the gateway or the network fails, and it is
acknowledged only when it is on disk."""

BEGIN_EVENTS = f"{BEGIN} LOCK TABLE @written IN ROW EXCLUSIVE MODE;"
"""Begins a transaction that writes events: it has this lock before its id (see `questions.order`). A single statement
locks its tables by itself before it gets an id."""

_HURRIED = "SET LOCAL lock_timeout = '50ms';"

# Forces index scans, since a generic plan made for small tables would scan large ones; each statement is planned once.
_BY_KEY = (
    "SET {local}enable_seqscan = off; SET {local}enable_hashjoin = off; SET {local}enable_mergejoin = off;"
    " SET {local}plan_cache_mode = force_generic_plan;"
)

ALONE = f"""
SET lock_timeout = '5s'; SET statement_timeout = '8s'; SET idle_in_transaction_session_timeout = '3s';
{_BY_KEY.format(local="")}
"""
"""Prepares a connection for autocommit statements, with the limits of `BEGIN`."""

_INTEGERS = frozenset(
    {
        "seq", "recorded_at", "n", "attempt", "created_at", "deadline_at", "request_seq", "due_at", "canceling_until",
        "outcome_seq", "unknown", "deliver", "finished_at", "dead", "late", "progressed", "last_seq", "size",
        "expires_at", "held_at", "arguments_seq", "unheard_since",
    }
)  # fmt: skip


class _Part(NamedTuple):
    """A part of the statement that writes a batch: `text` around rows with the alias n and these `columns`."""

    text: str
    columns: tuple[str, ...]


def _add(table: str, columns: tuple[str, ...]) -> _Part:
    return _Part(f"INSERT INTO @{table} ({', '.join(columns)}) SELECT * FROM {{rows}}", columns)


def _move(table: str, columns: tuple[str, ...], keys: tuple[str, ...], *, more: str = "") -> _Part:
    changes = ", ".join(f"{name} = n.{name}" for name in columns if name not in keys) + more
    where = " AND ".join(f"t.{name} = n.{name}" for name in keys)
    return _Part(f"UPDATE @{table} t SET {changes} FROM {{rows}} WHERE {where}", columns)


_ENDED = """, ended_at = CASE
    WHEN n.finished_at IS NULL THEN NULL
    WHEN t.finished_at IS NULL THEN clock_timestamp()
    ELSE t.ended_at
END"""

_PARTS = {
    "events": _add("events", EventRecord._fields),
    "opened": _add("calls", CALL_COLUMNS),
    "moved": _move("calls", CALL_MOVE_COLUMNS, ("call_id",), more=_ENDED),
    "sends": _add("outbound", SEND_COLUMNS),
    "send_changes": _move("outbound", SEND_CHANGE_COLUMNS, ("session_id", "seq", "target")),
    "snapshots": _Part(
        "INSERT INTO @snapshots (session_id, snapshot) SELECT * FROM {rows}"
        " ON CONFLICT (session_id) DO UPDATE SET snapshot = excluded.snapshot",
        SnapshotRecord._fields,
    ),
    "heads": _Part(
        "UPDATE @sessions t SET state = n.state, last_seq = n.last_seq, size = n.size, updated_at = n.recorded_at,"
        " cursor = coalesce(n.cursor, t.cursor)"
        " FROM {rows} WHERE t.session_id = n.session_id AND t.xmin::text = n.version RETURNING 1",
        ("session_id", "state", "last_seq", "size", "recorded_at", "cursor", "version"),
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
        " FROM {rows} WHERE t.interaction_id = n.interaction_id AND t.session_id = n.session_id",
        InteractionMove._fields,
    ),
}

KEEP_ANSWERS = """
INSERT INTO @idempotency AS t (scope, key, request_sha, response, expires_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::bigint[])
ON CONFLICT (scope, key) DO UPDATE
    SET request_sha = excluded.request_sha, response = excluded.response, expires_at = excluded.expires_at
    WHERE t.expires_at <= $6
RETURNING 1
"""
"""Stores each answer unless the key has an unexpired one; a key must not occur twice."""


def lock(sessions: Iterable[SessionId], *, hurried: bool = False) -> str:
    """Write the script that starts a batch: BEGIN, and the locks on its sessions.

    The locks are sorted, so batches never deadlock. A `hurried` batch waits 50 ms for a lock.
    """
    return " ".join(
        (
            BEGIN_EVENTS,
            _HURRIED if hurried else "",
            _BY_KEY.format(local="LOCAL "),
            "SELECT 1 FROM @sessions WHERE session_id = ANY (ARRAY[",
            ", ".join(_literal(session_id) for session_id in sorted(sessions)),
            "]::text[]) ORDER BY session_id FOR UPDATE",
        )
    )


def _literal(text: str) -> str:
    # Hexadecimal digits, so that no text can end the literal.
    return f"convert_from('\\x{write_text(text).encode().hex()}', 'UTF8')"


class Writing(NamedTuple):
    """One statement that writes the rows and the token of a batch, or nothing.

    Its last two values are the token and the spent tokens. It returns the new version of the batch's heads.
    """

    text: str
    values: Sequence[object]


def writing(writes: Writes, known: KnownRows) -> Writing:
    """Build the statement that writes a batch, except its interactions and answers."""
    cursors, calls = writes.cursors, dict(writes.calls)
    sends, changes = _fold(writes)
    given: dict[str, Sequence[Sequence[Any]]] = {
        "events": writes.events,
        "opened": [call_row(calls.pop(call_id)) for call_id in writes.opened],
        "moved": [call_move_row(call) for call in calls.values()],
        "sends": sends,
        "send_changes": changes,
        "snapshots": [*writes.snapshots.values()],
        # Sorted, so that batches never deadlock.
        "heads": [
            (name, head.state, head.last_seq, head.size, writes.now, cursors.get(name), known.version(name))
            for name, head in sorted(writes.heads.items())
        ],
    }
    given = {name: rows for name, rows in given.items() if rows}
    rows = [_rows(_PARTS[name].columns, part) for name, part in given.items()]
    return Writing(_statement(tuple(given), marked=True), (*rows, *_places(writes.events), len(writes.heads)))


async def write(link: Connection, writes: Writes, *, known: KnownRows, token: str, spent: Sequence[str]) -> str:
    """Write the rows and the token of a batch in the caller's transaction; return the new version of its heads."""
    text, values = writing(writes, known)
    ((version, _),) = await link.ask(text, *values, token, spent)
    for name, rows in _interactions(writes):
        await link.ask(_statement((name,)), _rows(_PARTS[name].columns, rows))
    if writes.answers:
        # The first answer of a key wins. Sorted, so that batches never deadlock.
        first = {answer[:2]: answer for answer in reversed(writes.answers)}
        await link.ask(KEEP_ANSWERS, *zip(*(first[key] for key in sorted(first)), strict=True), writes.now)
    return version


def _places(events: Sequence[EventRecord]) -> Sequence[Sequence[Any]]:
    """Return the sessions of events, and the first and the last sequence of each, as the values of `_WRITTEN`."""
    if not events:
        return ()
    firsts: dict[SessionId, int] = {}
    lasts: dict[SessionId, int] = {}
    for event in events:
        firsts.setdefault(event.session_id, event.seq)
        lasts[event.session_id] = event.seq
    return [*lasts], [*firsts.values()], [*lasts.values()]


def _fold(writes: Writes) -> tuple[list[Sequence[Any]], list[Sequence[Any]]]:
    """Merge changes into the rows that the same batch inserts, because one statement may write a row only once."""
    sends: dict[Sequence[Any], Sequence[Any]] = {row[:3]: row for row in writes.sends}
    changes: dict[Sequence[Any], Sequence[Any]] = {}
    for change in writes.send_changes:
        place = change[-3:]
        if place in sends:
            sends[place] = send_row_after(sends[place], change)
        else:
            changes[place] = change
    return [*sends.values()], [*changes.values()]


def _interactions(writes: Writes) -> Iterable[tuple[str, list[Any]]]:
    # Keeps the order; no statement contains an interaction twice.
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


def _rows(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Encode rows as JSON for `json_to_recordset`."""
    given = [dict(zip(columns, row, strict=True)) for row in rows]
    for name, encode in _ENCODERS.items():
        if name in columns:
            for row in given:
                if row[name] is not None:
                    row[name] = encode(row[name])
    text = orjson.dumps(given).decode()
    # NUL or DLE in the text, which is rare. Bodies may contain them; other columns are escaped.
    if "\\u0000" in text or "\\u0010" in text:
        for row in given:
            for name, value in row.items():
                if value.__class__ is str and name not in _ENCODERS:
                    row[name] = write_text(value)
        text = orjson.dumps(given).decode()
    return text


_ENCODERS: dict[str, Callable[[bytes], str]] = {"body": bytes.decode, "about": bytes.decode, "snapshot": bytes.hex}
"""Encode the bytes columns as JSON texts; bodies are JSON themselves."""


@lru_cache(maxsize=256)
def _statement(names: tuple[str, ...], *, marked: bool = False) -> str:
    texts = [_PARTS[name].text.format(rows=_from(place, name)) for place, name in enumerate(names, 1)]
    if not marked:
        (text,) = texts
        return text
    count = len(names) + 1
    if "events" in names:
        texts.append(_WRITTEN.format(sessions=count, firsts=count + 1, lasts=count + 2))
        names, count = (*names, "written"), count + 3
    parts = ", ".join(f"{name} AS ({text})" for name, text in zip(names, texts, strict=True))
    spent = f"spent AS ({_FORGET.format(count + 2)})"
    return f"WITH {parts}, {spent} {_MARK_HEADS.format(count=count, token=count + 1)}"


def _from(place: int, name: str) -> str:
    columns = _PARTS[name].columns
    given = ", ".join(f"{column} {'bigint' if column in _INTEGERS else 'text'}" for column in columns)
    read = ", ".join(_READ.get(column, column) for column in columns)
    return f"(SELECT {read} FROM json_to_recordset(${place}::json) AS r ({given})) AS n ({', '.join(columns)})"


_READ = {
    "body": "convert_to(body, 'UTF8')",
    "about": "convert_to(about, 'UTF8')",
    "snapshot": "decode(snapshot, 'hex')",
}


_WRITTEN = """
INSERT INTO @written (xid, at, sessions, firsts, lasts) VALUES (
    pg_current_xact_id()::text::bigint, clock_timestamp(), ${sessions}::text[], ${firsts}::bigint[], ${lasts}::bigint[]
)
"""
"""Records the place of a transaction's events in a stream over sessions."""
_FORGET = "DELETE FROM @commits WHERE token = ANY (${}::text[])"
# If a head has another version, the fate is NULL, which violates NOT NULL and rolls the whole statement back. Heads are
# written before all other rows.
_MARK_HEADS = """
INSERT INTO @commits (token, fate, asked, at)
SELECT ${token}::text, CASE count(*) WHEN ${count}::bigint THEN 'committed' END, 0, clock_timestamp() FROM heads
RETURNING pg_current_xact_id()::xid::text,
    (SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off')
"""

MARK = f"""
WITH spent AS ({_FORGET.format(2)})
INSERT INTO @commits (token, fate, asked, at) VALUES ($1::text, 'committed', 0, clock_timestamp())
"""
"""Writes the token of a transaction and removes spent tokens."""

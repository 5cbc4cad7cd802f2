"""Tasks of the SQLite writer besides steps: open sessions, remember answers, erase, apply retention."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from gateway.errors import Conflict, NotFound
from gateway.events import SessionId
from gateway.store.apply import CLOSED, begin, decide
from gateway.store.encoding import NOTHING_LEFT, strip_about
from gateway.store.port import NewSession
from gateway.store.questions.calls import DROP_CALLS
from gateway.store.questions.interactions import SET_NOTE
from gateway.store.questions.retention import FLOOR_OF_SQLITE
from gateway.store.questions.sends import DISMISS, MOOT, REVIVE, UNDELIVERED
from gateway.store.questions.sessions import abouts
from gateway.store.records import EventRecord, Head, micros
from gateway.store.retention import BATCH, RemovedRows, add_up
from gateway.store.rows import StoredAnswer
from gateway.store.sqlite.dialect import answer, in_sqlite
from gateway.store.sqlite.jobs import Turn
from gateway.store.step import RUNTIME

_ADD_SESSION = """
INSERT INTO sessions (session_id, runtime, protocol, native_id, state, labels, last_seq, min_seq, fence, size,
    opened_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, 0, 1, 0, 0, ?, ?)
"""
_REMEMBER = """
INSERT OR REPLACE INTO idempotency (scope, key, request_sha, response, expires_at) VALUES (?, ?, ?, ?, ?)
"""

_MEASURE = """
UPDATE sessions SET (last_seq, updated_at, size) = (
    SELECT last_seq, updated_at, (SELECT coalesce(sum(length(about)), 0) FROM events WHERE session_id = c.id)
    FROM current_sessions c WHERE c.id = sessions.id
) WHERE id = ?
"""
_LOWER = """
UPDATE listed_up_to SET call = coalesce((SELECT max(id) FROM calls), 0)
WHERE call > coalesce((SELECT max(id) FROM calls), 0)
"""
_CUT = """
UPDATE sessions SET min_seq = ?2, (last_seq, updated_at, size) = (
    SELECT last_seq, updated_at, size - ?3 FROM current_sessions c WHERE c.id = sessions.id
) WHERE id = ?1
"""

Run = Callable[[Turn], Any]


def _ask(turn: Turn, statement: str, *values: object) -> list[Any]:
    return turn.store.connection.execute(in_sqlite(statement), values).fetchall()


def open_session(new: NewSession, labels: str, record: EventRecord) -> Run:
    """Create a session or reopen a closed one; returns its id and whether it is new.

    `labels` are the session's as JSON, `record` is its first event.
    """

    def run(turn: Turn) -> tuple[SessionId, bool]:
        execute = turn.store.connection.execute
        found = execute(
            "SELECT session_id FROM sessions WHERE runtime = ? AND native_id = ?", (new.runtime, new.native_id)
        ).fetchone()
        if found is None and _head(turn, new.session_id) is not None:
            raise Conflict(f"session {new.session_id!r} is another one of runtime {new.runtime!r}")
        for name, value in new.notes.items():
            _ask(turn, SET_NOTE, name, value)
        if found is None:
            now = turn.writes.now
            execute(
                _ADD_SESSION,
                (new.session_id, new.runtime, new.protocol, new.native_id, new.state, labels, now, now),
            )
            turn.writes.heads[new.session_id] = Head(new.session_id, new.runtime, new.state, 0, 1, 0, 0)
            _begin(turn, new.session_id, new, record)
            return new.session_id, True
        known: SessionId = found[0]
        head = _head(turn, known)
        if head is not None and head.state == CLOSED:
            _begin(turn, known, new, record)
            execute("UPDATE sessions SET labels = ?, protocol = ? WHERE session_id = ?", (labels, new.protocol, known))
        return known, False

    return run


def _begin(turn: Turn, session_id: SessionId, new: NewSession, record: EventRecord) -> None:
    step = begin(new.first, session_id, new.state)
    turn.store.fetch([step])
    decide(step, [record], known=turn.store, writes=turn.writes)


def _head(turn: Turn, session_id: SessionId) -> Head | None:
    turn.store.fetch_head(session_id)
    return turn.writes.heads.get(session_id) or turn.store.head(session_id)


def remember(key: str, scope: str, answer: StoredAnswer) -> Run:
    """Keep an answer unless an unexpired one is kept already."""

    def run(turn: Turn) -> bool:
        execute = turn.store.connection.execute
        found = execute("SELECT expires_at FROM idempotency WHERE scope = ? AND key = ?", (scope, key)).fetchone()
        if found is not None and found[0] > turn.writes.now:
            return False
        execute(_REMEMBER, (scope, key, answer.request_sha, answer.response, micros(answer.expires_at)))
        return True

    return run


def revive(session_id: SessionId, sequence: int, target: str, due_at: int) -> Run:
    """Make a dead outbound row pending again."""

    def run(turn: Turn) -> bool:
        return bool(_ask(turn, REVIVE, session_id, sequence, target, due_at))

    return run


def dismiss(session_id: SessionId, sequence: int, target: str, reason: str) -> Run:
    """Make a dead outbound row moot."""

    def run(turn: Turn) -> bool:
        return bool(_ask(turn, DISMISS, session_id, sequence, target, reason))

    return run


def set_note(name: str, value: str | None) -> Run:
    """Keep a note, or remove it."""

    def run(turn: Turn) -> None:
        if value is None:
            turn.store.connection.execute("DELETE FROM notes WHERE name = ?", (name,))
        else:
            _ask(turn, SET_NOTE, name, value)

    return run


def probe(turn: Turn) -> Mapping[str, Any]:
    """Write a row, and read the settings of the database."""
    connection = turn.store.connection
    connection.execute("INSERT OR REPLACE INTO probe (id, tried_at) VALUES (1, ?)", (turn.writes.now,))
    names = ("page_count", "page_size", "journal_mode", "synchronous", "user_version")
    return {name: connection.execute("PRAGMA " + name).fetchone()[0] for name in names}


def erase(session_id: SessionId, after: int) -> Run:
    """Erase a portion of the events of a closed session; returns the last sequence, or None at the end."""

    def run(turn: Turn) -> int | None:
        head = _head(turn, session_id)
        if head is None:
            raise NotFound(f"no session {session_id!r}")
        if head.state != CLOSED:
            raise Conflict(f"session {session_id!r} is open; close it before erasing")
        connection, key = turn.store.connection, turn.store.key(session_id)
        rows = answer(connection, abouts(session_id, after, BATCH))
        connection.executemany(
            "UPDATE events SET body = NULL, about = ? WHERE session_id = ? AND seq = ?",
            [(strip_about(about), key, seq) for seq, about in rows],
        )
        if rows.more:
            return rows[-1][0]
        connection.execute("DELETE FROM snapshots WHERE session_id = ?", (key,))
        connection.execute("UPDATE calls SET error = NULL WHERE session_id = ?", (key,))
        _ask(turn, MOOT, session_id, RUNTIME, NOTHING_LEFT)
        connection.execute(_MEASURE, (key,))
        turn.store.forget_head(session_id)
        return None

    return run


def empty_log(turn: Turn) -> bool:
    """Checkpoint the write-ahead log and truncate it, so that it keeps no erased body.

    Return False if a reader, such as a backup, still needs its pages; steps do not wait for that.
    """
    connection = turn.store.connection
    ((patience,),) = connection.execute("PRAGMA busy_timeout").fetchall()
    # No step waits for a reader.
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        return not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    finally:
        connection.execute(f"PRAGMA busy_timeout = {patience}")


def cut(firsts: Mapping[SessionId, int], copies_from: int) -> Run:
    """Remove the oldest events of sessions, except those still needed; return the numbers of removed rows.

    Undelivered copies made before `copies_from` do not keep their events.
    """

    def run(turn: Turn) -> RemovedRows:
        return add_up(_cut_one(turn, session_id, first, copies_from) for session_id, first in firsts.items())

    return run


def _cut_one(turn: Turn, session_id: SessionId, first: int, copies_from: int) -> RemovedRows:
    execute = turn.store.connection.execute
    ((floor,),) = _ask(turn, FLOOR_OF_SQLITE, session_id, copies_from, first)
    first = first if floor is None else floor
    place = (turn.store.key(session_id), first)
    count, size = execute(
        """
        SELECT count(*), coalesce(sum(coalesce(length(e.body), 0) + coalesce(length(e.about), 0)), 0)
        FROM sessions s JOIN events e ON e.session_id = s.id
        WHERE s.id = ? AND e.seq < ? AND e.seq >= s.min_seq
        """,
        place,
    ).fetchone()
    if count == 0:
        return RemovedRows(0, Counter())
    copies: Counter[str] = Counter(dict(_ask(turn, UNDELIVERED, session_id, first)))
    execute(_CUT, (*place, size))
    # The newest row stays empty, because SQLite would give its id to another event.
    execute("DELETE FROM events WHERE session_id = ? AND seq < ? AND id < (SELECT max(id) FROM events)", place)
    execute("UPDATE events SET dedupe_key = NULL, body = NULL, about = NULL WHERE session_id = ? AND seq < ?", place)
    execute("DELETE FROM outbound WHERE session_id = ? AND seq < ?", place)
    execute("DELETE FROM interactions WHERE session_id = ? AND request_seq < ?", place)
    turn.store.forget_head(session_id)
    return RemovedRows(count, copies)


def drop_calls(before: int, budget: int) -> Run:
    """Remove calls that ended before a time and have a delivered outcome, and expired answers."""

    def run(turn: Turn) -> int:
        execute = turn.store.connection.execute
        execute("DELETE FROM idempotency WHERE expires_at <= ?", (turn.writes.now,))
        dropped = len(_ask(turn, DROP_CALLS, before, max(budget, 0)))
        # SQLite gives the id of the newest call to another one.
        execute(_LOWER)
        return dropped

    return run

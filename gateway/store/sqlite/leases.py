"""The owners of sessions in SQLite.

A session changes hands in a transaction of its own, so that no step of the same batch has seen the fence before.
"""

import sqlite3
from collections.abc import Collection

import orjson

from gateway.events import SessionId
from gateway.store.apply import CLOSED
from gateway.store.questions.sessions import session
from gateway.store.roster import Roster, takeover_limit
from gateway.store.rows import Regained, SessionRow
from gateway.store.sqlite.dialect import answer
from gateway.store.sqlite.jobs import Turn
from gateway.store.sqlite.upkeep import Run

_OWNED = "SELECT owner, count(*) FROM sessions INDEXED BY sessions_owned WHERE state <> 'closed' GROUP BY owner"
_ORPHANS = """
SELECT session_id FROM sessions INDEXED BY sessions_owned
WHERE state <> 'closed' AND runtime IN (SELECT value FROM json_each(?))
    AND (owner IS NULL OR owner NOT IN (SELECT value FROM json_each(?)))
ORDER BY id LIMIT ?
"""
_GIVE = "UPDATE sessions SET owner = ?, fence = fence + 1 WHERE session_id = ?"
_FORMERS = """
SELECT session_id FROM sessions INDEXED BY sessions_owned
WHERE state <> 'closed' AND owner IN (SELECT value FROM json_each(?))
"""
_REGAIN = """
UPDATE sessions INDEXED BY sessions_owned SET owner = ?, fence = fence + 1
WHERE state <> 'closed' AND owner IN (SELECT value FROM json_each(?))
"""
_MINE = """
SELECT c.session_id, c.fence, c.last_seq
FROM sessions s INDEXED BY sessions_owned CROSS JOIN current_sessions c ON c.id = s.id
WHERE s.state <> 'closed' AND s.owner = ?
"""
_RELEASE = "UPDATE sessions SET owner = NULL WHERE owner = ? AND session_id = ?"
_RELEASE_ALL = "UPDATE sessions INDEXED BY sessions_owned SET owner = NULL WHERE owner = ? AND state <> 'closed'"


def take(instance: str, session_id: SessionId, roster: Roster) -> Run:
    """Give a session to an instance unless another living one owns it; returns its row, or None."""

    def run(turn: Turn) -> SessionRow | None:
        living = roster.living()
        row = answer(turn.store.connection, session(session_id))
        if row is None or row.state == CLOSED or instance not in living:
            return None
        if row.owner == instance:
            return row
        return None if row.owner in living else _give(turn, instance, session_id)

    return run


def take_over(instance: str, runtimes: Collection[str], limit: int, roster: Roster) -> Run:
    """Give an instance sessions without a living owner; returns their rows."""

    def run(turn: Turn) -> list[SessionRow]:
        living = roster.living()
        if instance not in living:
            return []
        owned = count_owned(turn.store.connection)
        room = takeover_limit(limit, owned=owned.get(instance, 0), total=sum(owned.values()), living=len(living))
        wanted = (orjson.dumps([*runtimes]).decode(), orjson.dumps([*living]).decode(), room)
        found = turn.store.connection.execute(_ORPHANS, wanted).fetchall()
        return [_give(turn, instance, session_id) for (session_id,) in found]

    return run


def regain(instance: str, former: Collection[str]) -> Run:
    """Give an instance the open sessions of its former instances; returns all sessions that it owns."""

    def run(turn: Turn) -> list[Regained]:
        execute, formers = turn.store.connection.execute, orjson.dumps([*former]).decode()
        for (session_id,) in execute(_FORMERS, (formers,)).fetchall():
            turn.store.forget_head(session_id)
        execute(_REGAIN, (instance, formers))
        return [Regained(*row) for row in execute(_MINE, (instance,))]

    return run


def _give(turn: Turn, instance: str, session_id: SessionId) -> SessionRow:
    turn.store.connection.execute(_GIVE, (instance, session_id))
    turn.store.forget_head(session_id)
    row = answer(turn.store.connection, session(session_id))
    assert row is not None
    return row


def release(instance: str, session_ids: Collection[SessionId] | None) -> Run:
    """Take sessions from an instance, or all of its open ones."""

    def run(turn: Turn) -> None:
        if session_ids is None:
            turn.store.connection.execute(_RELEASE_ALL, (instance,))
        else:
            places = [(instance, session_id) for session_id in session_ids]
            turn.store.connection.executemany(_RELEASE, places)

    return run


def count_owned(connection: sqlite3.Connection) -> dict[str | None, int]:
    """Count the open sessions of each owner; None has those without an owner."""
    return dict(connection.execute(_OWNED).fetchall())


def read_owner(connection: sqlite3.Connection, session_id: SessionId) -> str | None:
    """Find the owner of a session, or its last one."""
    row = connection.execute("SELECT owner FROM sessions WHERE session_id = ?", (session_id,)).fetchone()
    return None if row is None else row[0]

"""Queries for interactions, kept answers and notes. Pure."""

from datetime import datetime, timedelta

from gateway.events import Envelope, InteractionId, SessionId
from gateway.events.frozen import replace
from gateway.store.encoding import decode_envelope, read_cursor
from gateway.store.questions.question import Listing, Question, Row, Where, columns, last, one, page_of
from gateway.store.records import (
    EventRecord,
    InteractionRecord,
    interaction_row,
    micros,
    moment,
    moment_or_none,
    whole_micros,
)
from gateway.store.rows import InteractionRow, Page, StoredAnswer
from gateway.store.states import MOOT_HELD, WAITING
from gateway.store.step import InteractionState

_INTERACTION = columns(InteractionRecord._fields, "interactions")
_EVENT = columns(EventRecord._fields, "e")
_OF_EVENT = "e.session_id = interactions.session_id AND e.seq = interactions.request_seq"
# The latest calls that were held and not answered; the index `interactions_moot` has no others.
_ASKED_BEFORE = f"""(
    SELECT count(DISTINCT c.call_id) FROM (
        SELECT p.call_id FROM @interactions p
        WHERE p.session_id = interactions.session_id AND p.id < interactions.id AND p.{MOOT_HELD}
        ORDER BY p.id DESC LIMIT 100
    ) AS earlier
    JOIN @calls c ON c.call_id = earlier.call_id JOIN @calls h ON h.call_id = interactions.call_id
    WHERE c.state = 'canceled' AND c.args_sha = h.args_sha
        AND c.finished_at BETWEEN h.created_at - {whole_micros(timedelta(minutes=10))} AND h.created_at
) AS asked_before"""
_UNHEARD = "(SELECT c.unheard_since FROM @calls c WHERE c.call_id = interactions.call_id) AS unheard_since"
_LIST = f"SELECT {_INTERACTION}, id FROM @interactions"
_LIST_ASKED = f"""
SELECT {_INTERACTION}, {_EVENT}, {_ASKED_BEFORE}, {_UNHEARD}, interactions.id
FROM @interactions LEFT JOIN @events e ON {_OF_EVENT}
"""
_LIST_HELD = f"""
SELECT {_INTERACTION}, {_EVENT}, {_UNHEARD}, interactions.id FROM @interactions JOIN @events e ON {_OF_EVENT}
"""
_BY_ID = f"SELECT {_INTERACTION}, {_ASKED_BEFORE}, {_UNHEARD} FROM @interactions WHERE interaction_id = $1"
_COUNT_WAITING = f"SELECT count(*) FROM (SELECT 1 FROM @interactions WHERE {WAITING} LIMIT $1) AS c"
_ANSWER = """
SELECT request_sha, response, expires_at FROM @idempotency WHERE scope = $1 AND key = $2 AND expires_at > $3
"""

SET_NOTE = """
INSERT INTO @notes (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""


def interactions(
    page: Page, *, session_id: SessionId | None, state: InteractionState | None
) -> Question[tuple[list[InteractionRow], str | None]]:
    listing = Listing("interactions", _LIST, _interaction, last, ("answered_by",))
    return page_of(listing, page, _where(page, session_id, state), order="id")


def with_events(
    page: Page, *, session_id: SessionId | None, state: InteractionState | None
) -> Question[tuple[list[tuple[InteractionRow, Envelope | None]], str | None]]:
    """Query interactions with their request events; None for an event that retention removed."""
    listing = Listing("interactions", _LIST_ASKED, _asked, last, ("body", "about"))
    return page_of(listing, page, _where(page, session_id, state), order="interactions.id")


def approvals(
    page: Page, *, session_id: SessionId | None, since: datetime | None
) -> Question[tuple[list[tuple[InteractionRow, Envelope]], str | None]]:
    """Query the interactions about held calls with their request events."""
    listing = Listing("interactions", _LIST_HELD, _held, last, ("body", "about"))
    where = _where(page, session_id, None)
    where.add("interactions.call_id IS NOT NULL")
    if since is not None:
        where.add("e.recorded_at >= {0}", micros(since))
    return page_of(listing, page, where, order="interactions.id")


def _where(page: Page, session_id: SessionId | None, state: InteractionState | None) -> Where:
    where = Where()
    where.add("interactions.id > {0}", read_cursor(page.after, "interactions", int)[0] if page.after else 0)
    if session_id is not None:
        where.add("interactions.session_id = @key({0})", session_id)
    if state == "waiting":
        # Literal, because partial indexes do not serve bound parameters.
        where.add(WAITING)
    else:
        where.equal(state=state)
    return where


def count_waiting(most: int) -> Question[int]:
    return Question(_COUNT_WAITING, (most,), lambda rows: rows[0][0])


def interaction(interaction_id: InteractionId) -> Question[InteractionRow | None]:
    return one(_BY_ID, (interaction_id,), lambda row: _completed(row, *row[-2:]))


def _interaction(row: Row) -> InteractionRow:
    return interaction_row(InteractionRecord._make(row[: len(InteractionRecord._fields)]))


def _completed(row: Row, asked_before: int, unheard_since: int | None) -> InteractionRow:
    return replace(_interaction(row), asked_before=asked_before, unheard_since=moment_or_none(unheard_since))


def _asked(row: Row) -> tuple[InteractionRow, Envelope | None]:
    record = row[len(InteractionRecord._fields) : -3]
    found = _completed(row, *row[-3:-1])
    return found, None if record[0] is None else decode_envelope(EventRecord._make(record))


def _held(row: Row) -> tuple[InteractionRow, Envelope]:
    record = row[len(InteractionRecord._fields) : -2]
    return _completed(row, 0, row[-2]), decode_envelope(EventRecord._make(record))


def answer(key: str, scope: str, now: int) -> Question[StoredAnswer | None]:
    return one(_ANSWER, (scope, key, now), lambda row: StoredAnswer(row[0], row[1], moment(row[2])))


def note(name: str) -> Question[str | None]:
    return one("SELECT value FROM @notes WHERE name = $1", (name,), lambda row: row[0])

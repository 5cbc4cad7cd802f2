"""Queries for interactions, kept answers and notes. Pure."""

from gateway.events import InteractionId, SessionId
from gateway.store.encoding import read_cursor
from gateway.store.questions.question import Listing, Question, Row, Where, columns, last, one, page_of
from gateway.store.records import InteractionRecord, interaction_row, moment
from gateway.store.rows import InteractionRow, Page, StoredAnswer
from gateway.store.states import WAITING
from gateway.store.step import InteractionState

_INTERACTION = columns(InteractionRecord._fields, "interactions")
_LIST = f"SELECT {_INTERACTION}, id FROM @interactions"
_BY_ID = f"SELECT {_INTERACTION} FROM @interactions WHERE interaction_id = $1"
_ANSWER = """
SELECT request_sha, response, expires_at FROM @idempotency WHERE scope = $1 AND key = $2 AND expires_at > $3
"""

SET_NOTE = """
INSERT INTO @notes (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""


def interactions(
    page: Page, *, session_id: SessionId | None, state: InteractionState | None
) -> Question[tuple[list[InteractionRow], str | None]]:
    where = Where()
    where.add("id > {0}", read_cursor(page.after, "interactions", int)[0] if page.after else 0)
    if session_id is not None:
        where.add("session_id = @key({0})", session_id)
    if state == "waiting":
        # Literal, because partial indexes do not serve bound parameters.
        where.add(WAITING)
    else:
        where.equal(state=state)
    return page_of(Listing("interactions", _LIST, _interaction, last), page, where, order="id")


def interaction(interaction_id: InteractionId) -> Question[InteractionRow | None]:
    return one(_BY_ID, (interaction_id,), _interaction)


def _interaction(row: Row) -> InteractionRow:
    return interaction_row(InteractionRecord._make(row[: len(InteractionRecord._fields)]))


def answer(key: str, scope: str, now: int) -> Question[StoredAnswer | None]:
    return one(_ANSWER, (scope, key, now), lambda row: StoredAnswer(row[0], row[1], moment(row[2])))


def note(name: str) -> Question[str | None]:
    return one("SELECT value FROM @notes WHERE name = $1", (name,), lambda row: row[0])

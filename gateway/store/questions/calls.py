"""Questions about calls. Pure."""

from gateway.events import CallId, SessionId
from gateway.store.call import Call
from gateway.store.encoding import read_cursor
from gateway.store.questions.question import Question, Where, columns, each, last, one, page_of
from gateway.store.records import CALL_COLUMNS, call_from, micros
from gateway.store.rows import CallFilter, Page
from gateway.store.states import OPEN_CALL, PENDING

_CALL = columns(CALL_COLUMNS)
_LIST = f"SELECT {_CALL}, id FROM @calls"
_BY_ID = f"SELECT {_CALL} FROM @calls WHERE call_id = $1"
_LATEST = f"""
SELECT {_CALL} FROM @calls
WHERE session_id = $1 AND native_call_id = $2 AND redrive_of IS NULL ORDER BY n DESC LIMIT 1
"""
_OPEN = f"SELECT {_CALL} FROM @calls WHERE session_id = $1 AND {OPEN_CALL} ORDER BY id"
_COUNT_OPEN = f"SELECT runtime, count(*) FROM @calls WHERE {OPEN_CALL} GROUP BY runtime"

DROP_CALLS = f"""
DELETE FROM @calls WHERE id IN (
    SELECT c.id FROM @calls c
    WHERE c.id < coalesce((SELECT id FROM @calls WHERE created_at >= $1 ORDER BY id LIMIT 1), 9223372036854775807)
        AND c.finished_at < $1
        AND NOT EXISTS (
            SELECT 1 FROM @outbound o
            WHERE o.session_id = c.session_id AND o.seq = c.outcome_seq AND o.{PENDING}
        )
    ORDER BY c.id LIMIT $2
)
RETURNING 1
"""


def call(call_id: CallId) -> Question[Call | None]:
    return one(_BY_ID, (call_id,), call_from)


def latest_call(session_id: SessionId, native_call_id: str) -> Question[Call | None]:
    return one(_LATEST, (session_id, native_call_id), call_from)


def open_calls(session_id: SessionId) -> Question[list[Call]]:
    return each(_OPEN, (session_id,), call_from)


def count_open_calls() -> Question[dict[str, int]]:
    return Question(_COUNT_OPEN, (), lambda rows: {row[0]: row[1] for row in rows})


def calls(which: CallFilter, page: Page) -> Question[tuple[list[Call], str | None]]:
    where = Where()
    if page.after:
        where.add("id < {0}", read_cursor(page.after, "calls", int)[0])
    where.equal(session_id=which.session_id, runtime=which.runtime, tool=which.tool, executor=which.executor)
    if which.since is not None:
        where.add("created_at >= {0}", micros(which.since))
    # Written out, so that the small indexes of dead and of unknown calls fit.
    if which.dead is not None:
        where.add("dead = 1" if which.dead else "dead = 0")
    if which.unknown is not None:
        where.add("unknown = 1" if which.unknown else "unknown = 0")
    if which.states:
        marks = ", ".join(f"{{{n}}}" for n in range(len(which.states)))
        where.add(f"state IN ({marks})", *sorted(which.states))
    return page_of("calls", page, _LIST, where, order="id DESC", show=call_from, place=last)

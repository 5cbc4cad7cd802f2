"""Queries for calls. Pure.

A filtered list reads at most `WINDOW` calls: the newest open, unknown or dead ones by their partial indexes, otherwise
the newest of all; a search for a text reads fewer. If fewer calls than a page match in this window, `next` continues
after the window.
"""

import json
from collections.abc import Collection
from dataclasses import replace

from gateway.events import CallId, SessionId
from gateway.store.call import MOST_UNHEARD, OPEN_STATES, Call
from gateway.store.encoding import read_cursor, read_part
from gateway.store.questions.listed import OPEN_CALLS
from gateway.store.questions.question import (
    SEARCHED,
    WINDOW,
    Listing,
    Question,
    Row,
    T,
    Text,
    Where,
    Windowed,
    columns,
    each,
    has_labels,
    last,
    one,
    page_of,
    page_of_window,
)
from gateway.store.records import CALL_COLUMNS, call_from, micros
from gateway.store.rows import CallFilter, Page, Rows
from gateway.store.states import OPEN_CALL, PENDING, UNHEARD

_CALL = columns(CALL_COLUMNS, "calls")
_LIST = f"SELECT {_CALL}, id FROM @calls"
_SIZED = ("attempts", "error")
_WINDOWED = Windowed("calls", _CALL, "@calls", "id", call_from, _SIZED)
_BY_ID = f"SELECT {_CALL} FROM @calls WHERE call_id = $1"
_LATEST_REUSE = f"""
SELECT {_CALL} FROM @calls
WHERE session_id = @key($1) AND native_call_id = $2 AND n > 0 AND redrive_of IS NULL ORDER BY n DESC LIMIT 1
"""
_OPEN = f"SELECT {_CALL}, id FROM @calls WHERE session_id = @key($1) AND {OPEN_CALL} ORDER BY id"
_UNHEARD = f"""
SELECT {_CALL}, id FROM @calls WHERE session_id = @key($1) AND {UNHEARD} ORDER BY id DESC LIMIT {MOST_UNHEARD}
"""
_COUNT_OPEN = f"SELECT runtime, count(*) FROM @calls WHERE {OPEN_CALL} GROUP BY runtime"
_LONGEST_READ = 16 * 1024
"""The maximum length of a request in bytes that a list reads, since SQLite reads all of a column for any part of it."""
_BEGINNING, _EXCERPT = 2 * 1024, 200
"""The bytes of a request in which an excerpt of its arguments is looked for, and the characters of the excerpt."""
_REQUESTS = f"""
SELECT c.call_id, length(e.body), CASE WHEN length(e.body) <= {_LONGEST_READ} THEN substr(e.body, 1, {_BEGINNING}) END
FROM @calls c JOIN @events e ON e.session_id = c.session_id AND e.seq = coalesce(c.arguments_seq, c.request_seq)
"""
# Not EXISTS, for which PostgreSQL may read all events.
_HAS_TEXT = f"""(
    call_id ILIKE {{0}} ESCAPE '!' OR native_call_id ILIKE {{0}} ESCAPE '!' OR key ILIKE {{0}} ESCAPE '!'
    OR error ILIKE {{1}} ESCAPE '!'
    OR coalesce((
        SELECT position({{2}} in e.body) FROM @events e
        WHERE e.session_id = calls.session_id AND e.seq = calls.request_seq AND length(e.body) <= {_LONGEST_READ}
    ), 0) > 0
)"""
_DEAD, _UNKNOWN = "dead = 1", "unknown = 1"
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


def latest_reuse(session_id: SessionId, native_call_id: str) -> Question[Call | None]:
    return one(_LATEST_REUSE, (session_id, native_call_id), call_from)


def open_calls(session_id: SessionId) -> Question[list[Call]]:
    return _of_open(each(_OPEN, (session_id,), call_from))


def unheard_calls(session_id: SessionId) -> Question[list[Call]]:
    return each(_UNHEARD, (session_id,), call_from)


def _of_open(question: Question[T]) -> Question[T]:
    return replace(question, sqlite=question.text.replace("FROM @calls", f"FROM {OPEN_CALLS}"))


def excerpts(call_ids: Collection[CallId]) -> Question[dict[CallId, str]]:
    """Query the beginning of the arguments of calls as JSON; of a long request only its size."""

    def read(rows: Rows[Row]) -> dict[CallId, str]:
        return {call_id: text for call_id, size, body in rows if (text := _excerpt(size, body)) is not None}

    where = Where()
    where.is_in("c.call_id", call_ids)
    return Question(_REQUESTS + where.text(), where.values, read)


def _excerpt(size: int | None, body: bytes | None) -> str | None:
    if size is None:
        return None
    if body is None:
        return f"… {size:,} bytes"
    arguments = read_part(body).get("arguments")
    if not isinstance(arguments, dict):
        return None
    text = json.dumps(arguments, ensure_ascii=False)
    return text if len(text) <= _EXCERPT and len(body) == size else text[: _EXCERPT - 1] + "…"


def count_open_calls() -> Question[dict[str, int]]:
    return _of_open(Question(_COUNT_OPEN, (), lambda rows: {row[0]: row[1] for row in rows}))


def calls(which: CallFilter, page: Page) -> Question[tuple[list[Call], str | None]]:
    window = Where()
    if page.after:
        window.add("id < {0}", read_cursor(page.after, "calls", int)[0])
    # Literal conditions, because partial indexes do not serve bound parameters.
    covered = _covered(which)
    if covered:
        window.add(covered)
    matching = Where(window.values)
    if which.session_id is not None:
        matching.add("session_id = @key({0})", which.session_id)
    matching.equal(runtime=which.runtime, tool=which.tool, executor=which.executor)
    if which.since is not None:
        matching.add("created_at >= {0}", micros(which.since))
    if which.until is not None:
        matching.add("created_at < {0}", micros(which.until))
    matching.has_cause("error", which.cause)
    if which.trace_id is not None:
        matching.add("substr(trace, 4, 32) = {0}", which.trace_id)
    if which.text is not None:
        text = Text(which.text)
        matching.add(_HAS_TEXT, text.at_start, text.anywhere, text.in_json)
    if which.labels:
        labels = Where(matching.values)
        has_labels(labels, which.labels)
        of_session = f"SELECT 1 FROM @sessions s WHERE s.@key = calls.session_id AND {labels.conditions}"
        matching.extend(f"EXISTS ({of_session})", labels)
    if which.dead is not None and covered != _DEAD:
        matching.add("dead = {0}", int(which.dead))
    if which.unknown is not None and covered != _UNKNOWN:
        matching.add("unknown = {0}", int(which.unknown))
    if which.states and not (covered == OPEN_CALL and which.states.issuperset(OPEN_STATES)):
        matching.is_in("state", which.states)
    if matching.conditions:
        # Each searched call also takes the row of its request.
        question = page_of_window(_WINDOWED, page, window, matching, most=SEARCHED // 2 if which.text else WINDOW)
    else:
        question = page_of(Listing("calls", _LIST, call_from, last, _SIZED), page, window, order="id DESC")
    return _of_open(question) if covered == OPEN_CALL else question


def _covered(which: CallFilter) -> str:
    """Return the filter's condition that has a partial index, if any."""
    if which.states and which.states.issubset(OPEN_STATES):
        return OPEN_CALL
    if which.dead:
        return _DEAD
    return _UNKNOWN if which.unknown else ""

"""The open calls and pending sends of SQLite, as tables of a query. Pure.

An index of these rows would change twice in each call, and each change writes a page. So `calls_open` and
`outbound_pending` have only the rows with `listed = 1`. The writer lists the rows that are still open after some
hundred further events. Copies, frames for another instance, delayed sends and all sends that were tried again are
listed at once. The ids in `listed_up_to` end the listed part: a call, or a send of an event, with a larger id may be
open without being listed.
"""

from gateway.store.states import OPEN_CALL, PENDING

_YOUNG_CALL = f"id > (SELECT call FROM listed_up_to) AND listed = 0 AND {OPEN_CALL}"
YOUNG_SENDS = """
SELECT o.* FROM events e NOT INDEXED CROSS JOIN outbound o ON o.session_id = e.session_id AND o.seq = e.seq
WHERE e.id > (SELECT event FROM listed_up_to) AND o.listed = 0
"""
OPEN_CALLS = f"""(
    SELECT * FROM calls INDEXED BY calls_open WHERE listed = 1 AND {OPEN_CALL}
    UNION ALL SELECT * FROM calls WHERE {_YOUNG_CALL}
) AS calls"""
PENDING_SENDS = f"""(
    SELECT * FROM outbound INDEXED BY outbound_pending WHERE listed = 1 AND {PENDING}
    UNION ALL {YOUNG_SENDS} AND o.{PENDING}
) AS outbound"""

LIST = (
    f"UPDATE calls SET listed = 1 WHERE {_YOUNG_CALL}",
    f"""
    UPDATE outbound SET listed = 1 FROM ({YOUNG_SENDS} AND o.state <> 'delivered') AS young
    WHERE outbound.session_id = young.session_id AND outbound.seq = young.seq AND outbound.target = young.target
    """,
    """
    UPDATE listed_up_to
    SET call = coalesce((SELECT max(id) FROM calls), 0), event = coalesce((SELECT max(id) FROM events), 0)
    """,
)
"""Lists all open rows."""

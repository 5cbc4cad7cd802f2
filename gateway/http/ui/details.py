"""The pages of one session and of one call."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from starlette.responses import Response

from dragoman.models import KINDS
from dragoman.models.stream import sequence_of
from gateway.events import interaction_id as name_interaction
from gateway.http.ui import lanes
from gateway.http.ui.api import ApiProblem, path_of
from gateway.http.ui.guard import UI_HEADERS
from gateway.http.ui.pages import Visit, render
from gateway.http.ui.story import OPEN, tell
from gateway.http.ui.text import read_time
from gateway.http.ui.timeline import MAY_FAIL, group

EVENTS = 200
"""The maximum number of events on a session's page."""
_WINDOWS = (200, 800, 3_200, 12_800)
"""How many events a search for kinds looks back, until it has found a page."""
_MATCHES = 500
_NAMED = 5
"""The maximum number of requests for a person that a session's page names."""
_SECOND = timedelta(seconds=1)
_GONE = 410


async def session(visit: Visit) -> Response:
    """Show the timeline of a session, with its newest turn open; `at` opens the turn of an event."""
    session_id = visit.part("session_id")
    row = await visit.api.get(path_of("v1", "sessions", session_id))
    last = int(row["last_sequence"])
    wanted = _number(visit.query.get("at"))
    before = _number(visit.query.get("before")) or (wanted + EVENTS // 2 if wanted else last + 1)
    after = max(0, row["first_sequence"] - 1, before - 1 - EVENTS)
    kinds = visit.query.get("kind") or (MAY_FAIL if visit.query.get("failed") else None)
    if kinds:
        envelopes, after = await _search(visit, row, kinds, before)
    else:
        envelopes, _ = await _events_between(visit, session_id, after, before)
    calls = await visit.api.get("/v1/calls", session_id=session_id, limit=500, **_times(envelopes))
    turns = group(_with_calls(envelopes, calls["data"]))
    found = [item for turn in turns for item in turn.items if item.failed or not visit.query.get("failed")]
    busy = await visit.api.get("/v1/calls", session_id=session_id, state=",".join(sorted(OPEN)), limit=500)
    waiting = await visit.api.get("/v1/interactions", session_id=session_id, state="waiting", limit=_NAMED)
    return render(
        visit,
        "session.html",
        row=row,
        turns=turns,
        found=found,
        kinds=kinds,
        known_kinds=sorted(KINDS),
        wanted=wanted,
        first=after + 1 if kinds or not envelopes else envelopes[0]["sequence"],
        last_shown=min(before - 1, last),
        calls={call["call_id"]: call for call in calls["data"]},
        open_calls=busy,
        waiting=waiting,
        connection=(await links_of(visit, [row])).get(session_id),
        query=visit.query,
    )


async def event(visit: Visit) -> Response:
    """Show one event: canonical JSON beside the native frames."""
    session_id, sequence = visit.part("session_id"), _number(visit.part("sequence")) or 0
    row = await visit.api.get(path_of("v1", "sessions", session_id))
    found = await _event(visit, session_id, sequence)
    if found is None:
        detail = f"session {session_id} has no event {sequence}, or retention removed it"
        raise ApiProblem(404, {"type": "/problems/not-found", "title": "Not found", "detail": detail})
    keeps = _keeps(visit, row["runtime"])
    return render(visit, "event.html", row=row, envelope=found, keeps=keeps)


async def call(visit: Visit) -> Response:
    """Show the story of a call."""
    call_id = visit.part("call_id")
    found = await visit.api.get(path_of("v1", "calls", call_id))
    if found["dead"]:
        found = await visit.api.find(path_of("v1", "dead-letters", call_id)) or found
    story = tell(found, visit.now)
    session_id = found["session_id"]
    row = await visit.api.get(path_of("v1", "sessions", session_id))
    ends = [found["request_sequence"], found["outcome_sequence"]]
    return render(
        visit,
        "call.html",
        ends=[one for sequence in ends if sequence and (one := await _event(visit, session_id, sequence))],
        call=found,
        row=row,
        story=story,
        drawing=lanes.draw(story.steps),
        is_open=found["state"] in OPEN,
        request=_request_of(found),
        keeps=_keeps(visit, found["runtime"]),
        seen=stamp(found),
        trace_page=traces.ui if (traces := visit.gateway.settings.traces) else None,
    )


def _request_of(call: Mapping[str, Any]) -> str | None:
    """Return the interaction of a held call."""
    asked = [one["sequence"] for one in call["events"] if one["event"]["kind"] == "approval.asked"]
    if call["state"] != "held" or not asked:
        return None
    return name_interaction(session=call["session_id"], native_id=call["call_id"], n=max(asked))


async def story_json(visit: Visit) -> Response:
    """Return the history of a call as the API does, indented for a ticket."""
    found = await visit.api.get(path_of("v1", "calls", visit.part("call_id")))
    body = json.dumps(found, indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return Response(body, media_type="application/json", headers=dict(UI_HEADERS))


def stamp(row: Mapping[str, Any]) -> str:
    """Return the state of a call or a delivery that a form is rendered for; it ends with the last known event."""
    known = row.get("outcome_sequence") or row.get("sequence") or 0
    last = max((one["sequence"] for one in row.get("events", ())), default=known)
    return f"{row['state']}.{row['attempt']}.{int(row.get('dead', True))}.{last}"


async def events_of(visit: Visit, session_id: str, after: int, limit: int = EVENTS, *, kind: str | None = None) -> Any:
    """Read excerpts of events of a session; skip those that retention removed."""
    path, query = path_of("v1", "sessions", session_id, "events"), {"limit": limit, "kind": kind, "excerpts": "true"}
    try:
        found = await visit.api.get(path, after=after, **query)
    except ApiProblem as exc:
        if exc.status != _GONE or "first_sequence" not in exc.problem:
            raise
        found = await visit.api.get(path, after=exc.problem["first_sequence"] - 1, **query)
    return {**found, "data": [_open_cut(one) for one in found["data"]]}


def _open_cut(envelope: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an event that was cut under its own kind, with the members before the cut."""
    match envelope:
        case {"cut": True, "event": {"payload": {"kind": str()} as part}}:
            return {**envelope, "event": part}
        case _:
            return envelope


async def _events_between(
    visit: Visit, session_id: str, after: int, before: int, kind: str | None = None
) -> tuple[list[Any], bool]:
    """Read the first events between two sequences, page by page; also return whether these are all."""
    found, following = list[Any](), after
    while following < before - 1 and len(found) < _MATCHES:
        limit = min(_MATCHES - len(found), before - 1 - following)
        page = await events_of(visit, session_id, following, limit, kind=kind)
        found += [one for one in page["data"] if one["sequence"] < before]
        following = before if page["next"] is None else sequence_of(page["next"])
    return found, following >= before - 1


def _with_calls(envelopes: Sequence[Any], calls: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
    """Name the calls of requests and outcomes that were cut before their call_id."""
    names = {call[member]: call["call_id"] for call in calls for member in ("request_sequence", "outcome_sequence")}
    return [
        one if one["sequence"] not in names else {**one, "event": {"call_id": names[one["sequence"]], **one["event"]}}
        for one in envelopes
    ]


async def _search(visit: Visit, row: Mapping[str, Any], kinds: str, before: int) -> tuple[list[Any], int]:
    """Read the newest events of some kinds before a sequence; also return the sequence after which all are found."""
    envelopes, start = list[Any](), before - 1
    for window in _WINDOWS:
        after = max(row["first_sequence"] - 1, before - 1 - window)
        found, is_whole = await _events_between(visit, row["session_id"], after, before, kinds)
        if not is_whole:
            break
        envelopes, start = found, after
        if len(envelopes) >= EVENTS or after < row["first_sequence"]:
            break
    return envelopes, start


def _times(envelopes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the filter for the calls that began among some events."""
    if not envelopes:
        return {}
    times = [read_time(one["recorded_at"]) for one in envelopes]
    return {"since": (min(times) - _SECOND).isoformat(), "until": (max(times) + _SECOND).isoformat()}


async def _event(visit: Visit, session_id: str, sequence: int) -> Any:
    """Read one event, with its native frames if the operator may see them; None if it is not there."""
    native = "true" if visit.may("operate") else None
    path = path_of("v1", "sessions", session_id, "events")
    try:
        found = await visit.api.get(path, after=max(0, sequence - 1), limit=1, native=native)
    except ApiProblem as exc:
        if exc.status != _GONE:
            raise
        return None
    return next((one for one in found["data"] if one["sequence"] == sequence), None)


def _keeps(visit: Visit, runtime: str) -> bool:
    options = visit.gateway.settings.runtimes.get(runtime)
    return options is not None and options.keep_native


async def links_of(visit: Visit, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Read the links of open sessions that this instance owns, by session."""
    ids = [row["session_id"] for row in rows if row["state"] != "closed"]
    runtimes: list[Any] = (await visit.api.get("/v1/runtimes", session_id=",".join(ids)))["data"] if ids else []
    return {link["session_id"]: link for runtime in runtimes for link in runtime["links"]}


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else None

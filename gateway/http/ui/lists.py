"""The pages with lists: overview, sessions, calls, dead letters, and the search."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, get_args

from starlette.responses import Response

from dragoman.models.events import SessionState
from gateway.http.ui.api import ApiProblem, path_of
from gateway.http.ui.charts import draw
from gateway.http.ui.details import links_of, stamp
from gateway.http.ui.pages import Visit, back_to, render
from gateway.http.ui.story import OPEN
from gateway.http.ui.text import read_time
from gateway.http.views import show_runtime, show_unconnected
from gateway.runtime.status import TROUBLED
from gateway.runtime.views import RuntimeStatus
from gateway.store.rows import cause_of

ROWS = 50
_ATTENTION = 6
"""The maximum number of items of one kind on the overview."""
_SEARCHES, _SEARCH_SECONDS = 4, 1.0
"""The limits of one search: pages of calls, and the time after which no further one is read."""
_LONGEST_TEXT = 200
"""The maximum number of characters of a text that the API searches for."""
_TRACE = re.compile("[0-9a-f]{32}")
_UNAVAILABLE = 503
CALL_STATES = ("open", "succeeded", "failed", "unknown", "canceled", "expired")
SPANS = (("15", "15 min"), ("60", "1 h"), ("1440", "24 h"), ("10080", "7 d"))
"""The lengths of time that a list can show, in minutes; `since` and `until` give others."""
SESSION_STATES = (*get_args(SessionState), "closed")
SESSION_FILTERS = ("runtime", "native_id", "state", "open", "text", "since", "until", "after")
CALL_FILTERS = (
    "state", "tool", "runtime", "executor", "unknown", "session_id", "trace_id", "text", "since", "until", "after",
)  # fmt: skip
LETTER_FILTERS = ("kind", "runtime", "executor", "target", "unknown", "tool", "cause", "since")


async def overview(visit: Visit) -> Response:
    """Show links, executors, instances, traffic and items that need a person."""
    api = visit.api
    ready = await _readiness(visit)
    activity = await api.get("/v1/activity")
    lacking = await visit.gateway.status.sessions_without_tools()
    connected = [_with_state(one, lacking.get(one.name, {})) for one in visit.gateway.status.runtimes()]
    instances = await _stored(visit, "/v1/instances")
    waiting = await _stored(visit, "/v1/interactions", state="waiting", limit=_ATTENTION)
    letters = await _stored(visit, "/v1/dead-letters", limit=ROWS)
    calls = await _stored(visit, "/v1/calls", limit=12)
    return render(
        visit,
        "overview.html",
        ready=ready,
        runtimes=[*connected, *({**show_unconnected(one), "counts": {}} for one in visit.gateway.status.unconnected())],
        instances=instances["data"],
        problem=next((one["problem"] for one in (instances, waiting, letters, calls) if "problem" in one), None),
        activity=activity,
        chart=draw(activity["minutes"]),
        waiting=waiting,
        letters={**letters, "groups": _grouped(letters["data"])[:_ATTENTION]},
        calls=calls["data"],
    )


async def _stored(visit: Visit, path: str, **query: Any) -> Mapping[str, Any]:
    """Read a list; without the store return an empty one with the `problem`, so that the page shows everything else."""
    try:
        return await visit.api.get(path, **query)
    except ApiProblem as exc:
        if exc.status != _UNAVAILABLE:
            raise
        return {"data": [], "next": None, "problem": exc.problem["detail"]}


async def _readiness(visit: Visit) -> Any:
    try:
        return await visit.api.get("/readyz")
    except ApiProblem as exc:
        # A gateway that is not ready answers 503 with its checks.
        if "checks" not in exc.problem:
            raise
        return exc.problem


def _grouped(letters: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Group dead letters by executor and tool or by target, and by cause; `which` are the filters of a group."""
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for one in letters:
        if one["type"] == "call":
            at, why, which = one["finished_at"], one["error"], {"executor": one["executor"], "tool": one["tool"]}
            which["unknown"] = "true" if one["unknown"] else "false"
        else:
            at, why, which = one["envelope"]["recorded_at"], one["reason"], {"target": one["target"]}
        which["cause"] = cause_of(why or "")
        given = tuple((name, value) for name, value in which.items() if value)
        groups.setdefault(given, []).append({**one, "at": read_time(at), "why": why or ""})
    return [{"which": dict(given), "rows": rows, "why": _common(rows)} for given, rows in groups.items()]


def _common(letters: Sequence[Mapping[str, Any]]) -> str:
    """Return the error or reason of a group, or its cause if they differ in details."""
    first = letters[0]["why"]
    return first if all(one["why"] == first for one in letters) else f"{cause_of(first)} …"


def _with_state(runtime: RuntimeStatus, lacking: Mapping[Any, str]) -> Mapping[str, Any]:
    """Convert a runtime with its first links in trouble; add the counts of all by state, and the last change."""
    troubled = [link for link in runtime.links if link.state in TROUBLED or link.session_id in lacking]
    return {
        **show_runtime(replace(runtime, links=tuple(troubled[:_ATTENTION])), lacking),
        "counts": Counter(link.state for link in runtime.links),
        "since": max((link.since for link in runtime.links), default=None),
    }


async def sessions(visit: Visit) -> Response:
    """List sessions, newest first."""
    query = visit.query
    found = await visit.api.get("/v1/sessions", order="newest", limit=ROWS, **_filters(visit, SESSION_FILTERS))
    busy = await visit.api.get("/v1/calls", state=",".join(sorted(OPEN)), limit=500)
    return render(
        visit,
        "sessions.html",
        rows=found["data"],
        following=found["next"],
        query=query,
        filters=_filters(visit, SESSION_FILTERS),
        states=SESSION_STATES,
        links=await links_of(visit, found["data"]),
        spans=SPANS,
        open_calls=Counter(call["session_id"] for call in busy["data"]),
        runtimes=sorted(visit.gateway.settings.runtimes),
    )


async def calls(visit: Visit) -> Response:
    """List calls, newest first."""
    query = visit.query
    filters = _filters(visit, CALL_FILTERS)
    match query.get("state"):
        case "open":
            filters["state"] = ",".join(sorted(OPEN))
        case "unknown":
            del filters["state"]
            filters["unknown"] = "true"
        case "failed" | "canceled" | "expired":
            filters["unknown"] = "false"
        case _:
            pass
    found = await visit.api.get("/v1/calls", limit=ROWS, arguments="true", **filters)
    return render(
        visit,
        "calls.html",
        rows=found["data"],
        following=found["next"],
        query=query,
        filters=filters,
        states=CALL_STATES,
        spans=SPANS,
        sessions=await sessions_of(visit, found["data"]),
        executors=sorted(visit.gateway.settings.executors),
        runtimes=sorted(visit.gateway.settings.runtimes),
        tools=sorted(visit.gateway.settings.tools),
    )


async def dead_letters(visit: Visit) -> Response:
    """List dead letters in groups, with the next step of each group."""
    query, filters = visit.query, _filters(visit, LETTER_FILTERS)
    found = await visit.api.get("/v1/dead-letters", limit=ROWS, after=query.get("after"), **filters)
    return render(
        visit,
        "dead_letters.html",
        groups=_grouped(found["data"]),
        following=found["next"],
        query=query,
        filters=filters,
        spans=SPANS,
        runtimes=sorted(visit.gateway.settings.runtimes),
        executors=sorted(visit.gateway.settings.executors),
        done=query.get("done"),
        stamp=stamp,
    )


async def search(visit: Visit) -> Response:
    """Open the page of an id, or list the sessions and calls that contain a text."""
    given = visit.query.get("q", "").strip()[:512]
    if not given:
        return back_to("/ui")
    for path, shown in (("calls", "calls"), ("sessions", "sessions")):
        if await visit.api.find(path_of("v1", path, given)):
            return back_to(path_of("ui", shown, given))
    if ":" in given and await visit.api.find(path_of("v1", "dead-letters", given)):
        session_id, sequence, _ = given.split(":", 2)
        return back_to(f"{path_of('ui', 'sessions', session_id)}?at={sequence}")
    if row := await visit.api.find(path_of("v1", "interactions", given)):
        return back_to(path_of("ui", "inbox", row["interaction_id"]))
    for runtime in visit.gateway.settings.runtimes:
        native_id = given.removeprefix(f"{runtime}/")
        found = await visit.api.get("/v1/sessions", runtime=runtime, native_id=native_id, limit=1)
        if native_id and found["data"]:
            return back_to(path_of("ui", "sessions", found["data"][0]["session_id"]))
    return await _search_text(visit, given[:_LONGEST_TEXT])


async def _search_text(visit: Visit, text: str) -> Response:
    monotonic = visit.gateway.clock.monotonic
    after, until = visit.query.get("after"), monotonic() + _SEARCH_SECONDS
    sessions: Mapping[str, Any] = {"data": [], "next": None}
    if after is None:
        sessions = await visit.api.get("/v1/sessions", text=text, order="newest", limit=ROWS)
    calls: list[Mapping[str, Any]] = []
    for _ in range(_SEARCHES):
        found = await visit.api.get("/v1/calls", text=text, limit=ROWS - len(calls), after=after)
        calls += found["data"]
        after = found["next"]
        if after is None or len(calls) == ROWS or monotonic() > until:
            break
    if not calls and not sessions["data"] and _TRACE.fullmatch(text):
        traced = await visit.api.get("/v1/calls", limit=2, trace_id=text)
        calls = traced["data"]
        if len(calls) > 1 or (not calls and traced["next"]):
            return back_to(f"/ui/calls?trace_id={text}")
    named = [call for call in calls if text in (call["call_id"], call["native_call_id"], call["idempotency_key"])]
    first = named if len(named) == 1 else calls
    if len(first) == 1 and not sessions["data"]:
        return back_to(path_of("ui", "calls", first[0]["call_id"]))
    if len(sessions["data"]) == 1 and not calls:
        return back_to(path_of("ui", "sessions", sessions["data"][0]["session_id"]))
    return render(
        visit,
        "search.html",
        given=text,
        sessions=sessions,
        links=await links_of(visit, sessions["data"]),
        rows=calls,
        query=visit.query,
        following=after,
    )


async def sessions_of(visit: Visit, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Load the sessions of rows by their ids, with one request."""
    ids = sorted({row["session_id"] for row in rows})
    found: list[Any] = (
        (await visit.api.get("/v1/sessions", session_id=",".join(ids), limit=len(ids)))["data"] if ids else []
    )
    return {one["session_id"]: one for one in found}


def _filters(visit: Visit, names: Sequence[str]) -> dict[str, str]:
    """Return the filters of the API; `label` has the form NAME=VALUE, and `within` counts minutes before now."""
    query = visit.query
    if (within := query.get("within")) in dict(SPANS):
        query.setdefault("since", (visit.now - timedelta(minutes=int(within))).isoformat(timespec="seconds"))
    name, equals, value = query.get("label", "").partition("=")
    return _only(query, names) | ({f"label.{name.strip()}": value.strip()} if equals else {})


def _only(query: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    return {name: query[name] for name in names if name in query}

"""The pages with lists: overview, sessions, calls, inbox, dead letters, and the search."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from gateway.http.ui.api import ApiProblem, path_of
from gateway.http.ui.charts import draw
from gateway.http.ui.details import stamp
from gateway.http.ui.pages import Visit, back_to, render
from gateway.http.ui.story import OPEN

ROWS = 50
_ATTENTION = 6
"""The maximum number of items of one kind on the overview."""
_SEARCHED = 500
"""How many of the newest calls are searched for a native id or a webhook-id."""
_TRACE = re.compile("[0-9a-f]{32}")
_UNAVAILABLE = 503
CALL_STATES = ("queued", "dispatched", "accepted", "succeeded", "failed", "canceled", "expired")
OUTCOMES = ("unknown", "success", "failure", "canceled", "expired")
SESSION_STATES = ("starting", "running", "idle", "awaiting_input", "awaiting_approval", "error", "closed")
SESSION_FILTERS = ("runtime", "native_id", "state", "open", "since", "until", "after")
CALL_FILTERS = ("state", "tool", "runtime", "executor", "unknown", "session_id", "trace_id", "since", "until", "after")
LETTER_FILTERS = ("kind", "runtime", "executor", "target", "unknown", "since", "after")


async def overview(visit: Visit) -> Response:
    """Show links, executors, instances, traffic and items that need a person."""
    api = visit.api
    ready = await _readiness(visit)
    runtimes = (await api.get("/v1/runtimes"))["data"]
    activity = await api.get("/v1/activity")
    instances = await _stored(visit, "/v1/instances")
    waiting = await _stored(visit, "/v1/interactions", state="waiting", limit=_ATTENTION)
    letters = await _stored(visit, "/v1/dead-letters", limit=ROWS)
    calls = await _stored(visit, "/v1/calls", limit=12)
    return render(
        visit,
        "overview.html",
        ready=ready,
        runtimes=[_with_state(runtime) for runtime in runtimes],
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
    """Return the newest dead letter of each tool or target and advice, with the count of its like."""
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for one in letters:
        key = (one["tool"], one["unknown"]) if one["type"] == "call" else (one["target"], one["state"])
        groups.setdefault(key, []).append(one)
    return [{**group[0], "count": len(group)} for group in groups.values()]


def _with_state(runtime: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the counts of a runtime's links by state, and the time of the last change."""
    links = runtime["links"]
    counts = Counter(link["state"] for link in links)
    trouble = [link for link in links if link["state"] in {"down", "refused"} or link["lacks_tools"]]
    return {
        **runtime,
        "counts": counts,
        "since": max((link["since"] for link in links), default=None),
        "trouble": trouble[:_ATTENTION],
    }


async def sessions(visit: Visit) -> Response:
    """List sessions, newest first."""
    query = visit.query
    found = await visit.api.get("/v1/sessions", order="newest", limit=ROWS, **_filters(query, SESSION_FILTERS))
    busy = await visit.api.get("/v1/calls", state=",".join(sorted(OPEN)), limit=500)
    return render(
        visit,
        "sessions.html",
        rows=found["data"],
        following=found["next"],
        query=query,
        filters=_filters(query, SESSION_FILTERS),
        states=SESSION_STATES,
        open_calls=Counter(call["session_id"] for call in busy["data"]),
        runtimes=sorted(visit.gateway.settings.runtimes),
    )


async def calls(visit: Visit) -> Response:
    """List calls, newest first."""
    query = visit.query
    filters = _filters(query, CALL_FILTERS)
    if (outcome := query.get("outcome")) == "unknown":
        filters["unknown"] = "true"
    elif outcome:
        filters["outcome"] = outcome
    found = await visit.api.get("/v1/calls", limit=ROWS, **filters)
    return render(
        visit,
        "calls.html",
        rows=found["data"],
        following=found["next"],
        query=query,
        filters=filters,
        states=CALL_STATES,
        outcomes=OUTCOMES,
        executors=sorted(visit.gateway.settings.executors),
        runtimes=sorted(visit.gateway.settings.runtimes),
        tools=sorted(visit.gateway.settings.tools),
    )


async def inbox(visit: Visit) -> Response:
    """List the interactions that wait for a person; `seen` names rows that stay after their answer."""
    found = await visit.api.get("/v1/interactions", state="waiting", limit=ROWS, after=visit.query.get("after"))
    rows: list[Mapping[str, Any]] = list(found["data"])
    known = {row["interaction_id"] for row in rows}
    for seen in visit.query.get("seen", "").split(",")[:ROWS]:
        if seen and seen not in known:
            row = await visit.api.find(path_of("v1", "interactions", seen))
            rows += [row] if row else []
    names = await _sessions_of(visit, rows)
    return render(visit, "inbox.html", rows=rows, following=found["next"], sessions=names, query=visit.query)


async def dead_letters(visit: Visit) -> Response:
    """List dead letters, with the next step of each."""
    query = visit.query
    found = await visit.api.get("/v1/dead-letters", limit=ROWS, **_only(query, LETTER_FILTERS))
    return render(
        visit,
        "dead_letters.html",
        rows=found["data"],
        following=found["next"],
        query=query,
        filters=_only(query, LETTER_FILTERS[:-1]),
        runtimes=sorted(visit.gateway.settings.runtimes),
        executors=sorted(visit.gateway.settings.executors),
        done=query.get("done"),
        stamp=stamp,
    )


async def search(visit: Visit) -> Response:
    """Open the page of an id: a call, session, interaction or dead letter, a native id, a webhook-id or a trace id."""
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
        return back_to(f"{path_of('ui', 'sessions', row['session_id'])}?at={row['sequence']}")
    for runtime in visit.gateway.settings.runtimes:
        found = await visit.api.get("/v1/sessions", runtime=runtime, native_id=given, limit=1)
        if found["data"]:
            return back_to(path_of("ui", "sessions", found["data"][0]["session_id"]))
    calls = await visit.api.get("/v1/calls", limit=_SEARCHED, after=visit.query.get("after"))
    matches = [call for call in calls["data"] if _names(call, given)]
    if not matches and _TRACE.fullmatch(given):
        traced = await visit.api.get("/v1/calls", limit=2, trace_id=given)
        matches = traced["data"]
        if len(matches) > 1 or (not matches and traced["next"]):
            return back_to(f"/ui/calls?trace_id={given}")
    if len(matches) == 1:
        return back_to(path_of("ui", "calls", matches[0]["call_id"]))
    return render(
        visit,
        "search.html",
        given=given,
        rows=matches,
        query=visit.query,
        following=calls["next"],
        looked_back=calls["data"][-1]["created_at"] if calls["next"] else None,
    )


def _names(call: Mapping[str, Any], given: str) -> bool:
    """Return whether an id, or its beginning of at least six characters, belongs to a call."""
    ids = (call["call_id"], call["native_call_id"], call["idempotency_key"])
    return any(one == given or (len(given) >= 6 and str(one).startswith(given)) for one in ids)


async def _sessions_of(visit: Visit, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Load the sessions of rows by their ids."""
    ids = {row["session_id"] for row in rows}
    return {one: await visit.api.find(path_of("v1", "sessions", one)) for one in ids}


def _filters(query: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the filters of the API; `label` has the form NAME=VALUE."""
    name, equals, value = query.get("label", "").partition("=")
    return _only(query, names) | ({f"label.{name.strip()}": value.strip()} if equals else {})


def _only(query: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    return {name: query[name] for name in names if name in query}

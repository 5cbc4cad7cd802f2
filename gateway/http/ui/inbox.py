"""The inbox: the list of what waits for a person, one request on its own page, and the answer."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from starlette.responses import Response

from gateway.http.ui.actions import SEARCHED, stale
from gateway.http.ui.api import ApiProblem, path_of
from gateway.http.ui.details import events_of
from gateway.http.ui.lists import ROWS, sessions_of
from gateway.http.ui.pages import FormRefused, Visit, advise, back_to, render
from gateway.strict_json import Unreadable, find_repeated, read_strictly

MOST_MARKUP = 512 * 1024
"""The characters of requests in the list; behind them, a request is shown on its own page only."""
_CONFLICT, _UNREADABLE = 409, 400
_AT_THE_FORM = frozenset({400, 403, 413, 422})
"""The refusals of the API that are shown beside what was typed."""
_STATES = {"expired": "expired", "moot": "was withdrawn"}
_ANSWERS = "approval.given,question.answered,secret.supplied"
_FIELDS = ("decision", "scope", "reason", "binding", "answer", "value")


async def waiting(visit: Visit) -> Response:
    """List the interactions that wait for a person; `seen` names rows that stay after their answer."""
    found = await visit.api.get("/v1/interactions", state="waiting", limit=ROWS, after=visit.query.get("after"))
    rows: list[Mapping[str, Any]] = list(found["data"])
    known = {row["interaction_id"] for row in rows}
    for seen in visit.query.get("seen", "").split(",")[:ROWS]:
        if seen and seen not in known:
            row = await visit.api.find(path_of("v1", "interactions", seen))
            rows += [row] if row else []
    return render(
        visit,
        "inbox.html",
        groups=_grouped(rows),
        following=found["next"],
        sessions=await sessions_of(visit, rows),
        query=visit.query,
        most=MOST_MARKUP,
    )


def _grouped(rows: Sequence[Mapping[str, Any]]) -> Sequence[Sequence[Mapping[str, Any]]]:
    """Group equal held calls: each has its own binding, but a person reads their arguments once."""
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        event, key = row["event"], row["interaction_id"]
        if row["call_id"] is not None:
            key = (event["tool"], row["rule_sha"], json.dumps(event.get("arguments"), sort_keys=True))
        groups.setdefault(key, []).append(row)
    return list(groups.values())


async def interaction(visit: Visit) -> Response:
    """Show one request whole, with the forms that answer it."""
    row = await visit.api.get(path_of("v1", "interactions", visit.part("interaction_id")))
    return render(visit, "interaction.html", **await _shown(visit, row))


async def answer(visit: Visit) -> Response:
    """Answer an interaction; if it is no longer waiting, show by whom it was answered, and how."""
    interaction_id, form = visit.part("interaction_id"), visit.form
    body: dict[str, Any] = {name: form[name] for name in _FIELDS if form.get(name)}
    if form.get("skip") == "1":
        body = {"answer": ""}
    elif "choice" in form:
        # A browser would change the line breaks of the text itself.
        row = await visit.api.get(path_of("v1", "interactions", interaction_id))
        choices = {str(number): choice for number, choice in enumerate(row["event"].get("choices") or ())}
        body = {"answer": choices.get(form["choice"])}
    try:
        if "arguments" in form:
            body["arguments"] = _read_arguments(form["arguments"])
        await visit.api.post(path_of("v1", "interactions", interaction_id, "answer"), body)
    except ApiProblem as exc:
        if exc.status not in _AT_THE_FORM and exc.status != _CONFLICT:
            raise
        await _refuse(visit, exc)
    return back_to(f"/ui/inbox?seen={interaction_id}")


def _read_arguments(text: str) -> Any:
    try:
        arguments = read_strictly(text)
    except Unreadable as exc:
        cause = f": {exc.__cause__}" if exc.fault == "syntax" and exc.__cause__ is not None else ""
        raise _unreadable(f"{exc}{cause}") from exc
    if (twice := find_repeated(text)) is not None:
        raise _unreadable(f"the member {twice!r} is repeated")
    return arguments


def _unreadable(reason: str) -> ApiProblem:
    detail = f"the arguments are not JSON that the gateway accepts: {reason}"
    return ApiProblem(_UNREADABLE, {"type": "/problems/invalid-json", "title": "Invalid arguments", "detail": detail})


async def _refuse(visit: Visit, exc: ApiProblem) -> NoReturn:
    """Show the request again with the refusal and what was typed; or what happened to it meanwhile."""
    row = await visit.api.get(path_of("v1", "interactions", visit.part("interaction_id")))
    if exc.status != _CONFLICT:
        shown = await _shown(visit, row)
        # What was typed is on the page.
        advice = None if exc.status == _UNREADABLE else advise(exc.problem)
        raise FormRefused(
            "interaction.html", exc.status, **shown | {"refused": exc.problem, "advice": advice, "typed": visit.form}
        ) from exc
    given = await events_of(visit, row["session_id"], row["sequence"], SEARCHED, kind=_ANSWERS)
    what = f"{row['answered_by']} answered first"
    if row["answered_by"] is None:
        what, detail = f"the request {_STATES.get(row['state'], 'changed')}", exc.problem["detail"]
        what += f" ({detail})" * (detail != f"this question is already {row['state']}")
    raise stale(
        "The request changed" if row["state"] == "waiting" else f"Already {row['state'].replace('moot', 'withdrawn')}",
        what,
        [one for one in given["data"] if one["event"].get("id") == row["event"]["id"]],
        back="/ui/inbox",
    ) from exc


async def _shown(visit: Visit, row: Mapping[str, Any]) -> dict[str, Any]:
    sessions = await sessions_of(visit, [row])
    return {"row": row, "sessions": sessions, "refused": None, "advice": None, "typed": {}}

"""The forms: each sends one request to the API and returns to a page."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from gateway.http.ui.api import ApiProblem, path_of
from gateway.http.ui.details import stamp
from gateway.http.ui.lists import LETTER_FILTERS
from gateway.http.ui.pages import Visit, back_to, render

_CONFLICT = 409
_MANY = 500


async def cancel_call(visit: Visit) -> Response:
    """Cancel a call unless it changed after the form was rendered."""
    call_id, form = visit.part("call_id"), await visit.form()
    if stale := await _stale_call(visit, call_id, form):
        return stale
    await visit.api.post(path_of("v1", "calls", call_id, "cancel"), {"reason": form.get("reason") or None})
    return back_to(path_of("ui", "calls", call_id))


async def redrive_call(visit: Visit) -> Response:
    """Redrive a call unless it changed after the form was rendered; show the new call."""
    call_id, form = visit.part("call_id"), await visit.form()
    if stale := await _stale_call(visit, call_id, form):
        return stale
    wanted = {"new_key": form.get("new_key") == "1", "deliver": form.get("deliver") == "1"}
    made = await visit.api.post(path_of("v1", "calls", call_id, "redrive"), wanted)
    return back_to(path_of("ui", "calls", made["call_id"]))


async def _stale_call(visit: Visit, call_id: str, form: Mapping[str, str]) -> Response | None:
    found = await visit.api.get(path_of("v1", "calls", call_id))
    seen = form.get("seen", "")
    if seen == stamp(found):
        return None
    last = seen.rpartition(".")[2]
    since = int(last) if last.isdigit() and len(last) < 16 else 0
    changes = [one for one in found["events"] if one["sequence"] > since]
    return render(
        visit,
        "stale_call.html",
        _CONFLICT,
        call=found,
        changes=changes,
        seen=stamp(found),
        form=form,
        action=visit.request.url.path,
        before=seen.partition(".")[0],
    )


async def answer(visit: Visit) -> Response:
    """Answer an interaction; if it is no longer waiting, show by whom it was answered."""
    interaction_id, form = visit.part("interaction_id"), await visit.form()
    body: dict[str, Any] = {
        name: form[name] for name in ("decision", "scope", "answer", "value") if name in form and form[name] != ""
    }
    if form.get("skip") == "1":
        body = {"answer": ""}
    try:
        await visit.api.post(path_of("v1", "interactions", interaction_id, "answer"), body)
    except ApiProblem as exc:
        if exc.status != _CONFLICT:
            raise
        row = await visit.api.get(path_of("v1", "interactions", interaction_id))
        # A typed answer is kept for the page, a secret is not.
        return render(visit, "stale_answer.html", _CONFLICT, row=row, typed=form.get("answer", ""), problem=exc.problem)
    return back_to(_origin(form, f"/ui/inbox?seen={interaction_id}"))


async def post_message(visit: Visit) -> Response:
    """Send a message to the agent of a session."""
    session_id, form = visit.part("session_id"), await visit.form()
    body = {"kind": "message.posted", "content": form.get("text", "")}
    await visit.api.post(path_of("v1", "sessions", session_id, "events"), body)
    return back_to(path_of("ui", "sessions", session_id))


async def interrupt(visit: Visit) -> Response:
    """Interrupt the turn of a session."""
    session_id = visit.part("session_id")
    await visit.api.post(path_of("v1", "sessions", session_id, "events"), {"kind": "turn.interrupted"})
    return back_to(path_of("ui", "sessions", session_id))


async def open_session(visit: Visit) -> Response:
    """Open a session, or attach to a native one."""
    form = await visit.form()
    body = {name: form[name] for name in ("runtime", "native_id", "name") if form.get(name)}
    made = await visit.api.post("/v1/sessions", body)
    return back_to(path_of("ui", "sessions", made["session_id"]))


async def close_session(visit: Visit) -> Response:
    """Close a session."""
    session_id = visit.part("session_id")
    await visit.api.delete(path_of("v1", "sessions", session_id))
    return back_to(path_of("ui", "sessions", session_id))


async def redrive_letter(visit: Visit) -> Response:
    """Redrive one dead letter."""
    form = await visit.form()
    letter = form.get("id", "")
    made = await visit.api.post(
        path_of("v1", "dead-letters", letter, "redrive"), {"deliver": form.get("deliver") == "1"}
    )
    return back_to(
        path_of("ui", "calls", made["call_id"]) if made["type"] == "call" else "/ui/dead-letters?done=redriven"
    )


async def dismiss_letter(visit: Visit) -> Response:
    """Dismiss one dead letter."""
    form = await visit.form()
    await visit.api.post(path_of("v1", "dead-letters", form.get("id", ""), "dismiss"))
    return back_to(_origin(form, "/ui/dead-letters?done=dismissed"))


async def many_letters(visit: Visit) -> Response:
    """Redrive or dismiss all dead letters that match a filter, after a dry run."""
    form = await visit.form()
    verb = "dismiss" if form.get("verb") == "dismiss" else "redrive"
    wanted: dict[str, Any] = {name: form[name] for name in LETTER_FILTERS if form.get(name)}
    if "unknown" in wanted:
        wanted["unknown"] = wanted["unknown"] == "true"
    confirmed = form.get("confirmed", "")
    done = await visit.api.post(f"/v1/dead-letters/{verb}", {**wanted, "limit": _MANY, "dry_run": not confirmed})
    return render(visit, "many_letters.html", verb=verb, done=done, wanted=wanted, confirmed=bool(confirmed))


def _origin(form: Mapping[str, str], otherwise: str) -> str:
    """Return the page that a form came from, if it is one of the UI."""
    given = form.get("back", "")
    return given if given.startswith("/ui/") and "\\" not in given and "//" not in given else otherwise

"""The forms: each sends one request to the API and returns to a page.

Each carries `seen`, the state it was rendered for, which ends with the sequence of the last event.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from gateway.core.fold import ENDED
from gateway.http.ui.api import ApiProblem, path_of
from gateway.http.ui.details import events_of, stamp
from gateway.http.ui.lists import CALL_FILTERS, LETTER_FILTERS
from gateway.http.ui.pages import FormRefused, Visit, back_to, render
from gateway.http.ui.story import OPEN, redriven_as
from gateway.store.call import certainly_did_not_run

_UNAVAILABLE = 503
_MANY = 500
_MANY_CALLS = 100
"""The maximum number of failed calls that one form redrives."""
_FAILED = frozenset({"failed", "expired"})
SEARCHED = 1_000
"""The maximum number of events that are searched for changes."""
_CHANGES = {
    "session.opened": "the session was opened again",
    "session.closed": "the session was closed",
    "session.moved": "the turn ended",
    "tool.requested": "the agent called a tool",
}
"""What happened to a session, by the kind of the event."""


async def cancel_call(visit: Visit) -> Response:
    """Cancel a call unless it changed after the form was rendered."""
    call_id = visit.part("call_id")
    await _check_call(visit, call_id)
    await visit.api.post(path_of("v1", "calls", call_id, "cancel"), {"reason": visit.form.get("reason") or None})
    return back_to(path_of("ui", "calls", call_id))


async def redrive_call(visit: Visit) -> Response:
    """Redrive a call unless it changed after the form was rendered; show the new call."""
    call_id, form = visit.part("call_id"), visit.form
    await _check_call(visit, call_id)
    wanted = {"new_key": form.get("new_key") == "1", "deliver": form.get("deliver") == "1"}
    made = await visit.api.post(path_of("v1", "calls", call_id, "redrive"), wanted)
    return back_to(path_of("ui", "calls", made["call_id"]))


async def _check_call(visit: Visit, call_id: str) -> None:
    found = await visit.api.get(path_of("v1", "calls", call_id))
    seen = visit.form.get("seen", "")
    if seen == stamp(found):
        return
    before = seen.partition(".")[0]
    was = f"changed from {before} to" if before else "is now"
    if before == found["state"]:
        was = "has new events and is still"
    raise stale(
        "The call changed",
        f"{found['tool']} {was} {'unknown' if found['unknown'] else found['state']}",
        [one for one in found["events"] if one["sequence"] > _last_seen(visit)],
        back=path_of("ui", "calls", call_id),
        seen=stamp(found),
    )


async def post_message(visit: Visit) -> Response:
    """Send a message to the agent of a session, unless the session was closed after the form was rendered."""
    await _check_session(visit)
    return await _post_event(visit, {"kind": "message.posted", "content": visit.form.get("text", "")})


async def interrupt(visit: Visit) -> Response:
    """Interrupt the turn of a session, unless it ended after the form was rendered."""
    await _check_session(visit, "session.moved", lambda one: one["event"]["state"] in ENDED)
    return await _post_event(visit, {"kind": "turn.interrupted"})


async def _post_event(visit: Visit, event: Mapping[str, Any]) -> Response:
    session_id = visit.part("session_id")
    await visit.api.post(path_of("v1", "sessions", session_id, "events"), event)
    return back_to(path_of("ui", "sessions", session_id))


async def open_session(visit: Visit) -> Response:
    """Open a session, or attach to a native one."""
    body = {name: visit.form[name] for name in ("runtime", "native_id", "name") if visit.form.get(name)}
    made = await visit.api.post("/v1/sessions", body)
    return back_to(path_of("ui", "sessions", made["session_id"]))


async def close_session(visit: Visit) -> Response:
    """Close a session, unless calls that are still open were requested after the form was rendered."""
    session_id = visit.part("session_id")
    calls = await visit.api.get("/v1/calls", session_id=session_id, state=",".join(sorted(OPEN)), limit=_MANY)
    requests = {one["request_sequence"] for one in calls["data"]}
    await _check_session(visit, "tool.requested", lambda one: one["sequence"] in requests)
    await visit.api.delete(path_of("v1", "sessions", session_id))
    return back_to(path_of("ui", "sessions", session_id))


async def _check_session(visit: Visit, kind: str = "", matters: Callable[[Mapping[str, Any]], bool] = bool) -> None:
    """Check that a session is open, that it was not opened again, and that no event of a kind came that matters."""
    session_id = visit.part("session_id")
    row = await visit.api.get(path_of("v1", "sessions", session_id))
    kinds = ",".join(filter(None, ("session.opened", "session.closed", kind)))
    found = await events_of(visit, session_id, _last_seen(visit), SEARCHED, kind=kinds)
    changes = [one for one in found["data"] if one["event"]["kind"] != kind or matters(one)]
    is_closed = row["state"] == "closed"
    if changes or is_closed:
        raise stale(
            "The session is closed" if is_closed else "The session changed",
            _CHANGES["session.closed" if is_closed else changes[-1]["event"]["kind"]],
            changes,
            back=path_of("ui", "sessions", session_id),
            seen=None if is_closed else row["last_sequence"],
        )


async def redrive_letter(visit: Visit) -> Response:
    """Redrive one dead letter unless it changed after the form was rendered."""
    path = await _check_letter(visit)
    made = await visit.api.post(f"{path}/redrive", {"deliver": visit.form.get("deliver") == "1"})
    return back_to(
        path_of("ui", "calls", made["call_id"]) if made["type"] == "call" else "/ui/dead-letters?done=redriven"
    )


async def dismiss_letter(visit: Visit) -> Response:
    """Dismiss one dead letter unless it changed after the form was rendered."""
    path = await _check_letter(visit)
    await visit.api.post(f"{path}/dismiss")
    return back_to(_origin(visit.form, "/ui/dead-letters?done=dismissed"))


async def _check_letter(visit: Visit) -> str:
    """Check that a dead letter has the state that was seen; return its path."""
    letter = visit.form.get("id", "")
    path = path_of("v1", "dead-letters", letter)
    found = await visit.api.find(path)
    if found is not None and _state_of(stamp(found)) == _state_of(visit.form.get("seen", "")):
        return path
    raise stale(
        "The dead letter changed",
        "it was redriven, dismissed or answered"
        if found is None
        else f"it was sent again and is {found['state']}: {found.get('reason')}",
        await _events_of_letter(visit, letter),
        back="/ui/dead-letters",
        seen=None if found is None else stamp(found),
    )


async def _events_of_letter(visit: Visit, letter: str) -> Sequence[Mapping[str, Any]]:
    """List the events of a dead letter after the one that was seen; a dismissed delivery has none."""
    since = _last_seen(visit)
    if ":" not in letter:
        call = await visit.api.find(path_of("v1", "calls", letter))
        return [one for one in call["events"] if one["sequence"] > since] if call else []
    session_id, _, rest = letter.partition(":")
    sequence, _, target = rest.partition(":")
    found = await events_of(visit, session_id, since, SEARCHED, kind="delivery.settled")
    return [
        one for one in found["data"] if (str(one["event"]["sequence"]), one["event"]["target"]) == (sequence, target)
    ]


async def many_letters(visit: Visit) -> Response:
    """Redrive or dismiss all dead letters that match a filter, unless other ones match than in the dry run."""
    form = visit.form
    verb = "dismiss" if form.get("verb") == "dismiss" else "redrive"
    wanted = {name: form[name] for name in LETTER_FILTERS if form.get(name)}
    path, asked = f"/v1/dead-letters/{verb}", {**wanted, "limit": _MANY}
    if "unknown" in wanted:
        asked["unknown"] = wanted["unknown"] == "true"
    matches = await visit.api.post(path, {**asked, "dry_run": True})
    shown = {"noun": "dead letter", "verb": verb, "wanted": wanted, "back": "/ui/dead-letters"}
    return await _confirm(visit, shown, matches, lambda: visit.api.post(path, asked))


async def many_calls(visit: Visit) -> Response:
    """Redrive the failed calls that match a filter and did not run, unless other ones match than in the dry run."""
    given = {name: one for name, one in visit.form.items() if one and (name in CALL_FILTERS or name[:6] == "label.")}
    # Calls that fail meanwhile do not change the matches.
    wanted = {"until": visit.now.isoformat(), **given}
    states = _FAILED.intersection(wanted.get("state", "").split(",")) or _FAILED
    asked = {"unknown": "false", **wanted, "state": ",".join(sorted(states))}
    found = await visit.api.get("/v1/calls", limit=_MANY_CALLS, **asked)
    ids = [row["call_id"] for row in found["data"] if await _may_redrive(visit, row)]
    skipped, following = len(found["data"]) - len(ids), found["next"]
    matches = {"ids": ids, "found": len(ids), "more": following, "next": following, "skipped": skipped}

    async def act() -> Mapping[str, Any]:
        redriven, failed = 0, list[Mapping[str, Any]]()
        for call_id in ids:
            try:
                await visit.api.post(path_of("v1", "calls", call_id, "redrive"))
                redriven += 1
            except ApiProblem as exc:
                failed.append({"id": call_id, "reason": exc.problem.get("detail")})
                if exc.status == _UNAVAILABLE:
                    break
        return {**matches, "redriven": redriven, "failed": failed}

    shown = {"noun": "failed call", "verb": "redrive", "wanted": wanted, "back": "/ui/calls"}
    return await _confirm(visit, shown, matches, act)


async def _may_redrive(visit: Visit, row: Mapping[str, Any]) -> bool:
    """Return whether a failed call, if its outcome is known, did not run, and was not redriven before."""
    if row["dead"]:
        return True
    facts = {name: row[name] for name in ("unknown", "dead", "attempt", "error")}
    if not row["unknown"] and not certainly_did_not_run(**facts):
        return False
    return not redriven_as(await visit.api.get(path_of("v1", "calls", row["call_id"])))


async def _confirm(
    visit: Visit, shown: Mapping[str, Any], matches: Mapping[str, Any], act: Callable[[], Awaitable[Any]]
) -> Response:
    """Show the matches of a dry run; act if the form has seen the same ones."""
    shown = {"confirmed": False, "added": (), "gone": (), "done": matches, **shown}
    if "seen" not in visit.form:
        return render(visit, "many.html", **shown)
    seen, now = set(visit.form["seen"].split()), set(matches["ids"])
    if seen != now:
        raise FormRefused("many.html", **{**shown, "added": now - seen, "gone": sorted(seen - now)})
    return render(visit, "many.html", **{**shown, "done": await act(), "confirmed": True})


def stale(
    title: str, what: str, changes: Sequence[Mapping[str, Any]], *, back: str, seen: object = None
) -> FormRefused:
    """Make the page of a stale form; with `seen`, the current state, it can be sent again."""
    return FormRefused("stale.html", title=title, what=what, changes=changes, back=back, seen=seen)


def _state_of(seen: str) -> str:
    return seen.rpartition(".")[0]


def _last_seen(visit: Visit) -> int:
    """Return the sequence of the last event that the form was rendered for."""
    last = visit.form.get("seen", "").rpartition(".")[2]
    return int(last) if last.isascii() and last.isdigit() and len(last) < 16 else 0


def _origin(form: Mapping[str, str], otherwise: str) -> str:
    """Return the page that a form came from, if it is one of the UI."""
    given = form.get("back", "")
    return given if given.startswith("/ui/") and "\\" not in given and "//" not in given else otherwise

"""Shows the questions that wait for a person, each with the way to answer it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import typer
from rich.text import Text

from gateway.cli.client import ApiClient, name_of
from gateway.cli.faults import Refusal
from gateway.cli.lines import clean, facts_of
from gateway.cli.terminal import Output, note, say_json

SHORTEST = 4
"""How many letters of an id say which one is meant; what is shorter may be a number that a prompt has shown."""
_SHOWN = 8
_PAGE = 500
_MOST_NAMES = 50

_HOW = {
    "approval.asked": "--allow | --deny{scopes}",
    "question.asked": "--text TEXT",
    "secret.asked": "--secret",
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """One question that waits."""

    row: dict[str, Any]
    short: str
    """The first letters of its id that no other one begins with."""
    session: str
    """Its session, as commands take it."""

    @property
    def id(self) -> str:
        return str(self.row["interaction_id"])

    @property
    def kind(self) -> str:
        return str(self.row["kind"])

    @property
    def event(self) -> dict[str, Any]:
        """What was asked."""
        return self.row.get("event") or {}

    @property
    def scopes(self) -> Sequence[str]:
        """For how long a decision may hold."""
        return [clean(scope, 40) for scope in self.event.get("scopes") or ("once",)]

    @property
    def how(self) -> str:
        """Say which options answer it."""
        scopes = f" [--scope {' | '.join(self.scopes)}]" if len(self.scopes) > 1 else ""
        return _HOW.get(self.kind, "").format(scopes=scopes)


def rows_of(api: ApiClient, session: str | None = None) -> Iterator[dict[str, Any]]:
    """Read what waits, oldest first."""
    found = {} if session is None else {"session_id": api.session(session)["session_id"]}
    return api.pages("/v1/interactions", page=_PAGE, state="waiting", **found)


def waiting(api: ApiClient, rows: Iterable[dict[str, Any]]) -> list[Waiting]:
    """Give each its short id and the name of its session."""
    listed = list(rows)
    size = shortest([str(row["interaction_id"]) for row in listed])
    names = _Names(api)
    return [Waiting(row, str(row["interaction_id"])[:size], names.name(str(row["session_id"]))) for row in listed]


def shortest(ids: Sequence[str]) -> int:
    """Say how many letters tell all of them apart."""
    longest = max(map(len, ids), default=_SHOWN)
    return next((size for size in range(_SHOWN, longest) if len({one[:size] for one in ids}) == len(set(ids))), longest)


def show_waiting(api: ApiClient, session: str | None, *, limit: int, as_json: bool) -> None:
    """List what waits."""
    rows = rows_of(api, session)
    some = islice(rows, limit)
    if as_json:
        for row in some:
            say_json(row)
    else:
        _show(waiting(api, some))
    if next(rows, None) is not None:
        note(f"there are more; --limit shows more than {limit}")


def _show(found: Sequence[Waiting]) -> None:
    out = Output()
    for one in found:
        if out.is_terminal:
            show_one(one, out, name=one.short)
            out.say(Text(f"    dragoman answer {clean(one.short)} {one.how}", "dim"))
        else:
            cells = (one.id, one.kind, one.session, one.row.get("expires_at") or "", facts_of(one.event).plain)
            typer.echo("\t".join(map(clean, cells)))
    if not found:
        note("nothing waits for an answer")


def show_one(one: Waiting, out: Output, *, name: str) -> None:
    """Show a question, all that is asked included, since somebody is to decide about it."""
    out.say(
        Text.assemble(
            (clean(name), "bold"), "  ", (clean(one.kind, 40), "yellow"), f"  {clean(one.session, 200)}{_left(one.row)}"
        )
    )
    out.say(Text.assemble("    ", facts_of(one.event)))


def _left(row: dict[str, Any]) -> str:
    """Say how long it still waits."""
    try:
        seconds = (datetime.fromisoformat(str(row.get("expires_at"))) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return ""
    minutes, rest = divmod(max(int(seconds), 0), 60)
    return f"  {minutes}m {rest:02}s left"


class _Names:
    """Asks for names of sessions, each once, and not for very many."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._known: dict[str, str] = {}

    def name(self, session_id: str) -> str:
        if session_id not in self._known and len(self._known) < _MOST_NAMES:
            try:
                self._known[session_id] = name_of(self._api.session(session_id))
            except Refusal as exc:
                if exc.problem != "not-found":
                    raise
                # Retention has removed it since.
                self._known[session_id] = session_id
        return self._known.get(session_id, session_id)

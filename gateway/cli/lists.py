"""Lists what a gateway knows: its runtimes, sessions and calls."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from gateway.cli.client import ApiClient, name_of
from gateway.cli.tables import Cell, Column, show_table
from gateway.cli.terminal import Output, note, say_json

MOST_AT_ONCE = 500
SHORT = 8
"""How many letters of an id a terminal shows."""

_STATES = {
    "up": "green", "connecting": "yellow", "down": "red", "refused": "bold red", "running": "green",
    "awaiting_input": "bold yellow", "awaiting_approval": "bold yellow", "awaiting_outcome": "yellow", "error": "red",
    "queued": "yellow", "dispatched": "yellow", "accepted": "yellow", "succeeded": "green", "failed": "red",
    "canceled": "yellow", "expired": "red", "unknown": "bold red", "closed": "dim",
}  # fmt: skip

_RUNTIMES = (
    Column("name", least=8), Column("links", least=8), Column("adapter", spare=2), Column("protocol", spare=3),
    Column("why", least=12, spare=1),
)  # fmt: skip
_SESSIONS = (
    Column("session", least=16), Column("state"), Column("last"), Column("events", spare=2), Column("opened", spare=3),
    Column("id", spare=4),
)  # fmt: skip
_CALLS = (
    Column("id", spare=5), Column("tool", least=12), Column("state"), Column("asked"),
    Column("runtime", least=8, spare=2), Column("executor", least=8, spare=3), Column("tries", spare=4),
    Column("why", least=12, spare=1),
)  # fmt: skip

Cells = Callable[[dict[str, Any]], Sequence[Cell]]


def list_runtimes(api: ApiClient, *, as_json: bool) -> None:
    """List the runtimes, and how their links stand."""
    rows = api.get("/v1/runtimes")["data"]
    _show(rows, _RUNTIMES, _runtime, as_json=as_json, nothing="the configuration has no runtime")


def list_sessions(api: ApiClient, which: dict[str, Any], *, limit: int, as_json: bool) -> None:
    """List sessions, the newest first."""
    rows = api.pages("/v1/sessions", page=min(limit + 1, MOST_AT_ONCE), order="newest", **_given(which))
    _show_some(rows, limit, _SESSIONS, _session, as_json=as_json, nothing="no sessions")


def list_calls(api: ApiClient, session: str | None, which: dict[str, Any], *, limit: int, as_json: bool) -> None:
    """List calls, the newest first."""
    found = {} if session is None else {"session_id": api.session(session)["session_id"]}
    rows = api.pages("/v1/calls", page=min(limit + 1, MOST_AT_ONCE), **found, **_given(which))
    _show_some(rows, limit, _CALLS, _call, as_json=as_json, nothing="no calls")


def age_of(moment: object) -> str:
    """Say how long ago something was, as people round it."""
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(str(moment))).total_seconds()
    except (ValueError, TypeError):
        return "?"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit} ago"
    return f"{max(seconds, 0):.0f}s ago"


def short(identifier: str) -> str:
    """Say the first letters of an id, which are enough for a person and for `answer`."""
    return identifier if len(identifier) <= SHORT + 1 else f"{identifier[:SHORT]}…"


def _given(which: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in which.items() if value not in (None, [], False)}


def _show_some(
    rows: Iterator[dict[str, Any]], limit: int, columns: Sequence[Column], cells: Cells, *, as_json: bool, nothing: str
) -> None:
    _show(islice(rows, limit), columns, cells, as_json=as_json, nothing=nothing)
    if next(rows, None) is not None:
        note(f"there are more; --limit shows more than {limit}")


def _show(
    rows: Iterable[dict[str, Any]], columns: Sequence[Column], cells: Cells, *, as_json: bool, nothing: str
) -> None:
    """Write each row as it comes, except in a terminal, where all of them say how wide a column is."""
    none = True

    def seen() -> Iterator[dict[str, Any]]:
        nonlocal none
        for row in rows:
            none = False
            yield row

    if as_json:
        for row in seen():
            say_json(row)
        return
    show_table(columns, (cells(row) for row in seen()), Output())
    if none:
        note(nothing)


def _runtime(row: dict[str, Any]) -> Sequence[Cell]:
    counts = Counter(str(link["state"]) for link in row["links"])
    worst = next((link for link in row["links"] if link["state"] not in {"up", "asleep"}), None)
    # A gateway of the release before says nothing of a runtime that is not connected.
    failing = row.get("autostart")
    fails = row.get("reason") or (failing and f"autostart: {failing['reason']}")
    links = ", ".join(f"{number} {state}" for state, number in sorted(counts.items())) or ("down" if fails else "none")
    style = _STATES["down"] if fails else _STATES.get(str(worst["state"]), "") if worst else ("green" if counts else "")
    why = f"{row['name']}/{worst['native_id']}: {worst['reason'] or worst['state']}" if worst else fails or ""
    return (
        Cell(row["name"], style="bold"),
        Cell(links, style=style),
        Cell(row["adapter"]),
        Cell(row["protocol"]),
        Cell(why),
    )


def _session(row: dict[str, Any]) -> Sequence[Cell]:
    return (
        Cell(name_of(row), style="bold"),
        Cell(row["state"], style=_style(row["state"])),
        Cell(row["updated_at"], age_of(row["updated_at"])),
        Cell(str(row["last_sequence"])),
        Cell(row["opened_at"], age_of(row["opened_at"])),
        Cell(row["session_id"]),
    )


def _call(row: dict[str, Any]) -> Sequence[Cell]:
    state = "unknown" if row["unknown"] else row["state"]
    return (
        Cell(row["call_id"], short(row["call_id"])),
        Cell(row["tool"], style="bold"),
        Cell(state, style=_style(state)),
        Cell(row["created_at"], age_of(row["created_at"])),
        Cell(row["runtime"]),
        Cell(row["executor"] or "", row["executor"] or "–"),
        Cell(str(row["attempt"])),
        Cell(row["error"] or ""),
    )


def _style(state: object) -> str:
    return _STATES.get(str(state), "")

"""`dragoman runtimes` and `dragoman sessions`."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from gateway.cli.help import examples
from gateway.cli.options import (
    KEY,
    LABEL,
    LIMIT,
    RUNTIME,
    SINCE,
    TEXT,
    UNTIL,
    URL,
    RowsOption,
    flag,
    option,
    parse_labels,
    time_of,
)
from gateway.cli.tables import TABLE, Cell, Column, RowTable, show_rows, state_cell
from gateway.cli.terminal import age_of

if TYPE_CHECKING:
    from dragoman.client import Runtime, Session

commands = typer.Typer()


@commands.command(
    epilog=examples(
        "dragoman runtimes",
        "dragoman runtimes --json | jq -c '{name, links}'",
        more=f"{TABLE}\nLists the links of the answering instance only.",
    )
)
def runtimes(*, as_json: RowsOption = False, url: str = URL, key: str | None = KEY) -> None:
    """List runtimes and their connection status."""
    from gateway.cli.connection import connect

    with connect(url, key) as gateway:
        show_rows(gateway.run(gateway.client.runtimes()), _RUNTIMES, as_json=as_json)


@commands.command(
    epilog=examples(
        "dragoman sessions",
        "dragoman sessions --runtime finn --open",
        "dragoman sessions --label game=go-fish --since 2h",
        "dragoman sessions --limit 10000 | cut -f 1",
        "dragoman sessions --json | jq -r .session_id",
        more=TABLE,
    )
)
def sessions(
    *,
    runtime: str | None = RUNTIME,
    state: list[str] | None = option("--state", "STATE", "Only sessions in this state; may be repeated."),
    label: list[str] | None = LABEL,
    since: str | None = SINCE,
    until: str | None = UNTIL,
    text: str | None = TEXT,
    open_only: bool = flag("--open", "Only open sessions."),
    limit: int = LIMIT,
    as_json: RowsOption = False,
    url: str = URL,
    key: str | None = KEY,
) -> None:
    """List sessions, newest first."""
    from gateway.cli.connection import connect

    with connect(url, key) as gateway:
        found = gateway.client.sessions(
            runtime=runtime,
            open_only=open_only,
            state=state or (),
            labels=parse_labels(label),
            since=time_of(since),
            until=time_of(until, "--until"),
            text=text,
            newest_first=True,
        )
        rows, more = gateway.take(found, limit)
        show_rows(rows, _SESSIONS, as_json=as_json, more=more)


def _runtime_cells(row: "Runtime") -> Sequence[Cell]:
    counts = Counter(str(link.state) for link in row.links)
    worst = next((link for link in row.links if link.state not in {"up", "asleep"}), None)
    fault = row.reason or (f"autostart: {row.autostart.reason}" if row.autostart else None)
    state = "down" if fault else worst.state if worst else "up" if counts else ""
    links = ", ".join(f"{number} {state}" for state, number in sorted(counts.items())) or ("down" if fault else "none")
    reason = f"{row.name}/{worst.native_id}: {worst.reason or worst.state}" if worst else fault
    return (
        Cell(row.name, style="bold"),
        Cell(links, style=state_cell(state).style),
        Cell(row.adapter),
        Cell(row.protocol),
        Cell(reason or ""),
    )


def _session_cells(row: "Session") -> Sequence[Cell]:
    return (
        Cell(f"{row.runtime}/{row.native_id}", style="bold"),
        state_cell(row.state),
        Cell(row.updated_at.isoformat(), age_of(row.updated_at)),
        Cell(str(row.last_sequence)),
        Cell(row.opened_at.isoformat(), age_of(row.opened_at)),
        Cell(row.session_id),
    )


_RUNTIMES = RowTable(
    (
        Column("name", least=8),
        Column("links", least=8),
        Column("adapter", spare=2),
        Column("protocol", spare=3),
        Column("why", apart=True),
    ),
    _runtime_cells,
    "no runtimes configured",
)
_SESSIONS = RowTable(
    (
        Column("session", least=16),
        Column("state"),
        Column("last"),
        Column("events", spare=2),
        Column("opened", spare=3),
        Column("id", spare=4),
    ),
    _session_cells,
    "no sessions",
)

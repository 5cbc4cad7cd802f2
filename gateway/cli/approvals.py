"""`dragoman approvals`: what was asked about held calls, and who answered."""

import csv
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from gateway.cli.errors import Misused
from gateway.cli.help import examples
from gateway.cli.lines import compact
from gateway.cli.options import KEY, LIMIT, SESSION, SINCE, URL, RowsOption, flag, time_of
from gateway.cli.tables import TABLE, Cell, Column, RowTable, show_rows, state_cell
from gateway.cli.terminal import age_of, note
from gateway.visible import show_hidden

if TYPE_CHECKING:
    from dragoman.client import ApprovalRecord

_FORMULA = ("=", "+", "-", "@")
_LONGEST = 1_000

commands = typer.Typer()


@commands.command(
    epilog=examples(
        "dragoman approvals --since 24h",
        "dragoman approvals --since 2026-11-01 --limit 100000 --csv > approvals.csv",
        "dragoman approvals --session finn/agent-7",
        "dragoman approvals --json | jq -c '{tool, answered_by, changed_to}'",
        more=TABLE,
    )
)
def approvals(
    *,
    session: str | None = SESSION,
    since: str | None = SINCE,
    limit: int = LIMIT,
    as_csv: bool = flag("--csv", "Print CSV with a header, for a spreadsheet."),
    as_json: RowsOption = False,
    url: str = URL,
    key: str | None = KEY,
) -> None:
    """List what people decided about held calls."""
    from gateway.cli.connection import connect

    if as_csv and as_json:
        raise Misused("pass --csv or --json, not both")
    with connect(url, key) as gateway:
        of = None if session is None else gateway.find_session(session)
        rows, more = gateway.take(gateway.client.approvals(since=time_of(since), session=of), limit)
        if not as_csv:
            show_rows(rows, _APPROVALS, as_json=as_json, more=more)
            return
        written = csv.writer(sys.stdout, lineterminator="\n")
        written.writerow(_CSV)
        written.writerows([_in_spreadsheet(cell) for cell in _csv_cells(row)] for row in rows)
        if more:
            note("there are more; raise --limit to see them")


_CSV = (
    "asked_at", "interaction_id", "session_id", "call_id", "tool", "arguments", "rule", "binding", "state", "decision",
    "answered_by", "answered_at", "reason", "changed_to", "allowed",
    "unheard_since",
)  # fmt: skip


def _csv_cells(row: "ApprovalRecord") -> Sequence[str]:
    return (
        row.asked_at.isoformat(),
        row.interaction_id,
        row.session_id,
        row.call_id,
        row.tool,
        json.dumps(row.arguments, ensure_ascii=False),
        row.rule or "",
        row.binding or "",
        row.state,
        row.decision or "",
        row.answered_by or "",
        "" if row.answered_at is None else row.answered_at.isoformat(),
        row.reason or "",
        "" if row.changed_to is None else json.dumps(row.changed_to, ensure_ascii=False),
        row.allowed or "",
        "" if row.unheard_since is None else row.unheard_since.isoformat(),
    )


def _in_spreadsheet(cell: str) -> str:
    """Show hidden characters of a cell, and keep a spreadsheet from reading it as a formula."""
    shown = show_hidden(cell)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


def _cells(row: "ApprovalRecord") -> Sequence[Cell]:
    answered = "" if row.answered_at is None else row.answered_at.isoformat()
    decision = row.decision or row.state
    unheard = "" if row.unheard_since is None else row.unheard_since.isoformat()
    return (
        Cell(row.asked_at.isoformat(), age_of(row.asked_at)),
        Cell(row.tool, style="bold"),
        state_cell("edited" if row.changed_to is not None else decision),
        Cell(row.answered_by or ""),
        Cell(compact(row.arguments, _LONGEST)),
        Cell(row.rule or ""),
        Cell(answered, "" if row.answered_at is None else age_of(row.answered_at)),
        Cell(row.interaction_id),
        Cell(unheard, "" if row.unheard_since is None else age_of(row.unheard_since)),
        Cell(row.reason or ("" if row.changed_to is None else f"changed to {compact(row.changed_to, _LONGEST)}")),
    )


_APPROVALS = RowTable(
    (
        Column("asked"),
        Column("tool", least=8),
        Column("answer"),
        Column("by", least=6),
        Column("arguments", least=12),
        Column("rule", spare=2),
        Column("answered", spare=3),
        Column("id", spare=4),
        Column("unheard", spare=5),
        Column("why", apart=True),
    ),
    _cells,
    "no approvals of held calls",
)

"""Lists calls, shows one with its history, and cancels or redrives calls."""

import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from gateway.cli.bulk import MOST, BulkOrder, run_order
from gateway.cli.completion import complete_call
from gateway.cli.errors import Misused, report_errors
from gateway.cli.help import SHORT_IDS, examples
from gateway.cli.lines import clean
from gateway.cli.options import (
    EXECUTOR,
    KEY,
    LABEL,
    LIMIT,
    RUNTIME,
    SESSION,
    SINCE,
    TEXT,
    TOOL,
    UNTIL,
    URL,
    YES,
    JsonOption,
    RowsOption,
    argument,
    flag,
    option,
    parse_labels,
    time_of,
)
from gateway.cli.tables import TABLE, Cell, Column, RowTable, show_members, show_rows, state_cell
from gateway.cli.terminal import SHORT, Output, age_of, note, say_json, say_row, to_row

if TYPE_CHECKING:
    from dragoman.client import Call
    from gateway.cli.connection import GatewayConnection

_WHOLE = re.compile(r"[0-9A-Za-z-]{32,64}")
_SEARCHED = 2_000
"""How many of the newest calls are searched for an abbreviated ID."""

CALL = argument("ID", "ID of the call, or a prefix of it.", autocompletion=complete_call)
NEW_KEY = flag("--new-key", "Give calls a new idempotency key.")
DELIVER = flag("--deliver", "Also deliver the new outcome to the runtime.")


class CallStanding(StrEnum):
    """The states of a call."""

    HELD = "held"
    QUEUED = "queued"
    DISPATCHED = "dispatched"
    ACCEPTED = "accepted"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"


_STATES = f"Only calls in this state: {', '.join(CallStanding)}; may be repeated."

commands = typer.Typer(
    name="calls",
    invoke_without_command=True,
    rich_markup_mode=None,
    epilog=examples(
        "dragoman calls",
        "dragoman calls --session finn/agent-7",
        "dragoman calls --executor cards --since 2h --label game=go-fish",
        "dragoman calls --state queued --state dispatched",
        "dragoman calls show b1d5781e",
        "dragoman calls --failed",
        "dragoman calls --failed --redrive         those that certainly did not run",
        "dragoman calls --unknown --json | jq -r .call_id",
        more=f"{TABLE}\n\n--redrive selects failed calls that certainly did not run: no request arrived, or the "
        "executor rejected it (401, 404 …). With --unknown it selects calls that may have run instead. To redrive a "
        "failure that the executor itself reported, or a call that was redriven before, give its ID.",
    ),
)


@commands.callback()
def list_calls(
    context: typer.Context,
    *,
    session: str | None = SESSION,
    runtime: str | None = RUNTIME,
    tool: str | None = TOOL,
    executor: str | None = EXECUTOR,
    label: list[str] | None = LABEL,
    since: str | None = SINCE,
    until: str | None = UNTIL,
    trace_id: str | None = option("--trace-id", "ID", "Only calls of this trace."),
    text: str | None = TEXT,
    state: list[CallStanding] | None = option("--state", "STATE", _STATES),
    failed: bool = flag("--failed", "Only failed and expired calls."),
    unknown: bool = flag("--unknown", "Only calls with an unknown outcome."),
    limit: int = LIMIT,
    redrive: bool = flag("--redrive", "Redrive the calls that --failed lists; asks first."),
    dry_run: bool = flag("--dry-run", "Only show the calls that would be redriven."),
    yes: bool = YES,
    as_json: RowsOption = False,
    url: str = URL,
    key: str | None = KEY,
) -> None:
    """List calls, newest first; show, cancel or redrive them."""
    if context.invoked_subcommand is not None:
        return
    from gateway.cli.connection import connect

    with report_errors():
        if failed and state:
            raise Misused("--failed and --state cannot be combined")
        if redrive and not failed:
            raise Misused("--redrive requires --failed")
        if (dry_run or yes) and not redrive:
            raise Misused("--dry-run and --yes require --redrive")
        if redrive and limit > MOST:
            raise Misused(f"--redrive accepts at most {MOST} calls at a time")
        labels, opened, before = parse_labels(label), time_of(since), time_of(until, "--until")
    states = ["failed", "expired"] if failed else [one.value for one in state or ()]
    with connect(url, key) as gateway:
        found = gateway.client.calls(
            session=None if session is None else gateway.find_session(session),
            runtime=runtime,
            tool=tool,
            executor=executor,
            labels=labels,
            since=opened,
            until=before,
            trace_id=trace_id,
            text=text,
            state=states,  # pyright: ignore[reportArgumentType] -- their names
            unknown=unknown or (False if redrive else None),
        )
        rows, more = gateway.take(found, limit)
        if not redrive:
            show_rows(rows, _CALLS, as_json=as_json, more=more)
            if Output().is_terminal and (took := sorted(filter(None, map(_took, rows)))):
                half, most = (_span(took[len(took) * part // 100]) for part in (50, 95))
                note(f"{len(took)} ended calls took: median {half}, 95th percentile {most}")
            return
        ids = [row.call_id for row in rows if _may_redrive(gateway, row)]
        order = BulkOrder("call", "redriven", gateway.client.redrive_call, dry_run, yes, as_json)
        if skipped := len(rows) - len(ids):
            note(f"{skipped} skipped: they may have run, or were redriven before; redrive each with `calls redrive ID`")
        run_order(gateway, order, ids, unknown=len(ids) if unknown else 0, more=more)


@commands.command(
    epilog=examples("dragoman calls show b1d5781e", "dragoman calls show b1d5781e --json | jq .outcome", more=SHORT_IDS)
)
def show(call: str = CALL, *, as_json: JsonOption = False, url: str = URL, key: str | None = KEY) -> None:
    """Show one call with its error and its history."""
    from gateway.cli.connection import connect

    with connect(url, key) as gateway:
        found = gateway.run(gateway.client.call_history(find_call(gateway, call)))
        if as_json:
            say_json(to_row(found))
        else:
            show_members(found)


@commands.command(
    epilog=examples(
        "dragoman calls cancel b1d5781e",
        "dragoman calls cancel b1d5781e --reason 'The game is over.'",
        more=f"The executor is asked to stop; an outcome that arrives shortly afterwards still counts.\n{SHORT_IDS}",
    )
)
def cancel(
    call: str = CALL,
    *,
    reason: str | None = option("--reason", "TEXT", "Reason to send to the executor."),
    as_json: JsonOption = False,
    url: str = URL,
    key: str | None = KEY,
) -> None:
    """Cancel an open call."""
    from gateway.cli.connection import connect

    with connect(url, key) as gateway:
        row = gateway.run(gateway.client.cancel_call(find_call(gateway, call), reason=reason))
        say_row(row, f"{'canceled' if row.finished_at else 'canceling'}: call {clean(row.call_id)}", as_json=as_json)


@commands.command(
    epilog=examples(
        "dragoman calls redrive b1d5781e",
        "dragoman calls redrive b1d5781e --new-key --deliver",
        more="An ended call becomes a new call with the same idempotency key. The request of an open\n"
        f"call is sent again if its executor is idempotent.\n{SHORT_IDS}",
    )
)
def redrive(
    call: str = CALL,
    *,
    new_key: bool = NEW_KEY,
    deliver: bool = DELIVER,
    as_json: JsonOption = False,
    url: str = URL,
    key: str | None = KEY,
) -> None:
    """Redrive a call in any state."""
    from gateway.cli.connection import connect

    with connect(url, key) as gateway:
        whole = find_call(gateway, call)
        row = gateway.run(gateway.client.redrive_call(whole, new_key=new_key, deliver=deliver))
        say_row(row, f"redriven as call {clean(row.call_id)}", as_json=as_json)


def find_call(gateway: "GatewayConnection", given: str) -> str:
    """Return the full ID of a call; only the newest calls are searched for an abbreviated one.

    Raises:
        Misused, Refusal: the text is not an ID, or it matches none or several of these calls.
    """
    from gateway.cli.connection import match_id

    if _WHOLE.fullmatch(given):
        return given

    def known() -> Iterable[tuple[str, str]]:
        rows, _ = gateway.take(gateway.client.calls(), _SEARCHED)
        return [(row.call_id, f"{row.tool} {row.state}") for row in rows]

    return match_id(given, known, noun="call", listing="dragoman calls")


def _may_redrive(gateway: "GatewayConnection", call: "Call") -> bool:
    from gateway.http.ui.story import redriven_as
    from gateway.store.call import certainly_did_not_run

    facts = call.model_dump(include={"unknown", "dead", "attempt", "error"})
    wanted = call.unknown or certainly_did_not_run(**facts)
    return wanted and not redriven_as(to_row(gateway.run(gateway.client.call_history(call.call_id))))


def _state_of(call: "Call") -> Cell:
    return state_cell("unknown" if call.unknown else call.state)


def _took(call: "Call") -> timedelta | None:
    return None if call.finished_at is None else call.finished_at - call.created_at


def _span(span: timedelta) -> str:
    seconds = span.total_seconds()
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _call_cells(row: "Call") -> Sequence[Cell]:
    took = _took(row)
    return (
        Cell(row.call_id, row.call_id[:SHORT], "bold"),
        Cell(row.tool),
        _state_of(row),
        Cell(row.created_at.isoformat(), age_of(row.created_at)),
        Cell(row.runtime),
        Cell(row.executor or "", row.executor or "–"),
        Cell(str(row.attempt)),
        Cell(row.error or ""),
        Cell("") if took is None else Cell(f"{took.total_seconds():.3f}", _span(took)),
    )


_CALLS = RowTable(
    (
        Column("id"),
        Column("tool", least=12),
        Column("state"),
        Column("asked"),
        Column("runtime", least=8, spare=1),
        Column("executor", least=8, spare=2),
        Column("tries", spare=3),
        Column("why", apart=True),
        Column("took", spare=1),
    ),
    _call_cells,
    "no calls",
)

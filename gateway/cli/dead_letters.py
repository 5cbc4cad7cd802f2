"""Lists, shows, redrives and dismisses dead letters."""

import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import typer

from gateway.cli.bulk import MOST, BulkOrder, run_order
from gateway.cli.calls import DELIVER, NEW_KEY
from gateway.cli.errors import Misused, Refusal
from gateway.cli.help import SHORT_IDS, examples
from gateway.cli.lines import clean
from gateway.cli.options import (
    EXECUTOR,
    KEY,
    RUNTIME,
    SINCE,
    TOOL,
    URL,
    YES,
    JsonOption,
    RowsOption,
    argument,
    flag,
    option,
    time_of,
)
from gateway.cli.tables import Cell, Column, RowTable, show_members, show_rows, state_cell
from gateway.cli.terminal import age_of, say_json, say_row, to_row

if TYPE_CHECKING:
    from dragoman.client import DeadCall, DeadDelivery
    from dragoman.client.filters import LetterFilters
    from gateway.cli.connection import GatewayConnection

_LIST = "dragoman dead-letters list"
_WHOLE = re.compile(r"[^:]{32,}|[^:]+:[0-9]+:.+")
_SESSION_AND_EVENT = re.compile(r"[^:]+:[0-9]+")

LETTER = argument("ID", "ID or prefix; without one, all that match the filters.", default=None)
KIND = option("--kind", "KIND", "Only `call` or only `delivery`.")
CAUSE = option("--cause", "TEXT", "Only with this error or reason; details after `: `, `; ` or ` (` may be left out.")
TARGET = option("--target", "TARGET", "Only deliveries to this target: runtime, destination:NAME or notice:NAME.")
UNKNOWN = typer.Option(
    None, "--unknown/--known", help="Only calls that may have run, or only those that certainly did not."
)
ALL = flag("--all", "Select all, if no filter is given.")
DRY_RUN = flag("--dry-run", "Only show the selected dead letters.")
SHOWN = typer.Option(100, "--limit", metavar="N", min=1, max=10_000, help="Show at most N.")
MANY = typer.Option(100, "--limit", metavar="N", min=1, max=MOST, help="Select at most N.")

commands = typer.Typer(
    name="dead-letters",
    help="List, show, redrive and dismiss dead letters.",
    epilog=examples(
        "dragoman dead-letters list --executor cards",
        "dragoman dead-letters show ID",
        "dragoman dead-letters redrive ID",
        "dragoman dead-letters redrive --executor cards --since 2h --yes",
        "dragoman dead-letters dismiss ID",
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)


@commands.command(
    name="list",
    epilog=examples(
        "dragoman dead-letters list",
        "dragoman dead-letters list --kind call --since 2h",
        "dragoman dead-letters list --target destination:chat-log --json | jq -r .id",
    ),
)
def list_letters(
    *,
    kind: str | None = KIND,
    runtime: str | None = RUNTIME,
    executor: str | None = EXECUTOR,
    tool: str | None = TOOL,
    target: str | None = TARGET,
    cause: str | None = CAUSE,
    since: str | None = SINCE,
    unknown: bool | None = UNKNOWN,
    limit: int = SHOWN,
    as_json: RowsOption = False,
    url: str = URL,
    key: str | None = KEY,
) -> None:
    """List dead letters, calls first, newest first."""
    from gateway.cli.connection import connect

    with connect(url, key) as gateway:
        which = _filters(
            since, kind=kind, runtime=runtime, executor=executor, tool=tool, target=target, cause=cause, unknown=unknown
        )
        rows, more = gateway.take(gateway.client.dead_letters(**which), limit)
        show_rows(rows, _LETTERS, as_json=as_json, more=more)


@commands.command(
    epilog=examples(
        "dragoman dead-letters show b1d5781e",
        "dragoman dead-letters show 0b5e6f7a-…:4:destination:chat-log",
        more=SHORT_IDS,
    )
)
def show(
    letter: str = argument("ID", "ID of the dead letter, or a prefix of it."),
    *,
    as_json: JsonOption = False,
    url: str = URL,
    key: str | None = KEY,
) -> None:
    """Show one dead letter with its history and advice."""
    from gateway.cli.connection import connect

    with connect(url, key) as gateway:
        found = _ask(gateway, gateway.client.dead_letter, letter)
        if as_json:
            say_json(to_row(found))
        else:
            show_members(found)


@commands.command(
    epilog=examples(
        "dragoman dead-letters redrive b1d5781e",
        "dragoman dead-letters redrive --target destination:chat-log",
        "dragoman dead-letters redrive --executor cards --since 2h --limit 50 --yes",
        "dragoman dead-letters redrive --known      calls that certainly did not run",
        "dragoman dead-letters redrive --all --dry-run",
        more="A call keeps its idempotency key unless --new-key is given; its new outcome is\n"
        "sent to the runtime only with --deliver.\n"
        f"{SHORT_IDS}\nExit code 0: all were redriven. 1: not all were.",
    )
)
def redrive(
    letter: str | None = LETTER,
    *,
    kind: str | None = KIND,
    runtime: str | None = RUNTIME,
    executor: str | None = EXECUTOR,
    tool: str | None = TOOL,
    target: str | None = TARGET,
    cause: str | None = CAUSE,
    since: str | None = SINCE,
    unknown: bool | None = UNKNOWN,
    everything: bool = ALL,
    limit: int = MANY,
    dry_run: bool = DRY_RUN,
    new_key: bool = NEW_KEY,
    deliver: bool = DELIVER,
    yes: bool = YES,
    as_json: JsonOption = False,
    url: str = URL,
    key: str | None = KEY,
) -> None:
    """Redrive dead letters: one by its ID, or many by filters."""
    from gateway.cli.connection import connect

    def say(done: Any) -> str:
        if done.type == "call":
            return f"redriven as call {clean(done.call_id)}"
        return f"queued again: event {done.sequence} to {clean(done.target)}"

    with connect(url, key) as gateway:
        act = partial(gateway.client.redrive_dead_letter, new_key=new_key, deliver=deliver)
        order = BulkOrder("dead letter", "redriven", act, dry_run, yes, as_json)
        which = _filters(
            since, kind=kind, runtime=runtime, executor=executor, tool=tool, target=target, cause=cause, unknown=unknown
        )
        _carry_out(gateway, order, letter, which if which or everything else None, say, limit=limit)


@commands.command(
    epilog=examples(
        "dragoman dead-letters dismiss b1d5781e",
        "dragoman dead-letters dismiss --target destination:chat-log --yes",
        "dragoman dead-letters dismiss --all --dry-run",
        more="Dismissing removes a dead letter from the list and the alert permanently; its history is kept.\n"
        f"{SHORT_IDS}\nExit code 0: all were dismissed. 1: not all were.",
    )
)
def dismiss(
    letter: str | None = LETTER,
    *,
    kind: str | None = KIND,
    runtime: str | None = RUNTIME,
    executor: str | None = EXECUTOR,
    tool: str | None = TOOL,
    target: str | None = TARGET,
    cause: str | None = CAUSE,
    since: str | None = SINCE,
    unknown: bool | None = UNKNOWN,
    everything: bool = ALL,
    limit: int = MANY,
    dry_run: bool = DRY_RUN,
    yes: bool = YES,
    as_json: JsonOption = False,
    url: str = URL,
    key: str | None = KEY,
) -> None:
    """Dismiss dead letters: one by its ID, or many by filters."""
    from gateway.cli.connection import connect

    def say(done: Any) -> str:
        is_call = done.type == "call"
        return f"dismissed: {clean(done.call_id if is_call else f'{done.session_id}:{done.sequence}:{done.target}')}"

    with connect(url, key) as gateway:
        act = gateway.client.dismiss_dead_letter
        order = BulkOrder("dead letter", "dismissed", act, dry_run, yes, as_json)
        which = _filters(
            since, kind=kind, runtime=runtime, executor=executor, tool=tool, target=target, cause=cause, unknown=unknown
        )
        _carry_out(gateway, order, letter, which if which or everything else None, say, limit=limit)


def _filters(since: str | None, **given: Any) -> "LetterFilters":
    """Collect the given filters.

    Raises:
        Misused: `since` is not a time.
    """
    wanted = {**given, "since": time_of(since)}
    return cast("LetterFilters", {name: value for name, value in wanted.items() if value is not None})


def _carry_out(
    gateway: "GatewayConnection",
    order: BulkOrder,
    letter: str | None,
    which: "LetterFilters | None",
    say: Callable[[Any], str],
    *,
    limit: int,
) -> None:
    """Act on the dead letter with an ID, or on those that match the filters; None: no filter was given."""
    if letter is not None:
        if which is not None or order.dry_run:
            raise Misused("an ID cannot be combined with filters, --all or --dry-run")
        done = _ask(gateway, order.act, letter)
        say_row(done, say(done), as_json=order.as_json)
        return
    if which is None:
        raise Misused("pass an ID, a filter, or --all")
    rows, more = gateway.take(gateway.client.dead_letters(**which), limit)
    unknown = sum(bool(getattr(row, "unknown", False)) for row in rows) if order.done == "redriven" else 0
    run_order(gateway, order, [row.id for row in rows], unknown=unknown, more=more)


def _ask(gateway: "GatewayConnection", act: Callable[[str], Coroutine[Any, Any, Any]], given: str) -> Any:
    """Apply `act` to the dead letter with this ID, which may be abbreviated."""
    from dragoman.client import RequestRefused
    from gateway.cli.connection import describe_refusal, match_id

    if not re.fullmatch(r"[\x21-\x7e]{1,300}", given):
        raise Misused(f"ID must be the ID of a dead letter; `{_LIST}` lists them")

    def known() -> Iterable[tuple[str, str]]:
        rows, _ = gateway.take(gateway.client.dead_letters(), 20_000)
        return [(row.id, _describe(row)) for row in rows]

    # Event 4 of a session must not match event 41.
    begins = f"{given}:" if _SESSION_AND_EVENT.fullmatch(given) else given
    whole = given
    if not _WHOLE.fullmatch(given):
        whole = match_id(given, known, noun="dead letter", listing=_LIST, begins=begins)
    try:
        return gateway.run(act(whole))
    except RequestRefused as exc:
        if exc.type == "not-found":
            raise Refusal(describe_refusal(exc), f"`{_LIST}` lists them") from exc
        raise


def _describe(letter: "DeadCall | DeadDelivery") -> str:
    if letter.type == "call":
        return f"{letter.tool} → {letter.executor}"
    return f"{letter.envelope.event.kind} → {letter.target}"


def _reason(letter: "DeadCall | DeadDelivery") -> str:
    return (letter.error if letter.type == "call" else letter.reason) or ""


def _letter_cells(letter: "DeadCall | DeadDelivery") -> Sequence[Cell]:
    is_call = letter.type == "call"
    when = (letter.finished_at or letter.created_at) if is_call else letter.envelope.recorded_at
    return (
        Cell(letter.id, style="bold"),
        Cell(_describe(letter)),
        state_cell("unknown" if is_call and letter.unknown else letter.state),
        Cell(when.isoformat(timespec="seconds"), age_of(when)),
        Cell(str(letter.attempt)),
        Cell(_reason(letter)),
    )


_LETTERS = RowTable(
    (
        Column("id", apart=True),
        Column("what", least=12),
        Column("state"),
        Column("when"),
        Column("tries", spare=1),
        Column("why", apart=True),
    ),
    _letter_cells,
    "no dead letters",
)

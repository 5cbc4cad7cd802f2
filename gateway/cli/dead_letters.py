"""The commands about dead letters: list, show, redrive and dismiss what did not get through."""

import json
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, Any
from urllib.parse import quote

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.client import DEFAULT_URL, Api, Refusal
from gateway.cli.explained import RAW, explained
from gateway.cli.lines import clean, event_line
from gateway.cli.send import Misused
from gateway.cli.talking import KeyOption, UrlOption
from gateway.errors import OperatorError
from gateway.ports.duration import Duration

MOST = 500
_SPAN: TypeAdapter[timedelta] = TypeAdapter(Duration)
_COLUMNS = ("id", "what", "state", "when", "tries", "why")

KindOption = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help="Only call, or only delivery.", show_default=False)
]
RuntimeOption = Annotated[str | None, typer.Option("--runtime", metavar="NAME", help="Only of this runtime.")]
ExecutorOption = Annotated[str | None, typer.Option("--executor", metavar="NAME", help="Only calls to this executor.")]
TargetOption = Annotated[
    str | None,
    typer.Option("--target", metavar="TARGET", help="Only deliveries to it: runtime, or destination:NAME."),
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only later ones: a span such as 2h, or 2026-11-20T12:00:00Z."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, one line a letter.")]

group = typer.Typer(
    name="dead-letters",
    help="List, show, redrive and dismiss what did not get through.",
    epilog=f"{RAW}Examples:\n  dragoman dead-letters list --executor cards\n  dragoman dead-letters show ID\n"
    "  dragoman dead-letters redrive ID\n  dragoman dead-letters redrive --executor cards --since 2h --yes\n"
    "  dragoman dead-letters dismiss ID",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def filters(
    *, kind: str | None, runtime: str | None, executor: str | None, target: str | None, since: str | None
) -> dict[str, Any]:
    """Make the filters of a request.

    Raises:
        Misused: a time that is none.
    """
    given = {"kind": kind, "runtime": runtime, "executor": executor, "target": target, "since": _time_of(since)}
    return {name: value for name, value in given.items() if value is not None}


def _time_of(since: str | None) -> str | None:
    if since is None:
        return None
    try:
        return (datetime.now(UTC) - _SPAN.validate_python(since)).isoformat()
    except ValidationError:
        text = f"--since: {clean(since, 50)!r} is neither a span such as 2h nor a time such as 2026-11-20T12:00Z"
    try:
        # A time without a zone is this machine's.
        return datetime.fromisoformat(since).astimezone().isoformat()
    except ValueError as exc:
        raise Misused(text) from exc


@group.command(
    name="list",
    epilog=f"{RAW}Examples:\n  dragoman dead-letters list\n  dragoman dead-letters list --kind call --since 2h\n"
    "  dragoman dead-letters list --target destination:chat-log --json | jq -r .id",
)
def list_letters(
    *,
    kind: KindOption = None,
    runtime: RuntimeOption = None,
    executor: ExecutorOption = None,
    target: TargetOption = None,
    since: SinceOption = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="How many to show at most.")] = 100,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """List what did not get through, calls first, newest first."""
    with explained(), Api(url, key) as api:
        which = filters(kind=kind, runtime=runtime, executor=executor, target=target, since=since)
        letters = api.pages("/v1/dead-letters", **which)
        shown = list(islice(letters, limit))
        if as_json:
            for letter in shown:
                typer.echo(json.dumps(letter))
            return
        _show_rows(shown)
        if not shown:
            Console(stderr=True, highlight=False).print("no dead letters")
        elif next(letters, None) is not None:
            Console(stderr=True, highlight=False).print(f"there are more; --limit shows more than {limit}")


@group.command(epilog=f"{RAW}Example:\n  dragoman dead-letters show 0b5e6f7a-…:4:destination:chat-log")
def show(
    letter: Annotated[str, typer.Argument(metavar="ID", help="Its id, as the list shows it.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="The whole of it as JSON.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Show one dead letter: what is known, and what to do."""
    with explained(), Api(url, key) as api:
        found = api.get(_path(letter))
        if as_json:
            typer.echo(json.dumps(found))
        else:
            _show_one(found)


@group.command(
    epilog=f"{RAW}Examples:\n  dragoman dead-letters redrive 0b5e6f7a-…\n"
    "  dragoman dead-letters redrive --target destination:chat-log\n"
    "  dragoman dead-letters redrive --executor cards --since 2h --limit 50 --yes\n"
    "  dragoman dead-letters redrive --all --dry-run\n\n"
    "A call keeps its idempotency key unless --new-key; the agent hears of the new outcome only with --deliver.\n"
    "Exit code 0: all were tried again. 1: some, or none, could be."
)
def redrive(
    letter: Annotated[
        str | None, typer.Argument(metavar="ID", help="One letter; without it, those the filters match.")
    ] = None,
    *,
    kind: KindOption = None,
    runtime: RuntimeOption = None,
    executor: ExecutorOption = None,
    target: TargetOption = None,
    since: SinceOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them, where no filter is given.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=MOST, help="How many to try at most.")] = 100,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which would be tried.")] = False,
    new_key: Annotated[bool, typer.Option("--new-key", help="Give calls a new idempotency key.")] = False,
    deliver: Annotated[bool, typer.Option("--deliver", help="Tell the runtime the new outcome as well.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before many.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Try dead letters again: one by its id, or many by filters."""
    with explained(), Api(url, key) as api:
        which = filters(kind=kind, runtime=runtime, executor=executor, target=target, since=since)
        _check_choice(letter, which, everything=everything, dry_run=dry_run)
        how = {"new_key": new_key, "deliver": deliver}
        if letter is not None:
            _redrive_one(api, letter, how, as_json=as_json)
        else:
            many = _Many("redrive", "redriven", "tried again", which, limit, dry_run)
            many.order(api, how, confirmed=yes, as_json=as_json)


@group.command(
    epilog=f"{RAW}Examples:\n  dragoman dead-letters dismiss 0b5e6f7a-…\n"
    "  dragoman dead-letters dismiss --target destination:chat-log --yes\n"
    "  dragoman dead-letters dismiss --all --dry-run\n\n"
    "A dismissed letter leaves the list and the alert for good; what is on record of it stays.\n"
    "Exit code 0: all were dismissed. 1: some, or none, could be."
)
def dismiss(
    letter: Annotated[
        str | None, typer.Argument(metavar="ID", help="One letter; without it, those the filters match.")
    ] = None,
    *,
    kind: KindOption = None,
    runtime: RuntimeOption = None,
    executor: ExecutorOption = None,
    target: TargetOption = None,
    since: SinceOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them, where no filter is given.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=MOST, help="How many to dismiss at most.")] = 100,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which would be dismissed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before many.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Leave dead letters as they are: one by its id, or many by filters."""
    with explained(), Api(url, key) as api:
        which = filters(kind=kind, runtime=runtime, executor=executor, target=target, since=since)
        _check_choice(letter, which, everything=everything, dry_run=dry_run)
        if letter is not None:
            gone = api.post(f"{_path(letter)}/dismiss", {})
            typer.echo(json.dumps(gone) if as_json else f"dismissed: {clean(letter)}")
        else:
            many = _Many("dismiss", "dismissed", "dismissed", which, limit, dry_run)
            many.order(api, {}, confirmed=yes, as_json=as_json)


def _check_choice(letter: str | None, which: dict[str, Any], *, everything: bool, dry_run: bool) -> None:
    if letter is not None and (which or everything or dry_run):
        raise Misused("an ID stands alone: filters, --all and --dry-run are for many")
    if letter is None and not which and not everything:
        raise Misused("give an ID, a filter, or --all")


@dataclass(frozen=True, slots=True)
class _Many:
    """An order about all letters that some filters match."""

    verb: str
    count: str
    """What the answer calls the number of those it was done to."""
    what: str
    which: dict[str, Any]
    limit: int
    dry_run: bool

    def order(self, api: Api, how: dict[str, Any], *, confirmed: bool, as_json: bool) -> None:
        """Look, ask the person, do it, and say what became of it; exit code 1 where some could not be done."""
        path, body = f"/v1/dead-letters/{self.verb}", {**self.which, "limit": self.limit}
        done = api.post(path, {**body, "dry_run": True})
        if done["found"] and not self.dry_run:
            if not confirmed:
                _confirm(done["found"], self.what, more=bool(done["more"]))
            done = api.post(path, {**body, **how})
        _show_done(done, self.count, self.what, as_json=as_json)
        if done["failed"]:
            raise typer.Exit(1)


def _redrive_one(api: Api, letter: str, how: dict[str, Any], *, as_json: bool) -> None:
    done = api.post(f"{_path(letter)}/redrive", how)
    if as_json:
        typer.echo(json.dumps(done))
    elif done["type"] == "call":
        typer.echo(f"tried again as call {clean(done['call_id'])}")
    else:
        typer.echo(f"due again: event {clean(done['sequence'])} to {clean(done['target'])}")


def _confirm(found: int, what: str, *, more: bool) -> None:
    if not sys.stdin.isatty():
        raise OperatorError(f"{found} dead letters would be {what}; --yes says that they shall be")
    also = " (there are more; --limit takes more of them)" if more else ""
    if not typer.confirm(f"{found} dead letters will be {what}{also}. Go on?", err=True):
        raise Refusal(f"nothing was {what}")


def _show_done(done: dict[str, Any], count: str, what: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(done))
        return
    if done["dry_run"]:
        for letter in done["ids"]:
            typer.echo(clean(letter))
        note = f"{done['found']} would be {what}"
    else:
        note = f"{done[count]} of {done['found']} {what}"
    err = Console(stderr=True, highlight=False)
    for one in done["failed"]:
        err.print(Text(f"{clean(one['id'])}: {clean(one['reason'])}", "yellow"), soft_wrap=True)
    err.print(f"{note}; there are more" if done["more"] else note, soft_wrap=True)


def _path(letter: str) -> str:
    if not re.fullmatch(r"[\x21-\x7e]{1,300}", letter):
        raise Misused("ID must be the id of a dead letter, as `dragoman dead-letters list` shows it")
    return f"/v1/dead-letters/{quote(letter, safe=':')}"


def _row(letter: dict[str, Any]) -> tuple[str, ...]:
    is_call = letter["type"] == "call"
    what = (
        f"{letter['tool']} → {letter['executor']}"
        if is_call
        else f"{letter['envelope']['event']['kind']} → {letter['target']}"
    )
    state = "unknown" if letter.get("unknown") else letter["state"]
    when = letter["finished_at"] if is_call else letter["envelope"]["recorded_at"]
    why = letter["error"] if is_call else letter["reason"]
    shown = (letter["id"], what, state, str(when)[:19], letter["attempt"], why or "")
    return tuple(clean(value, 300) for value in shown)


def _show_rows(letters: list[dict[str, Any]]) -> None:
    """Show a table in a terminal, and tabs between columns everywhere else."""
    console = Console(highlight=False)
    rows = [_row(letter) for letter in letters]
    if not console.is_terminal:
        for row in rows:
            typer.echo("\t".join(row))
        return
    if not rows:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in _COLUMNS:
        table.add_column(name, overflow="fold", no_wrap=name in {"state", "when", "tries"})
    for row in rows:
        table.add_row(*(Text(value, "red" if value == "unknown" else "") for value in row))
    console.print(table)


def _show_one(letter: dict[str, Any]) -> None:
    console = Console(highlight=False)
    for name, value in zip(_COLUMNS, _row(letter), strict=True):
        console.print(Text.assemble((f"{name:>8}  ", "dim"), value), soft_wrap=True)
    session = f"{clean(letter['session_id'])}, event {clean(letter.get('request_sequence') or letter.get('sequence'))}"
    console.print(Text.assemble((" session  ", "dim"), session), soft_wrap=True)
    console.print(Text.assemble(("  advice  ", "dim"), (clean(letter["advice"]), "yellow")), soft_wrap=True)
    plain = not console.encoding.lower().startswith("utf")
    for envelope in letter.get("events") or [letter["envelope"]]:
        console.print(event_line(envelope, plain=plain), soft_wrap=True)

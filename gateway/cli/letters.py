"""Shows dead letters, and orders what is to become of one or many."""

import json
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.adapter.duration import Duration
from gateway.cli.client import ApiClient
from gateway.cli.faults import Misused, Refusal
from gateway.cli.lines import clean, event_line
from gateway.cli.progress import Progress, count_of
from gateway.cli.terminal import Output
from gateway.errors import OperatorError

_SPAN: TypeAdapter[timedelta] = TypeAdapter(Duration)
_NO_USE = frozenset({"", "unavailable"})
"""Where no gateway answers, or its store is away, the next letter fares no better."""
_COLUMNS = ("id", "what", "state", "when", "tries", "why")


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


def check_choice(letter: str | None, which: dict[str, Any], *, everything: bool, dry_run: bool) -> None:
    if letter is not None and (which or everything or dry_run):
        raise Misused("an ID stands alone: filters, --all and --dry-run are for many")
    if letter is None and not which and not everything:
        raise Misused("give an ID, a filter, or --all")


@dataclass(frozen=True, slots=True)
class Many:
    """An order about all letters that some filters match."""

    verb: str
    count: str
    """What the answer calls the number of those it was done to."""
    what: str
    which: dict[str, Any]
    limit: int
    dry_run: bool

    def order(self, api: ApiClient, how: dict[str, Any], *, confirmed: bool, as_json: bool) -> None:
        """Look, ask the person, do it, and say what became of it; exit code 1 where some could not be done."""
        body = {**self.which, "limit": self.limit, "dry_run": True}
        done = api.post(f"/v1/dead-letters/{self.verb}", body)
        ended: BaseException | None = None
        if done["found"] and not self.dry_run:
            if not confirmed:
                _confirm(done["found"], self.what, more=bool(done["more"]))
            done |= {"dry_run": False, self.count: 0, "failed": []}
            ended = self._each(api, done, how)
        _show_done(done, self.count, self.what, as_json=as_json)
        if ended is not None:
            raise ended
        if done["failed"]:
            raise typer.Exit(1)

    def _each(self, api: ApiClient, done: dict[str, Any], how: dict[str, Any]) -> BaseException | None:
        """Do it to those that were found, one by one, and count in `done`; says what ended it early."""
        # Those and no others: what the filters match may have changed since somebody said yes.
        with Progress(self.what, count_of("dead letters")) as progress:
            for number, letter in enumerate(done["ids"]):
                progress.tell(self.what, number, done["found"])
                try:
                    api.post(f"{path_of(letter)}/{self.verb}", how)
                    done[self.count] += 1
                except Refusal as exc:
                    if exc.passing and exc.problem in _NO_USE:
                        return exc
                    done["failed"].append({"id": letter, "reason": str(exc)})
                except KeyboardInterrupt as exc:
                    return exc
        return None


def redrive_one(api: ApiClient, letter: str, how: dict[str, Any], *, as_json: bool) -> None:
    done = api.post(f"{path_of(letter)}/redrive", how)
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


def path_of(letter: str) -> str:
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


def show_rows(letters: list[dict[str, Any]]) -> None:
    """Show a table in a terminal, and tabs between columns everywhere else."""
    console = Output()
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


def show_one(letter: dict[str, Any]) -> None:
    console = Output()
    for name, value in zip(_COLUMNS, _row(letter), strict=True):
        console.print(Text.assemble((f"{name:>8}  ", "dim"), value), soft_wrap=True)
    session = f"{clean(letter['session_id'])}, event {clean(letter.get('request_sequence') or letter.get('sequence'))}"
    console.print(Text.assemble((" session  ", "dim"), session), soft_wrap=True)
    console.print(Text.assemble(("  advice  ", "dim"), (clean(letter["advice"]), "yellow")), soft_wrap=True)
    for envelope in letter.get("events") or [letter["envelope"]]:
        console.print(event_line(envelope, plain=console.plain), soft_wrap=True)

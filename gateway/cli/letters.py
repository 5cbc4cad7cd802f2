"""Shows dead letters, and orders what is to become of one or many."""

import json
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
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
from gateway.cli.lists import age_of
from gateway.cli.progress import Progress, count_of
from gateway.cli.tables import Cell, Column, show_table
from gateway.cli.terminal import Output, note
from gateway.cli.waiting import SHORTEST
from gateway.errors import OperatorError

_SPAN: TypeAdapter[timedelta] = TypeAdapter(Duration)
_NO_USE = frozenset({"", "unavailable"})
"""Where no gateway answers, or its store is away, the next letter fares no better."""
_WHOLE = re.compile(r"[^:]{32,}|[^:]+:[0-9]+:.+")
"""An id, and no beginning of one: what became of it the gateway knows."""
_NUMBER = re.compile(r"[^:]+:[0-9]+")
_MOST_NAMED = 10
_LISTED = "`dragoman dead-letters list` lists what there is"
_COLUMNS = (
    Column("id"), Column("what", least=12), Column("state"), Column("when"), Column("tries", spare=2),
    Column("why", least=12, spare=1),
)  # fmt: skip


def filters(
    *,
    kind: str | None,
    runtime: str | None,
    executor: str | None,
    target: str | None,
    since: str | None,
    unknown: bool | None,
) -> dict[str, Any]:
    """Make the filters of a request.

    Raises:
        Misused: a time that is none.
    """
    given = {
        "kind": kind,
        "runtime": runtime,
        "executor": executor,
        "target": target,
        "since": _time_of(since),
        "unknown": unknown,
    }
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
                self._warn(api, done["ids"])
                _confirm(done["found"], self.what, more=bool(done["more"]))
            done |= {"dry_run": False, self.count: 0, "failed": []}
            ended = self._each(api, done, how)
        _show_done(done, self.count, self.what, as_json=as_json)
        if self.dry_run:
            self._warn(api, done["ids"])
        if ended is not None:
            raise ended
        if done["failed"]:
            raise typer.Exit(1)

    def _warn(self, api: ApiClient, ids: list[str]) -> None:
        """Say before a redrive how many calls may have been carried out already; to dismiss them repeats nothing."""
        if self.verb != "redrive":
            return
        left = set(ids)
        unknown = 0
        for letter in api.pages("/v1/dead-letters", **self.which) if left else ():
            unknown += bool(letter["id"] in left and letter.get("unknown"))
            left.discard(letter["id"])
            if not left:
                break
        if unknown:
            note(f"{unknown} of {len(ids)} may have run already: nobody knows their outcome", "yellow")

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


def find(api: ApiClient, given: str) -> str:
    """Find the id of a dead letter by its first letters; a whole one is taken as it is.

    Raises:
        Misused: it is too short to be sure of. Refusal: two begin so, or none.
    """
    path_of(given)
    if _WHOLE.fullmatch(given):
        return given
    if len(given) < SHORTEST:
        raise Misused(
            f"{given!r} is too short: give at least the first {SHORTEST} letters of an id, as "
            "`dragoman dead-letters list` shows them"
        )
    # Event 4 of a session is not its event 41.
    begins = f"{given}:" if _NUMBER.fullmatch(given) else given
    found = [one for one in api.pages("/v1/dead-letters") if str(one["id"]).startswith(begins)]
    if len(found) > 1:
        told = [f"{clean(one['id'])}  {clean(_what(one), 80)}" for one in found[:_MOST_NAMED]]
        if len(found) > _MOST_NAMED:
            told.append(f"and {len(found) - _MOST_NAMED} more")
        raise Refusal(f"{len(found)} dead letters begin with {given!r}: give more letters", "\n  ".join(told))
    if not found:
        raise Refusal(f"no dead letter begins with {given!r}", _LISTED)
    return str(found[0]["id"])


def read_one(api: ApiClient, given: str) -> dict[str, Any]:
    with _listed():
        return api.get(path_of(find(api, given)))


def redrive_one(api: ApiClient, given: str, how: dict[str, Any], *, as_json: bool) -> None:
    with _listed():
        done = api.post(f"{path_of(find(api, given))}/redrive", how)
    if as_json:
        typer.echo(json.dumps(done))
    elif done["type"] == "call":
        typer.echo(f"tried again as call {clean(done['call_id'])}")
    else:
        typer.echo(f"due again: event {clean(done['sequence'])} to {clean(done['target'])}")


def dismiss_one(api: ApiClient, given: str, *, as_json: bool) -> None:
    letter = find(api, given)
    with _listed():
        gone = api.post(f"{path_of(letter)}/dismiss", {})
    typer.echo(json.dumps(gone) if as_json else f"dismissed: {clean(letter)}")


@contextmanager
def _listed() -> Generator[None]:
    """Name the command that lists them where there is no such letter."""
    try:
        yield
    except Refusal as exc:
        if exc.problem == "not-found":
            exc.mend = _LISTED
        raise


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


def _what(letter: dict[str, Any]) -> str:
    if letter["type"] == "call":
        return f"{letter['tool']} → {letter['executor']}"
    return f"{letter['envelope']['event']['kind']} → {letter['target']}"


def _row(letter: dict[str, Any]) -> Sequence[Cell]:
    is_call = letter["type"] == "call"
    state = "unknown" if letter.get("unknown") else letter["state"]
    when = letter["finished_at"] if is_call else letter["envelope"]["recorded_at"]
    why = letter["error"] if is_call else letter["reason"]
    return (
        Cell(letter["id"], style="bold"),
        Cell(_what(letter)),
        Cell(state, style="bold red" if state == "unknown" else "red"),
        Cell(str(when)[:19], age_of(when)),
        Cell(str(letter["attempt"])),
        Cell(clean(why or "", 300)),
    )


def show_rows(letters: list[dict[str, Any]]) -> None:
    """Show two lines each in a terminal, and tabs between columns everywhere else."""
    show_table(_COLUMNS, map(_row, letters), Output(), apart=True)


def show_one(letter: dict[str, Any]) -> None:
    """Show all that is known; a terminal wraps it between words, but the id, which is to be copied."""
    console = Output()
    whole = not console.is_terminal
    cells = [cell.whole for cell in _row(letter)]
    session = f"{letter['session_id']}, event {letter.get('request_sequence') or letter.get('sequence')}"
    facts = [*zip((column.name for column in _COLUMNS), cells, strict=True), ("session", session)]
    told = [(name, Text(clean(value))) for name, value in facts]
    told.append(("advice", Text(clean(letter["advice"]), "yellow")))
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(justify="right", width=8, style="dim")
    rows.add_column()
    for name, value in told:
        if whole or name == "id":
            console.say(Text.assemble((f"{name:>8}  ", "dim"), value))
        else:
            rows.add_row(name, value)
    if not whole:
        console.print(rows)
    for envelope in letter.get("events") or [letter["envelope"]]:
        console.print(event_line(envelope, plain=console.plain), soft_wrap=whole)

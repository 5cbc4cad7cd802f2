"""The commands about dead letters: list, show, redrive and dismiss what did not get through."""

import json
from itertools import islice
from typing import Annotated

import typer
from rich.console import Console

from gateway.cli.explained import RAW, explained
from gateway.cli.options import DEFAULT_URL, KeyOption, RowsOption, RuntimeOption, UrlOption

MOST = 500

LetterArgument = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="Its id, or the first letters of it; without one, those the filters match."),
]
KindOption = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help="Only call, or only delivery.", show_default=False)
]
ExecutorOption = Annotated[str | None, typer.Option("--executor", metavar="NAME", help="Only calls to this executor.")]
TargetOption = Annotated[
    str | None,
    typer.Option("--target", metavar="TARGET", help="Only deliveries to it: runtime, or destination:NAME."),
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only later ones: a span such as 2h, or 2026-11-20T12:00:00Z."),
]
UnknownOption = Annotated[
    bool | None,
    typer.Option(
        "--unknown/--known",
        help="Only calls that may have run, or only those that surely have not.",
        show_default=False,
    ),
]

_LETTERS = "Of an id the first letters will do, at least four, where they fit one only."

group = typer.Typer(
    name="dead-letters",
    help="List, show, redrive and dismiss what did not get through.",
    epilog=f"{RAW}Examples:\n  dragoman dead-letters list --executor cards\n  dragoman dead-letters show ID\n"
    "  dragoman dead-letters redrive ID\n  dragoman dead-letters redrive --executor cards --since 2h --yes\n"
    "  dragoman dead-letters dismiss ID",
    no_args_is_help=True,
    rich_markup_mode=None,
)


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
    unknown: UnknownOption = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="How many to show at most.")] = 100,
    as_json: RowsOption = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """List what did not get through, calls first, newest first."""
    from gateway.cli.client import ApiClient
    from gateway.cli.letters import filters, show_rows

    with explained(), ApiClient(url, key) as api:
        which = filters(kind=kind, runtime=runtime, executor=executor, target=target, since=since, unknown=unknown)
        letters = api.pages("/v1/dead-letters", **which)
        shown = list(islice(letters, limit))
        if as_json:
            for letter in shown:
                typer.echo(json.dumps(letter))
            return
        show_rows(shown)
        if not shown:
            Console(stderr=True, highlight=False).print("no dead letters")
        elif next(letters, None) is not None:
            Console(stderr=True, highlight=False).print(f"there are more; --limit shows more than {limit}")


@group.command(
    epilog=f"{RAW}Examples:\n  dragoman dead-letters show b1d5781e\n"
    f"  dragoman dead-letters show 0b5e6f7a-…:4:destination:chat-log\n\n{_LETTERS}"
)
def show(
    letter: Annotated[str, typer.Argument(metavar="ID", help="Its id, or the first letters of it.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="The whole of it as JSON.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Show one dead letter: what is known, and what to do."""
    from gateway.cli.client import ApiClient
    from gateway.cli.letters import read_one, show_one

    with explained(), ApiClient(url, key) as api:
        found = read_one(api, letter)
        if as_json:
            typer.echo(json.dumps(found))
        else:
            show_one(found)


@group.command(
    epilog=f"{RAW}Examples:\n  dragoman dead-letters redrive b1d5781e\n"
    "  dragoman dead-letters redrive --target destination:chat-log\n"
    "  dragoman dead-letters redrive --executor cards --since 2h --limit 50 --yes\n"
    "  dragoman dead-letters redrive --known      only what surely has not run\n"
    "  dragoman dead-letters redrive --all --dry-run\n\n"
    "A call keeps its idempotency key unless --new-key; the agent hears of the new outcome only with --deliver.\n"
    f"{_LETTERS}\nExit code 0: all were tried again. 1: some, or none, could be."
)
def redrive(
    letter: LetterArgument = None,
    *,
    kind: KindOption = None,
    runtime: RuntimeOption = None,
    executor: ExecutorOption = None,
    target: TargetOption = None,
    since: SinceOption = None,
    unknown: UnknownOption = None,
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
    from gateway.cli.client import ApiClient
    from gateway.cli.letters import Many, check_choice, filters, redrive_one

    with explained(), ApiClient(url, key) as api:
        which = filters(kind=kind, runtime=runtime, executor=executor, target=target, since=since, unknown=unknown)
        check_choice(letter, which, everything=everything, dry_run=dry_run)
        how = {"new_key": new_key, "deliver": deliver}
        if letter is not None:
            redrive_one(api, letter, how, as_json=as_json)
        else:
            many = Many("redrive", "redriven", "tried again", which, limit, dry_run)
            many.order(api, how, confirmed=yes, as_json=as_json)


@group.command(
    epilog=f"{RAW}Examples:\n  dragoman dead-letters dismiss b1d5781e\n"
    "  dragoman dead-letters dismiss --target destination:chat-log --yes\n"
    "  dragoman dead-letters dismiss --all --dry-run\n\n"
    "A dismissed letter leaves the list and the alert for good; what is on record of it stays.\n"
    f"{_LETTERS}\nExit code 0: all were dismissed. 1: some, or none, could be."
)
def dismiss(
    letter: LetterArgument = None,
    *,
    kind: KindOption = None,
    runtime: RuntimeOption = None,
    executor: ExecutorOption = None,
    target: TargetOption = None,
    since: SinceOption = None,
    unknown: UnknownOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them, where no filter is given.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=MOST, help="How many to dismiss at most.")] = 100,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which would be dismissed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before many.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Leave dead letters as they are, one or many."""
    from gateway.cli.client import ApiClient
    from gateway.cli.letters import Many, check_choice, dismiss_one, filters

    with explained(), ApiClient(url, key) as api:
        which = filters(kind=kind, runtime=runtime, executor=executor, target=target, since=since, unknown=unknown)
        check_choice(letter, which, everything=everything, dry_run=dry_run)
        if letter is not None:
            dismiss_one(api, letter, as_json=as_json)
        else:
            many = Many("dismiss", "dismissed", "dismissed", which, limit, dry_run)
            many.order(api, {}, confirmed=yes, as_json=as_json)

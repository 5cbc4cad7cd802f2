"""Applies one action to many calls or dead letters: asks for confirmation, acts on each, reports failures."""

import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from gateway.cli.errors import Refusal
from gateway.cli.lines import clean
from gateway.cli.progress import Progress, count_of
from gateway.cli.terminal import Output, note, plural, say_json
from gateway.errors import OperatorError

if TYPE_CHECKING:
    from gateway.cli.connection import GatewayConnection

MOST = 500
"""The most items that one command acts on."""


@dataclass(frozen=True, slots=True)
class BulkOrder:
    """The action, and the wording of its report."""

    noun: str
    """The name of one item, in the singular."""
    done: str
    """The action as a past participle, such as `redriven`; also the member of the JSON report that counts successes."""
    act: Callable[[str], Coroutine[Any, Any, object]]
    dry_run: bool = False
    confirmed: bool = False
    as_json: bool = False


def run_order(
    gateway: "GatewayConnection", order: BulkOrder, ids: Sequence[str], *, unknown: int = 0, more: bool = False
) -> None:
    """Act on each of at most `MOST` items; exit code 1 if some failed.

    `unknown` is the number of items that may have run already; `more` means that further items match.

    Raises:
        Refusal: the user declined. OperatorError: there is no terminal to ask in.
        ClientError: the gateway became unreachable; the remaining items are unchanged.
    """
    report = {"found": len(ids), order.done: 0, "failed": [], "more": more, "dry_run": order.dry_run, "ids": [*ids]}
    ended: BaseException | None = None
    warning = f"{unknown} of {len(ids)} may have run already: their outcome is unknown" if unknown else ""
    if ids and not order.dry_run:
        if not order.confirmed:
            _confirm(order, len(ids), warning, more=more)
        ended = _act_on_each(gateway, order, ids, report)
    _show_report(order, report)
    if order.dry_run and warning:
        note(warning, "yellow")
    if ended is not None:
        raise ended
    if report["failed"]:
        raise typer.Exit(1)


def _confirm(order: BulkOrder, found: int, warning: str, *, more: bool) -> None:
    if warning:
        note(warning, "yellow")
    if not sys.stdin.isatty():
        raise OperatorError(f"{plural(found, order.noun)} would be {order.done}; pass --yes to confirm")
    also = " (more match; raise --limit to include them)" if more else ""
    if not typer.confirm(f"{plural(found, order.noun)} will be {order.done}{also}. Continue?", err=True):
        raise Refusal(f"nothing was {order.done}")


def _act_on_each(
    gateway: "GatewayConnection", order: BulkOrder, ids: Sequence[str], report: dict[str, Any]
) -> BaseException | None:
    """Act on each item and count in the report; return the exception that stopped the loop early."""
    from dragoman.client import ClientError, RequestRefused
    from gateway.cli.connection import describe_refusal

    with Progress(order.done, count_of(f"{order.noun}s")) as progress:
        for number, one in enumerate(ids):
            progress.update(order.done, number, len(ids))
            try:
                gateway.run(order.act(one))
                report[order.done] += 1
            except RequestRefused as exc:
                if exc.type == "unavailable":
                    return exc
                report["failed"].append({"id": one, "reason": describe_refusal(exc)})
            except (ClientError, KeyboardInterrupt) as exc:
                return exc
    return None


def _show_report(order: BulkOrder, report: dict[str, Any]) -> None:
    if order.as_json:
        say_json(report)
        return
    if order.dry_run:
        for one in report["ids"]:
            typer.echo(clean(one))
        text = f"{report['found']} would be {order.done}"
    else:
        text = f"{report[order.done]} of {report['found']} {order.done}"
    err = Output(stderr=True)
    for one in report["failed"]:
        err.say(Text(f"{clean(one['id'])}: {clean(one['reason'])}", "yellow"))
    err.say(f"{text}; there are more" if report["more"] else text)

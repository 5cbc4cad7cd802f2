"""The command `explain`: what a configuration would do with a call or an event, without a gateway or a runtime."""

from typing import Annotated

import typer

from gateway.cli.config_file import ConfigOption, choose
from gateway.cli.explained import RAW, explained
from gateway.cli.faults import Misused
from gateway.cli.options import JsonOption
from gateway.cli.terminal import say_json, show_reasons


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog=f"{RAW}Examples:\n"
        "  dragoman explain --runtime finn --tool ask_for_cards \\\n"
        '    --arguments \'{"rank": "7"}\'\n'
        "  dragoman explain --runtime finn \\\n"
        '    --event \'{"kind": "turn.steered", "text": "Be quick."}\'\n\n'
        "Exit code 0: it would go through. 1: it would be refused, or nobody would answer."
    )(explain)


def explain(
    *,
    config: ConfigOption = None,
    runtime: Annotated[str, typer.Option(metavar="NAME", help="The runtime that asks, or is told.")],
    tool: Annotated[str | None, typer.Option(metavar="TOOL", help="Explain a call of this tool.")] = None,
    arguments: Annotated[
        str | None, typer.Option(metavar="JSON", help="The call's arguments; - is stdin. Default: {}.")
    ] = None,
    event: Annotated[
        str | None, typer.Option(metavar="JSON", help="Explain an event, with its `kind`; - is stdin.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label of the session; may be repeated.")
    ] = None,
    running: Annotated[bool, typer.Option("--running", help="As if a turn were under way.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Say where a call or event would go, and what is lost."""
    from gateway.cli.explaining import reasons_of, told_as_json

    with explained():
        if (tool is None) == (event is None):
            raise Misused("give either --tool or --event")
        if arguments is not None and tool is None:
            raise Misused("--arguments belongs to --tool")
        reasons, mask = reasons_of(
            choose(config), runtime, tool=tool, arguments=arguments, event=event, labels=label or [], running=running
        )
        if as_json:
            say_json(told_as_json(reasons, mask))
        else:
            show_reasons(reasons.parts, mask=mask)
    if not reasons.goes_through:
        raise typer.Exit(1)

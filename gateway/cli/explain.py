"""The command `explain`: what a configuration would do with a call or an event, without a gateway or a runtime."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import SecretStr, ValidationError

from gateway import bootstrap
from gateway.cli.config_file import ConfigOption, choose
from gateway.cli.explained import RAW, explained
from gateway.cli.reasons import Case, reasons_for_call, reasons_for_event
from gateway.cli.send import Misused, object_of, read_source
from gateway.cli.terminal import show_reasons
from gateway.envelope import CLIENT_KINDS, EVENT, Event, SecretSupplied, ToolRequested
from gateway.errors import OperatorError
from gateway.http.client_events import read_events
from gateway.http.errors import Refused
from gateway.runtime.policy import policy_of
from gateway.settings.load import load
from gateway.settings.place import suggest
from gateway.settings.source import read_source as read_yaml
from gateway.transports.masking import Mask

_SHORTEST_SECRET = 4
"""Shorter ones would turn ordinary words into asterisks."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog=f"{RAW}Examples:\n"
        '  dragoman explain --runtime finn --tool ask_for_cards --arguments \'{"rank": "7"}\'\n'
        '  dragoman explain --runtime finn --event \'{"kind": "turn.steered", "text": "Be quick."}\'\n\n'
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
) -> None:
    """Say where a call or event would go, and what is lost."""
    with explained():
        if (tool is None) == (event is None):
            raise Misused("give either --tool or --event")
        if arguments is not None and tool is None:
            raise Misused("--arguments belongs to --tool")
        case, secrets = _read_case(choose(config), runtime, labels=_labels(label or []), running=running)
        if tool is not None:
            given = object_of(_text(arguments or "{}"), "--arguments")
            reasons = reasons_for_call(
                case, ToolRequested(native_call_id="<native_call_id>", tool=tool, arguments=given)
            )
        else:
            told = _event(object_of(_text(event or ""), "--event"))
            reasons = reasons_for_call(case, told) if isinstance(told, ToolRequested) else reasons_for_event(case, told)
        show_reasons(reasons.parts, mask=Mask(secret for secret in secrets if len(secret) >= _SHORTEST_SECRET))
    if not reasons.goes_through:
        raise typer.Exit(1)


def _read_case(config: Path, runtime: str, *, labels: dict[str, str], running: bool) -> tuple[Case, list[str]]:
    adapters = bootstrap.installed_adapters()
    loaded = load(config, adapters=adapters, env=os.environ)
    settings = loaded.settings
    options = settings.runtimes.get(runtime)
    if options is None:
        raise OperatorError(f"{config}: there is no runtime {runtime!r}; {suggest(runtime, settings.runtimes)}")
    case = Case(
        settings=settings,
        policy=policy_of(settings),
        lines=read_yaml(config).lines,
        file=str(config),
        runtime=runtime,
        adapter=adapters[options.adapter],
        options=options,
        labels={**options.labels, **labels},
        running=running,
    )
    return case, list(bootstrap.secrets_in(settings))


def _labels(given: list[str]) -> dict[str, str]:
    wrong = next((one for one in given if "=" not in one), None)
    if wrong is not None:
        raise Misused(f"--label {wrong!r}: write NAME=VALUE")
    return {name: value for name, _, value in (one.partition("=") for one in given)}


def _text(given: str) -> str:
    return read_source("-").decode(errors="surrogateescape") if given == "-" else given


def _event(given: dict[str, Any]) -> Event:
    """Read an event; those that clients may post are held to what the API says of them."""
    try:
        event = EVENT.validate_python(given) if _is_the_runtimes(given) else read_events(given)[0]
    except Refused as exc:
        raise OperatorError(f"the API would refuse this event: {exc}") from exc
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        place = "/".join(str(part) for part in first["loc"][1:])
        raise OperatorError(f"this is no {given.get('kind')}: /{place}: {first['msg']}") from exc
    # What would be sent is shown, so the secret itself is not put into it.
    return event.model_copy(update={"value": SecretStr("<secret>")}) if isinstance(event, SecretSupplied) else event


def _is_the_runtimes(given: dict[str, Any]) -> bool:
    kind = given.get("kind")
    return isinstance(kind, str) and kind in RUNTIMES_KINDS and kind not in CLIENT_KINDS


RUNTIMES_KINDS = frozenset({"tool.requested", "approval.asked", "question.asked", "secret.asked"})
"""What only a runtime says, and somebody answers."""

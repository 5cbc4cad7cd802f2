"""`dragoman explain`: shows the route, checks and translation of a call or an event, without a running gateway."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from gateway.cli.config_file import ConfigOption, choose
from gateway.cli.errors import Misused, report_errors
from gateway.cli.help import examples
from gateway.cli.inputs import parse_object, read_source
from gateway.cli.lines import clean, clean_line
from gateway.cli.options import JsonOption, flag, option, parse_labels
from gateway.cli.terminal import Output, say_json
from gateway.errors import OperatorError

if TYPE_CHECKING:
    from gateway.cli.reasons import Case, Reasons
    from gateway.events import Event
    from gateway.links.masking import Mask

_SHORTEST_SECRET = 4
"""Shorter secrets would turn ordinary words into asterisks."""
_STYLES = {"plain": "", "good": "green", "doubtful": "yellow", "bad": "red"}

commands = typer.Typer()


@commands.command(
    epilog=examples(
        "dragoman explain --runtime finn --tool ask_for_cards \\",
        '  --arguments \'{"rank": "7"}\'',
        "dragoman explain --runtime finn \\",
        '  --event \'{"kind": "turn.steered", "text": "Be quick."}\'',
        more="Exit code 0: it would be processed. 1: it would be refused, or would get no answer.",
    )
)
def explain(
    *,
    config: ConfigOption = None,
    runtime: str = option("--runtime", "NAME", "The runtime that calls, or receives the event.", default=...),
    tool: str | None = option("--tool", "TOOL", "Explain a call of this tool."),
    arguments: str | None = option("--arguments", "JSON", "The call's arguments; - reads stdin. Default: {}."),
    event: str | None = option("--event", "JSON", "Explain an event, with its `kind`; - reads stdin."),
    label: list[str] | None = option("--label", "NAME=VALUE", "A label of the session; may be repeated."),
    running: bool = flag("--running", "Assume that a turn is in progress."),
    as_json: JsonOption = False,
) -> None:
    """Show the route and the losses of a call or event."""
    with report_errors():
        if (tool is None) == (event is None):
            raise Misused("pass either --tool or --event")
        if arguments is not None and tool is None:
            raise Misused("--arguments requires --tool")
        case, mask = _read_case(choose(config), runtime, labels=parse_labels(label), running=running)
        if tool is not None:
            reasons = _explain_call(case, tool, arguments or "{}")
        else:
            reasons = _explain_event(case, parse_object(_read_option(event or ""), "--event"))
        if as_json:
            parts = [
                {"about": one.heading, "text": mask(one.text), "tone": one.tone, "block": mask(one.block)}
                for one in reasons.parts
            ]
            say_json({"goes_through": reasons.goes_through, "parts": parts})
        else:
            _show_reasons(reasons, mask)
    if not reasons.goes_through:
        raise typer.Exit(1)


def _read_case(config: Path, runtime: str, *, labels: dict[str, str], running: bool) -> "tuple[Case, Mask]":
    """Read the configuration and find the runtime; return also a mask for the configured secrets."""
    from gateway.cli.reasons import Case
    from gateway.links.masking import Mask
    from gateway.plugins import installed_adapters, load_configuration
    from gateway.runtime.policy import policy_of
    from gateway.settings.place import suggest
    from gateway.settings.source import read_source as read_yaml

    adapters, loaded = installed_adapters(), load_configuration(config, os.environ)
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
    return case, Mask(secret for secret in loaded.secrets if len(secret) >= _SHORTEST_SECRET)


def _explain_call(case: "Case", tool: str, arguments: str) -> "Reasons":
    from gateway.cli.reasons import reasons_for_call
    from gateway.events import ToolRequested

    given = parse_object(_read_option(arguments), "--arguments")
    return reasons_for_call(case, ToolRequested(native_call_id="<native_call_id>", tool=tool, arguments=given))


def _explain_event(case: "Case", given: dict[str, Any]) -> "Reasons":
    from gateway.cli.reasons import reasons_for_call, reasons_for_event
    from gateway.events import ToolRequested

    event = _read_event(given)
    return reasons_for_call(case, event) if isinstance(event, ToolRequested) else reasons_for_event(case, event)


def _read_event(given: dict[str, Any]) -> "Event":
    """Read an event; events that clients may post get the API's own checks."""
    from pydantic import SecretStr, ValidationError

    from gateway.events import (
        ApprovalAsked,
        MessageStreamed,
        QuestionAsked,
        SecretAsked,
        SecretSupplied,
        ToolRequested,
        TypingChanged,
    )
    from gateway.http.body import misfit
    from gateway.http.client_events import read_events
    from gateway.http.errors import Refused

    # Only runtimes send these.
    sent = (ToolRequested, ApprovalAsked, QuestionAsked, SecretAsked, TypingChanged, MessageStreamed)
    models = {one.model_fields["kind"].default: one for one in sent}
    model = models.get(given.get("kind"))
    try:
        event = read_events(given)[0] if model is None else model.model_validate(given)
    except Refused as exc:
        raise OperatorError(f"the API would refuse this event: {exc}") from exc
    except ValidationError as exc:
        raise OperatorError(
            f"invalid {given['kind']}: {misfit('invalid-event', exc.errors(), given, model or ToolRequested)}"
        ) from exc
    # The frames are printed, so they must not contain the secret.
    return event.model_copy(update={"value": SecretStr("<secret>")}) if isinstance(event, SecretSupplied) else event


def _read_option(given: str) -> str:
    return read_source("-").decode(errors="surrogateescape") if given == "-" else given


def _show_reasons(reasons: "Reasons", mask: "Mask") -> None:
    """Print each part: its heading, its line and its block."""
    out = Output()
    for part in reasons.parts:
        out.say(Text.assemble((f"{part.heading:<10}", "bold"), (clean(mask(part.text)), _STYLES[part.tone])))
        for line in mask(part.block).splitlines():
            out.say(Text(f"          {clean_line(line)}", "dim" if part.tone == "plain" else ""))

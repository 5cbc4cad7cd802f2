"""Reads what `explain` is asked about: the configuration, the runtime, the call or event."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from gateway.cli.faults import Misused
from gateway.cli.reasons import Case, Reasons, reasons_for_call, reasons_for_event
from gateway.cli.send import object_of, read_source
from gateway.errors import OperatorError
from gateway.events import ApprovalAsked, Event, QuestionAsked, SecretAsked, SecretSupplied, ToolRequested
from gateway.http.body import misfit
from gateway.http.client_events import read_events
from gateway.http.errors import Refused
from gateway.links.masking import Mask
from gateway.plugins import installed_adapters
from gateway.runtime.policy import policy_of
from gateway.settings.load import load
from gateway.settings.place import suggest
from gateway.settings.source import read_source as read_yaml

_SHORTEST_SECRET = 4
"""Shorter ones would turn ordinary words into asterisks."""


def reasons_of(
    config: Path,
    runtime: str,
    *,
    tool: str | None,
    arguments: str | None,
    event: str | None,
    labels: list[str],
    running: bool,
) -> tuple[Reasons, Mask]:
    """Find the reasons, and what must not be shown of them.

    Raises:
        Misused, OperatorError: what was given cannot be explained.
    """
    case, secrets = _read_case(config, runtime, labels=_labels(labels), running=running)
    if tool is not None:
        given = object_of(_text(arguments or "{}"), "--arguments")
        reasons = reasons_for_call(case, ToolRequested(native_call_id="<native_call_id>", tool=tool, arguments=given))
    else:
        told = _event(object_of(_text(event or ""), "--event"))
        reasons = reasons_for_call(case, told) if isinstance(told, ToolRequested) else reasons_for_event(case, told)
    return reasons, Mask(secret for secret in secrets if len(secret) >= _SHORTEST_SECRET)


def _read_case(config: Path, runtime: str, *, labels: dict[str, str], running: bool) -> tuple[Case, list[str]]:
    adapters = installed_adapters()
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
    return case, list(loaded.secrets)


def _labels(given: list[str]) -> dict[str, str]:
    wrong = next((one for one in given if "=" not in one), None)
    if wrong is not None:
        raise Misused(f"--label {wrong!r}: write NAME=VALUE")
    return {name: value for name, _, value in (one.partition("=") for one in given)}


def _text(given: str) -> str:
    return read_source("-").decode(errors="surrogateescape") if given == "-" else given


def _event(given: dict[str, Any]) -> Event:
    """Read an event; those that clients may post are held to what the API says of them."""
    model = _OF_RUNTIMES.get(str(given.get("kind")))
    try:
        event = read_events(given)[0] if model is None else model.model_validate(given)
    except Refused as exc:
        raise OperatorError(f"the API would refuse this event: {exc}") from exc
    except ValidationError as exc:
        raise OperatorError(
            f"this is no {given['kind']}: {misfit('invalid-event', exc.errors(), given, model or ToolRequested)}"
        ) from exc
    # What would be sent is shown, so the secret itself is not put into it.
    return event.model_copy(update={"value": SecretStr("<secret>")}) if isinstance(event, SecretSupplied) else event


_OF_RUNTIMES: Mapping[str, type[ToolRequested | ApprovalAsked | QuestionAsked | SecretAsked]] = {
    model.model_fields["kind"].default: model for model in (ToolRequested, ApprovalAsked, QuestionAsked, SecretAsked)
}
"""What only a runtime says, and somebody answers."""


def told_as_json(reasons: Reasons, mask: Mask) -> dict[str, Any]:
    """Say all of it as one JSON object."""
    parts = [
        {"about": part.heading, "text": mask(part.text), "tone": part.tone, "block": mask(part.block)}
        for part in reasons.parts
    ]
    return {"goes_through": reasons.goes_through, "parts": parts}

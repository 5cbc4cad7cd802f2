"""Reads answers into the models of the API, whichever release has written them. Pure.

What a newer one adds is left out, and what an older one lacks is filled in.
"""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from gateway.client.errors import UnexpectedAnswer
from gateway.events import EVENT, UNKNOWN_KIND, Event, Opaque, ToolFinished
from gateway.models.responses import AnsweredInteraction, Call, CallWithOutcome, CallWithStory, Link, Runtime

Model = TypeVar("Model", bound=BaseModel)

_NOT_IN_0_2_0: Mapping[type[BaseModel], Mapping[str, Any]] = {
    # That release has no calls from outside.
    Call: {"answer_to": "runtime"},
    CallWithOutcome: {"outcome": None},
    AnsweredInteraction: {"losses": []},
    Runtime: {"reason": None, "autostart": None},
    Link: {"lacks_tools": False, "lacks_tools_reason": None},
}
"""Members that release 0.2.0 does not send, with the value that they have there."""


def read(model: type[Model], given: Any, *, status: int = 200) -> Model:
    """Read what the gateway answered.

    Raises:
        UnexpectedAnswer: it is of another form.
    """
    try:
        made = model.model_validate(_filled_in(model, given), extra="ignore")
    except (ValidationError, RecursionError) as exc:
        # Without a word of what was answered, which may be a secret.
        raise UnexpectedAnswer(f"what was answered is no {model.__name__}: {_place_of(exc)}", status=status) from None
    if isinstance(made, CallWithStory) and "outcome" not in given:
        return made.model_copy(update={"outcome": _outcome_of(made)})
    return made


def read_event(given: Any) -> Event:
    """Read an event; one of an unknown kind, or with values that are new, is `Opaque` and holds all of it."""
    try:
        return EVENT.validate_python(given, extra="ignore")
    except (ValidationError, RecursionError):
        return Opaque(channel=UNKNOWN_KIND, payload=given)


def _filled_in(model: type[BaseModel], given: Any) -> Any:
    """Read the events in it, and add the members that release 0.2.0 does not send."""
    if not isinstance(given, Mapping):
        return given
    told = dict(cast("Mapping[str, Any]", given))
    for shape, defaults in _NOT_IN_0_2_0.items():
        if issubclass(model, shape):
            told = {**defaults, **told}
    if isinstance(told.get("event"), Mapping):
        told["event"] = read_event(told["event"])
    if isinstance(rows := told.get("events"), list):
        told["events"] = [_filled_in(BaseModel, row) for row in cast("list[Any]", rows)]
    if isinstance(told.get("envelope"), Mapping):
        told["envelope"] = _filled_in(BaseModel, told["envelope"])
    if issubclass(model, Runtime) and isinstance(links := told.get("links"), list):
        told["links"] = [_filled_in(Link, link) for link in cast("list[Any]", links)]
    return told


def _outcome_of(history: CallWithStory) -> Any:
    ends = (one.event for one in history.events if one.sequence == history.outcome_sequence)
    return next((end.as_outcome() for end in ends if isinstance(end, ToolFinished)), None)


def _place_of(exc: ValidationError | RecursionError) -> str:
    if isinstance(exc, RecursionError):
        return "it nests too deeply"
    first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
    place = "/".join(str(part) for part in first["loc"])[:200]
    return f"/{place}: {first['msg']}" if first["type"] == "missing" else f"/{place}: it is not of the documented form"

"""Parses responses of any release into the models of the API. Pure.

Members of newer releases are ignored; members that older releases lack get defaults.
"""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from dragoman.client.errors import UnexpectedAnswer
from dragoman.models import EVENT, UNKNOWN_KIND, Event, Opaque, ToolFinished
from dragoman.models.responses import AnsweredInteraction, Call, CallWithOutcome, CallWithStory, Link, Runtime

Model = TypeVar("Model", bound=BaseModel)

_NOT_IN_0_2_0: Mapping[type[BaseModel], Mapping[str, Any]] = {
    # Release 0.2.0 has no calls from outside.
    Call: {"answer_to": "runtime", "trace_id": None, "started_at": None, "unheard_since": None},
    CallWithOutcome: {"outcome": None},
    CallWithStory: {"attempts": []},
    AnsweredInteraction: {"losses": []},
    Runtime: {"reason": None, "autostart": None},
    Link: {"lacks_tools": False, "lacks_tools_reason": None, "waits_for": []},
}
"""Members that release 0.2.0 does not send, with their values for it."""


def read(model: type[Model], given: Any, *, status: int = 200) -> Model:
    """Parse a response of the gateway.

    Raises:
        UnexpectedAnswer: the response does not match the model.
    """
    try:
        made = model.model_validate(_filled_in(model, given), extra="ignore")
    except (ValidationError, RecursionError) as exc:
        # The text quotes no part of the response, which may be a secret.
        raise UnexpectedAnswer(
            f"the response is not a valid {model.__name__}: {_place_of(exc)}", status=status
        ) from None
    if isinstance(made, CallWithStory) and "outcome" not in given:
        return made.model_copy(update={"outcome": _outcome_of(made)})
    return made


def read_event(given: Any) -> Event:
    """Parse an event; one of an unknown kind, or with unknown values, becomes `Opaque` with the event as payload."""
    try:
        return EVENT.validate_python(given, extra="ignore")
    except (ValidationError, RecursionError):
        return Opaque(channel=UNKNOWN_KIND, payload=given)


def _filled_in(model: type[BaseModel], given: Any) -> Any:
    """Parse nested events, and add the members that release 0.2.0 does not send."""
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
        return "it is nested too deeply"
    first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
    place = "/".join(str(part) for part in first["loc"])[:200]
    return f"/{place}: {first['msg']}" if first["type"] == "missing" else f"/{place}: invalid value"

"""The events that clients post: read from the body, checked one by one, with a pointer to what is wrong."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, cast, get_args

from pydantic import ConfigDict, Field, PlainValidator, ValidationError

from dragoman.models.described import Described
from gateway.events import (
    CLIENT_KINDS,
    KINDS,
    ActionOrdered,
    AddonAnswered,
    ApprovalGiven,
    ContextUpdated,
    MessageConfirmed,
    MessagePosted,
    Opaque,
    QuestionAnswered,
    SecretSupplied,
    TurnInterrupted,
    TurnSteered,
)
from gateway.http.body import misfit
from gateway.http.errors import Refused

MOST_EVENTS = 100
"""How many events one request may post."""

_EXACT: Mapping[Any, str] = {bool: "true or false", int: "an integer"}

ClientEvent = Annotated[
    ContextUpdated
    | MessagePosted
    | MessageConfirmed
    | AddonAnswered
    | ApprovalGiven
    | QuestionAnswered
    | SecretSupplied
    | ActionOrdered
    | TurnSteered
    | TurnInterrupted
    | Opaque,
    Field(discriminator="kind"),
]
"""An event of one of `CLIENT_KINDS`."""

_MODELS: tuple[type[ClientEvent], ...] = get_args(get_args(ClientEvent)[0])

CLIENT_MODELS: Mapping[str, type[ClientEvent]] = {model.model_fields["kind"].default: model for model in _MODELS}
"""The model of each kind that clients may post."""


class Several(tuple[ClientEvent, ...]):
    """The events of a request that has an `events` array."""

    __slots__ = ()


class SeveralEvents(Described):
    """What is posted at once is recorded at once, or not at all."""

    model_config = ConfigDict(extra="forbid")

    events: Annotated[list[ClientEvent], Field(min_length=1, max_length=MOST_EVENTS)]
    """The events, in their order."""


def read_events(body: Any) -> tuple[ClientEvent, ...]:
    """Read one event object or `{"events": [...]}`.

    Raises:
        Refused: `invalid-event`, `invalid-request` or `inexpressible`, naming the place.
    """
    match body:
        case {"events": list(), "kind": _}:
            raise Refused("invalid-request", "give one event with a `kind`, or `events`, not both", pointer="/kind")
        case {"events": list(), **rest} if rest:
            name = next(iter(rest))[:50]
            raise Refused("invalid-request", f"{name!r} is not allowed beside `events`", pointer=f"/{name}")
        case {"events": list()}:
            several: list[Any] = body["events"]
            if not 1 <= len(several) <= MOST_EVENTS:
                raise Refused("invalid-request", f"give 1 to {MOST_EVENTS} events", pointer="/events")
            return Several(_read_event(event, at=f"/events/{number}") for number, event in enumerate(several))
        case {"events": _, **rest} if "kind" not in rest:
            raise Refused("invalid-request", "`events` must be an array", pointer="/events")
        case dict():
            return (_read_event(cast(dict[str, Any], body), at=""),)
        case _:
            raise Refused("invalid-request", 'expected one event object or {"events": [...]}', pointer="")


def _read_event(given: Any, *, at: str) -> ClientEvent:
    if not isinstance(given, dict):
        raise Refused("invalid-event", "an event must be an object with a `kind`", pointer=at)
    event = cast(dict[str, Any], given)
    model = _model_of(event.get("kind"), at=f"{at}/kind")
    for name, field in model.model_fields.items():
        # Lax validation would read "no" as False and "7" as 7; the runtimes want the real thing.
        exact: Any = field.annotation
        if exact in _EXACT and name in event and type(event[name]) is not exact:
            raise Refused("invalid-event", f"{at}/{name}: must be {_EXACT[exact]}", pointer=f"{at}/{name}")
    try:
        return model.model_validate(event)
    except ValidationError as exc:
        raise misfit("invalid-event", exc.errors(include_url=False), event, model, at=at) from exc


def _model_of(kind: object, *, at: str) -> type[ClientEvent]:
    if not isinstance(kind, str):
        raise Refused("invalid-event", "an event needs a `kind`, a string", pointer=at)
    if kind in CLIENT_MODELS:
        return CLIENT_MODELS[kind]
    if kind in KINDS:
        mend = "; outcomes go to POST /v1/calls/{call_id}/outcome" if kind == "tool.finished" else ""
        allowed = ", ".join(sorted(CLIENT_KINDS))
        raise Refused("inexpressible", f"clients may not post {kind!r}{mend}; they may post {allowed}", pointer=at)
    near = get_close_matches(kind[:100], KINDS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise Refused("invalid-event", f"{kind[:100]!r} is not a kind{hint}", pointer=at)


PostedEvents = Annotated[
    tuple[ClientEvent, ...], PlainValidator(read_events, json_schema_input_type=ClientEvent | SeveralEvents)
]
"""The events of a request: one, or several at once."""

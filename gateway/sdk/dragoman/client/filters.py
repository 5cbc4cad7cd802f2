"""The filters of lists, the query parameters that they become, and the members of an answer. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict

from pydantic import SecretStr

from dragoman.models import OutcomeKind
from dragoman.models.responses import Session
from dragoman.models.states import CallState


class SessionFilters(TypedDict, total=False):
    """Filters for sessions; all must match."""

    runtime: str | None
    native_id: str | None
    open_only: bool
    state: Sequence[str]
    labels: Mapping[str, str]
    since: datetime | None
    """Sessions opened at this time or later."""
    until: datetime | None
    """Sessions opened before this time."""
    text: str | None
    """The beginning of an id, or a part of `RUNTIME/NATIVE_ID` or of a label."""


class CallFilters(TypedDict, total=False):
    """Filters for calls; all must match."""

    session: Session | str | None
    runtime: str | None
    tool: str | None
    executor: str | None
    trace_id: str | None
    state: Sequence[CallState]
    outcome: Sequence[OutcomeKind]
    """Outcomes of ended calls; excludes `state`."""
    unknown: bool | None
    labels: Mapping[str, str]
    """Labels of the session."""
    since: datetime | None
    """Calls opened at this time or later."""
    until: datetime | None
    """Calls opened before this time."""
    text: str | None
    """The beginning of an id or idempotency key, or a part of the error or of a request of at most 16 KiB."""


class LetterFilters(TypedDict, total=False):
    """Filters for dead letters; all must match."""

    kind: Literal["call", "delivery"] | None
    runtime: str | None
    executor: str | None
    tool: str | None
    target: str | None
    cause: str | None
    """The error or reason, with or without details after `: `, `; ` or ` (`."""
    unknown: bool | None
    since: datetime | None
    """Calls and events since this time."""


class EventFilters(TypedDict, total=False):
    """Filters for the events of all sessions; all must match."""

    session: Session | str | None
    runtime: str | None
    labels: Mapping[str, str]
    """Labels of the session."""
    kind: Sequence[str]
    """Globs over event kinds, such as `tool.*`, of which one must match."""


class GivenAnswer(TypedDict, total=False):
    """An answer to a request: one of `decision`, `answer` and `value`; the rest belongs to a decision."""

    decision: Literal["allow", "deny"] | None
    scope: Literal["once", "session", "always"] | None
    reason: str | None
    binding: str | None
    arguments: Mapping[str, Any] | None
    answer: str | None
    value: SecretStr | str | None


_RENAMED: Mapping[str, str] = {"session": "session_id", "open_only": "open"}


def to_query(filters: SessionFilters | CallFilters | LetterFilters | EventFilters) -> dict[str, Any]:
    """Return the query parameters of filters."""
    query = {_RENAMED.get(name, name): _to_value(value) for name, value in filters.items() if name != "labels"}
    return query | {f"label.{name}": value for name, value in filters.get("labels", {}).items()}


def _to_value(given: object) -> object:
    match given:
        case Session():
            return given.session_id
        case datetime():
            return given.isoformat()
        case str() | bool() | None:
            return given
        case _:
            return given or None

"""The effects that follow a commit, and the data of requests to executors, as plain values. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from gateway.adapter.port import Frame
from gateway.core.state import SessionView
from gateway.core.trace_context import TraceContext
from gateway.events import (
    ApprovalGiven,
    CallId,
    Draft,
    Envelope,
    Event,
    InteractionId,
    QuestionAnswered,
    SecretSupplied,
    SessionId,
    dump_event,
    interaction_id,
)
from gateway.events.frozen import frozen
from gateway.store.call import Call
from gateway.store.step import Lane, Step


@frozen
class Dispatch:
    """Send one attempt of a call to its executor."""

    call: Call


@frozen
class Queue:
    """A call waits for a free slot of its executor or session, or for its due time."""

    call_id: CallId
    executor: str
    due_at: datetime | None = None


@frozen
class Release:
    """Stop the attempt of an ended call, and notify the executor if it may still be working on it."""

    call_id: CallId
    executor: str | None
    tell: dict[str, Any] | None = None
    """The data of the `tool.canceled` for the executor; None if it needs none."""
    key: str = ""
    stop: bool = True
    """Whether the running attempt is aborted; after an operator's cancel it has a grace period."""
    trace: TraceContext | None = None
    """The trace context of the attempt, which the `tool.canceled` carries too."""


Place = Literal["first", "before_wakes", "wakes", "in_order"]
"""The place of an event in the queue to a runtime that replaces contexts: the first three are for events that a fresh
link gets, the last one for events that arrive later."""


@frozen
class Transmit:
    """Send a recorded event to the runtime."""

    sequence: int
    lane: Lane
    kind: str
    frames: tuple[Frame, ...]
    caused_by: int | None = None
    leave_before: datetime | None = None
    """When the runtime stops waiting for it; from then on it must not be sent."""
    state: Draft | Envelope | None = None
    """The event with the replacing context that it carries, so that it can be encoded again; None if it has none."""
    renew: bool = False
    """Whether it must be sent with the newest context."""
    repeats: bool = False
    """Whether it may have been sent before."""
    renewed: bool = False
    """Whether it was encoded again with a newer context than the recorded one."""
    place: Place = "in_order"
    answers: InteractionId | None = None
    """The question to a person that it answers; None if it answers none."""
    needs_attempt: bool = False
    """Whether its row must have attempt 1 on record before the first byte leaves."""


def answered_by(
    session_id: SessionId, event: Event, caused_by: int | None, *, synthetic: bool = False
) -> InteractionId | None:
    """Return the id of the request for human input that this event answers; `caused_by` is its sequence."""
    if synthetic or caused_by is None or not isinstance(event, ApprovalGiven | QuestionAnswered | SecretSupplied):
        return None
    return interaction_id(session=session_id, native_id=event.id, n=caused_by)


@frozen
class Ask:
    """Ask an executor about a message, approval or question."""

    sequence: int
    key: str
    kind: str
    executor: str
    data: dict[str, Any]
    deadline_at: datetime


@frozen
class AwaitCopy:
    """Report when the copy of a message to a destination is delivered, or never will be."""

    session_id: SessionId
    sequence: int
    destination: str
    deadline_at: datetime


@frozen
class Tell:
    """Show followers a live event, after the recorded event that it followed."""

    event: Event
    after: int


@frozen
class Resend:
    """Send the outcome that is recorded under this sequence again."""

    sequence: int


@frozen
class OpenWanted:
    """Read the recorded requests after a sequence that have neither a call nor an outcome, and open their calls."""

    after: int


Effect = Dispatch | Queue | Release | Transmit | Ask | AwaitCopy | Tell | Resend | OpenWanted


@frozen
class Decision:
    """A step to commit, and the effects that follow it."""

    step: Step
    effects: tuple[Effect, ...] = ()


def call_data(
    view: SessionView, call: Call, *, protocol: str, callback: str | None, progress: str | None
) -> dict[str, Any]:
    """Build the request for one attempt of a call; `protocol` is the runtime's."""
    if call.origin is not None and call.origin.protocol.partition("/")[0] == protocol.partition("/")[0]:
        # The version that this caller negotiated.
        protocol = call.origin.protocol
    return {
        "call_id": call.call_id,
        "native_call_id": call.native_call_id,
        "session_id": view.session_id,
        "native_session_id": view.native_id,
        "labels": dict(view.memory.labels),
        "runtime": view.runtime,
        "protocol": protocol,
        "tool": call.tool,
        "arguments": call.arguments,
        "attempt": call.attempt,
        "deadline": call.deadline_at.isoformat(),
        "callback_url": callback,
        "progress_url": progress,
        **({"edited": True} if call.edited else {}),
    }


def canceled_data(view: SessionView, call: Call, *, reason: str) -> dict[str, Any]:
    """Build the notice to an executor that a call was canceled."""
    return {
        "call_id": call.call_id,
        "native_call_id": call.native_call_id,
        "session_id": view.session_id,
        "tool": call.tool,
        "reason": reason,
    }


def ask_data(
    view: SessionView, event: Event, *, protocol: str, labels: Mapping[str, str], deadline_at: datetime
) -> dict[str, Any]:
    """Build the data of a routed message, approval or question."""
    return {
        "session_id": view.session_id,
        "native_session_id": view.native_id,
        "labels": dict(labels),
        "runtime": view.runtime,
        "protocol": protocol,
        "deadline": deadline_at.isoformat(),
        "event": dump_event(event),
    }

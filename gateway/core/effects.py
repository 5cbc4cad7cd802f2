"""What is to be done once a step is on disk, and the data of what executors are sent: plain values. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from gateway.adapter.port import Frame
from gateway.core.state import SessionView
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
    """A call has ended: stop its attempt, and tell the executor where it may still work on it."""

    call_id: CallId
    executor: str | None
    tell: dict[str, Any] | None = None
    """Data of the `tool.canceled` for the executor; None where it needs none."""
    key: str = ""
    stop: bool = True
    """Whether the attempt under way is broken off; an operator's cancel leaves it its grace."""


Place = Literal["first", "before_wakes", "wakes", "in_order"]
"""Where an event stands among all that waits, for a runtime whose context is replaced: what a fresh link is told has
the first three places, what comes while it stands the last."""


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
    """What it says of a state that replaces the one told before, so that it can be written anew; None without one."""
    renew: bool = False
    """Whether it must leave with the newest state, however new its own is."""
    repeats: bool = False
    """Whether it may have been sent before."""
    renewed: bool = False
    """Whether it was written anew, so that it no longer says the state it was recorded with."""
    place: Place = "in_order"
    answers: InteractionId | None = None
    """The question to a person that it answers; None where nobody answered, or no question is known."""
    needs_attempt: bool = False
    """Whether its row must have attempt 1 on record before the first byte leaves."""


def answered_by(
    session_id: SessionId, event: Event, caused_by: int | None, *, synthetic: bool = False
) -> InteractionId | None:
    """Name the question to a person that an event of a person or executor answers; `caused_by` is what asked it."""
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
class Tell:
    """Show followers something that is only live, behind the event it came after."""

    event: Event
    after: int


@frozen
class Resend:
    """The outcome on record under this sequence is wanted again."""

    sequence: int


Effect = Dispatch | Queue | Release | Transmit | Ask | Tell | Resend


@frozen
class Decision:
    """A step to commit and what follows from it."""

    step: Step
    effects: tuple[Effect, ...] = ()


def call_data(
    view: SessionView, call: Call, *, protocol: str, callback: str | None, progress: str | None
) -> dict[str, Any]:
    """Shape the request for one attempt of a call; `protocol` is the runtime's."""
    if call.origin is not None and call.origin.protocol.partition("/")[0] == protocol.partition("/")[0]:
        # The version that this caller has negotiated.
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
    }


def canceled_data(view: SessionView, call: Call, *, reason: str) -> dict[str, Any]:
    """Shape the word to an executor that a call is no longer wanted."""
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
    """Shape a routed message, approval or question."""
    return {
        "session_id": view.session_id,
        "native_session_id": view.native_id,
        "labels": dict(labels),
        "runtime": view.runtime,
        "protocol": protocol,
        "deadline": deadline_at.isoformat(),
        "event": dump_event(event),
    }

"""What can happen to a session, as values in its inbox; those with a `reply` are waited for."""

from asyncio import Future
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from gateway.adapter.port import Frame, Link
from gateway.core.callers import CallRequest
from gateway.events import CallId, Envelope, Event, InteractionId, ToolRequested
from gateway.events.frozen import frozen
from gateway.executors.port import Answer, Answered
from gateway.store.call import Call
from gateway.store.step import Keep, SendState


@frozen
class FrameArrived:
    frame: Frame
    cursor: str | None
    size: int
    overloaded: bool = False
    alone: bool = False
    """Whether a lease ran when it was heard, so that no other instance can have heard it as well."""


@frozen
class HandedOver:
    """A frame that another instance has heard; its outbound row is `sequence`."""

    frame: Frame
    sequence: int
    overloaded: bool = False


@frozen
class Connecting:
    """A link is being made; what comes until it has caught up is history, where the protocol replays it."""


@frozen
class CaughtUp:
    """What comes from here on is live."""

    starting: bool | None = None
    """Whether the runtime still starts, where the link has asked."""


@frozen
class Reread:
    """What is remembered must be read from the store again."""


@frozen
class LinkUp:
    link: Link


@frozen
class LinkDown:
    reason: str
    refused: bool = False


@frozen
class Attempted:
    """One attempt of a call has ended."""

    call_id: CallId
    attempt: int
    answer: Answer


@frozen
class AnsweredLate:
    """An attempt's outcome came after its call had ended otherwise."""

    row: Call
    answered: Answered


@frozen
class SlotFree:
    """A waiting call may leave; it already holds the slot."""

    call_id: CallId
    executor: str


@frozen
class TurnedAway:
    """A waiting call is not going to get a slot."""

    call_id: CallId
    reason: str


@frozen
class ExecutorReplied:
    """An executor replied about a routed event."""

    sequence: int
    answer: Answer


@frozen
class Delivered:
    """Outbound rows of a target have met their fate."""

    sequences: tuple[int, ...]
    target: str
    state: SendState
    reason: str | None = None
    overdue: bool = False
    """Whether they were not sent because the runtime waits no longer; it is told the true state instead."""
    fault: bool = False
    """Whether they were put aside because they made a link fail in ways that nobody foresaw."""
    answers: InteractionId | None = None
    """The question to a person that a single row answers."""


@frozen
class AttemptsDue:
    """Attempts of rows to the runtime are to be put on record, or taken back."""


@frozen
class Tick:
    """A deadline may have passed."""


@frozen
class Recover:
    """The process has just taken this session up."""

    messages: Sequence[Envelope] = ()
    """The agent's messages that nobody has confirmed."""


@frozen
class Post:
    events: Sequence[Event]
    reply: "Future[Sequence[Envelope]]"
    by: str
    """The name of the API key that posts them."""
    keep: Keep | None = None
    """The answer's place under an Idempotency-Key, where the client gave one."""


@frozen
class CallAsked:
    """Somebody else than the runtime asks for a tool."""

    request: CallRequest
    reply: "Future[CallId]"


@frozen
class OutcomeGiven:
    call_id: CallId
    answered: Answered
    reply: "Future[bool]"


@frozen
class OutcomeLate:
    row: Call
    answered: Answered
    reply: "Future[None]"


@frozen
class ProgressGiven:
    call_id: CallId
    progress: dict[str, Any]
    reply: "Future[bool]"


@frozen
class CancelOrdered:
    call_id: CallId
    reason: str | None
    reply: "Future[bool]"


@frozen
class RedriveOrdered:
    row: Call
    request: ToolRequested
    new_key: bool
    deliver: bool
    reply: "Future[CallId]"


@frozen
class RepeatOrdered:
    """An operator orders that the request of an accepted call is sent again."""

    call_id: CallId
    reply: "Future[None]"


@frozen
class DismissOrdered:
    row: Call
    by: str
    reply: "Future[None]"


@frozen
class AnswerGiven:
    """A person answers a question; the body may hold a secret, so it is never shown."""

    interaction_id: InteractionId
    body: Mapping[str, Any] = field(repr=False)
    by: str
    reply: "Future[Envelope]"


@frozen
class CloseOrdered:
    reason: str | None
    reply: "Future[None]"


ClientSignal = (
    Post
    | CallAsked
    | OutcomeGiven
    | OutcomeLate
    | ProgressGiven
    | CancelOrdered
    | RedriveOrdered
    | RepeatOrdered
    | DismissOrdered
    | AnswerGiven
    | CloseOrdered
)

LinkSignal = Connecting | CaughtUp | Reread | LinkUp | LinkDown
Signal = (
    FrameArrived
    | HandedOver
    | LinkSignal
    | Attempted
    | AnsweredLate
    | SlotFree
    | TurnedAway
    | ExecutorReplied
    | Delivered
    | AttemptsDue
    | Tick
    | Recover
    | ClientSignal
)

"""What can happen to a session, as values in its inbox; those with a `reply` are waited for."""

from asyncio import Future
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from gateway.envelope import CallId, Envelope, Event, InteractionId, ToolRequested
from gateway.envelope.values import dataclass
from gateway.ports.adapter import Frame, Link
from gateway.ports.executor import Answer, Answered
from gateway.ports.rows import CallRow
from gateway.ports.step import Keep, SendState


@dataclass(frozen=True, slots=True)
class FrameArrived:
    frame: Frame
    cursor: str | None
    size: int
    overloaded: bool = False
    alone: bool = False
    """Whether a lease ran when it was heard, so that no other instance can have heard it as well."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A frame that another instance has heard; its outbound row is `sequence`."""

    frame: Frame
    sequence: int
    overloaded: bool = False


@dataclass(frozen=True, slots=True)
class Connecting:
    """A link is being made; what comes until it has caught up is history, where the protocol replays it."""


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """What comes from here on is live."""

    starting: bool | None = None
    """Whether the runtime still starts, where the link has asked."""


@dataclass(frozen=True, slots=True)
class Reread:
    """What is remembered must be read from the store again."""


@dataclass(frozen=True, slots=True)
class LinkUp:
    link: Link


@dataclass(frozen=True, slots=True)
class LinkDown:
    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Attempted:
    """One attempt of a call has ended."""

    call_id: CallId
    attempt: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class AnsweredLate:
    """An attempt's outcome came after its call had ended otherwise."""

    row: CallRow
    answered: Answered


@dataclass(frozen=True, slots=True)
class SlotFree:
    """A waiting call may leave; it already holds the slot."""

    call_id: CallId
    executor: str


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """A waiting call is not going to get a slot."""

    call_id: CallId
    reason: str


@dataclass(frozen=True, slots=True)
class Replied:
    """An executor replied about a routed event."""

    sequence: int
    answer: Answer


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Held:
    """Outbound rows have to wait for the runtime's start; they were never sent."""

    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline may have passed."""


@dataclass(frozen=True, slots=True)
class Recover:
    """The process has just taken this session up."""

    messages: Sequence[Envelope] = ()
    """The agent's messages that nobody has confirmed."""


@dataclass(frozen=True, slots=True)
class Post:
    events: Sequence[Event]
    reply: "Future[Sequence[Envelope]]"
    by: str
    """The name of the API key that posts them."""
    keep: Keep | None = None
    """The answer's place under an Idempotency-Key, where the client gave one."""


@dataclass(frozen=True, slots=True)
class OutcomeGiven:
    call_id: CallId
    answered: Answered
    reply: "Future[bool]"


@dataclass(frozen=True, slots=True)
class OutcomeLate:
    row: CallRow
    answered: Answered
    reply: "Future[None]"


@dataclass(frozen=True, slots=True)
class ProgressGiven:
    call_id: CallId
    progress: dict[str, Any]
    reply: "Future[bool]"


@dataclass(frozen=True, slots=True)
class CancelOrdered:
    call_id: CallId
    reason: str | None
    reply: "Future[bool]"


@dataclass(frozen=True, slots=True)
class RedriveOrdered:
    row: CallRow
    request: ToolRequested
    new_key: bool
    deliver: bool
    reply: "Future[CallId]"


@dataclass(frozen=True, slots=True)
class DismissOrdered:
    row: CallRow
    by: str
    reply: "Future[None]"


@dataclass(frozen=True, slots=True)
class AnswerGiven:
    """A person answers a question; the body may hold a secret, so it is never shown."""

    interaction_id: InteractionId
    body: Mapping[str, Any] = field(repr=False)
    by: str
    reply: "Future[None]"


@dataclass(frozen=True, slots=True)
class CloseOrdered:
    reason: str | None
    reply: "Future[None]"


ClientSignal = (
    Post
    | OutcomeGiven
    | OutcomeLate
    | ProgressGiven
    | CancelOrdered
    | RedriveOrdered
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
    | Replied
    | Delivered
    | Held
    | Tick
    | Recover
    | ClientSignal
)

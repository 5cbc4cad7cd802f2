"""The signals in a session's inbox: frames, results, timers, and client requests, which have a `reply`."""

from asyncio import Future
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from gateway.adapter.port import Frame, Link
from gateway.core.callers import CallRequest
from gateway.core.holding import Restored
from gateway.core.session import Policy
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
    """Whether the lease was valid at its arrival, so that no other instance has received it too."""


@frozen
class HandedOver:
    """A frame that another instance received; `sequence` is its outbound row."""

    frame: Frame
    sequence: int
    overloaded: bool = False


@frozen
class Connecting:
    """A link is being opened; frames before `CaughtUp` are history if the protocol replays it."""


@frozen
class CaughtUp:
    """The replay has ended; later frames are live."""

    starting: bool | None = False
    """Whether the runtime is still starting; None if the link has not queried it."""


@frozen
class WantedDue:
    """Recorded requests after a sequence may have neither a call nor an outcome; the first ones are read."""

    after: int
    requests: Sequence[tuple[int, ToolRequested]] = ()


@frozen
class Reread:
    """Another writer changed the session; load it again."""


@frozen
class Rerouted:
    """A reload has replaced the policy."""

    before: Policy


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
    """An attempt returned its outcome after the call had ended with another one."""

    row: Call
    answered: Answered


@frozen
class SlotFree:
    """A queued call may start; it already holds the slot."""

    call_id: CallId
    executor: str


@frozen
class TurnedAway:
    """A queued call is refused a slot."""

    call_id: CallId
    reason: str


@frozen
class ExecutorReplied:
    """An executor replied to a routed event, or the fate of the copy that confirms a message is known."""

    sequence: int
    answer: Answer
    executor: str = ""
    """Who replied."""


@frozen
class Delivered:
    """The fate of outbound rows to one target is known."""

    sequences: tuple[int, ...]
    target: str
    state: SendState
    reason: str | None = None
    overdue: bool = False
    """Whether they were not sent because the runtime no longer waits; it gets a correction instead."""
    fault: bool = False
    """Whether they are quarantined because they repeatedly made a link fail."""
    answers: InteractionId | None = None
    """The interaction that a single row answers."""


@frozen
class AttemptsDue:
    """Attempts of rows to the runtime must be committed or reset."""


@frozen
class Tick:
    """A deadline may have passed."""


@frozen
class Recover:
    """The process has just started this session."""

    messages: Sequence[Envelope] = ()
    """The agent's unconfirmed messages."""
    restored: Restored | None = None
    """The backup from which the store was restored."""


@frozen
class Post:
    events: Sequence[Event]
    reply: "Future[Sequence[Envelope]]"
    by: str
    """The name of the API key that posts them."""
    keep: Keep | None = None
    """Where to store the response under the client's Idempotency-Key."""


@frozen
class CallAsked:
    """A client other than the runtime calls a tool."""

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
    """An operator requests that an accepted call is sent to its executor again."""

    call_id: CallId
    reply: "Future[None]"


@frozen
class DismissOrdered:
    row: Call
    by: str
    reply: "Future[None]"


@frozen
class AnswerGiven:
    """A person answers an interaction; the body may contain a secret, so its repr omits it."""

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

LinkSignal = Connecting | CaughtUp | WantedDue | Reread | LinkUp | LinkDown
WorkSignal = SlotFree | TurnedAway | ExecutorReplied | Rerouted
Signal = (
    FrameArrived
    | HandedOver
    | LinkSignal
    | Attempted
    | AnsweredLate
    | WorkSignal
    | Delivered
    | AttemptsDue
    | Tick
    | Recover
    | ClientSignal
)


def reply_of(signal: Signal) -> "Future[Any] | None":
    """Return the future of a client's request; None for all other signals."""
    return getattr(signal, "reply", None)


def resolve(reply: "Future[Any]", answer: Any) -> None:
    """Answer a request, unless its client gave up."""
    if not reply.done():
        reply.set_result(answer)


def fail(signal: Signal, problem: BaseException) -> None:
    """Let a request fail; other signals have nobody who waits."""
    reply = reply_of(signal)
    if reply is not None and not reply.done():
        reply.set_exception(problem)


def without_requests(batch: Iterable[Signal], problem: BaseException) -> list[Signal]:
    """Fail the client requests of a batch; return all other signals."""
    others: list[Signal] = []
    for signal in batch:
        if reply_of(signal) is None:
            others.append(signal)
        else:
            fail(signal, problem)
    return others

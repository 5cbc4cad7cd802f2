"""The canonical events: one frozen model per kind, one union over all of them. Pure.

Kinds are `noun.participle` and are never renamed. Directions are noted as
← from the runtime, → to the runtime; kinds without an arrow are made by the gateway.
"""

from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, TypeAdapter, field_validator

from dragoman.models.content import Author, Burst, Content, ContextUpdate, Outcome, OutcomeKind, Text, Value
from dragoman.models.questions import (
    ApprovalAsked as ApprovalAsked,
    ApprovalGiven as ApprovalGiven,
    Decision as Decision,
    QuestionAnswered as QuestionAnswered,
    QuestionAsked as QuestionAsked,
    Scope as Scope,
    SecretAsked as SecretAsked,
    SecretSupplied as SecretSupplied,
)

RunsIn = Literal["host", "runtime"]
SessionState = Literal[
    "starting",
    "running",
    "idle",
    "awaiting_input",
    "awaiting_approval",
    "awaiting_outcome",
    "paused",
    "finished",
    "stopped",
    "error",
]


class ContextUpdated(Value):
    """→ The state of the agent's world; `context` is complete."""

    kind: Literal["context.updated"] = "context.updated"
    """The kind of event."""
    name: str
    """The part of the world."""
    context: dict[str, Any]
    """Its complete state."""
    description: str = ""
    """A description of the change, for the agent."""
    wakes_agent: bool = False
    """Whether the agent should act on it."""
    message: "MessagePosted | None" = None
    """The chat message in this update, for runtimes that accept messages only as context."""
    call_id: str | None = None
    """The call whose outcome includes this update."""


class MessagePosted(Value):
    """↔ A message."""

    kind: Literal["message.posted"] = "message.posted"
    """The kind of event."""
    author: Author = Author()
    """The author."""
    content: tuple[Content, ...]
    """The content; a string is one block of text."""
    message_id: str | None = None
    """The author's id of the message."""
    wakes_agent: bool = True
    """Whether the agent should answer."""
    complete: bool = True
    """False if the text was cut off."""
    burst: Burst | None = None
    """Its place in a burst that is confirmed message by message."""
    extra_args: dict[str, Any] | None = None
    """Further members of the native message."""
    created_at: datetime | None = None
    """The time that the author gives, if any."""

    @field_validator("content", mode="before", json_schema_input_type=str | tuple[Content, ...])
    @classmethod
    def _text_is_content(cls, given: object) -> object:
        return (Text(text=given),) if isinstance(given, str) else given


class MessageStreamed(Value):
    """← live: a chunk of an unfinished message."""

    kind: Literal["message.streamed"] = "message.streamed"
    """The kind of event."""
    text: str
    """The chunk."""
    message_id: str | None = None
    """The message it belongs to."""


class MessageConfirmed(Value):
    """→ Whether one message of a burst was delivered."""

    kind: Literal["message.confirmed"] = "message.confirmed"
    """The kind of event."""
    native_call_id: str
    """The runtime's own id of the call."""
    index: int = Field(ge=0)
    """Its place in the burst, from 0."""
    delivered: bool = True
    """Whether it was delivered."""
    error: str | None = None
    """The reason if it was not delivered."""
    context: dict[str, Any] | None = None
    """The state of the world after it."""


class AddonAnswered(Value):
    """→ Data for an addon that runs inside the runtime."""

    kind: Literal["addon.answered"] = "addon.answered"
    """The kind of event."""
    native_call_id: str
    """The runtime's own id of the call."""
    data: dict[str, Any]
    """The data that the addon requested."""


class TypingChanged(Value):
    """← live: the agent started or stopped typing."""

    kind: Literal["typing.changed"] = "typing.changed"
    """The kind of event."""
    typing: bool
    """Whether the agent is typing."""
    reason: str | None = None
    """The reason for stopping."""
    native_call_id: str | None = None
    """The runtime's own id of the call."""
    extra_args: dict[str, Any] | None = None
    """Further members of the native message."""


class ThoughtShared(Value):
    """← Reasoning that the runtime shares."""

    kind: Literal["thought.shared"] = "thought.shared"
    """The kind of event."""
    text: str
    """The reasoning."""


class ToolRequested(Value):
    """← The agent calls a tool; the gateway executes it only with `runs_in: host`."""

    kind: Literal["tool.requested"] = "tool.requested"
    """The kind of event."""
    native_call_id: str
    """The runtime's own id of the call."""
    tool: str
    """The tool's name."""
    arguments: dict[str, Any] = {}
    """The arguments of the call."""
    runs_in: RunsIn = "host"
    """`host`: the gateway executes the call; `runtime`: the runtime does."""
    needs_approval: bool = False
    """Whether a person must allow it first."""
    thought: str | None = None
    """The agent's reason for the call."""
    preview: str | None = None
    """A description of the effect, for people."""
    supersedes: str | None = None
    """Native call id of the request that this one replaces."""
    problem: str | None = None
    """The reason why the call cannot be executed, such as invalid arguments; it ends as a failure."""
    call_id: str | None = None
    """The gateway's id; the core sets it for host calls."""


class ToolCanceled(Value):
    """← The agent cancels a call."""

    kind: Literal["tool.canceled"] = "tool.canceled"
    """The kind of event."""
    native_call_id: str
    """The runtime's own id of the call."""
    tool: str | None = None
    """The tool's name."""
    reason: str | None = None
    """The reason."""
    call_id: str | None = None
    """The gateway's id of the call."""


class ToolFinished(Value):
    """↔ The outcome of a call; the core adds a missing `tool`."""

    kind: Literal["tool.finished"] = "tool.finished"
    """The kind of event."""
    native_call_id: str
    """The runtime's own id of the call."""
    tool: str | None = None
    """The tool's name."""
    outcome: OutcomeKind
    """The outcome."""
    result: Any = None
    """The result as JSON; only on success."""
    error: str | None = None
    """Text for the agent; on every other outcome."""
    wakes_agent: bool = True
    """Whether the agent should continue."""
    unknown: bool = False
    """True if the work may have been done but cannot be verified."""
    call_id: str | None = None
    """The gateway's id of the call."""
    context: dict[str, Any] | None = None
    """State that some clients send with a result; a patch, never a replacement."""
    updates: tuple[ContextUpdate, ...] = ()
    """New state inside the result, for runtimes without contexts."""

    def as_outcome(self) -> Outcome:
        """Convert to an `Outcome`."""
        return Outcome(outcome=self.outcome, result=self.result, error=self.error, unknown=self.unknown)


class CallProgressed(Value):
    """Progress of a call, reported by its executor."""

    kind: Literal["call.progressed"] = "call.progressed"
    """The kind of event."""
    native_call_id: str
    """The runtime's own id of the call."""
    data: dict[str, Any]
    """The report."""
    call_id: str | None = None
    """The gateway's id of the call."""


class CallLinked(Value):
    """An action of the runtime and a caller's call are the same call.

    `caused_by` is the sequence of the action's request.
    """

    kind: Literal["call.linked"] = "call.linked"
    """The kind of event."""
    native_call_id: str
    """The runtime's own id of the action."""
    tool: str
    """The tool that was called."""
    call_id: str
    """The gateway's id of the caller's call."""


class ActionOrdered(Value):
    """→ An order to run one of the runtime's own actions."""

    kind: Literal["action.ordered"] = "action.ordered"
    """The kind of event."""
    action: str
    """The runtime's name of the action."""
    arguments: dict[str, Any] = {}
    """The arguments of the action."""


class TurnSteered(Value):
    """→ A hint for the current turn."""

    kind: Literal["turn.steered"] = "turn.steered"
    """The kind of event."""
    text: str
    """The hint."""


class TurnInterrupted(Value):
    """→ Stop the current turn."""

    kind: Literal["turn.interrupted"] = "turn.interrupted"
    """The kind of event."""
    reason: str | None = None
    """The reason."""


class SessionMoved(Value):
    """← The session has a new state."""

    kind: Literal["session.moved"] = "session.moved"
    """The kind of event."""
    state: SessionState
    """The new state."""
    reason: str | None = None
    """The reason."""
    waiting_for: tuple[str, ...] = ()
    """Ids of the calls or questions that it waits for."""
    native_state: str | None = None
    """The runtime's name of the state."""
    thread: str | None = None
    """The thread whose state this is."""


class SessionTitled(Value):
    """← The session has a title."""

    kind: Literal["session.titled"] = "session.titled"
    """The kind of event."""
    title: str
    """The title."""


class ThreadSent(Value):
    """← The agent delegates work to another thread."""

    kind: Literal["thread.sent"] = "thread.sent"
    """The kind of event."""
    thread_id: str
    """The other thread."""
    content: tuple[Content, ...] = ()
    """The work."""


class ThreadReceived(Value):
    """← The result from another thread."""

    kind: Literal["thread.received"] = "thread.received"
    """The kind of event."""
    thread_id: str
    """The other thread."""
    content: tuple[Content, ...] = ()
    """The result."""


class FaultReported(Value):
    """← The runtime reports an error."""

    kind: Literal["fault.reported"] = "fault.reported"
    """The kind of event."""
    message: str
    """The error message."""
    code: str | None = None
    """The runtime's error code."""


class Opaque(Value):
    """↔ A message of an unknown type, stored unchanged."""

    kind: Literal["opaque"] = "opaque"
    """The kind of event."""
    channel: str
    """The native channel, or the protocol's name of the message type."""
    payload: Any = None
    """The message itself."""


UNKNOWN_KIND = "unknown-kind"
"""The channel of an opaque event that replaces a stored event of an unknown kind or form."""


class SessionOpened(Value):
    """The session was opened."""

    kind: Literal["session.opened"] = "session.opened"
    """The kind of event."""
    runtime: str
    """The runtime's name in the configuration."""
    protocol: str
    """The runtime's protocol."""
    native_id: str
    """The runtime's own id of the session."""
    labels: dict[str, str] = {}
    """The labels of the session."""
    echoes: bool = False
    """Whether the runtime sends our own messages back."""
    delegates: bool = False
    """Whether states of a delegate look like the agent's own."""


class SessionClosed(Value):
    """The session was closed; the gateway sends and accepts nothing more."""

    kind: Literal["session.closed"] = "session.closed"
    """The kind of event."""
    reason: str | None = None
    """The reason."""


class LinkChanged(Value):
    """The link to the runtime was connected, lost or refused."""

    kind: Literal["link.changed"] = "link.changed"
    """The kind of event."""
    state: Literal["up", "down", "refused"]
    """The new state."""
    reason: str | None = None
    """The reason."""


class FrameRejected(Value):
    """A native message could not be read."""

    kind: Literal["frame.rejected"] = "frame.rejected"
    """The kind of event."""
    channel: str
    """The native channel."""
    reason: str
    """The reason."""
    path: str = ""
    """RFC 6901 pointer to the error."""
    excerpt: str = ""
    """The start of the message; bounded."""


class OutcomeIgnored(Value):
    """An outcome arrived for a call that had already ended."""

    kind: Literal["outcome.ignored"] = "outcome.ignored"
    """The kind of event."""
    native_call_id: str
    """The runtime's own id of the call."""
    call_id: str | None = None
    """The gateway's id of the call."""
    outcome: OutcomeKind
    """The ignored outcome."""
    result: Any = None
    """The result as JSON; only on success."""
    error: str | None = None
    """Text for the agent."""
    reason: str = ""
    """The reason for ignoring it."""
    size: int | None = None
    """Bytes of a large outcome; only its size and hash are stored."""
    sha256: str | None = None
    """SHA-256 of a large outcome."""


class DeliverySettled(Value):
    """The result of a delivery, unless it is an ordinary success."""

    kind: Literal["delivery.settled"] = "delivery.settled"
    """The kind of event."""
    sequence: int
    """Sequence of the event that was sent."""
    target: str
    """`runtime` or `destination:NAME`."""
    state: Literal["delivered", "refused", "moot", "unknown", "dead"]
    """The result of the delivery."""
    reason: str | None = None
    """The reason."""
    native_id: str | None = None
    """The runtime's id of the event, if an echo shows it; results refer to it."""


Event = Annotated[
    ContextUpdated
    | MessagePosted
    | MessageStreamed
    | MessageConfirmed
    | AddonAnswered
    | TypingChanged
    | ThoughtShared
    | ToolRequested
    | ToolCanceled
    | ToolFinished
    | CallProgressed
    | CallLinked
    | ApprovalAsked
    | ApprovalGiven
    | QuestionAsked
    | QuestionAnswered
    | SecretAsked
    | SecretSupplied
    | ActionOrdered
    | TurnSteered
    | TurnInterrupted
    | SessionMoved
    | SessionTitled
    | ThreadSent
    | ThreadReceived
    | FaultReported
    | Opaque
    | SessionOpened
    | SessionClosed
    | LinkChanged
    | FrameRejected
    | OutcomeIgnored
    | DeliverySettled,
    Field(discriminator="kind"),
]

EVENT: TypeAdapter[Event] = TypeAdapter(Event)
"""Validates and dumps any event."""

KINDS: tuple[str, ...] = tuple(model.model_fields["kind"].default for model in get_args(get_args(Event)[0]))
"""Every kind, in the order of the union."""

CLIENT_KINDS: frozenset[str] = frozenset(
    {
        "context.updated",
        "message.posted",
        "message.confirmed",
        "addon.answered",
        "approval.given",
        "question.answered",
        "secret.supplied",
        "action.ordered",
        "turn.steered",
        "turn.interrupted",
        "opaque",
    }
)
"""Kinds that an API client may post: all → kinds except outcomes, which belong to calls."""

FINISHING_KINDS: frozenset[str] = frozenset(
    {
        "message.confirmed",
        "addon.answered",
        "approval.given",
        "question.answered",
        "secret.supplied",
        "turn.interrupted",
    }
)
"""Client events that answer the runtime or end its turn; a gateway that is stopping still accepts them."""


def dump_event(event: Event) -> dict[str, Any]:
    """Convert an event to plain JSON values, without None members."""
    return EVENT.dump_python(event, mode="json", exclude_none=True)

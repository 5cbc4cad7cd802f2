"""The canonical events: one frozen model per kind, one union over all of them. Pure.

Kinds are `noun.participle` and are never renamed. Directions are noted as
← from the runtime, → to the runtime; kinds without an arrow are made by the gateway.
"""

from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, SecretStr, TypeAdapter, field_validator

from gateway.events.content import Author, Burst, Content, ContextUpdate, Outcome, OutcomeKind, Text, Value

RunsIn = Literal["host", "runtime"]
Scope = Literal["once", "session", "always"]
Decision = Literal["allow", "deny"]
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
    """→ The world the agent acts in has changed; `context` is the complete state."""

    kind: Literal["context.updated"] = "context.updated"
    """What happened."""
    name: str
    """Which part of the world it is."""
    context: dict[str, Any]
    """Its complete state."""
    description: str = ""
    """What has happened, for the agent."""
    wakes_agent: bool = False
    """Whether the agent should act on it."""
    message: "MessagePosted | None" = None
    """The chat message this update carries, where the runtime takes messages only as context."""
    call_id: str | None = None
    """Set when the update belongs to the outcome of this call."""


class MessagePosted(Value):
    """↔ Somebody said something; from the agent, `complete` is false for a cut-off text."""

    kind: Literal["message.posted"] = "message.posted"
    """What happened."""
    author: Author = Author()
    """Who said it."""
    content: tuple[Content, ...]
    """What was said; a string is one block of text."""
    message_id: str | None = None
    """Its id, in the words of whoever said it."""
    wakes_agent: bool = True
    """Whether the agent should answer."""
    complete: bool = True
    """False for a text that was cut off."""
    burst: Burst | None = None
    """Its place in a burst that is confirmed message by message."""
    extra_args: dict[str, Any] | None = None
    """What the protocol said besides."""
    created_at: datetime | None = None
    """When it was said, where its author tells."""

    @field_validator("content", mode="before", json_schema_input_type=str | tuple[Content, ...])
    @classmethod
    def _text_is_content(cls, given: object) -> object:
        return (Text(text=given),) if isinstance(given, str) else given


class MessageStreamed(Value):
    """← live: a piece of a message that is still being written."""

    kind: Literal["message.streamed"] = "message.streamed"
    """What happened."""
    text: str
    """The piece."""
    message_id: str | None = None
    """The message it belongs to."""


class MessageConfirmed(Value):
    """→ One message of a burst was delivered, or not."""

    kind: Literal["message.confirmed"] = "message.confirmed"
    """What happened."""
    native_call_id: str
    """The runtime's own id of the call."""
    index: int = Field(ge=0)
    """Its place in the burst, from 0."""
    delivered: bool = True
    """Whether it arrived."""
    error: str | None = None
    """Why it did not arrive."""
    context: dict[str, Any] | None = None
    """The state of the world behind it."""


class AddonAnswered(Value):
    """→ Data for an addon that runs inside the runtime."""

    kind: Literal["addon.answered"] = "addon.answered"
    """What happened."""
    native_call_id: str
    """The runtime's own id of the call."""
    data: dict[str, Any]
    """What the addon asked for."""


class TypingChanged(Value):
    """← live: the agent began or ceased to type."""

    kind: Literal["typing.changed"] = "typing.changed"
    """What happened."""
    typing: bool
    """Whether it types."""
    reason: str | None = None
    """Why it ceased."""
    native_call_id: str | None = None
    """The runtime's own id of the call."""
    extra_args: dict[str, Any] | None = None
    """What the protocol said besides."""


class ThoughtShared(Value):
    """← The agent's own reasoning, as far as the runtime shows it."""

    kind: Literal["thought.shared"] = "thought.shared"
    """What happened."""
    text: str
    """What it thinks."""


class ToolRequested(Value):
    """← The agent asks for an action; only `runs_in: host` is ours to do."""

    kind: Literal["tool.requested"] = "tool.requested"
    """What happened."""
    native_call_id: str
    """The runtime's own id of the call."""
    tool: str
    """The tool's name."""
    arguments: dict[str, Any] = {}
    """What it is called with."""
    runs_in: RunsIn = "host"
    """Who carries it out."""
    needs_approval: bool = False
    """Whether a person must allow it first."""
    thought: str | None = None
    """Why the agent wants it."""
    preview: str | None = None
    """What it would do, for people."""
    supersedes: str | None = None
    """Native call id of the request that this one replaces."""
    problem: str | None = None
    """Why the call cannot be carried out as it stands (unusable arguments); it ends as a failure."""
    call_id: str | None = None
    """Ours; completed by the core for host calls."""


class ToolCanceled(Value):
    """← The agent no longer wants a call."""

    kind: Literal["tool.canceled"] = "tool.canceled"
    """What happened."""
    native_call_id: str
    """The runtime's own id of the call."""
    tool: str | None = None
    """The tool's name."""
    reason: str | None = None
    """Why."""
    call_id: str | None = None
    """Ours."""


class ToolFinished(Value):
    """↔ The one answer to a call; `tool` is completed by the core where a frame leaves it out."""

    kind: Literal["tool.finished"] = "tool.finished"
    """What happened."""
    native_call_id: str
    """The runtime's own id of the call."""
    tool: str | None = None
    """The tool's name."""
    outcome: OutcomeKind
    """How it ended."""
    result: Any = None
    """Any JSON; on success."""
    error: str | None = None
    """Text for the agent; on anything but success."""
    wakes_agent: bool = True
    """Whether the agent should go on."""
    unknown: bool = False
    """Whether the work may have been done although nobody can know."""
    call_id: str | None = None
    """Ours."""
    context: dict[str, Any] | None = None
    """State that some clients send along with a result; a patch, never a replacement."""
    updates: tuple[ContextUpdate, ...] = ()
    """Fresh state that goes inside the answer, where the runtime has no context of its own."""

    def as_outcome(self) -> Outcome:
        """Say the same as an `Outcome`."""
        return Outcome(outcome=self.outcome, result=self.result, error=self.error, unknown=self.unknown)


class CallProgressed(Value):
    """An executor tells how far a call has come."""

    kind: Literal["call.progressed"] = "call.progressed"
    """What happened."""
    native_call_id: str
    """The runtime's own id of the call."""
    data: dict[str, Any]
    """What it says of itself."""
    call_id: str | None = None
    """Ours."""


class CallLinked(Value):
    """An action of the runtime's own has turned out to be a caller's call, seen from its other side.

    `caused_by` is the sequence of the action's request.
    """

    kind: Literal["call.linked"] = "call.linked"
    """What happened."""
    native_call_id: str
    """The runtime's own id of the action."""
    tool: str
    """The tool that was called."""
    call_id: str
    """Ours: the caller's call."""


class ApprovalAsked(Value):
    """← A person must allow or deny an action."""

    kind: Literal["approval.asked"] = "approval.asked"
    """What happened."""
    id: str
    """The runtime's id of the question."""
    native_call_id: str | None = None
    """The runtime's own id of the call."""
    tool: str | None = None
    """The tool's name."""
    arguments: dict[str, Any] = {}
    """What it would be called with."""
    scopes: tuple[Scope, ...] = ("once",)
    """For how long it may be allowed."""


class ApprovalGiven(Value):
    """→ The answer to an `approval.asked`."""

    kind: Literal["approval.given"] = "approval.given"
    """What happened."""
    id: str
    """The id of the `approval.asked`."""
    native_call_id: str | None = None
    """The runtime's own id of the call."""
    decision: Decision
    """Whether it may be done."""
    scope: Scope | None = None
    """For how long."""


class QuestionAsked(Value):
    """← The agent asks a person."""

    kind: Literal["question.asked"] = "question.asked"
    """What happened."""
    id: str
    """The runtime's id of the question."""
    text: str
    """The question."""
    choices: tuple[str, ...] = ()
    """What may be answered, where that is fixed."""


class QuestionAnswered(Value):
    """→ The answer; an empty one means skip."""

    kind: Literal["question.answered"] = "question.answered"
    """What happened."""
    id: str
    """The id of the `question.asked`."""
    answer: str
    """The answer; an empty one skips the question."""


class SecretAsked(Value):
    """← The agent needs a password or secret value."""

    kind: Literal["secret.asked"] = "secret.asked"
    """What happened."""
    id: str
    """The runtime's id of the question."""
    purpose: Literal["sudo", "secret"]
    """What it is for."""
    prompt: str | None = None
    """What a person is to be asked."""
    name: str | None = None
    """The name of the secret."""


class SecretSupplied(Value):
    """→ A password or secret value; the value lives in memory only and is dumped as asterisks."""

    kind: Literal["secret.supplied"] = "secret.supplied"
    """What happened."""
    id: str
    """The id of the `secret.asked`."""
    purpose: Literal["sudo", "secret"] = "secret"
    """What it is for."""
    value: SecretStr
    """The secret."""

    def reveal(self) -> str:
        """Return the value to put on the wire.

        Raises:
            ValueError: this event was read back from a journal, where only asterisks were kept.
        """
        value = self.value.get_secret_value()
        if value and not value.strip("*"):
            raise ValueError("the secret was not kept and cannot be sent again")
        return value


class ActionOrdered(Value):
    """→ The host orders the runtime to carry out an action of its own."""

    kind: Literal["action.ordered"] = "action.ordered"
    """What happened."""
    action: str
    """The action, in the runtime's words."""
    arguments: dict[str, Any] = {}
    """What it is carried out with."""


class TurnSteered(Value):
    """→ A hint for the turn that is under way."""

    kind: Literal["turn.steered"] = "turn.steered"
    """What happened."""
    text: str
    """The hint."""


class TurnInterrupted(Value):
    """→ Stop the turn."""

    kind: Literal["turn.interrupted"] = "turn.interrupted"
    """What happened."""
    reason: str | None = None
    """Why."""


class SessionMoved(Value):
    """← The session is in another state."""

    kind: Literal["session.moved"] = "session.moved"
    """What happened."""
    state: SessionState
    """Where it stands now."""
    reason: str | None = None
    """Why."""
    waiting_for: tuple[str, ...] = ()
    """Which calls or questions it waits for."""
    native_state: str | None = None
    """The state in the runtime's words."""
    thread: str | None = None
    """The thread that it is about."""


class SessionTitled(Value):
    """← The session has a title."""

    kind: Literal["session.titled"] = "session.titled"
    """What happened."""
    title: str
    """The title."""


class ThreadSent(Value):
    """← The agent handed work to another thread."""

    kind: Literal["thread.sent"] = "thread.sent"
    """What happened."""
    thread_id: str
    """The other thread."""
    content: tuple[Content, ...] = ()
    """What was handed over."""


class ThreadReceived(Value):
    """← Another thread answered."""

    kind: Literal["thread.received"] = "thread.received"
    """What happened."""
    thread_id: str
    """The other thread."""
    content: tuple[Content, ...] = ()
    """What it answered."""


class FaultReported(Value):
    """← The runtime says that something went wrong."""

    kind: Literal["fault.reported"] = "fault.reported"
    """What happened."""
    message: str
    """What went wrong."""
    code: str | None = None
    """The runtime's code for it."""


class Opaque(Value):
    """↔ A message of a type we do not know, kept as it came."""

    kind: Literal["opaque"] = "opaque"
    """What happened."""
    channel: str
    """Where it came in, or goes out: the protocol's name of its type."""
    payload: Any = None
    """The message itself."""


UNKNOWN_KIND = "unknown-kind"
"""The channel of the opaque event that one reads as whose kind, or a member of it, this release does not know."""


class SessionOpened(Value):
    """The session exists from here on."""

    kind: Literal["session.opened"] = "session.opened"
    """What happened."""
    runtime: str
    """Its name in the configuration."""
    protocol: str
    """What it speaks."""
    native_id: str
    """The runtime's own id of the session."""
    labels: dict[str, str] = {}
    """The labels it was opened with."""
    echoes: bool = False
    """The runtime sends our own messages back."""
    delegates: bool = False
    """States of a delegate look like the agent's own."""


class SessionClosed(Value):
    """The session has ended for us; nothing more is sent or taken."""

    kind: Literal["session.closed"] = "session.closed"
    """What happened."""
    reason: str | None = None
    """Why."""


class LinkChanged(Value):
    """Our connection to the runtime went up or down, or was refused."""

    kind: Literal["link.changed"] = "link.changed"
    """What happened."""
    state: Literal["up", "down", "refused"]
    """How it stands now."""
    reason: str | None = None
    """Why."""


class FrameRejected(Value):
    """A native message could not be read; `excerpt` is bounded."""

    kind: Literal["frame.rejected"] = "frame.rejected"
    """What happened."""
    channel: str
    """Where it came in."""
    reason: str
    """Why."""
    path: str = ""
    """RFC 6901 pointer to what was wrong."""
    excerpt: str = ""
    """How it began."""


class OutcomeIgnored(Value):
    """An outcome came for a call that had already ended."""

    kind: Literal["outcome.ignored"] = "outcome.ignored"
    """What happened."""
    native_call_id: str
    """The runtime's own id of the call."""
    call_id: str | None = None
    """Ours."""
    outcome: OutcomeKind
    """How it says that the call ended."""
    result: Any = None
    """Any JSON; on success."""
    error: str | None = None
    """Text for the agent."""
    reason: str = ""
    """Why it was ignored."""
    size: int | None = None
    """Bytes of a large one, of which only the size and the hash are kept."""
    sha256: str | None = None
    """The hash of a large one."""


class DeliverySettled(Value):
    """What became of something we sent, where that is worth a record."""

    kind: Literal["delivery.settled"] = "delivery.settled"
    """What happened."""
    sequence: int
    """Sequence of the event that was sent."""
    target: str
    """`runtime` or `destination:NAME`."""
    state: Literal["delivered", "refused", "moot", "unknown", "dead"]
    """What became of it."""
    reason: str | None = None
    """Why."""
    native_id: str | None = None
    """The id the runtime has given it, where an echo tells; results refer to it."""


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
"""What an API client may post: everything → except outcomes, which belong to calls."""

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
"""Client events that answer the runtime or end its turn; a gateway that stops still takes them."""

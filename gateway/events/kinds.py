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
    name: str
    context: dict[str, Any]
    description: str = ""
    wakes_agent: bool = False
    message: "MessagePosted | None" = None
    """The chat message this update carries, where the runtime takes messages only as context."""
    call_id: str | None = None
    """Set when the update belongs to the outcome of this call."""


class MessagePosted(Value):
    """↔ Somebody said something; from the agent, `complete` is false for a cut-off text."""

    kind: Literal["message.posted"] = "message.posted"
    author: Author = Author()
    content: tuple[Content, ...]
    message_id: str | None = None
    wakes_agent: bool = True
    complete: bool = True
    burst: Burst | None = None
    extra_args: dict[str, Any] | None = None
    created_at: datetime | None = None

    @field_validator("content", mode="before", json_schema_input_type=str | tuple[Content, ...])
    @classmethod
    def _text_is_content(cls, given: object) -> object:
        return (Text(text=given),) if isinstance(given, str) else given


class MessageStreamed(Value):
    """← live: a piece of a message that is still being written."""

    kind: Literal["message.streamed"] = "message.streamed"
    text: str
    message_id: str | None = None


class MessageConfirmed(Value):
    """→ One message of a burst was delivered, or not."""

    kind: Literal["message.confirmed"] = "message.confirmed"
    native_call_id: str
    index: int = Field(ge=0)
    delivered: bool = True
    error: str | None = None
    context: dict[str, Any] | None = None


class AddonAnswered(Value):
    """→ Data for an addon that runs inside the runtime."""

    kind: Literal["addon.answered"] = "addon.answered"
    native_call_id: str
    data: dict[str, Any]


class TypingChanged(Value):
    """← live: the agent began or ceased to type."""

    kind: Literal["typing.changed"] = "typing.changed"
    typing: bool
    reason: str | None = None
    native_call_id: str | None = None
    extra_args: dict[str, Any] | None = None


class ThoughtShared(Value):
    """← The agent's own reasoning, as far as the runtime shows it."""

    kind: Literal["thought.shared"] = "thought.shared"
    text: str


class ToolRequested(Value):
    """← The agent asks for an action; only `runs_in: host` is ours to do."""

    kind: Literal["tool.requested"] = "tool.requested"
    native_call_id: str
    tool: str
    arguments: dict[str, Any] = {}
    runs_in: RunsIn = "host"
    needs_approval: bool = False
    thought: str | None = None
    preview: str | None = None
    supersedes: str | None = None
    """Native call id of the request that this one replaces."""
    problem: str | None = None
    """Why the call cannot be carried out as it stands (unusable arguments); it ends as a failure."""
    call_id: str | None = None
    """Ours; completed by the core for host calls."""


class ToolCanceled(Value):
    """← The agent no longer wants a call."""

    kind: Literal["tool.canceled"] = "tool.canceled"
    native_call_id: str
    tool: str | None = None
    reason: str | None = None
    call_id: str | None = None


class ToolFinished(Value):
    """↔ The one answer to a call; `tool` is completed by the core where a frame leaves it out."""

    kind: Literal["tool.finished"] = "tool.finished"
    native_call_id: str
    tool: str | None = None
    outcome: OutcomeKind
    result: Any = None
    error: str | None = None
    wakes_agent: bool = True
    unknown: bool = False
    call_id: str | None = None
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
    native_call_id: str
    data: dict[str, Any]
    call_id: str | None = None


class ApprovalAsked(Value):
    """← A person must allow or deny an action."""

    kind: Literal["approval.asked"] = "approval.asked"
    id: str
    native_call_id: str | None = None
    tool: str | None = None
    arguments: dict[str, Any] = {}
    scopes: tuple[Scope, ...] = ("once",)


class ApprovalGiven(Value):
    """→ The answer to an `approval.asked`."""

    kind: Literal["approval.given"] = "approval.given"
    id: str
    native_call_id: str | None = None
    decision: Decision
    scope: Scope | None = None


class QuestionAsked(Value):
    """← The agent asks a person."""

    kind: Literal["question.asked"] = "question.asked"
    id: str
    text: str
    choices: tuple[str, ...] = ()


class QuestionAnswered(Value):
    """→ The answer; an empty one means skip."""

    kind: Literal["question.answered"] = "question.answered"
    id: str
    answer: str


class SecretAsked(Value):
    """← The agent needs a password or secret value."""

    kind: Literal["secret.asked"] = "secret.asked"
    id: str
    purpose: Literal["sudo", "secret"]
    prompt: str | None = None
    name: str | None = None


class SecretSupplied(Value):
    """→ A password or secret value; the value lives in memory only and is dumped as asterisks."""

    kind: Literal["secret.supplied"] = "secret.supplied"
    id: str
    purpose: Literal["sudo", "secret"] = "secret"
    value: SecretStr

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
    action: str
    arguments: dict[str, Any] = {}


class TurnSteered(Value):
    """→ A hint for the turn that is under way."""

    kind: Literal["turn.steered"] = "turn.steered"
    text: str


class TurnInterrupted(Value):
    """→ Stop the turn."""

    kind: Literal["turn.interrupted"] = "turn.interrupted"
    reason: str | None = None


class SessionMoved(Value):
    """← The session is in another state."""

    kind: Literal["session.moved"] = "session.moved"
    state: SessionState
    reason: str | None = None
    waiting_for: tuple[str, ...] = ()
    native_state: str | None = None
    thread: str | None = None


class SessionTitled(Value):
    """← The session has a title."""

    kind: Literal["session.titled"] = "session.titled"
    title: str


class ThreadSent(Value):
    """← The agent handed work to another thread."""

    kind: Literal["thread.sent"] = "thread.sent"
    thread_id: str
    content: tuple[Content, ...] = ()


class ThreadReceived(Value):
    """← Another thread answered."""

    kind: Literal["thread.received"] = "thread.received"
    thread_id: str
    content: tuple[Content, ...] = ()


class FaultReported(Value):
    """← The runtime says that something went wrong."""

    kind: Literal["fault.reported"] = "fault.reported"
    message: str
    code: str | None = None


class Opaque(Value):
    """↔ A message of a type we do not know, kept as it came."""

    kind: Literal["opaque"] = "opaque"
    channel: str
    payload: Any = None


class SessionOpened(Value):
    """The session exists from here on."""

    kind: Literal["session.opened"] = "session.opened"
    runtime: str
    protocol: str
    native_id: str
    labels: dict[str, str] = {}
    echoes: bool = False
    """The runtime sends our own messages back."""
    delegates: bool = False
    """States of a delegate look like the agent's own."""


class SessionClosed(Value):
    """The session has ended for us; nothing more is sent or taken."""

    kind: Literal["session.closed"] = "session.closed"
    reason: str | None = None


class LinkChanged(Value):
    """Our connection to the runtime went up or down, or was refused."""

    kind: Literal["link.changed"] = "link.changed"
    state: Literal["up", "down", "refused"]
    reason: str | None = None


class FrameRejected(Value):
    """A native message could not be read; `excerpt` is bounded."""

    kind: Literal["frame.rejected"] = "frame.rejected"
    channel: str
    reason: str
    path: str = ""
    excerpt: str = ""


class OutcomeIgnored(Value):
    """An outcome came for a call that had already ended."""

    kind: Literal["outcome.ignored"] = "outcome.ignored"
    native_call_id: str
    call_id: str | None = None
    outcome: OutcomeKind
    result: Any = None
    error: str | None = None
    reason: str = ""
    size: int | None = None
    """Bytes of a large one, of which only the size and the hash are kept."""
    sha256: str | None = None


class DeliverySettled(Value):
    """What became of something we sent, where that is worth a record."""

    kind: Literal["delivery.settled"] = "delivery.settled"
    sequence: int
    """Sequence of the event that was sent."""
    target: str
    """`runtime` or `destination:NAME`."""
    state: Literal["delivered", "refused", "moot", "unknown", "dead"]
    reason: str | None = None
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

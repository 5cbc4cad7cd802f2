"""What executors and destinations are sent, and what they may answer, as the OpenAPI document describes it.

Nothing is validated against these on its way: requests are written from rows and events, and a test holds what was
really sent against them.
"""

from typing import Any, Literal

from pydantic import AwareDatetime, ConfigDict

from gateway.events import ApprovalAsked, Direction, Event, Loss, MessagePosted, QuestionAsked
from gateway.events.described import Described


class WebhookModel(Described):
    """The base of what is sent; a release may add members to each."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Origin(WebhookModel):
    """Where an event comes from, in the words of its protocol."""

    adapter: str
    """The adapter that speaks it."""
    protocol: str
    """What it speaks."""
    native_id: str | None
    """The runtime's own id of the message."""
    native_sequence: int | None
    """The runtime's own number of it."""
    native_time: str | None
    """When it happened, in the runtime's words."""


class Envelope(WebhookModel):
    """An event that is on record."""

    event_id: str
    """A ULID, also the `webhook-id` of its copies."""
    session_id: str
    """The session."""
    sequence: int
    """1, 2, 3 … per session, without gaps."""
    recorded_at: AwareDatetime
    """When it was put on record."""
    direction: Direction
    """Which way it goes."""
    origin: Origin | None
    """Where it comes from; only what a runtime or a caller has said has one."""
    caused_by: int | None
    """The sequence of the event that led to it."""
    linked_to: str | None = None
    """On the runtime's own action and its end: the call_id of the caller's call that the action is."""
    synthetic: bool | None = None
    """Whether the gateway has made it itself: no runtime, caller, client or backend has said it. Of events that release
    0.2.0 has written, it is true only where there can be no other maker; that release does not send it."""
    losses: list[Loss]
    """What the translation could not carry."""
    event: Event
    """What happened."""


class WebhookBody(WebhookModel):
    """The body of every webhook request."""

    timestamp: AwareDatetime
    """When it was sent; of a copy, when the event was put on record."""


class OfSession(WebhookModel):
    """What every question to an executor says of its session."""

    session_id: str
    """The conversation, ours."""
    native_session_id: str
    """The conversation, the runtime's."""
    labels: dict[str, str]
    """Of the session: from the configuration and from whoever opened it."""
    runtime: str
    """The runtime's name in the configuration."""
    protocol: str
    """What it speaks: `huma/0.1`, `huma/0.2.0`, `herm/2` …; for an MCP client the version that it has negotiated."""
    attempt: int
    """From 1."""
    deadline: AwareDatetime
    """When the whole call ends, not this attempt."""


class ToolRequestedData(OfSession):
    """A call that an agent asks for."""

    call_id: str
    """Ours: in URLs, logs and tables."""
    native_call_id: str
    """The runtime's, verbatim."""
    tool: str
    """The tool's name."""
    arguments: dict[str, Any]
    """What the agent wants; checked against the tool's `parameters` where the configuration declares it."""
    callback_url: str | None
    """Where to POST the outcome after a 202; null without a known address of the gateway."""
    progress_url: str | None
    """Where to POST the progress of the call; null without a known address of the gateway."""


class ToolCanceledData(WebhookModel):
    """A call for which nobody waits any more."""

    call_id: str
    """Ours, as in the request."""
    native_call_id: str
    """The runtime's, verbatim."""
    session_id: str
    """The conversation, ours."""
    tool: str
    """The tool's name."""
    reason: str
    """Why."""


class MessageData(OfSession):
    """A message that wants a confirmation, or is routed."""

    event: MessagePosted
    """The message."""


class ApprovalData(OfSession):
    """An action that must be allowed or denied."""

    interaction_id: str
    """The question's id in the API."""
    event: ApprovalAsked
    """The action."""


class QuestionData(OfSession):
    """A question to a person."""

    interaction_id: str
    """The question's id in the API."""
    event: QuestionAsked
    """The question."""


class ToolRequestedBody(WebhookBody):
    """Asks for the outcome of a call."""

    type: Literal["tool.requested"]
    """What it is about."""
    data: ToolRequestedData
    """What is asked."""


class ToolCanceledBody(WebhookBody):
    """Tells that nobody waits for a call any more."""

    type: Literal["tool.canceled"]
    """What it is about."""
    data: ToolCanceledData
    """What happened."""


class MessageBody(WebhookBody):
    """Passes a message on."""

    type: Literal["message.posted"]
    """What it is about."""
    data: MessageData
    """What is asked."""


class ApprovalBody(WebhookBody):
    """Asks whether something may be done."""

    type: Literal["approval.asked"]
    """What it is about."""
    data: ApprovalData
    """What is asked."""


class QuestionBody(WebhookBody):
    """Asks what a person would be asked."""

    type: Literal["question.asked"]
    """What it is about."""
    data: QuestionData
    """What is asked."""


class CopyBody(WebhookBody):
    """A copy of an event."""

    type: str
    """The kind of the event; a release may add kinds."""
    data: Envelope
    """What happened."""


class MessageReply(WebhookModel):
    """Whether a message was delivered; an empty body is a yes."""

    delivered: bool = True
    """Whether it was."""
    error: str | None = None
    """Why not, for the agent."""
    context: dict[str, Any] | None = None
    """The state of the world behind it."""


class ApprovalReply(WebhookModel):
    """The answer to an approval."""

    decision: Literal["allow", "deny"]
    """Whether it may be done."""
    scope: Literal["once", "session", "always"] | None = None
    """For how long."""


class QuestionReply(WebhookModel):
    """The answer to a question."""

    answer: str
    """The answer; an empty one skips the question."""

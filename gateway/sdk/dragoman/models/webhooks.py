"""Models of webhook requests and responses for the OpenAPI document.

The gateway does not validate against them at run time. Tests compare the requests that it sends with these models.
"""

from typing import Any, Literal

from pydantic import AwareDatetime, ConfigDict

from dragoman.models import ApprovalAsked, Event, MessagePosted, QuestionAsked
from dragoman.models.described import Described
from dragoman.models.responses import Envelope


class WebhookModel(Described):
    """The base of all webhook models; a release may add members."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class WebhookBody(WebhookModel):
    """The body of every webhook request."""

    timestamp: AwareDatetime
    """The time of sending; for an event copy, the time of recording, or of arrival if the event is live."""


class OfSession(WebhookModel):
    """The members about the session in every request to an executor."""

    session_id: str
    """The gateway's id of the session."""
    native_session_id: str
    """The runtime's id of the session."""
    labels: dict[str, str]
    """The session's labels, from the configuration and the request that opened it."""
    runtime: str
    """The runtime's name in the configuration."""
    protocol: str
    """The protocol: `huma/0.1`, `huma/0.2.0`, `herm/2` …; for an MCP client with the negotiated version."""
    attempt: int
    """The number of the attempt, from 1."""
    deadline: AwareDatetime
    """The deadline of the whole call, not of this attempt."""


class ToolRequestedData(OfSession):
    """A call that an agent requests."""

    call_id: str
    """The gateway's id of the call: in URLs, logs and tables."""
    native_call_id: str
    """The runtime's id of the call, verbatim."""
    tool: str
    """The tool's name."""
    arguments: dict[str, Any]
    """The arguments; validated against the tool's `parameters` if the configuration declares the tool."""
    callback_url: str | None
    """The URL to POST the outcome to after a 202; null if the gateway has no `public_url`."""
    progress_url: str | None
    """The URL to POST progress to; null if the gateway has no `public_url`."""
    edited: bool | None = None
    """True if a person has changed the arguments before they allowed the call; otherwise absent."""


class ToolCanceledData(WebhookModel):
    """A call that was canceled."""

    call_id: str
    """The gateway's id of the call, as in the request."""
    native_call_id: str
    """The runtime's id of the call, verbatim."""
    session_id: str
    """The gateway's id of the session."""
    tool: str
    """The tool's name."""
    reason: str
    """The reason."""


class MessageData(OfSession):
    """A message that requires a confirmation, or that a route selects."""

    event: MessagePosted
    """The message."""


class ApprovalData(OfSession):
    """An action that must be allowed or denied."""

    interaction_id: str
    """The interaction's id in the API."""
    event: ApprovalAsked
    """The event with the action."""


class QuestionData(OfSession):
    """A question for a person."""

    interaction_id: str
    """The interaction's id in the API."""
    event: QuestionAsked
    """The question."""


class ToolRequestedBody(WebhookBody):
    """The request to run a call."""

    type: Literal["tool.requested"]
    """The type of the request."""
    data: ToolRequestedData
    """The data of the request."""


class ToolCanceledBody(WebhookBody):
    """The notification that a call was canceled."""

    type: Literal["tool.canceled"]
    """The type of the request."""
    data: ToolCanceledData
    """The canceled call."""


class MessageBody(WebhookBody):
    """The delivery of a message."""

    type: Literal["message.posted"]
    """The type of the request."""
    data: MessageData
    """The data of the request."""


class ApprovalBody(WebhookBody):
    """The request to approve an action."""

    type: Literal["approval.asked"]
    """The type of the request."""
    data: ApprovalData
    """The data of the request."""


class QuestionBody(WebhookBody):
    """The request to answer a question on a person's behalf."""

    type: Literal["question.asked"]
    """The type of the request."""
    data: QuestionData
    """The data of the request."""


class CopyBody(WebhookBody):
    """A copy of an event."""

    type: str
    """The kind of the event; a release may add kinds."""
    data: Envelope
    """The envelope of the event."""


class SessionName(WebhookModel):
    """The session of a live event."""

    session_id: str
    """The gateway's id of the session."""
    runtime: str
    """The runtime's name in the configuration."""
    native_id: str
    """The runtime's id of the session."""
    labels: dict[str, str]
    """The session's labels."""


class LiveData(WebhookModel):
    """A live event."""

    live: Literal[True]
    """Always true."""
    after_sequence: int
    """The sequence of the recorded event before it."""
    event: Event
    """The event."""
    session: SessionName
    """The session."""


class LiveCopyBody(WebhookBody):
    """A copy of a live event."""

    type: str
    """The kind of the event; a release may add kinds."""
    data: LiveData
    """The event with its session."""


class NoticeData(WebhookModel):
    """A held call, and the state of the question about it."""

    interaction_id: str
    """The interaction's id in the API."""
    call_id: str
    """The gateway's id of the call."""
    session_id: str
    """The gateway's id of the session."""
    runtime: str
    """The runtime's name in the configuration."""
    tool: str
    """The tool's name."""
    rule: str
    """The place in the configuration of the route that holds the call, such as `routes[2]`."""
    state: Literal["waiting", "answered", "expired", "moot"]
    """The state of the question; `moot`: the call ended otherwise, or is asked about under another rule."""
    expires_at: AwareDatetime
    """The time until which the call waits."""
    asked_before: int
    """The number of equal calls of the session that were canceled while held, within the ten minutes before."""
    age: int
    """The seconds since the call was held."""
    open: str | None
    """The address of a link, or of the inbox; null without either. A link is a secret: it answers without a key."""
    arguments: dict[str, Any] | None = None
    """The arguments of the call; absent unless the destination has `arguments: true`."""
    labels: dict[str, str] | None = None
    """The session's labels; absent unless the destination has `arguments: true`."""


class ClosedData(NoticeData):
    """A call that is no longer held."""

    answered_by: str | None
    """The API key that answered; null if nobody did."""


class InteractionAskedBody(WebhookBody):
    """The notice that a call is held."""

    type: Literal["interaction.asked"]
    """The type of the request."""
    data: NoticeData
    """The held call."""


class InteractionRemindedBody(WebhookBody):
    """The notice that a call is still held."""

    type: Literal["interaction.reminded"]
    """The type of the request."""
    data: NoticeData
    """The held call."""


class InteractionClosedBody(WebhookBody):
    """The notice that a call is no longer held."""

    type: Literal["interaction.closed"]
    """The type of the request."""
    data: ClosedData
    """The call."""


class MessageReply(WebhookModel):
    """Whether a message was delivered; an empty body means yes."""

    delivered: bool = True
    """Whether the message was delivered."""
    error: str | None = None
    """The error for the agent."""
    context: dict[str, Any] | None = None
    """The state of the world after the message."""


class ApprovalReply(WebhookModel):
    """The answer to an approval."""

    decision: Literal["allow", "deny"]
    """The decision."""
    scope: Literal["once", "session", "always"] | None = None
    """The validity of the decision."""
    reason: str | None = None
    """The reason of the decision, for the agent."""
    binding: str | None = None
    """The binding of the event, required to allow a held call."""


class QuestionReply(WebhookModel):
    """The answer to a question."""

    answer: str
    """The answer; an empty one skips the question."""

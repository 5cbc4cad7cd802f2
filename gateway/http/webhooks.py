"""The `webhooks` of the OpenAPI document: requests to executors and destinations. The API serves none of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response
from fastapi.routing import APIRoute
from pydantic import ConfigDict

from dragoman.models.described import Described
from dragoman.models.webhooks import (
    ApprovalBody,
    ApprovalReply,
    CopyBody,
    InteractionAskedBody,
    InteractionClosedBody,
    InteractionRemindedBody,
    LiveCopyBody,
    MessageBody,
    MessageReply,
    QuestionBody,
    QuestionReply,
    ToolCanceledBody,
    ToolRequestedBody,
)
from gateway.executors.port import OutcomeForm
from gateway.http.operation import options_of

_NOT_DONE: dict[int | str, dict[str, Any]] = {
    425: {"description": "Not processed; the gateway retries."},
    429: {"description": "Not processed; the gateway retries after `Retry-After`."},
    503: {"description": "With `Retry-After`: not processed; the gateway retries. Otherwise like any 5XX."},
}


def _describe_errors(refused: str, *, unsure: str) -> dict[int | str, dict[str, Any]]:
    """Describe error responses; `unsure` is the result of an ambiguous one that is not retried."""
    ambiguous = {"description": f"Retried if the executor is `idempotent`, otherwise {unsure}."}
    return {408: ambiguous, 409: ambiguous, **_NOT_DONE, "4XX": {"description": refused}, "5XX": ambiguous}


_DETAIL = "its text is the `detail` of a problem+json body, if there is one."
_CALL = _describe_errors(f"A failure; {_DETAIL}", unsure="a failure whose outcome is unknown")
_MESSAGE = _describe_errors(f"Not delivered; {_DETAIL}", unsure="not delivered")
_QUESTION = _describe_errors("A person decides.", unsure="a person decides")
_COPY: dict[int | str, dict[str, Any]] = {
    410: {"description": "The gateway disables the destination until it is enabled again."},
    "4XX": {"description": "Refused: a dead letter at once. 408, 409, 425 and 429 are retried."},
    "5XX": {"description": "Retried, finally a dead letter."},
}


class WebhookHeaders(Described):
    """The headers of every webhook request."""

    model_config = ConfigDict(defer_build=True, use_attribute_docstrings=True)

    webhook_id: str
    """The idempotency key: the same on every attempt."""
    idempotency_key: str
    """Same as `webhook-id`."""
    webhook_timestamp: int
    """The time of signing this attempt, in Unix seconds."""
    webhook_signature: str | None = None
    """`v1,` and the base64 of an HMAC-SHA256 (Standard Webhooks); one for each secret. Absent without a secret."""
    dragoman_attempt: int | None = None
    """The number of the attempt, from 1; absent for requests without retries."""
    traceparent: str
    """The W3C trace of the call, or of the key: all attempts share the trace, each is a span."""
    tracestate: str | None = None
    """The `tracestate` of the client that called the tool."""


class WebhookRoute(APIRoute):
    """A request that the gateway sends: describes the body for reading and the responses for writing."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **{**options, **options_of(endpoint)})
        self.openapi_extra = {"security": []}
        if self.body_field is not None:
            self.body_field = replace(self.body_field, mode="serialization")
        if self.response_field is not None:
            self.response_field = replace(self.response_field, mode="validation")


Headers = Annotated[WebhookHeaders, Header()]
router = APIRouter(route_class=WebhookRoute, tags=["webhooks"])


@router.post(
    "tool.requested",
    response_model=OutcomeForm,
    response_description="The outcome of the call; an empty body means success.",
    responses={
        202: {"description": "Accepted; post the outcome to `callback_url`."},
        204: {"description": "Success; the result is null."},
        **_CALL,
    },
)
async def request_tool(headers: Headers, body: ToolRequestedBody) -> Response:
    """Run a call.

    An executor of type `webhook` receives this request for every attempt of a call. Unknown members of the response are
    ignored.
    """
    raise NotImplementedError


@router.post(
    "tool.canceled",
    status_code=204,
    response_description="Any 2xx.",
    responses={"4XX": {"description": "Logged; the gateway does not retry."}},
)
async def cancel_tool(headers: Headers, body: ToolCanceledBody) -> Response:
    """Stop a canceled call.

    Sent once, best effort, with the key `<call_id>.cancel`.
    """
    raise NotImplementedError


@router.post(
    "message.posted",
    response_model=MessageReply,
    response_description="Whether the message was delivered; an empty body means yes.",
    responses=_MESSAGE,
)
async def post_message(headers: Headers, body: MessageBody) -> Response:
    """Deliver a message.

    An executor receives the agent's messages that a route leads to it.
    """
    raise NotImplementedError


@router.post(
    "approval.asked",
    response_model=ApprovalReply,
    response_description="The decision.",
    responses=_QUESTION,
)
async def ask_approval(headers: Headers, body: ApprovalBody) -> Response:
    """Approve or deny an action.

    Without a valid decision the request stays open for a person.
    """
    raise NotImplementedError


@router.post(
    "question.asked",
    response_model=QuestionReply,
    response_description="The answer.",
    responses=_QUESTION,
)
async def ask_question(headers: Headers, body: QuestionBody) -> Response:
    """Answer an agent's question.

    Without a valid answer the question stays open for a person.
    """
    raise NotImplementedError


@router.post(
    "event.copied",
    status_code=204,
    response_description="Any 2xx: delivered.",
    responses=_COPY,
)
async def copy_event(headers: Headers, body: CopyBody) -> Response:
    """Copy an event to a destination.

    One-way; `type` is the kind of the event, and `webhook-id` its id.
    """
    raise NotImplementedError


@router.post("interaction.asked", status_code=204, response_description="Any 2xx: delivered.", responses=_COPY)
async def tell_asked(headers: Headers, body: InteractionAskedBody) -> Response:
    """Notify that a call waits for a person.

    Sent to each destination of `approvals.notify`.
    """
    raise NotImplementedError


@router.post("interaction.reminded", status_code=204, response_description="Any 2xx: delivered.", responses=_COPY)
async def tell_reminded(headers: Headers, body: InteractionRemindedBody) -> Response:
    """Notify that a call still waits for a person.

    Sent at each time of `approvals.remind`; replaces earlier notices about the call that were not delivered yet.
    """
    raise NotImplementedError


@router.post("interaction.closed", status_code=204, response_description="Any 2xx: delivered.", responses=_COPY)
async def tell_closed(headers: Headers, body: InteractionClosedBody) -> Response:
    """Notify that a call no longer waits for a person.

    Replaces an `interaction.asked` that was not delivered yet.
    """
    raise NotImplementedError


@router.post(
    "live_event.copied",
    status_code=204,
    response_description="Any 2xx: delivered.",
    responses={
        410: {"description": "The gateway disables the destination until it is enabled again."},
        "4XX": {"description": "The event is lost."},
        "5XX": {"description": "The event is lost."},
    },
)
async def copy_live_event(headers: Headers, body: LiveCopyBody) -> Response:
    """Copy a live event to a destination.

    Sent once, for routes with `live: true`; `webhook-id` is an id of this request.
    """
    raise NotImplementedError

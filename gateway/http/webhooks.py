"""What the gateway sends to executors and destinations, as `webhooks` of the OpenAPI document; none of it is served."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response
from fastapi.routing import APIRoute
from pydantic import ConfigDict

from gateway.events.described import Described
from gateway.executors.port import OutcomeForm
from gateway.http.operation import options_of
from gateway.models.webhooks import (
    ApprovalBody,
    ApprovalReply,
    CopyBody,
    MessageBody,
    MessageReply,
    QuestionBody,
    QuestionReply,
    ToolCanceledBody,
    ToolRequestedBody,
)

_NOT_DONE: dict[int | str, dict[str, Any]] = {
    425: {"description": "Not processed: it is tried again."},
    429: {"description": "Not processed: it is tried again, after `Retry-After`."},
    503: {"description": "With `Retry-After`: not processed, and tried again; without, as any 5XX."},
}


def _without_success(refused: str, *, unsure: str) -> dict[int | str, dict[str, Any]]:
    """Describe answers that are no success: what a refusal means, and a doubt where nothing is tried again."""
    doubt = {"description": f"Tried again if the executor is `idempotent`, else {unsure}."}
    return {408: doubt, 409: doubt, **_NOT_DONE, "4XX": {"description": refused}, "5XX": doubt}


_DETAIL = "the text is the `detail` of a problem+json body where there is one."
_CALL = _without_success(f"A failure; {_DETAIL}", unsure="a failure whose outcome is unknown")
_MESSAGE = _without_success(f"Not delivered; {_DETAIL}", unsure="not delivered")
_QUESTION = _without_success("Left to people.", unsure="left to people")


class WebhookHeaders(Described):
    """The headers of every webhook request."""

    model_config = ConfigDict(defer_build=True, use_attribute_docstrings=True)

    webhook_id: str
    """The idempotency key: the same on every attempt, for ever."""
    idempotency_key: str
    """The same as `webhook-id`."""
    webhook_timestamp: int
    """When this attempt was signed, in Unix seconds."""
    webhook_signature: str | None = None
    """`v1,` and the base64 of an HMAC-SHA256 (Standard Webhooks); one for each secret. Absent without a secret."""
    dragoman_attempt: int | None = None
    """From 1; absent where nothing is tried again."""
    traceparent: str
    """A W3C trace named after the key: all attempts share it, each is a span."""


class WebhookRoute(APIRoute):
    """Describes a request that is sent: its body as it is read, its answers as they are written."""

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
    response_description="It has ended so; without a body, with success.",
    responses={
        202: {"description": "The outcome comes later, to `callback_url`."},
        204: {"description": "Success; the result is null."},
        **_CALL,
    },
)
async def request_tool(headers: Headers, body: ToolRequestedBody) -> Response:
    """Asks an executor for the outcome of a call.

    What an executor of the type `webhook` gets for every attempt of a call. Members of the answer that nobody knows
    are ignored.
    """
    raise NotImplementedError


@router.post(
    "tool.canceled",
    status_code=204,
    response_description="Any 2xx will do.",
    responses={"4XX": {"description": "It is logged, and not told again."}},
)
async def cancel_tool(headers: Headers, body: ToolCanceledBody) -> Response:
    """Tells an executor that nobody waits for a call any more.

    Sent once, best effort, under the key `<call_id>.cancel`.
    """
    raise NotImplementedError


@router.post(
    "message.posted",
    response_model=MessageReply,
    response_description="Whether it was delivered; an empty body is a yes.",
    responses=_MESSAGE,
)
async def post_message(headers: Headers, body: MessageBody) -> Response:
    """Passes a routed message on.

    What an executor gets for a message of the agent that a route leads to it.
    """
    raise NotImplementedError


@router.post(
    "approval.asked",
    response_model=ApprovalReply,
    response_description="The decision.",
    responses=_QUESTION,
)
async def ask_approval(headers: Headers, body: ApprovalBody) -> Response:
    """Asks whether an agent may do something.

    Without a usable answer it is left to people.
    """
    raise NotImplementedError


@router.post(
    "question.asked",
    response_model=QuestionReply,
    response_description="The answer.",
    responses=_QUESTION,
)
async def ask_question(headers: Headers, body: QuestionBody) -> Response:
    """Asks what an agent asks a person.

    Without a usable answer it is left to people.
    """
    raise NotImplementedError


@router.post(
    "event.copied",
    status_code=204,
    response_description="Any 2xx: it is delivered.",
    responses={
        410: {"description": "The destination is switched off until it is enabled again."},
        "4XX": {"description": "Refused, a dead letter at once; 408, 409, 425 and 429 are tried again."},
        "5XX": {"description": "It is tried again, and in the end a dead letter."},
    },
)
async def copy_event(headers: Headers, body: CopyBody) -> Response:
    """Copies an event to a destination.

    One way; `type` is the kind of the event, and `webhook-id` its id.
    """
    raise NotImplementedError

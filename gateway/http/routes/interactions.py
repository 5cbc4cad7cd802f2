"""Operations on requests for human input: list, stream, get, answer."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Body, Query, Response

from dragoman.models import responses
from gateway.events import SessionId
from gateway.http.auth import LOCAL, require_scope
from gateway.http.openapi import problems
from gateway.http.positions import write_in_list
from gateway.http.reply import Reply, listing
from gateway.http.requests import AnswerInteraction, ApprovalsQuery, InteractionsQuery
from gateway.http.route import ApiRequest, CallerDep, GatewayDep, InteractionPath, OperationRoute
from gateway.http.sse import EventStream
from gateway.http.views import show_answered, show_approval, show_interaction

LOOPBACK = "loopback"
"""Who answers for a held call if no keys are configured."""

router = APIRouter(route_class=OperationRoute, tags=["interactions"])


@router.get(
    "/v1/interactions", response_model=responses.Listing[responses.Interaction], response_description="One page."
)
async def list_interactions(gateway: GatewayDep, query: Annotated[InteractionsQuery, Query()]) -> Response:
    """List interactions.

    Returns the agents' requests for approvals, answers and secrets; `event` is the requesting event.
    """
    rows, after = await gateway.interactions.page(
        query.page(gateway.generation),
        session_id=None if query.session_id is None else SessionId(query.session_id),
        state=query.state,
    )
    return listing([show_interaction(row, asked) for row, asked in rows], write_in_list(after, gateway.generation.name))


@router.get("/v1/interactions/stream", response_class=EventStream, response_description="The stream.")
async def stream_interactions(request: ApiRequest, gateway: GatewayDep, caller: CallerDep) -> Response:
    """Follow interactions (server-sent events).

    Starts with all waiting interactions. Then each event `interaction` is one that was created, answered, expired or
    became moot, in its new state. `data` is the interaction as in the list. After an event `gap` (the client was too
    slow), and after a reconnect, all waiting interactions are sent again.
    """
    followers, most = request.api_state.followers, gateway.settings.limits.followers
    followers.check_limits("interactions", most=most, most_each=most)
    return EventStream(
        gateway.interactions.follow(),
        followers,
        subject="interactions",
        is_allowed=partial(request.api_state.authenticator.still_admits, caller, "streamInteractions"),
    )


@router.get(
    "/v1/interactions/{interaction_id}",
    response_model=responses.Interaction,
    response_description="The interaction.",
    responses=problems("not-found"),
)
async def get_interaction(gateway: GatewayDep, interaction_id: InteractionPath) -> Response:
    """Get an interaction.

    Returns the interaction as in the list.
    """
    shown = await gateway.interactions.find(interaction_id)
    return Reply(show_interaction(shown.row, shown.asked))


@router.get(
    "/v1/approvals", response_model=responses.Listing[responses.ApprovalRecord], response_description="One page."
)
async def list_approvals(gateway: GatewayDep, query: Annotated[ApprovalsQuery, Query()]) -> Response:
    """List approvals of held calls.

    Returns what was asked about held calls, oldest first: who answered, when, and which arguments a person has changed.
    An approval is on record as long as its call.
    """
    found, after = await gateway.interactions.approvals(
        query.page(gateway.generation),
        session_id=None if query.session_id is None else SessionId(query.session_id),
        since=query.since,
    )
    return listing([show_approval(one) for one in found], write_in_list(after, gateway.generation.name))


@router.post(
    "/v1/interactions/{interaction_id}/answer",
    response_model=responses.AnsweredInteraction,
    response_description="The interaction is answered.",
    responses=problems(
        "session-owner-unavailable",
        "binding-required",
        "own-call",
        "not-approver",
        "not-found",
        "conflict",
        "approval-stale",
        "denied",
        "inexpressible",
    ),
)
async def answer_interaction(
    gateway: GatewayDep,
    caller: CallerDep,
    interaction_id: InteractionPath,
    answer: Annotated[AnswerInteraction, Body()],
) -> Response:
    """Answer an interaction.

    Set `decision` (with `scope` and `reason`) for an approval, `answer` for a question (empty skips it), `value` for a
    secret, which is sent to the runtime and never stored. `losses` lists the parts of the answer that the runtime's
    protocol cannot express. A second answer is a conflict.

    A held call is allowed with its `binding`, and with `arguments` if a person has changed them. It needs the scope
    `approve`; neither the key that made the call nor its executor may answer, nor a key that the rule does not name.
    """
    held = (await gateway.interactions.find(interaction_id)).row.call_id
    require_scope(caller, "answer" if held is None else "approve")
    # Without keys every program on this machine is one caller, which may also have made the call.
    by = LOOPBACK if held is not None and caller is LOCAL else caller.name
    row, losses = await gateway.interactions.answer(interaction_id, answer.as_mapping(), by=by)
    return Reply(show_answered(row, losses))

"""Operations on the address and the token of a session's tools."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from dragoman.models import responses
from gateway.errors import Conflict
from gateway.events import SessionId
from gateway.http.openapi import problems
from gateway.http.reply import Reply
from gateway.http.requests import RotateQuery
from gateway.http.route import ApiRequest, GatewayDep, OperationRoute, SessionPath

router = APIRouter(route_class=OperationRoute, tags=["calls"])


@router.get(
    "/v1/sessions/{session_id}/mcp",
    response_model=responses.ToolAccess,
    response_description="The address and the token.",
    responses=problems("not-found"),
)
async def get_tool_access(request: ApiRequest, gateway: GatewayDep, session_id: SessionPath) -> Response:
    """Get a session's tool token.

    With the token a program calls the tools of this session, at the address and at
    `POST /v1/sessions/{session_id}/calls`, and reads its own calls. The token stays the same until it is rotated.
    """
    await gateway.session(session_id)
    return _show(request, session_id, await gateway.tool_tokens.token(session_id))


@router.post(
    "/v1/sessions/{session_id}/mcp/rotate",
    response_model=responses.ToolAccess,
    response_description="The address and the new token.",
    responses=problems("not-found", "conflict"),
)
async def rotate_tool_access(
    request: ApiRequest, gateway: GatewayDep, session_id: SessionPath, query: Annotated[RotateQuery, Query()]
) -> Response:
    """Rotate a session's tool token.

    Returns a new token. From now on every instance refuses the previous one; its calls continue. With `of=ticket` the
    native session, which received its own ticket on creation, loses its tools for good. If the runtime's settings
    contain the ticket, the gateway writes a new ticket into them, and all sessions of that runtime lose their tools
    until their agents restart.
    """
    await gateway.session(session_id)
    if query.of == "ticket":
        if not query.force:
            raise Conflict("a running agent cannot receive a new ticket and loses its tools; confirm with force=true")
        await gateway.rotate_ticket(session_id)
        return _show(request, session_id, await gateway.tool_tokens.token(session_id))
    return _show(request, session_id, await gateway.tool_tokens.rotate(session_id))


def _show(request: ApiRequest, session_id: SessionId, token: str) -> Response:
    public = request.api_state.gateway.settings.public_url
    base = str(request.base_url if public is None else public).rstrip("/")
    return Reply({"url": f"{base}/mcp/{session_id}", "token": token})

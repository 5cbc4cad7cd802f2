"""The address and the token by which programs call a session's tools."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from gateway.errors import Conflict
from gateway.events import SessionId
from gateway.http.openapi import problems
from gateway.http.reply import Reply
from gateway.http.requests import RotateQuery
from gateway.http.route import ApiRequest, GatewayDep, OperationRoute, SessionPath
from gateway.models import responses

router = APIRouter(route_class=OperationRoute, tags=["calls"])


@router.get(
    "/v1/sessions/{session_id}/mcp",
    response_model=responses.ToolAccess,
    response_description="The address and the token.",
    responses=problems("not-found"),
)
async def get_tool_access(request: ApiRequest, gateway: GatewayDep, session_id: SessionPath) -> Response:
    """Show a session's tool token.

    The token calls the tools of this session, at the address and at `POST /v1/sessions/{session_id}/calls`, and reads
    their calls. It is the same until it is rotated.
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

    Make a new one. The token before is refused from now on, on every instance; what it has called goes on. With
    `of=ticket` the native session, which was told a ticket of its own on creation, loses its tools for good. If the
    settings of its runtime name the tools, the settings are written with a new ticket, and all sessions of that runtime
    lose their tools until their agents start again.
    """
    await gateway.session(session_id)
    if query.of == "ticket":
        if not query.force:
            mend = "send force=true if that is meant"
            raise Conflict(f"an agent that runs cannot be told another ticket, so that it loses its tools; {mend}")
        await gateway.rotate_ticket(session_id)
        return _show(request, session_id, await gateway.tool_tokens.token(session_id))
    return _show(request, session_id, await gateway.tool_tokens.rotate(session_id))


def _show(request: ApiRequest, session_id: SessionId, token: str) -> Response:
    public = request.face.gateway.settings.public_url
    base = str(request.base_url if public is None else public).rstrip("/")
    return Reply({"url": f"{base}/mcp/{session_id}", "token": token})

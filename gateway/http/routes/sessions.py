"""Operations on sessions."""

from typing import Annotated

from fastapi import APIRouter, Body, Query, Response

from dragoman.models import responses
from gateway.http.auth import require
from gateway.http.idempotency import IdempotencyKey
from gateway.http.openapi import problems
from gateway.http.positions import write_in_list
from gateway.http.reply import Reply, dump, listing
from gateway.http.requests import CloseQuery, OpenSession, SessionsQuery
from gateway.http.route import ApiRequest, GatewayDep, OperationRoute, SessionPath
from gateway.http.views import show_event, show_session

router = APIRouter(route_class=OperationRoute, tags=["sessions"])


@router.post(
    "/v1/sessions",
    status_code=201,
    response_model=responses.OpenedSession,
    response_description="The session was opened.",
    responses={
        200: {"model": responses.OpenedSession, "description": "The session was already open."},
        **problems(
            "not-found",
            "conflict",
            "idempotency-conflict",
            "idempotency-busy",
            "runtime-refused",
            "runtime-unreachable",
            "draining",
            "overloaded",
        ),
    },
)
async def open_session(
    request: ApiRequest,
    gateway: GatewayDep,
    wanted: Annotated[OpenSession, Body()],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Open a session.

    Attach to a native session by its `native_id`, or create one if the runtime's options allow it. Opening the same
    native session again returns the existing session. For a created session, `tools` names the tools that the runtime
    received; the `losses` of its first event, `session.opened`, list what its protocol cannot express.
    """

    async def act() -> Reply:
        row, is_new, tools = await gateway.opening.open(
            wanted.runtime,
            native_id=wanted.native_id,
            labels=wanted.labels,
            name=wanted.name,
            instructions=wanted.instructions,
        )
        headers = {"location": f"/v1/sessions/{row.session_id}"}
        shown = show_session(responses.OpenedSession, row, gateway.generation, tools=tools)
        return Reply(shown, 201 if is_new else 200, headers)

    fingerprint = dump(await request.json())
    return await request.api_state.once.run(request, idempotency_key, fingerprint, act)


@router.get("/v1/sessions", response_model=responses.Listing[responses.Session], response_description="One page.")
async def list_sessions(gateway: GatewayDep, query: Annotated[SessionsQuery, Query()]) -> Response:
    """List sessions.

    Returns sessions in the order in which they were opened, including closed ones until retention removes them. All
    filters must match; `runtime` and `native_id` together identify one session. With other filters a page searches at
    most 20,000 sessions, with `text` 4,000, so it may be short or empty and still have a `next`.
    """
    newest = query.order == "newest"
    rows, after = await gateway.sessions(query.page(gateway.generation), query.which(), newest_first=newest)
    own = gateway.generation
    return listing([show_session(responses.Session, row, own) for row in rows], write_in_list(after, own.name))


@router.get(
    "/v1/sessions/{session_id}",
    response_model=responses.Session,
    response_description="The session.",
    responses=problems("not-found"),
)
async def get_session(gateway: GatewayDep, session_id: SessionPath) -> Response:
    """Get a session.

    Returns the session with its current state.
    """
    return Reply(show_session(responses.Session, await gateway.session(session_id), gateway.generation))


@router.get(
    "/v1/sessions/{session_id}/context",
    response_model=responses.LastContext,
    response_description="The context, or null.",
    responses=problems("not-found"),
)
async def get_context(gateway: GatewayDep, session_id: SessionPath) -> Response:
    """Get the last context of a session.

    Returns the last recorded `context.updated` event, with its losses. Searches the newest 20,000 events.
    """
    found, searched_from = await gateway.last_context(session_id)
    envelope = None if found is None else show_event(found, gateway.generation.name)
    return Reply({"session_id": session_id, "envelope": envelope, "searched_from": searched_from})


@router.delete(
    "/v1/sessions/{session_id}",
    status_code=204,
    response_description="The session is closed.",
    responses=problems("session-owner-unavailable", "not-found", "conflict"),
)
async def close_session(
    request: ApiRequest, gateway: GatewayDep, session_id: SessionPath, query: Annotated[CloseQuery, Query()]
) -> Response:
    """Close a session.

    Detach the gateway from the session and cancel its open calls. `erase=true` also erases the bodies of the
    session's events and requires the scope `operate`.
    """
    if query.erase:
        require(request, "eraseSession")
    await gateway.close_session(session_id, erase=query.erase)
    return Response(status_code=204)

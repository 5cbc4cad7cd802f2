"""Calls from outside: an API client or worker calls a configured tool and gets its outcome."""

from typing import Annotated

from fastapi import APIRouter, Body, Header, Query, Response

from dragoman.models import responses
from gateway.core.callers import CallRequest
from gateway.core.trace_context import read_traceparent
from gateway.errors import InvalidRequest
from gateway.http.body import refuse_two_keys
from gateway.http.calling import note_shown, open_call, protocol_of, span_of
from gateway.http.forward import TRACEPARENT, TRACESTATE
from gateway.http.openapi import problems
from gateway.http.reply import Reply
from gateway.http.requests import LONGEST_CALL_KEY, CallTool, WaitQuery
from gateway.http.route import ApiRequest, CallerDep, OperationRoute, SessionPath
from gateway.http.views import show_called
from gateway.store.call import Call

router = APIRouter(route_class=OperationRoute, tags=["calls"])

CallKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Makes repeats safe: the same key returns the same call until retention removes the call. 1 to 200 "
        "printable ASCII characters.",
        examples=["order-4711"],
    ),
]


@router.post(
    "/v1/sessions/{session_id}/calls",
    response_model=responses.CallWithOutcome,
    response_description="The call has ended.",
    responses={
        202: {
            "model": responses.CallWithOutcome,
            "description": "The call is still open: `GET /v1/calls/{call_id}?wait=` continues to wait.",
            "headers": {"Location": {"description": "The call.", "schema": {"type": "string"}}},
        },
        **problems(
            "session-owner-unavailable",
            "not-found",
            "unknown-tool",
            "conflict",
            "call-differs",
            "invalid-arguments",
            "draining",
            "overloaded",
        ),
    },
)
async def call_tool(
    request: ApiRequest,
    caller: CallerDep,
    session_id: SessionPath,
    query: Annotated[WaitQuery, Query()],
    wanted: Annotated[CallTool, Body()],
    call_key: CallKey = None,
) -> Response:
    """Call a tool.

    The call is recorded in the session and runs like an agent's call. The outcome goes to you, not to the runtime.
    Use a `key`: the same key with the same tool and arguments returns the same call until retention removes it.
    Without a key each request is a new call.
    """
    gateway, key = request.api_state.gateway, _key(request, wanted, call_key)
    fresh = key is None
    asked = CallRequest(
        wanted.tool,
        wanted.arguments,
        caller.name,
        key or gateway.callers.fresh_key(),
        protocol_of(request),
        fresh,
        read_traceparent(request.headers.get(TRACEPARENT), ",".join(request.headers.getlist(TRACESTATE))),
        span_of(request),
    )
    call = await open_call(request, session_id, asked, caller)
    if not isinstance(call, Call):
        return call
    call = await gateway.callers.wait(call.call_id, query.wait)
    finished = await gateway.callers.finished(call)
    await note_shown(request, call, caller, waited=query.wait)
    shown = show_called(call, None if finished is None else finished.as_outcome())
    if call.is_open:
        return Reply(shown, 202, {"location": f"/v1/calls/{call.call_id}"})
    return Reply(shown)


def _key(request: ApiRequest, wanted: CallTool, header: str | None) -> str | None:
    if header is None:
        return wanted.key
    refuse_two_keys(request)
    if wanted.key not in {None, header}:
        raise InvalidRequest("`key` and the header Idempotency-Key differ", pointer="/key")
    if not (header.isascii() and header.isprintable() and len(header) <= LONGEST_CALL_KEY):
        reason = f"the Idempotency-Key must have 1 to {LONGEST_CALL_KEY} printable ASCII characters"
        raise InvalidRequest(reason, pointer="Idempotency-Key")
    return header

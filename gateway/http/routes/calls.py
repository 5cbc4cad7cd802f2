"""Operations on calls: list, history, outcome, progress, cancel, redrive."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Response
from pydantic import PlainValidator

from dragoman.models import responses
from gateway.core.callers import BY_ITS_CALLER
from gateway.errors import CallOver, InvalidRequest, NotFound, Unconfigured
from gateway.executors.port import Answered, OutcomeForm, outcome_from
from gateway.http.auth import CALLBACK, Caller
from gateway.http.calling import note_shown
from gateway.http.errors import Refused
from gateway.http.openapi import problems
from gateway.http.positions import write_in_list
from gateway.http.reply import Reply, listing
from gateway.http.requests import CallsQuery, CancelCall, RedriveCall, WaitQuery
from gateway.http.route import ApiRequest, CallerDep, CallPath, GatewayDep, OperationRoute
from gateway.http.views import show, show_history

router = APIRouter(route_class=OperationRoute, tags=["calls"])


def _unread(given: dict[str, Any]) -> dict[str, Any]:
    return given


OutcomeBody = Annotated[dict[str, Any], PlainValidator(_unread, json_schema_input_type=OutcomeForm)]
"""An outcome that is not parsed yet, because strictness depends on the sender."""


@router.get("/v1/calls", response_model=responses.Listing[responses.ListedCall], response_description="One page.")
async def list_calls(gateway: GatewayDep, query: Annotated[CallsQuery, Query()]) -> Response:
    """List calls.

    Returns calls of agents and of callers, newest first. All filters must match. A page searches at most 20,000 calls,
    with `text` 2,000, so it may be short or empty and still have a `next`. `arguments=true` adds an excerpt of the
    arguments to each call.
    """
    rows, after = await gateway.calls.page(query.which(), query.page(gateway.generation))
    shown = [show(responses.Call, row) for row in rows]
    if query.arguments:
        excerpts = await gateway.calls.argument_excerpts(rows)
        shown = [{**one, "arguments_excerpt": excerpts.get(one["call_id"])} for one in shown]
    return listing(shown, write_in_list(after, gateway.generation.name))


@router.get(
    "/v1/calls/{call_id}",
    response_model=responses.CallWithStory,
    response_description="The call with its history.",
    responses=problems("not-found", "overloaded"),
)
async def get_call(
    request: ApiRequest,
    gateway: GatewayDep,
    caller: CallerDep,
    call_id: CallPath,
    query: Annotated[WaitQuery, Query()],
) -> Response:
    """Get a call with its history.

    Returns the call, all its events from the request on, its attempts at the executor, and the deliveries of its
    outcome. With `wait`, responds when the call ends or after that many seconds.
    """
    await gateway.callers.wait(call_id, query.wait)
    history = await gateway.calls.history(call_id)
    await note_shown(request, history.row, caller, waited=query.wait)
    return Reply(show_history(history))


@router.post(
    "/v1/calls/{call_id}/outcome",
    response_model=responses.Call,
    response_description="Recorded.",
    responses=problems("session-owner-unavailable", "not-found", "conflict", "held", "call-over"),
)
async def settle_call(
    request: ApiRequest,
    gateway: GatewayDep,
    caller: CallerDep,
    call_id: CallPath,
    outcome: Annotated[OutcomeBody, Body()],
) -> Response:
    """Post the outcome of a call.

    An executor that responded with 202 posts here, to its `callback_url`. The first outcome wins: repeating it gets
    200; another one gets 409, and the first of these is recorded as `outcome.ignored`. Ten minutes after the end of the
    call all requests get 410. The executor's `max_response` applies.
    """
    # A callback is parsed like an executor's response; a client's request is parsed strictly.
    answered = _answered(outcome, strict=caller is not CALLBACK)
    with _convert_executor_errors(caller):
        row = await gateway.calls.settle(call_id, answered, size=len(await request.body()))
    return Reply(show(responses.Call, row))


@router.post(
    "/v1/calls/{call_id}/progress",
    status_code=202,
    response_model=responses.Progressed,
    response_description="Recorded.",
    responses=problems("session-owner-unavailable", "not-found", "conflict", "held", "call-over"),
)
async def progress_call(
    request: ApiRequest,
    gateway: GatewayDep,
    caller: CallerDep,
    call_id: CallPath,
    progress: Annotated[dict[str, Any], Body()],
) -> Response:
    """Report the progress of a call.

    The body is any JSON object. It is recorded as `call.progressed` and sent to followers.
    """
    with _convert_executor_errors(caller):
        await gateway.calls.progress(call_id, progress, size=len(await request.body()))
    return Reply({"call_id": call_id}, 202)


@router.post(
    "/v1/calls/{call_id}/cancel",
    tags=["operating"],
    status_code=202,
    response_model=responses.Call,
    response_description="The cancel was requested.",
    responses=problems("session-owner-unavailable", "not-found", "conflict"),
)
async def cancel_call(
    gateway: GatewayDep,
    caller: CallerDep,
    call_id: CallPath,
    wanted: Annotated[CancelCall, Body(default_factory=CancelCall)],
) -> Response:
    """Cancel a call.

    Ask the executor to stop. During a short grace period its response still counts; then the call is canceled and the
    agent is notified.
    """
    reason = wanted.reason or (BY_ITS_CALLER if caller.has_tool_token else None)
    return Reply(show(responses.Call, await gateway.calls.cancel(call_id, reason=reason)), 202)


@router.post(
    "/v1/calls/{call_id}/redrive",
    tags=["operating"],
    status_code=202,
    response_model=responses.Call,
    response_description="The new call, or the accepted one.",
    responses=problems("session-owner-unavailable", "not-found", "conflict", "gone", "draining"),
)
async def redrive_call(
    gateway: GatewayDep,
    call_id: CallPath,
    wanted: Annotated[RedriveCall, Body(default_factory=RedriveCall)],
) -> Response:
    """Redrive a call.

    For an ended call, make a new call of the same request, by default with the same idempotency key and without sending
    the outcome to the runtime. For an accepted call (202), send its request again at once with its key and return the
    same call; 409 if the executor is not `idempotent`.
    """
    row = await gateway.calls.redrive(call_id, new_key=wanted.new_key, deliver=wanted.deliver)
    return Reply(show(responses.Call, row), 202)


@contextmanager
def _convert_executor_errors(caller: Caller) -> Generator[None]:
    """Convert errors so that an executor gives up or retries correctly.

    A callback token proves that its call existed, so an unknown call ended long ago.
    """
    try:
        yield
    except Unconfigured as exc:
        # The call is open, and 409 would mean that it has another outcome.
        raise Refused("session-owner-unavailable", str(exc)) from exc
    except NotFound as exc:
        if caller is not CALLBACK:
            raise
        raise CallOver("the call ended long ago and is no longer on record") from exc


def _answered(body: Any, *, strict: bool) -> Answered:
    try:
        return outcome_from(body, strict=strict)
    except ValueError as exc:
        place, _, _ = str(exc).partition(": ")
        raise InvalidRequest(str(exc), pointer=place if place.startswith("/") else "") from exc

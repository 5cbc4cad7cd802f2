"""Calls: their list and history, their outcomes by callback or API, and what operators do to them."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Response
from pydantic import PlainValidator

from gateway.errors import CallOver, InvalidRequest, NotFound, Unconfigured
from gateway.events import SessionId
from gateway.executors.port import Answered, OutcomeForm, outcome_from
from gateway.http.auth import CALLBACK, Caller
from gateway.http.errors import Refused
from gateway.http.openapi import problems
from gateway.http.reply import Reply, listing
from gateway.http.requests import CallsQuery, CancelCall, RedriveCall, WaitQuery
from gateway.http.route import ApiRequest, CallerDep, CallPath, GatewayDep, OperationRoute
from gateway.http.views import show, show_history
from gateway.models import responses
from gateway.store.rows import CallFilter, Page

router = APIRouter(route_class=OperationRoute, tags=["calls"])


def _unread(given: dict[str, Any]) -> dict[str, Any]:
    return given


OutcomeBody = Annotated[dict[str, Any], PlainValidator(_unread, json_schema_input_type=OutcomeForm)]
"""An outcome that is still to be read: how strictly, depends on who sends it."""


@router.get("/v1/calls", response_model=responses.Listing[responses.Call], response_description="One page.")
async def list_calls(gateway: GatewayDep, query: Annotated[CallsQuery, Query()]) -> Response:
    """List calls.

    Calls that agents asked for, newest first; all filters must match.
    """
    which = CallFilter(
        session_id=None if query.session_id is None else SessionId(query.session_id),
        runtime=query.runtime,
        tool=query.tool,
        states=frozenset(query.state),
        unknown=query.unknown,
    )
    rows, after = await gateway.calls.page(which, Page(query.limit, query.after))
    return listing([show(responses.Call, row) for row in rows], after)


@router.get(
    "/v1/calls/{call_id}",
    response_model=responses.CallWithStory,
    response_description="The history.",
    responses=problems("not-found", "overloaded"),
)
async def get_call(gateway: GatewayDep, call_id: CallPath, query: Annotated[WaitQuery, Query()]) -> Response:
    """Read the whole history of a call.

    The call, every event about it from the request on, and how its outcome was delivered. With `wait` the answer comes
    when the call has ended, or when that many seconds are over.
    """
    await gateway.callers.wait(call_id, query.wait)
    return Reply(show_history(await gateway.calls.history(call_id)))


@router.post(
    "/v1/calls/{call_id}/outcome",
    response_model=responses.Call,
    response_description="It is recorded.",
    responses=problems("elsewhere", "not-found", "conflict", "call-over"),
)
async def settle_call(
    request: ApiRequest,
    gateway: GatewayDep,
    caller: CallerDep,
    call_id: CallPath,
    outcome: Annotated[OutcomeBody, Body()],
) -> Response:
    """Give the outcome of a call.

    What an executor that answered 202 sends to its `callback_url`. The first outcome wins: the same one again is
    answered 200; another one 409, the first of them kept as `outcome.ignored`. Ten minutes after the end everything is
    answered 410. The executor's `max_response` holds.
    """
    # At a callback address an outcome is read as an executor's answer is; a client's typing errors show.
    answered = _answered(outcome, strict="token" not in request.query_params)
    with _as_executors_hear_it(caller):
        row = await gateway.calls.settle(call_id, answered, size=len(await request.body()))
    return Reply(show(responses.Call, row))


@router.post(
    "/v1/calls/{call_id}/progress",
    status_code=202,
    response_model=responses.Progressed,
    response_description="It is recorded.",
    responses=problems("elsewhere", "not-found", "conflict", "call-over"),
)
async def progress_call(
    request: ApiRequest,
    gateway: GatewayDep,
    caller: CallerDep,
    call_id: CallPath,
    progress: Annotated[dict[str, Any], Body()],
) -> Response:
    """Tell how far a call has come.

    Any JSON object; it is recorded as `call.progressed` and followers see it.
    """
    with _as_executors_hear_it(caller):
        await gateway.calls.progress(call_id, progress, size=len(await request.body()))
    return Reply({"call_id": call_id}, 202)


@router.post(
    "/v1/calls/{call_id}/cancel",
    tags=["operating"],
    status_code=202,
    response_model=responses.Call,
    response_description="The cancel is under way.",
    responses=problems("elsewhere", "not-found", "conflict"),
)
async def cancel_call(
    gateway: GatewayDep,
    call_id: CallPath,
    wanted: Annotated[CancelCall, Body(default_factory=CancelCall)],
) -> Response:
    """Cancel a call.

    Ask the executor to stop. For a short grace its answer still counts; then the call is canceled and the agent is
    told so.
    """
    return Reply(show(responses.Call, await gateway.calls.cancel(call_id, reason=wanted.reason)), 202)


@router.post(
    "/v1/calls/{call_id}/redrive",
    tags=["operating"],
    status_code=202,
    response_model=responses.Call,
    response_description="The new call.",
    responses=problems("elsewhere", "not-found", "conflict", "gone", "draining"),
)
async def redrive_call(
    gateway: GatewayDep,
    call_id: CallPath,
    wanted: Annotated[RedriveCall, Body(default_factory=RedriveCall)],
) -> Response:
    """Try a call again that ended, or that an idempotent executor has accepted.

    Of an ended call, make a new call of the same request, by default with the same idempotency key and without telling
    the runtime the outcome. The request of a call that was answered 202 is sent again at once under its key, and the
    same call is the answer; 409 if its executor is not `idempotent`.
    """
    row = await gateway.calls.redrive(call_id, new_key=wanted.new_key, deliver=wanted.deliver)
    return Reply(show(responses.Call, row), 202)


@contextmanager
def _as_executors_hear_it(caller: Caller) -> Generator[None]:
    """Say it so that an executor does what is right: give up, or come again.

    A callback token proves that its call existed: where it is not known any more, it ended long ago.
    """
    try:
        yield
    except Unconfigured as exc:
        # The call is open, and 409 would say that it has another outcome.
        raise Refused("elsewhere", str(exc)) from exc
    except NotFound as exc:
        if caller is not CALLBACK:
            raise
        raise CallOver("the call ended long ago, and is no longer on record") from exc


def _answered(body: Any, *, strict: bool) -> Answered:
    try:
        return outcome_from(body, strict=strict)
    except ValueError as exc:
        place, _, _ = str(exc).partition(": ")
        raise InvalidRequest(str(exc), pointer=place if place.startswith("/") else "") from exc

"""Calls: their list and story, their outcomes by callback or API, and what operators do to them."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import CallOver, InvalidRequest, NotFound
from gateway.events import CallId, SessionId
from gateway.executors.port import Answered, OutcomeForm, outcome_from
from gateway.http import examples, shapes
from gateway.http.auth import CALLBACK
from gateway.http.body import read_form, read_json, read_query
from gateway.http.forms import CallsQuery, CancelCall, RedriveCall
from gateway.http.operation import Answer, Operation
from gateway.http.reply import listing, reply
from gateway.http.views import call_view, story_view
from gateway.runtime.app import Gateway
from gateway.store.rows import CallFilter, Page


class CallRoutes:
    """The call operations over one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def list(self, request: Request) -> Response:
        query = read_query(CallsQuery, request)
        which = CallFilter(
            session_id=None if query.session_id is None else SessionId(query.session_id),
            runtime=query.runtime,
            tool=query.tool,
            states=frozenset(query.state),
            unknown=query.unknown,
        )
        rows, after = await self._gateway.calls(which, Page(query.limit, query.after))
        return listing([call_view(row) for row in rows], after).response()

    async def get(self, request: Request) -> Response:
        return reply(story_view(await self._gateway.call_story(_call_id(request)))).response()

    async def settle(self, request: Request) -> Response:
        # At a callback address an outcome is read as an executor's answer is; a client's typing errors show.
        answered = _answered(await read_json(request), strict="token" not in request.query_params)
        with _over_where_gone(request):
            row = await self._gateway.settle(_call_id(request), answered, size=len(await request.body()))
        return reply(call_view(row)).response()

    async def progress(self, request: Request) -> Response:
        body = await read_json(request)
        if not isinstance(body, dict):
            raise InvalidRequest("progress must be a JSON object", pointer="")
        call_id = _call_id(request)
        with _over_where_gone(request):
            await self._gateway.progress(call_id, cast(dict[str, Any], body), size=len(await request.body()))
        return reply({"call_id": call_id}, 202).response()

    async def cancel(self, request: Request) -> Response:
        form = read_form(CancelCall, await read_json(request, optional=True))
        row = await self._gateway.cancel(_call_id(request), reason=form.reason)
        return reply(call_view(row), 202).response()

    async def redrive(self, request: Request) -> Response:
        form = read_form(RedriveCall, await read_json(request, optional=True))
        row = await self._gateway.redrive(_call_id(request), new_key=form.new_key, deliver=form.deliver)
        return reply(call_view(row), 202).response()

    def operations(self) -> tuple[Operation, ...]:
        """List them with their documentation."""
        return (
            Operation(
                name="listCalls",
                method="GET",
                path="/v1/calls",
                run=self.list,
                tag="calls",
                summary="List calls",
                description="Calls that agents asked for, newest first; all filters must match.",
                answers=(
                    Answer(200, "One page.", {"data": [examples.CALL], "next": None}, shapes.Listing[shapes.Call]),
                ),
                query=CallsQuery,
            ),
            Operation(
                name="getCall",
                method="GET",
                path="/v1/calls/{call_id}",
                run=self.get,
                tag="calls",
                summary="Read the whole story of a call",
                description="The call, every event about it from the request on, and how its outcome was delivered.",
                answers=(Answer(200, "The story.", examples.STORY, shapes.CallWithStory),),
                problems=("not-found",),
            ),
            Operation(
                name="settleCall",
                method="POST",
                path="/v1/calls/{call_id}/outcome",
                run=self.settle,
                tag="calls",
                summary="Give the outcome of a call",
                description="What an executor that answered 202 sends to its `callback_url`. The first outcome wins: "
                "the same one again is answered 200; another one 409, the first of them kept as `outcome.ignored`. "
                "Ten minutes after the end everything is answered 410. The executor's `max_response` holds.",
                answers=(Answer(200, "It is recorded.", examples.CALL, shapes.Call),),
                problems=("elsewhere", "not-found", "conflict", "call-over"),
                body=OutcomeForm,
                body_examples={
                    "success": {
                        "outcome": "success",
                        "result": {"cards": ["7H", "7S"]},
                        "updates": [{"name": "table", "context": {"turn": "Victoria"}}],
                    },
                    "failure": {"outcome": "failure", "error": "It is not your turn."},
                },
            ),
            Operation(
                name="progressCall",
                method="POST",
                path="/v1/calls/{call_id}/progress",
                run=self.progress,
                tag="calls",
                summary="Tell how far a call has come",
                description="Any JSON object; it is recorded as `call.progressed` and followers see it.",
                answers=(Answer(202, "It is recorded.", {"call_id": examples.CALL_ID}, shapes.Progressed),),
                problems=("elsewhere", "not-found", "conflict", "call-over"),
                body=dict[str, Any],
                body_examples={"percent": {"percent": 40, "note": "asking Victoria"}},
            ),
            Operation(
                name="cancelCall",
                method="POST",
                path="/v1/calls/{call_id}/cancel",
                run=self.cancel,
                tag="operating",
                summary="Cancel a call",
                description="Ask the executor to stop. For a short grace its answer still counts; then the call is "
                "canceled and the agent is told so.",
                answers=(Answer(202, "The cancel is under way.", examples.CALL, shapes.Call),),
                problems=("elsewhere", "not-found", "conflict"),
                body=CancelCall,
                body_optional=True,
                body_examples={"reason": {"reason": "the game is over"}},
            ),
            Operation(
                name="redriveCall",
                method="POST",
                path="/v1/calls/{call_id}/redrive",
                run=self.redrive,
                tag="operating",
                summary="Try a call again that ended",
                description="Make a new call of the same request, by default with the same idempotency key and "
                "without telling the runtime the outcome.",
                answers=(Answer(202, "The new call.", examples.CALL, shapes.Call),),
                problems=("elsewhere", "not-found", "conflict", "gone"),
                body=RedriveCall,
                body_optional=True,
                body_examples={"again": {"new_key": False, "deliver": False}},
            ),
        )


@contextmanager
def _over_where_gone(request: Request) -> Generator[None]:
    """A callback token proves that its call existed: where it is not known any more, it ended long ago."""
    try:
        yield
    except NotFound as exc:
        if request.state.caller is not CALLBACK:
            raise
        raise CallOver("the call ended long ago, and is no longer on record") from exc


def _call_id(request: Request) -> CallId:
    return CallId(request.path_params["call_id"])


def _answered(body: Any, *, strict: bool) -> Answered:
    try:
        return outcome_from(body, strict=strict)
    except ValueError as exc:
        place, _, _ = str(exc).partition(": ")
        raise InvalidRequest(str(exc), pointer=place if place.startswith("/") else "") from exc

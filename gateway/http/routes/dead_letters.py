"""Operations on dead letters: list, get, redrive, dismiss."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from urllib.parse import quote

import orjson
from fastapi import APIRouter, Body, Query, Response

from dragoman.models import responses
from gateway.errors import Conflict, Elsewhere
from gateway.events import SessionId
from gateway.http.openapi import problems
from gateway.http.positions import write_in_list
from gateway.http.reply import Reply, dump, listing
from gateway.http.requests import DeadLettersQuery, DismissMany, RedriveCall, RedriveMany
from gateway.http.route import ApiRequest, CallerDep, GatewayDep, LetterPath, OperationRoute
from gateway.http.views import show, show_dead_letter, show_redriven
from gateway.runtime.clients.dead_letters import Done

router = APIRouter(route_class=OperationRoute, tags=["operating"])


@router.get("/v1/dead-letters", response_model=responses.DeadLetters, response_description="One page.")
async def list_dead_letters(gateway: GatewayDep, query: Annotated[DeadLettersQuery, Query()]) -> Response:
    """List dead letters.

    Returns calls that ended without a response from their executor (`unknown`: they may have run), then deliveries that
    were refused, given up, or may have arrived. Each kind is sorted newest first and has the recommended action. All
    filters must match.
    """
    rows, after = await gateway.dead_letters.list(query.which(), query.page(gateway.generation))
    return listing([show_dead_letter(row) for row in rows], write_in_list(after, gateway.generation.name))


@router.get(
    "/v1/dead-letters/{letter}",
    response_model=responses.DeadLetter,
    response_description="The dead letter.",
    responses=problems("not-found"),
)
async def get_dead_letter(gateway: GatewayDep, letter: LetterPath) -> Response:
    """Get a dead letter.

    A call includes its complete history. A dead letter that was redriven or dismissed is not found.
    """
    return Reply(show_dead_letter(await gateway.dead_letters.show(letter)))


@router.post(
    "/v1/dead-letters/{letter}/redrive",
    status_code=202,
    response_model=responses.Redriven,
    response_description="The new call, or the delivery.",
    responses=problems("not-found", "conflict", "gone", "draining"),
)
async def redrive_dead_letter(
    gateway: GatewayDep,
    letter: LetterPath,
    wanted: Annotated[RedriveCall, Body(default_factory=RedriveCall)],
) -> Response:
    """Redrive a dead letter.

    For a call, make a new call, by default with the same idempotency key and without sending the outcome to the
    runtime. A delivery is retried at once.
    """
    row = await gateway.dead_letters.redrive(letter, new_key=wanted.new_key, deliver=wanted.deliver)
    return Reply(show_redriven(row), 202)


@router.post(
    "/v1/dead-letters/redrive",
    response_model=responses.RedrivenMany,
    response_description="The number of redriven dead letters.",
    responses=problems("draining"),
)
async def redrive_dead_letters(
    request: ApiRequest,
    gateway: GatewayDep,
    wanted: Annotated[RedriveMany, Body(default_factory=RedriveMany)],
) -> Response:
    """Redrive many dead letters.

    Redrives at most `limit` matching dead letters, in the order of the list. Failures are returned with their reason
    and stay listed. `dry_run` only lists the matches.
    """
    if not wanted.dry_run:
        gateway.draining.refuse_new()
    letters = gateway.dead_letters
    done = await letters.each(
        wanted.which(),
        limit=wanted.limit,
        dry_run=wanted.dry_run,
        deal_with=lambda letter: letters.redrive(letter, new_key=wanted.new_key, deliver=wanted.deliver),
        pass_on=_forward_to_owner(request, "redrive", dump({"new_key": wanted.new_key, "deliver": wanted.deliver})),
    )
    return Reply({"redriven": done.done, **_counted(done, dry_run=wanted.dry_run)})


@router.post(
    "/v1/dead-letters/{letter}/dismiss",
    response_model=responses.Redriven,
    response_description="The call, or the delivery.",
    responses=problems("not-found", "conflict"),
)
async def dismiss_dead_letter(gateway: GatewayDep, caller: CallerDep, letter: LetterPath) -> Response:
    """Dismiss a dead letter.

    Removes it permanently from the list and the gauge; its records stay. A call's history names the key that dismissed
    it and the time, in a `call.progressed` with `dismissed_by`. A delivery becomes moot, and its `reason` names both.
    To undo, redrive the call or redeliver the event.
    """
    return Reply(show_redriven(await gateway.dead_letters.dismiss(letter, by=caller.name)))


@router.post(
    "/v1/dead-letters/dismiss",
    response_model=responses.DismissedMany,
    response_description="The number of dismissed dead letters.",
)
async def dismiss_dead_letters(
    request: ApiRequest,
    gateway: GatewayDep,
    caller: CallerDep,
    wanted: Annotated[DismissMany, Body(default_factory=DismissMany)],
) -> Response:
    """Dismiss many dead letters.

    Dismisses at most `limit` matching dead letters, in the order of the list. Failures are returned with their reason
    and stay listed. `dry_run` only lists the matches.
    """
    letters = gateway.dead_letters
    done = await letters.each(
        wanted.which(),
        limit=wanted.limit,
        dry_run=wanted.dry_run,
        deal_with=lambda letter: letters.dismiss(letter, by=caller.name),
        pass_on=_forward_to_owner(request, "dismiss", b""),
    )
    return Reply({"dismissed": done.done, **_counted(done, dry_run=wanted.dry_run)})


def _forward_to_owner(request: ApiRequest, verb: str, body: bytes) -> Callable[[str, Elsewhere], Awaitable[None]]:
    api, until = request.api_state, None

    async def pass_on(letter: str, exc: Elsewhere) -> None:
        # All letters share one deadline for finding owners.
        nonlocal until
        until = until or api.gateway.forwarder.patience()
        path = f"/v1/dead-letters/{quote(letter, safe='')}/{verb}"
        written = api.forwarding.request_of(request, request.state.caller, path, body)
        passed = await api.forwarding.ask_owner(SessionId(exc.session_id), written, until=until)
        if passed is None:
            raise exc
        if not 200 <= passed.status < 300:
            raise Conflict(f"the instance that owns the session responded with {passed.status}: {_detail(passed.body)}")

    return pass_on


def _counted(done: Done, *, dry_run: bool) -> dict[str, Any]:
    return {
        "found": len(done.found),
        "failed": [show(responses.Failed, one) for one in done.failed],
        "more": done.more,
        "dry_run": dry_run,
        "ids": list(done.found),
    }


def _detail(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "no reason given"

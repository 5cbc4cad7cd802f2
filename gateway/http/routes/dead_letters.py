"""Dead letters: what did not get through, listed, shown, and tried again or dismissed, one by one or many at once."""

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import orjson
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import Conflict, Elsewhere
from gateway.events import SessionId
from gateway.http import examples, shapes
from gateway.http.body import read_form, read_json, read_query
from gateway.http.forms import DeadLettersQuery, DismissMany, RedriveCall, RedriveMany
from gateway.http.forward import Forwarding
from gateway.http.operation import Answer, Operation
from gateway.http.reply import dump, listing, reply
from gateway.http.views import call_view, dead_letter_story_view, dead_letter_view, delivery_view
from gateway.runtime.app import Gateway
from gateway.runtime.calls.dead_letters import Done
from gateway.store.call import Call
from gateway.store.rows import Page, SendRow


class DeadLetterRoutes:
    """The operations on dead letters over one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._forwarding = Forwarding(gateway)

    async def list(self, request: Request) -> Response:
        query = read_query(DeadLettersQuery, request)
        rows, after = await self._gateway.dead_letters.list(query.which(), Page(query.limit, query.after))
        return listing([dead_letter_view(row) for row in rows], after).response()

    async def get(self, request: Request) -> Response:
        found = await self._gateway.dead_letters.show(request.path_params["letter"])
        return reply(dead_letter_story_view(found)).response()

    async def redrive(self, request: Request) -> Response:
        form = read_form(RedriveCall, await read_json(request, optional=True))
        letter: str = request.path_params["letter"]
        row = await self._gateway.dead_letters.redrive(letter, new_key=form.new_key, deliver=form.deliver)
        return reply(_shown(row), 202).response()

    async def redrive_many(self, request: Request) -> Response:
        form = read_form(RedriveMany, await read_json(request, optional=True))
        letters, how = self._gateway.dead_letters, {"new_key": form.new_key, "deliver": form.deliver}
        done = await letters.each(
            form.which(),
            limit=form.limit,
            dry_run=form.dry_run,
            deal_with=lambda letter: letters.redrive(letter, new_key=form.new_key, deliver=form.deliver),
            pass_on=self._passing_on(request, "redrive", dump(how)),
        )
        return reply({"redriven": done.done, **_counted(done, dry_run=form.dry_run)}).response()

    async def dismiss(self, request: Request) -> Response:
        letter: str = request.path_params["letter"]
        row = await self._gateway.dead_letters.dismiss(letter, by=request.state.caller.name)
        return reply(_shown(row)).response()

    async def dismiss_many(self, request: Request) -> Response:
        form = read_form(DismissMany, await read_json(request, optional=True))
        letters, by = self._gateway.dead_letters, request.state.caller.name
        done = await letters.each(
            form.which(),
            limit=form.limit,
            dry_run=form.dry_run,
            deal_with=lambda letter: letters.dismiss(letter, by=by),
            pass_on=self._passing_on(request, "dismiss", b""),
        )
        return reply({"dismissed": done.done, **_counted(done, dry_run=form.dry_run)}).response()

    def _passing_on(self, request: Request, verb: str, body: bytes) -> Callable[[str, Elsewhere], Awaitable[None]]:
        until: float | None = None

        async def pass_on(letter: str, exc: Elsewhere) -> None:
            # All of them together wait no longer for owners than one would.
            nonlocal until
            until = until or self._gateway.forwarder.patience()
            path = f"/v1/dead-letters/{quote(letter, safe='')}/{verb}"
            written = self._forwarding.letter(request, path, body)
            passed = await self._forwarding.ask_owner(SessionId(exc.session_id), written, until=until)
            if passed is None:
                raise exc
            if not 200 <= passed.status < 300:
                raise Conflict(
                    f"the instance that carries the session answered {passed.status}: {_detail(passed.body)}"
                )

        return pass_on

    def operations(self) -> tuple[Operation, ...]:
        """List them with their documentation."""
        return (
            Operation(
                name="listDeadLetters",
                method="GET",
                path="/v1/dead-letters",
                run=self.list,
                tag="operating",
                summary="List what did not get through",
                description="Calls that ended without an answer of their executor (with `unknown`: they may have been "
                "done), then deliveries that were refused, given up, or of which nobody knows whether they arrived, or "
                "that wait for the newer release that wrote them (`pending`); "
                "each kind newest first, with what an operator should do. All filters must match.",
                answers=(
                    Answer(
                        200,
                        "One page.",
                        {"data": [examples.DEAD_CALL, examples.DEAD_DELIVERY], "next": None},
                        shapes.DeadLetters,
                    ),
                ),
                query=DeadLettersQuery,
            ),
            Operation(
                name="getDeadLetter",
                method="GET",
                path="/v1/dead-letters/{letter}",
                run=self.get,
                tag="operating",
                summary="Show one dead letter",
                description="A call comes with its whole story. One that was redriven or dismissed is not found.",
                answers=(Answer(200, "The letter.", examples.DEAD_DELIVERY, shapes.DeadLetter),),
                problems=("not-found",),
            ),
            Operation(
                name="redriveDeadLetter",
                method="POST",
                path="/v1/dead-letters/{letter}/redrive",
                run=self.redrive,
                tag="operating",
                summary="Try one dead letter again",
                description="A call is made anew, by default with the same idempotency key and without telling the "
                "runtime the outcome; a delivery is due again at once.",
                answers=(
                    Answer(202, "The new call, or the delivery.", {"type": "call", **examples.CALL}, shapes.Redriven),
                ),
                problems=("not-found", "conflict", "gone"),
                body=RedriveCall,
                body_optional=True,
                body_examples={"again": {"new_key": False, "deliver": False}},
            ),
            Operation(
                name="redriveDeadLetters",
                method="POST",
                path="/v1/dead-letters/redrive",
                run=self.redrive_many,
                tag="operating",
                summary="Try many dead letters again",
                description="At most `limit` of those that the filters match, as the list shows them. What cannot be "
                "tried again is counted with its reason and stays listed. `dry_run` only says what would be tried.",
                answers=(
                    Answer(
                        200,
                        "How many were tried.",
                        {
                            "found": 2,
                            "redriven": 1,
                            "failed": [{"id": examples.CALL_ID, "reason": "the session is closed"}],
                            "more": False,
                            "dry_run": False,
                            "ids": [examples.CALL_ID, f"{examples.SESSION_ID}:4:destination:chat-log"],
                        },
                        shapes.RedrivenMany,
                    ),
                ),
                body=RedriveMany,
                body_optional=True,
                body_examples={
                    "one executor": {"executor": "cards", "since": "2026-11-20T12:00:00Z", "limit": 100},
                    "look first": {"target": "destination:chat-log", "dry_run": True},
                },
            ),
            Operation(
                name="dismissDeadLetter",
                method="POST",
                path="/v1/dead-letters/{letter}/dismiss",
                run=self.dismiss,
                tag="operating",
                summary="Leave one dead letter as it is",
                description="It leaves the list and the gauge for good; what is on record of it stays. A call's story "
                "says who dismissed it and when, in a `call.progressed` with `dismissed_by`; a delivery says so in its "
                "`reason`, and is moot. Should it be wanted after all: redrive the call, or redeliver the event.",
                answers=(
                    Answer(200, "The call, or the delivery.", {"type": "call", **examples.CALL}, shapes.Redriven),
                ),
                problems=("not-found", "conflict"),
            ),
            Operation(
                name="dismissDeadLetters",
                method="POST",
                path="/v1/dead-letters/dismiss",
                run=self.dismiss_many,
                tag="operating",
                summary="Leave many dead letters as they are",
                description="At most `limit` of those that the filters match, as the list shows them. What cannot be "
                "dismissed is counted with its reason and stays listed. `dry_run` only says what would be dismissed.",
                answers=(
                    Answer(
                        200,
                        "How many were dismissed.",
                        {
                            "found": 1,
                            "dismissed": 1,
                            "failed": [],
                            "more": False,
                            "dry_run": False,
                            "ids": [f"{examples.SESSION_ID}:4:destination:chat-log"],
                        },
                        shapes.DismissedMany,
                    ),
                ),
                body=DismissMany,
                body_optional=True,
                body_examples={
                    "one destination": {"target": "destination:chat-log", "limit": 100},
                    "look first": {"executor": "cards", "dry_run": True},
                },
            ),
        )


def _shown(row: Call | SendRow) -> dict[str, Any]:
    if isinstance(row, Call):
        return {"type": "call", **call_view(row)}
    return {"type": "delivery", **delivery_view(row)}


def _counted(done: Done, *, dry_run: bool) -> dict[str, Any]:
    return {
        "found": len(done.found),
        "failed": [{"id": one.id, "reason": one.reason} for one in done.failed],
        "more": done.more,
        "dry_run": dry_run,
        "ids": list(done.found),
    }


def _detail(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "without a reason"

"""Dead letters: what did not get through, listed, shown, and tried again one by one or many at once."""

from urllib.parse import quote

import orjson
from starlette.requests import Request
from starlette.responses import Response

from gateway.envelope import SessionId
from gateway.errors import Conflict, Elsewhere
from gateway.http import examples, shapes
from gateway.http.body import read_form, read_json, read_query
from gateway.http.forms import DeadLettersQuery, RedriveCall, RedriveMany
from gateway.http.operation import Answer, Operation
from gateway.http.relay import Forwarding
from gateway.http.reply import dump, listing, reply
from gateway.http.views import call_view, dead_letter_story_view, dead_letter_view, delivery_view
from gateway.ports.engine import CallRow, Page
from gateway.runtime.gateway import Gateway


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
        shown = call_view(row) if isinstance(row, CallRow) else delivery_view(row)
        return reply({"type": "call" if isinstance(row, CallRow) else "delivery", **shown}, 202).response()

    async def redrive_many(self, request: Request) -> Response:
        form = read_form(RedriveMany, await read_json(request, optional=True))
        body = dump({"new_key": form.new_key, "deliver": form.deliver})
        until: float | None = None

        async def pass_on(letter: str, exc: Elsewhere) -> None:
            # All of them together wait no longer for owners than one would.
            nonlocal until
            until = until or self._gateway.relay.patience()
            path = f"/v1/dead-letters/{quote(letter, safe='')}/redrive"
            written = self._forwarding.letter(request, path, body)
            passed = await self._forwarding.ask_owner(SessionId(exc.session_id), written, until=until)
            if passed is None:
                raise exc
            if passed.status != 202:
                raise Conflict(
                    f"the instance that carries the session answered {passed.status}: {_detail(passed.body)}"
                )

        done = await self._gateway.dead_letters.redrive_many(
            form.which(),
            limit=form.limit,
            dry_run=form.dry_run,
            new_key=form.new_key,
            deliver=form.deliver,
            pass_on=pass_on,
        )
        shown = {
            "found": len(done.found),
            "redriven": done.redriven,
            "failed": [{"id": one.id, "reason": one.reason} for one in done.failed],
            "more": done.more,
            "dry_run": form.dry_run,
            "ids": list(done.found),
        }
        return reply(shown).response()

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
                "done), then deliveries that were refused, given up, or of which nobody knows whether they arrived; "
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
                description="A call comes with its whole story. A letter that was redriven is no longer found here.",
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
        )


def _detail(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "without a reason"

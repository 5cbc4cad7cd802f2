"""Questions to a person: what waits for an answer, and answering it."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.events import InteractionId, SessionId
from gateway.http import examples, shapes
from gateway.http.body import read_form, read_json, read_query
from gateway.http.forms import AnswerInteraction, InteractionsQuery
from gateway.http.operation import Answer, Operation
from gateway.http.reply import listing, reply
from gateway.http.sse import EventStream, Followers
from gateway.http.views import interaction_view
from gateway.runtime.app import Gateway
from gateway.store.rows import Page


class InteractionRoutes:
    """The interaction operations over one gateway."""

    def __init__(self, gateway: Gateway, followers: Followers) -> None:
        self._gateway = gateway
        self._followers = followers

    async def list(self, request: Request) -> Response:
        query = read_query(InteractionsQuery, request)
        rows, after = await self._gateway.interactions(
            Page(query.limit, query.after),
            session_id=None if query.session_id is None else SessionId(query.session_id),
            state=query.state,
        )
        return listing([interaction_view(row, asked) for row, asked in rows], after).response()

    async def stream(self, request: Request) -> Response:
        del request
        most = self._gateway.settings.limits.followers
        api = self._gateway.settings.api
        self._followers.admit("interactions", most=most, most_each=most, memory=int(api.followers_memory))
        buffer = int(api.follower_buffer)
        return EventStream(self._gateway.follow_interactions(), self._followers, about="interactions", buffer=buffer)

    async def answer(self, request: Request) -> Response:
        form = read_form(AnswerInteraction, await read_json(request))
        interaction_id = InteractionId(request.path_params["interaction_id"])
        row = await self._gateway.answer(interaction_id, form.as_mapping(), by=request.state.caller.name)
        return reply(interaction_view(row)).response()

    def operations(self) -> tuple[Operation, ...]:
        """List them with their documentation."""
        return (
            Operation(
                name="listInteractions",
                method="GET",
                path="/v1/interactions",
                run=self.list,
                tag="interactions",
                summary="List questions to a person",
                description="Approvals, questions and secrets that agents asked for; `event` is the one that asked.",
                answers=(
                    Answer(
                        200,
                        "One page.",
                        {"data": [examples.INTERACTION], "next": None},
                        shapes.Listing[shapes.Interaction],
                    ),
                ),
                query=InteractionsQuery,
            ),
            Operation(
                name="streamInteractions",
                method="GET",
                path="/v1/interactions/stream",
                run=self.stream,
                tag="interactions",
                summary="Follow the questions to a person (server-sent events)",
                description="Begins with all that wait; then each event `interaction` is one that was asked, answered, "
                "has expired or become moot, as it now stands. `data` is the interaction as in the list. After an "
                "event `gap` (this reader was too slow) all that wait are sent again, as after a reconnect.",
                answers=(Answer(200, "The stream.", examples.INTERACTION_STREAM, str, media_type="text/event-stream"),),
            ),
            Operation(
                name="answerInteraction",
                method="POST",
                path="/v1/interactions/{interaction_id}/answer",
                run=self.answer,
                tag="interactions",
                summary="Answer a question to a person",
                description="`decision` (and `scope`) for an approval, `answer` for a question (empty skips it), "
                "`value` for a secret, which is passed on and never stored. A second answer is a conflict.",
                answers=(Answer(200, "It is answered.", examples.INTERACTION_ANSWERED, shapes.Interaction),),
                problems=("elsewhere", "not-found", "conflict", "inexpressible"),
                body=AnswerInteraction,
                body_examples={
                    "approval": {"decision": "allow", "scope": "once"},
                    "question": {"answer": "the blue one"},
                    "secret": {"value": "correct horse battery staple"},
                },
            ),
        )

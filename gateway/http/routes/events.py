"""Posting events to a session, reading its history, and following it live."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import Gone, InvalidRequest, Truncated
from gateway.events import Envelope, SessionId, dump_event, to_json
from gateway.http import examples, shapes
from gateway.http.body import read_form, read_json, read_query
from gateway.http.client_events import read_events
from gateway.http.forms import EventsQuery, Redeliver, StreamQuery
from gateway.http.idempotency import IdempotentRequests
from gateway.http.operation import Answer, Operation
from gateway.http.reply import Reply, dump, listing, reply
from gateway.http.routes.sessions import KEY_HEADER
from gateway.http.sse import EventStream, Followers
from gateway.runtime.app import Gateway
from gateway.store.step import Keep

_LARGEST_SEQUENCE = 2**63 - 1


class EventRoutes:
    """The event operations over one gateway."""

    def __init__(self, gateway: Gateway, once: IdempotentRequests, followers: Followers) -> None:
        self._gateway = gateway
        self._once = once
        self._followers = followers

    async def post(self, request: Request) -> Response:
        events = read_events(await read_json(request))

        session_id, by = SessionId(request.path_params["session_id"]), request.state.caller.name

        async def act(keep: Keep | None = None) -> Reply:
            return _written(await self._gateway.post(session_id, events, by=by, keep=keep))

        async def again(sequences: Sequence[int]) -> Reply:
            first, last = min(sequences), max(sequences)
            found = await self._gateway.read(session_id, after=first - 1, limit=last - first + 1)
            return _written([envelope for envelope in found if envelope.sequence in sequences])

        if "idempotency-key" not in request.headers:
            return (await act()).response()
        # The dumped events show secrets as asterisks, so that not even a digest of a secret is kept.
        fingerprint = dump([dump_event(event) for event in events])
        return (await self._once.run_step(request, fingerprint, act, again)).response()

    async def list(self, request: Request) -> Response:
        query = read_query(EventsQuery, request)
        session_id = SessionId(request.path_params["session_id"])
        try:
            envelopes = await self._gateway.read(session_id, after=query.after, limit=query.limit)
        except Truncated as exc:
            raise Gone(str(exc), first_sequence=exc.first_sequence) from exc
        after = envelopes[-1].sequence if len(envelopes) == query.limit else None
        return listing([to_json(envelope) for envelope in envelopes], after).response()

    async def stream(self, request: Request) -> Response:
        query = read_query(StreamQuery, request)
        after = query.after
        # A browser that reconnects keeps its old URL, so the header is the fresher of the two.
        if given := request.headers.get("last-event-id"):
            after = _sequence(given)
        session_id = SessionId(request.path_params["session_id"])
        await self._gateway.session(session_id)
        api, limits = self._gateway.settings.api, self._gateway.settings.limits
        memory = int(api.followers_memory)
        self._followers.admit(session_id, most=limits.followers, most_each=limits.session_followers, memory=memory)
        items = self._gateway.follow(session_id, after=after)
        return EventStream(
            items,
            self._followers,
            about=session_id,
            buffer=int(api.follower_buffer),
            again=lambda after: self._gateway.follow(session_id, after=after),
        )

    async def redeliver(self, request: Request) -> Response:
        form = read_form(Redeliver, await read_json(request))
        sequence = _sequence(request.path_params["sequence"])
        session_id = SessionId(request.path_params["session_id"])
        await self._gateway.redeliver(session_id, sequence, form.target)
        return reply({"session_id": session_id, "sequence": sequence, "target": form.target}, 202).response()

    def operations(self) -> tuple[Operation, ...]:
        """List them with their documentation."""
        return (
            Operation(
                name="postEvents",
                method="POST",
                path="/v1/sessions/{session_id}/events",
                run=self.post,
                tag="events",
                summary="Post one or several events",
                description="Record events and send them to the runtime. They are checked against what the runtime "
                "can be told first: either all are recorded or none. Delivery is seen in the stream.",
                answers=(Answer(202, "Recorded, in order.", {"data": [examples.POSTED]}, shapes.Written),),
                problems=(
                    "elsewhere",
                    "invalid-event",
                    "not-found",
                    "conflict",
                    "inexpressible",
                    "idempotency-conflict",
                    "idempotency-busy",
                    "overloaded",
                ),
                body=shapes.PostedEvents,
                body_examples={
                    "message": {"kind": "message.posted", "content": "Do you have any sevens?"},
                    "several": {
                        "events": [
                            {"kind": "context.updated", "name": "table", "context": {"turn": "Victoria"}},
                            {"kind": "message.posted", "content": [{"type": "text", "text": "Your turn."}]},
                        ]
                    },
                },
                headers=(KEY_HEADER,),
            ),
            Operation(
                name="listEvents",
                method="GET",
                path="/v1/sessions/{session_id}/events",
                run=self.list,
                tag="events",
                summary="Read the history of a session",
                description="Events behind a sequence, in order; `next` is the sequence to go on `after`.",
                answers=(Answer(200, "One page.", {"data": [examples.POSTED], "next": 4}, shapes.EventListing),),
                problems=("not-found", "gone"),
                query=EventsQuery,
            ),
            Operation(
                name="streamEvents",
                method="GET",
                path="/v1/sessions/{session_id}/events/stream",
                run=self.stream,
                tag="events",
                summary="Follow a session (server-sent events)",
                description="`id` is the sequence, `event` the kind, `data` the envelope. What is only live (typing, "
                'pieces of text) has no `id` and `data` is `{"live": true, "after_sequence", "event"}`. Where history '
                "is gone, an event `gap` tells the `first_sequence` that is left. Without `Last-Event-ID` and `after` "
                "the stream begins with what happens next; `after=0` begins at the beginning.",
                answers=(Answer(200, "The stream.", examples.STREAM, str, media_type="text/event-stream"),),
                problems=("not-found",),
                query=StreamQuery,
                headers=(("Last-Event-ID", "Go on behind this sequence; wins over `after`.", "41"),),
            ),
            Operation(
                name="redeliverEvent",
                method="POST",
                path="/v1/sessions/{session_id}/events/{sequence}/redeliver",
                run=self.redeliver,
                tag="operating",
                summary="Send one event again",
                description="Try a dead delivery again: an event copy to a destination, or an event to the runtime.",
                answers=(
                    Answer(
                        202,
                        "It is due.",
                        {"session_id": examples.SESSION_ID, "sequence": 4, "target": "destination:chat-log"},
                        shapes.Redelivered,
                    ),
                ),
                problems=("elsewhere", "not-found", "conflict"),
                body=Redeliver,
                body_examples={"copy": {"target": "destination:chat-log"}, "runtime": {"target": "runtime"}},
            ),
        )


def _written(envelopes: Sequence[Envelope]) -> Reply:
    return reply({"data": [to_json(envelope) for envelope in envelopes]}, 202)


def _sequence(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= _LARGEST_SEQUENCE:
        return int(text)
    raise InvalidRequest(f"{text[:50]!r} is not a sequence: a whole number from 0 is expected")

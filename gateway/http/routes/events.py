"""Operations on a session's events: post, list, stream, redeliver."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Body, Header, Query, Response
from pydantic import PlainValidator

from dragoman.models import responses
from gateway.errors import Inexpressible
from gateway.events import Envelope, dump_event, to_json
from gateway.http.auth import require
from gateway.http.client_events import PostedEvents, Several
from gateway.http.idempotency import IdempotencyKey
from gateway.http.openapi import problems
from gateway.http.reply import Reply, dump, listing
from gateway.http.requests import EventsQuery, Redeliver, StreamQuery, kinds_of
from gateway.http.route import (
    ApiRequest,
    CallerDep,
    GatewayDep,
    OperationRoute,
    SequencePath,
    SessionPath,
    read_sequence,
)
from gateway.http.sse import Beyond, EventStream
from gateway.http.views import show
from gateway.runtime.views import StreamItem
from gateway.store.step import Keep

_MOST_NATIVE = 100
"""Events of a page with native frames."""

router = APIRouter(route_class=OperationRoute, tags=["events"])


@router.post(
    "/v1/sessions/{session_id}/events",
    status_code=202,
    response_model=responses.Written,
    response_description="The recorded events, in order.",
    responses=problems(
        "elsewhere",
        "invalid-event",
        "not-found",
        "conflict",
        "inexpressible",
        "idempotency-conflict",
        "idempotency-busy",
        "draining",
        "overloaded",
    ),
)
async def post_events(
    request: ApiRequest,
    gateway: GatewayDep,
    caller: CallerDep,
    session_id: SessionPath,
    events: Annotated[PostedEvents, Body()],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Post events.

    Record one or more events and send them to the runtime. The gateway first checks that the runtime supports them, and
    records all or none. The stream shows delivery.
    """

    async def act(keep: Keep | None = None) -> Reply:
        try:
            return _written(await gateway.post(session_id, events, by=caller.name, keep=keep))
        except Inexpressible as exc:
            if isinstance(events, Several):
                exc.path = f"/events/{exc.place}{exc.path}"
            raise

    async def again(sequences: Sequence[int]) -> Reply:
        first, last = min(sequences), max(sequences)
        found = await gateway.read(session_id, after=first - 1, limit=last - first + 1)
        return _written([envelope for envelope in found if envelope.sequence in sequences])

    if idempotency_key is None:
        return await act()
    # The dumped events show secrets as asterisks, so that not even a digest of a secret is kept.
    fingerprint = dump([dump_event(event) for event in events])
    return await request.api_state.once.run_step(request, idempotency_key, fingerprint, act, again)


@router.get(
    "/v1/sessions/{session_id}/events",
    response_model=responses.EventListing,
    response_description="One page.",
    responses=problems("not-found", "gone"),
)
async def list_events(
    request: ApiRequest, gateway: GatewayDep, session_id: SessionPath, query: Annotated[EventsQuery, Query()]
) -> Response:
    """List a session's events.

    Returns the events after a sequence, in order. Pass `next` as `after` to continue. With `kind`, a page searches at
    most 20,000 events, so it may be short or empty and still have a `next`. `native=true` also requires the scope
    `operate`; it adds the native frames that `keep_native` of the runtime has kept, and those that the gateway sent,
    encoded again.
    """
    limit, kinds = query.limit, kinds_of(query.kind)
    if query.native:
        require(request, "listNativeEvents")
        limit = min(limit, _MOST_NATIVE)
    envelopes, following = await gateway.page_of_events(session_id, kinds, after=query.after, limit=limit)
    rows = [to_json(envelope) for envelope in envelopes]
    if query.native:
        native = await gateway.native.frames_of(await gateway.session(session_id), envelopes)
        for row in rows:
            frames = native.get(row["sequence"])
            row["native"] = None if frames is None else show(responses.NativeFrames, frames)
    return listing(rows, following)


@router.get(
    "/v1/sessions/{session_id}/events/stream",
    response_class=EventStream,
    response_description="The stream.",
    responses=problems("not-found"),
)
async def stream_events(
    request: ApiRequest,
    gateway: GatewayDep,
    caller: CallerDep,
    session_id: SessionPath,
    query: Annotated[StreamQuery, Query()],
    last_event_id: Annotated[
        int | None,
        PlainValidator(
            lambda given: read_sequence(given, "Last-Event-ID") if given else None, json_schema_input_type=int
        ),
        Header(
            alias="Last-Event-ID",
            description="Resume after this sequence; takes precedence over `after`.",
            examples=[41],
        ),
    ] = None,
) -> Response:
    """Follow a session (server-sent events).

    `id` is the sequence, `event` the kind, `data` the envelope. Live events (typing, message chunks) have no `id`, and
    `data` is `{"live": true, "after_sequence", "event"}`. If history was removed, an event `gap` names the
    `first_sequence` that is left. If the session ends before the requested position, `gap` names the next sequence, and
    its `id` is one less. Without `Last-Event-ID` and `after` the stream starts with new events; `after=0` starts with
    the first one.
    """
    # A browser that reconnects keeps its old URL, so the header is newer.
    after = query.after if last_event_id is None else last_event_id
    last = (await gateway.session(session_id)).last_sequence
    followers, limits = request.api_state.followers, gateway.settings.limits
    followers.check_limits(session_id, most=limits.followers, most_each=limits.session_followers)
    is_beyond = after is not None and after > last
    # Start at a known sequence, so that no event is missed while the response starts.
    items = gateway.follow(session_id, after=last if after is None or is_beyond else after)
    return EventStream(
        _prepend_gap(Beyond(last + 1), items) if is_beyond else items,
        followers,
        subject=session_id,
        is_allowed=partial(request.api_state.authenticator.still_admits, caller, "streamEvents"),
    )


@router.post(
    "/v1/sessions/{session_id}/events/{sequence}/redeliver",
    tags=["operating"],
    status_code=202,
    response_model=responses.Redelivered,
    response_description="The delivery is queued.",
    responses=problems("elsewhere", "not-found", "conflict", "gone", "draining"),
)
async def redeliver_event(
    gateway: GatewayDep,
    session_id: SessionPath,
    sequence: SequencePath,
    wanted: Annotated[Redeliver, Body()],
) -> Response:
    """Redeliver an event.

    Retry a dead delivery: an event copy to a destination, or an event to the runtime.
    """
    await gateway.redeliver(session_id, sequence, wanted.target)
    return Reply({"session_id": session_id, "sequence": sequence, "target": wanted.target}, 202)


async def _prepend_gap(gap: Beyond, items: AsyncGenerator[StreamItem]) -> AsyncGenerator[StreamItem]:
    """Yield a gap before the items."""
    yield gap
    async with aclosing(items):
        async for item in items:
            yield item


def _written(envelopes: Sequence[Envelope]) -> Reply:
    return Reply({"data": [to_json(envelope) for envelope in envelopes]}, 202)

"""Operations on a session's events: post, list, stream, redeliver."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Body, Header, Query, Response

from dragoman.models import responses
from gateway.errors import Gone, Inexpressible
from gateway.events import Envelope, dump_event, write_position
from gateway.http.auth import require
from gateway.http.client_events import PostedEvents, Several
from gateway.http.idempotency import IdempotencyKey
from gateway.http.openapi import problems
from gateway.http.positions import read_in_session
from gateway.http.reply import Reply, dump, listing
from gateway.http.requests import EventsQuery, Redeliver, StreamQuery, kinds_of
from gateway.http.route import (
    ApiRequest,
    CallerDep,
    GatewayDep,
    OperationRoute,
    SequencePath,
    SessionPath,
)
from gateway.http.sse import Beyond, EventStream
from gateway.http.views import show, show_event
from gateway.runtime.app import Gateway
from gateway.runtime.views import StreamItem
from gateway.store.rows import SessionRow
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
        "session-owner-unavailable",
        "invalid-event",
        "not-found",
        "conflict",
        "use-interaction",
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
            return _written(await gateway.post(session_id, events, by=caller.name, keep=keep), gateway.generation.name)
        except Inexpressible as exc:
            if isinstance(events, Several):
                exc.path = f"/events/{exc.place}{exc.path}"
            raise

    async def again(sequences: Sequence[int]) -> Reply:
        found, after, last = list[Envelope](), min(sequences) - 1, max(sequences)
        while after < last:
            page, following = await gateway.page_of_events(session_id, after=after, limit=last - after)
            found += page
            after = following or last
        written = [envelope for envelope in found if envelope.sequence in sequences]
        return _written(written, gateway.generation.name)

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

    Returns the events after a sequence, in order. Pass `next` as `after` to continue. A page ends at about 1 MiB. With
    `kind`, it searches at most 20,000 events, so it may be short or empty and still have a `next`. `excerpts=true` cuts
    large events. `native=true` also requires the scope `operate`; it adds the native frames that `keep_native` of the
    runtime has kept, and those that the gateway sent, encoded again.
    """
    limit, kinds = query.limit, kinds_of(query.kind)
    if query.native:
        require(request, "listNativeEvents")
        limit = min(limit, _MOST_NATIVE)
    after, generation = read_in_session(query.after, parameter="after")
    if not gateway.generation.is_own(generation):
        first = 1 + gateway.generation.place_in(await gateway.session(session_id), generation, after)
        raise Gone(f"the store was restored after this page; read on after sequence {first - 1}", first_sequence=first)
    envelopes, following = await gateway.page_of_events(
        session_id, kinds, after=after, limit=limit, excerpts=query.excerpts
    )
    generation = gateway.generation.name
    rows = [show_event(envelope, generation) for envelope in envelopes]
    if query.excerpts:
        for row, envelope in zip(rows, envelopes, strict=True):
            row["cut"] = envelope.stored_kind is not None
    if query.native:
        native = await gateway.native.frames_of(await gateway.session(session_id), envelopes)
        for row in rows:
            frames = native.get(row["sequence"])
            row["native"] = None if frames is None else show(responses.NativeFrames, frames)
    return listing(rows, None if following is None else write_position(following, generation))


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
        str | None,
        Header(
            alias="Last-Event-ID", description="Resume after the event with this `id`; takes precedence over `after`."
        ),
    ] = None,
) -> Response:
    """Follow a session (server-sent events).

    `id` is the event's `position`, `event` the kind, `data` the envelope. Live events (typing, message chunks) have no
    `id`, and `data` is `{"live": true, "after_sequence", "event"}`. If history was removed, an event `gap` names the
    `first_sequence` that is left. If the requested position is of another history, because the store was restored, a
    `gap` with an `id` comes first: the stream continues at its `first_sequence`, from which your events may differ.
    Without `Last-Event-ID` and `after` the stream starts with new events; `after=0` starts with the first one.
    """
    # A browser that reconnects keeps its old URL, so the header is newer.
    given, parameter = (last_event_id, "Last-Event-ID") if last_event_id else (query.after, "after")
    row = await gateway.session(session_id)
    # Start at a known sequence, so that no event is missed while the response starts.
    place = row.last_sequence if given is None else _place_in(gateway, row, given, parameter)
    followers, limits = request.api_state.followers, gateway.settings.limits
    followers.check_limits(session_id, most=limits.followers, most_each=limits.session_followers)
    after = place.first_sequence - 1 if isinstance(place, Beyond) else place
    items = gateway.follow(session_id, after=after)
    return EventStream(
        _prepend_gap(place, items) if isinstance(place, Beyond) else items,
        followers,
        subject=session_id,
        generation=gateway.generation.name,
        is_allowed=partial(request.api_state.authenticator.still_admits, caller, "streamEvents"),
    )


@router.post(
    "/v1/sessions/{session_id}/events/{sequence}/redeliver",
    tags=["operating"],
    status_code=202,
    response_model=responses.Redelivered,
    response_description="The delivery is queued.",
    responses=problems("session-owner-unavailable", "not-found", "conflict", "gone", "draining"),
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


def _place_in(gateway: Gateway, row: SessionRow, given: str, parameter: str) -> int | Beyond:
    """Return the sequence of a position, or the place at which a client of another history continues."""
    sequence, generation = read_in_session(given, parameter=parameter)
    if not gateway.generation.is_own(generation):
        return Beyond(gateway.generation.place_in(row, generation, sequence) + 1)
    return sequence if sequence <= row.last_sequence else Beyond(row.last_sequence + 1)


async def _prepend_gap(gap: Beyond, items: AsyncGenerator[StreamItem]) -> AsyncGenerator[StreamItem]:
    """Yield a gap before the items."""
    yield gap
    async with aclosing(items):
        async for item in items:
            yield item


def _written(envelopes: Sequence[Envelope], generation: str) -> Reply:
    return Reply({"data": [show_event(envelope, generation) for envelope in envelopes]}, 202)

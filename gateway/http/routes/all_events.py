"""The stream of the events of all sessions."""

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from gateway.events import Envelope, Missed, to_live_json
from gateway.http.openapi import problems
from gateway.http.positions import mark_of, read_in_all, write_in_all
from gateway.http.reply import dump
from gateway.http.requests import AllEventsQuery
from gateway.http.route import ApiRequest, CallerDep, GatewayDep, OperationRoute
from gateway.http.sse import LARGEST_PIECE, EventStream
from gateway.http.views import show_event
from gateway.runtime.views import Heartbeat, Passed, Selected, SessionEvent, SessionItem

router = APIRouter(route_class=OperationRoute, tags=["events"])


@router.get(
    "/v1/events/stream",
    response_class=EventStream,
    response_description="The stream.",
    responses=problems("overloaded"),
)
async def stream_all_events(
    request: ApiRequest,
    gateway: GatewayDep,
    caller: CallerDep,
    query: Annotated[AllEventsQuery, Query()],
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID", description="Resume after the event with this `id`; takes precedence over `after`."
        ),
    ] = None,
) -> Response:
    """Follow all sessions (server-sent events).

    `event` is the kind, `data` the envelope with its `session`. All filters must match. Live events (typing, message
    chunks) have no `id`, and `data` is `{"live": true, "after_sequence", "event", "session"}`. An event `position`
    only has an `id`: the place to resume from after events that did not match. An event `gap` means that events after
    the requested `id` were removed, or that the store was restored, after which other events may follow it. Events of a
    session arrive in order.
    """
    which = query.which()
    mark = mark_of(which)
    # A browser that reconnects keeps its old URL, so the header is newer.
    given, parameter = (last_event_id, "Last-Event-ID") if last_event_id else (query.after, "after")
    after, is_gap = None, False
    if given is not None:
        after, is_gap = read_in_all(given, gateway.generation, mark, parameter=parameter)
    followers, most = request.api_state.followers, gateway.settings.limits.followers
    followers.check_limits("all sessions", most=most, most_each=most)
    return EventStream(
        _encoded(gateway.follow_all(which, after=after, is_gap=is_gap), gateway.generation.name, mark),
        followers,
        subject="all sessions",
        is_allowed=partial(request.api_state.authenticator.still_admits, caller, "streamAllEvents"),
    )


async def _encoded(
    items: AsyncGenerator[SessionItem], generation: str, mark: str
) -> AsyncGenerator[bytes | Heartbeat | Missed]:
    """Encode the items; each follower of an event adds its own `id`."""
    async with aclosing(items):
        async for item in items:
            match item:
                case Selected():
                    for piece in _pieces(item.items, generation, mark):
                        yield piece
                case Passed():
                    yield b"id: %b\nevent: position\ndata: {}\n\n" % write_in_all(item.position, generation, mark)
                case Heartbeat() | Missed():
                    yield item


def _pieces(items: Sequence[SessionEvent], generation: str, mark: str) -> Generator[bytes]:
    """Encode events with their own ids; a large event, which all followers share, is a piece of its own."""
    parts: list[bytes] = []
    for one in items:
        if one.position is not None:
            parts.append(b"id: %b\n" % write_in_all(one.position, generation, mark))
        if one.encoded is None:
            one.encoded = b"event: %b\ndata: %b\n\n" % (one.item.event.kind.encode(), dump(_data(one, generation)))
        if len(one.encoded) > LARGEST_PIECE:
            yield b"".join(parts)
            yield one.encoded
            parts.clear()
        else:
            parts.append(one.encoded)
    yield b"".join(parts)


def _data(one: SessionEvent, generation: str) -> dict[str, Any]:
    item = show_event(one.item, generation) if isinstance(one.item, Envelope) else to_live_json(one.item)
    return {**item, "session": one.session.to_json()}

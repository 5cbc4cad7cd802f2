"""Saying things to the runtime and putting down what it said: the two ways an event gets on record. Pure."""

from datetime import datetime

from gateway.core.adapt import adapt
from gateway.core.contexts import carries_state
from gateway.core.council import Council
from gateway.core.decision import Building
from gateway.core.effects import Place, Transmit
from gateway.envelope import (
    ContextUpdated,
    Direction,
    Draft,
    Envelope,
    Event,
    Loss,
    MessagePosted,
    Origin,
    SessionMoved,
)
from gateway.ports.step import RUNTIME, Lane, Send


def say(
    council: Council,
    build: Building,
    event: Event,
    *,
    caused_by: int | None,
    lane: Lane,
    losses: tuple[Loss, ...] = (),
    sends: bool = True,
    leave_before: datetime | None = None,
    place: Place = "in_order",
) -> int:
    """Record an event of an accepted kind and send it; contexts are completed on the way."""
    if isinstance(event, ContextUpdated):
        adapted = adapt(event, build.memory, council.capabilities)
        event, losses = adapted.event, tuple(dict.fromkeys((*losses, *adapted.losses)))
    encoded = council.codec.encode(Draft(event))
    new = build.record(event, "to_runtime", caused_by=caused_by, losses=(*losses, *encoded.losses))
    if sends:
        build.add_send(Send(len(build.events) - 1, RUNTIME, lane))
        said: Draft | Envelope = Draft(event)
        if council.capabilities.replaces_context and _carries_message(event):
            # Said as it would be said again, so that a message without an id has the same one each time.
            names = (new.event_id, build.base.session_id, build.last_sequence, new.recorded_at)
            said = Envelope(*names, "to_runtime", event, caused_by=caused_by)
            encoded = council.codec.encode(said)
        build.effects.append(
            Transmit(
                build.last_sequence,
                lane,
                event.kind,
                encoded.frames,
                caused_by,
                leave_before,
                state=said if carries_state(event, council.capabilities) else None,
                place=place,
            )
        )
    return build.last_sequence


def _carries_message(event: Event) -> bool:
    return isinstance(event, MessagePosted) or (isinstance(event, ContextUpdated) and event.message is not None)


def begin_turn(council: Council, build: Building) -> None:
    if council.capabilities.turns == "inferred" and not build.memory.running:
        build.record(SessionMoved(state="running", reason="inferred"), "from_runtime")


def origin_of(council: Council, draft: Draft) -> Origin:
    """Say where a draft comes from."""
    return Origin(
        council.adapter,
        council.protocol,
        draft.native_id,
        draft.native_sequence,
        draft.native_time,
        draft.correlation,
    )


def witness(
    council: Council,
    build: Building,
    draft: Draft,
    event: Event,
    *,
    direction: Direction = "from_runtime",
    caused_by: int | None = None,
) -> tuple[int, str]:
    """Put a draft on record; returns its sequence and event id."""
    new = build.record(
        event,
        direction,
        origin=origin_of(council, draft),
        caused_by=caused_by,
        losses=draft.losses,
        dedupe_key=draft.native_id,
    )
    return build.last_sequence, new.event_id

"""Saying things to the runtime and putting down what it said: the two ways an event gets on record. Pure."""

from datetime import datetime

from gateway.core.adapt import adapt
from gateway.core.contexts import carries_state
from gateway.core.effects import Place, Transmit
from gateway.core.runtime_context import RuntimeContext
from gateway.core.step_builder import StepBuilder
from gateway.events import ContextUpdated, Direction, Draft, Envelope, Event, Loss, MessagePosted, Origin, SessionMoved
from gateway.store.step import RUNTIME, Lane, Send


def send(
    runtime: RuntimeContext,
    builder: StepBuilder,
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
        adapted = adapt(event, builder.memory, runtime.capabilities)
        event, losses = adapted.event, tuple(dict.fromkeys((*losses, *adapted.losses)))
    encoded = runtime.codec.encode(Draft(event))
    new = builder.record(event, "to_runtime", caused_by=caused_by, losses=(*losses, *encoded.losses))
    if sends:
        builder.add_send(Send(len(builder.events) - 1, RUNTIME, lane))
        said: Draft | Envelope = Draft(event)
        if runtime.capabilities.replaces_context and _carries_message(event):
            # Said as it would be said again, so that a message without an id has the same one each time.
            said = new
            encoded = runtime.codec.encode(said)
        builder.effects.append(
            Transmit(
                builder.last_sequence,
                lane,
                event.kind,
                encoded.frames,
                caused_by,
                leave_before,
                state=said if carries_state(event, runtime.capabilities) else None,
                place=place,
            )
        )
    return builder.last_sequence


def _carries_message(event: Event) -> bool:
    return isinstance(event, MessagePosted) or (isinstance(event, ContextUpdated) and event.message is not None)


def begin_turn(runtime: RuntimeContext, builder: StepBuilder) -> None:
    if runtime.capabilities.turns == "inferred" and not builder.memory.running:
        builder.record(SessionMoved(state="running", reason="inferred"), "from_runtime")


def origin_of(runtime: RuntimeContext, draft: Draft) -> Origin:
    """Say where a draft comes from."""
    return Origin(
        runtime.adapter,
        runtime.protocol,
        draft.native_id,
        draft.native_sequence,
        draft.native_time,
        draft.correlation,
    )


def record(
    runtime: RuntimeContext,
    builder: StepBuilder,
    draft: Draft,
    event: Event,
    *,
    direction: Direction = "from_runtime",
    caused_by: int | None = None,
) -> tuple[int, str]:
    """Put a draft on record; returns its sequence and event id."""
    new = builder.record(
        event,
        direction,
        origin=origin_of(runtime, draft),
        caused_by=caused_by,
        losses=draft.losses,
        dedupe_key=draft.native_id,
    )
    return builder.last_sequence, new.event_id

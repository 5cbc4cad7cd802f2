"""What is only live: shown to those who follow, and kept by nobody. Pure."""

from collections.abc import Sequence
from datetime import datetime

from gateway.adapter.port import Frame
from gateway.core.effects import Tell
from gateway.core.session import RuntimeContext, StepBuilder
from gateway.core.state import SessionView, Streamed
from gateway.errors import MalformedFrame
from gateway.events import Event, Live, MessageStreamed
from gateway.events.frozen import replace


def show(builder: StepBuilder, event: Event) -> None:
    """Show an event in its place between those of a step."""
    builder.touched_at = builder.now
    builder.partial = _with_piece(builder.partial, event)
    builder.effects.append(Tell(event, after=builder.last_sequence))


def only_live(
    runtime: RuntimeContext, view: SessionView, frame: Frame, *, now: datetime
) -> tuple[SessionView, Sequence[Live]] | None:
    """Say what a step would make of a frame by which nothing is put on record: the session then, and what is shown.

    None where it takes a step to find out.
    """
    if runtime.capabilities.starts_deaf:
        return None
    try:
        drafts = runtime.codec.decode(frame)
    except MalformedFrame:
        return None
    shown: list[Live] = []
    partial = view.partial
    for draft in drafts:
        if not draft.live:
            return None
        if draft.native_id not in view.memory.recent:
            partial = _with_piece(partial, draft.event)
            shown.append(Live(draft.event, view.last_sequence))
    return (replace(view, touched_at=now, partial=partial) if shown else view), shown


def _with_piece(partial: Streamed, event: Event) -> Streamed:
    return partial.add(event.text) if isinstance(event, MessageStreamed) else partial

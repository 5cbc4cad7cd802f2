"""Live events: shown to followers and not recorded. Pure."""

from collections.abc import Sequence
from datetime import datetime

from gateway.adapter.port import Frame
from gateway.core.confirmations import aborted
from gateway.core.effects import Tell
from gateway.core.session import RuntimeContext, StepBuilder
from gateway.core.state import SessionView, Streamed
from gateway.errors import MalformedFrame
from gateway.events import Event, Live, MessageStreamed
from gateway.events.frozen import replace


def show(builder: StepBuilder, event: Event) -> None:
    """Show a live event in its place between the events of a step."""
    builder.touched_at = builder.now
    builder.partial = _with_piece(builder.partial, event)
    builder.effects.append(Tell(event, after=builder.last_sequence))


def only_live(
    runtime: RuntimeContext, view: SessionView, frame: Frame, *, now: datetime
) -> tuple[SessionView, Sequence[Live]] | None:
    """Process a frame that only has live events without a step: return the session and the live events.

    Return None if the frame needs a step.
    """
    try:
        drafts = runtime.codec.decode(frame)
    except MalformedFrame:
        return None
    shown: list[Live] = []
    partial = view.partial
    for draft in drafts:
        if not draft.live or aborted(view.memory, draft.event):
            return None
        if draft.native_id not in view.memory.recent:
            partial = _with_piece(partial, draft.event)
            shown.append(Live(draft.event, view.last_sequence))
    return (replace(view, touched_at=now, partial=partial) if shown else view), shown


def _with_piece(partial: Streamed, event: Event) -> Streamed:
    return partial.add(event) if isinstance(event, MessageStreamed) else partial

"""Whether a runtime that is deaf while it starts may be given work: what this link has told of it. Pure."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from gateway.events import ActionOrdered, Draft, Event, FaultReported, MessagePosted, SessionMoved, TurnSteered
from gateway.events.frozen import frozen

NEVER_SENT = "held: the runtime has not started yet"
"""Reason of a pending row that was never sent: whoever finds it later need not wonder."""
UNSTARTED = "sent although the runtime had not said that it has started"
"""What the delivery of new work says that could not wait any longer."""


@frozen
class Start:
    """How far a runtime is, by what the link that stands or is being made has told."""

    state: Literal["unknown", "starting", "overdue", "ready"] = "unknown"
    since: datetime | None = None
    """Since when new work may have to wait; None while no link stands."""
    newest: int = -1
    """Number of the newest state that was told."""

    @property
    def waits(self) -> bool:
        """Whether new work must wait."""
        return self.state in {"unknown", "starting"}


def told(start: Start, draft: Draft, now: datetime) -> Start:
    """Take note of what the runtime said; repeats count, states gone by do not.

    An error that is part of no history is about the start itself, which is then not worth waiting for.
    """
    match draft.event:
        case SessionMoved(state=state) if not draft.live:
            number = draft.native_sequence
            if number is not None and (number < start.newest or (number == start.newest and start.state != "unknown")):
                return start
            newest = start.newest if number is None else number
            if state != "starting":
                return replace(start, state="ready", newest=newest)
            since = start.since if start.waits or start.since is None else now
            return replace(start, state="starting", since=since, newest=newest)
        case FaultReported() if draft.native_id is None and start.waits:
            return replace(start, state="overdue")
        case _:
            return start


def caught_up(start: Start, *, is_starting: bool | None) -> Start:
    """Take note of what the link has found out by asking: states told before count for nothing if it starts now."""
    if is_starting:
        return replace(start, state="starting")
    return replace(start, state="ready") if is_starting is False and start.state == "unknown" else start


def overdue_at(start: Start, wait: timedelta) -> datetime | None:
    """Say when new work has waited long enough."""
    return start.since + wait if start.since is not None and start.waits else None


def said_unstarted(start: Start, event: Event) -> str | None:
    """Say what the delivery of an event has to tell."""
    is_work = isinstance(event, MessagePosted | TurnSteered | ActionOrdered)
    return UNSTARTED if is_work and start.state == "overdue" else None

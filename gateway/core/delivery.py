"""What becomes of outbound events when a link comes back: sent again, moot, or unknown. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gateway.envelope import ContextUpdated, MessageConfirmed, ToolFinished
from gateway.ports.adapter import Capabilities
from gateway.ports.engine import SendRow


@dataclass(frozen=True, slots=True)
class Plan:
    """The fate of one pending row."""

    row: SendRow
    fate: Literal["send", "moot", "unknown"]
    reason: str | None = None


def plan_resend(
    rows: Sequence[SendRow], *, capabilities: Capabilities, now: datetime, unsure_up_to: int
) -> tuple[Plan, ...]:
    """Decide what is sent on a fresh link, in order of sequence (ENGINE.md 5, number 4).

    `unsure_up_to` is the last sequence of an earlier process: whether its rows had left is not known.
    Outcomes are always offered again. Contexts that a newer one replaces are moot. Confirmations that
    the runtime no longer waits for are moot. What an earlier process may have said is not said twice
    where a repeat would count as new.
    """
    newest = max((row.sequence for row in rows if _plain_context(row)), default=0)
    newest_waking = max((row.sequence for row in rows if _plain_context(row) and _wakes(row)), default=0)
    plans: list[Plan] = []
    for row in sorted(rows, key=lambda row: row.sequence):
        event = row.envelope.event
        match event:
            case ToolFinished():
                plans.append(Plan(row, "send"))
            case ContextUpdated() if event.call_id is not None or not capabilities.replaces_context:
                plans.append(Plan(row, "send"))
            case ContextUpdated() if row.sequence in {newest, newest_waking}:
                plans.append(Plan(row, "send"))
            case ContextUpdated():
                plans.append(Plan(row, "moot", "a newer context replaces it"))
            case MessageConfirmed() if _too_late(row, capabilities, now):
                plans.append(Plan(row, "moot", "the runtime no longer waits for this confirmation"))
            case MessageConfirmed():
                plans.append(Plan(row, "send"))
            case _ if row.sequence <= unsure_up_to and not capabilities.echoes:
                plans.append(Plan(row, "unknown", "the gateway restarted before the delivery was known"))
            case _:
                plans.append(Plan(row, "send"))
    return tuple(plans)


def _plain_context(row: SendRow) -> bool:
    return isinstance(row.envelope.event, ContextUpdated) and row.envelope.event.call_id is None


def _wakes(row: SendRow) -> bool:
    return isinstance(row.envelope.event, ContextUpdated) and row.envelope.event.wakes_agent


def _too_late(row: SendRow, capabilities: Capabilities, now: datetime) -> bool:
    limit = capabilities.confirms_messages
    return limit is not None and now - row.envelope.recorded_at >= limit

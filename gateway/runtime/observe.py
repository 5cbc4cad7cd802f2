"""Counts and logs recorded events, after their effects have started; also counts new calls."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from logging import INFO, WARNING

import structlog
from structlog.typing import FilteringBoundLogger

from gateway.core.state import SessionView
from gateway.events import ApprovalGiven, CallId, Envelope, OutcomeKind
from gateway.log_limit import limited
from gateway.runtime.metrics import ApprovalResult, Metrics
from gateway.store.call import Approve, Open, Settle
from gateway.store.rows import SessionRow
from gateway.store.step import Step

_log = structlog.get_logger(__name__)

_EXCERPT = 500
_SETTLED: Mapping[OutcomeKind, tuple[int, str]] = {
    "success": (INFO, "call succeeded"),
    "canceled": (INFO, "call canceled"),
    "failure": (WARNING, "call failed"),
    "expired": (WARNING, "call expired"),
}


def label_session(session: SessionView | SessionRow) -> str:
    """Name a session in the log: its runtime, and its id there."""
    return f"{session.runtime}/{session.native_id}"


def excerpt(payload: object) -> str:
    """Return the start of a frame's payload for the log, without hidden values."""
    return repr(payload)[:_EXCERPT]


def warn_unserved(runtime: str, *, sessions: int, calls: int) -> None:
    """Warn of sessions that wait for an unconfigured runtime."""
    if sessions:
        fix = "put it back and reload, or close its sessions"
        text = "open sessions wait for a runtime that is not in the configuration"
        _log.warning(text, runtime=runtime, sessions=sessions, calls=calls, fix=fix)


def note_calls(step: Step, before: SessionView, metrics: Metrics, *, now: datetime) -> None:
    """Count the calls that a step has opened, and those that it holds no more."""
    for change in step.calls:
        if isinstance(change, Open):
            metrics.activity.started(change.call.created_at)
        call = before.calls.get(change.call_id)
        if call is None or call.state != "held" or not isinstance(change, Approve | Settle):
            continue
        result = _result(change, step)
        metrics.approval(call.place or "", result, (now - (call.held_at or call.created_at)).total_seconds())


def _result(change: Approve | Settle, step: Step) -> ApprovalResult:
    if isinstance(change, Approve):
        return "edited" if change.edited else "allowed"
    events = (new.event for new in step.events)
    if any(isinstance(event, ApprovalGiven) and event.call_id == change.call_id for event in events):
        return "denied"
    if change.elsewhere:
        return "moot"
    return "expired" if change.state == "expired" else "canceled" if change.state == "canceled" else "refused"


def note(
    envelopes: Sequence[Envelope], before: SessionView, *, adapter: str, metrics: Metrics, log: FilteringBoundLogger
) -> None:
    """Count and log the events that matter to operators."""
    session = before.session_id
    for envelope in envelopes:
        if envelope.losses:
            # An event that replaces a client's event repeats the losses of that event.
            listed = next((one.losses for one in envelopes if one.sequence == envelope.caused_by), ())
            for loss in set(envelope.losses).difference(listed):
                metrics.loss(adapter, loss.how)
        event = envelope.event
        # By kind, because a failing class pattern is several times slower.
        match event.kind:
            case "tool.finished" if envelope.linked_to is not None:
                # The linked call is counted instead.
                continue
            case "tool.finished":
                level, text = _SETTLED[event.outcome]
                log.log(
                    level,
                    text,
                    reason=None if event.error is None else event.error[:_EXCERPT],
                    call_id=event.call_id,
                    tool=event.tool,
                    sequence=envelope.sequence,
                    unknown=event.unknown or None,
                    page=f"/ui/calls/{event.call_id}" if level == WARNING and event.call_id else None,
                )
                call = before.calls.get(CallId(event.call_id or ""))
                seconds = (envelope.recorded_at - call.created_at).total_seconds() if call else None
                metrics.call_settled(before.runtime, event.tool or "", outcome=event.outcome, seconds=seconds or 0.0)
                if event.unknown:
                    metrics.unknown_outcome()
                if event.call_id is not None:
                    at = envelope.recorded_at
                    metrics.activity.ended(at, event.outcome, unknown=event.unknown, seconds=seconds)
            case "outcome.ignored":
                metrics.late_outcome()
                limited(log.warning, "late outcome ignored", per=session, call_id=event.call_id, reason=event.reason)
            case "frame.rejected":
                metrics.frame_rejected(before.runtime)
                facts = {"reason": event.reason, "path": event.path, "channel": event.channel}
                limited(log.warning, "frame rejected", per=session, **facts)
            case "fault.reported":
                facts = {"code": event.code, "message": event.message[:500]}
                limited(log.warning, "fault reported by the runtime", per=session, **facts)
            case _:
                pass

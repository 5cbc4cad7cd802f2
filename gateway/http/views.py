"""Converts the store's rows to responses: each member is the row's attribute with that name. Pure."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from dragoman.models import responses
from gateway.core.adapt import equivalent_kind
from gateway.core.binding import asked_binding_of
from gateway.events import (
    CLIENT_KINDS,
    ApprovalAsked,
    ApprovalGiven,
    Envelope,
    Loss,
    Outcome,
    SessionId,
    ToolFinished,
    dump_event,
    to_json,
    write_position,
)
from gateway.runtime.clients.dead_letters import advise, id_of
from gateway.runtime.views import ActivityStatus, ApprovalShown, CallHistory, RuntimeStatus, UnconnectedRuntime
from gateway.store.call import Call, attempts_of
from gateway.store.rows import Generation, InteractionRow, Send, SessionRow


def show(model: type[responses.Shape], row: object, **more: Any) -> dict[str, Any]:
    """Convert a row to a response model; `more` are additional members."""
    read = _members_of_row(model, tuple(more))
    return {name: getattr(row, name) for name in read} | more


@cache
def _members_of_row(model: type[responses.Shape], apart: tuple[str, ...]) -> tuple[str, ...]:
    """List the members of a model that come from its row."""
    return tuple(name for name, field in model.model_fields.items() if field.is_required() and name not in apart)


def show_session(model: type[responses.Session], row: SessionRow, own: Generation, **more: Any) -> dict[str, Any]:
    """Convert a session with its position."""
    return show(model, row, position=write_position(row.last_sequence, own.name), **more)


def show_event(envelope: Envelope, generation: str) -> dict[str, Any]:
    """Convert an event with its position in the session."""
    return {**to_json(envelope), "position": write_position(envelope.sequence, generation)}


def show_history(history: CallHistory) -> dict[str, Any]:
    """Convert a call with its history."""
    return show(responses.CallWithStory, history.row, **_show_parts(history))


def show_called(row: Call, outcome: Outcome | None) -> dict[str, Any]:
    """Convert a call from outside for its caller."""
    return show(responses.CallWithOutcome, row, outcome=None if outcome is None else outcome.model_dump())


def show_dead_letter(found: Call | Send | CallHistory) -> dict[str, Any]:
    """Convert a dead letter; `type` is `call` or `delivery`."""
    row = found.row if isinstance(found, CallHistory) else found
    known = {"id": id_of(row), "advice": advise(row)}
    match found:
        case CallHistory(row=row):
            return show(responses.DeadCallWithStory, row, type="call", **known, **_show_parts(found))
        case Call():
            return show(responses.DeadCall, found, type="call", **known)
        case Send():
            return show(responses.DeadDelivery, found, type="delivery", **known, envelope=to_json(found.envelope))


def show_redriven(row: Call | Send) -> dict[str, Any]:
    """Convert the result of a redrive or dismissal."""
    if isinstance(row, Call):
        return show(responses.RedrivenCall, row, type="call")
    return show(responses.RedrivenDelivery, row, type="delivery")


def show_interaction(row: InteractionRow, asked: Envelope) -> dict[str, Any]:
    """Convert an interaction with its requesting event; an approval has the binding of what is shown."""
    event = dump_event(asked.event)
    held = asked.event if isinstance(asked.event, ApprovalAsked) else None
    binding = None
    if held is not None:
        binding = held.binding or asked_binding_of(session=row.session_id, interaction=row.interaction_id, asked=event)
    return show(
        responses.Interaction,
        row,
        sequence=row.request_sequence,
        call_id=row.call_id,
        event=event,
        asked_at=asked.recorded_at,
        rule=None if held is None else held.rule,
        rule_sha=None if held is None else held.rule_sha,
        binding=binding,
        asked_before=None if row.call_id is None else row.asked_before,
        unheard_since=row.unheard_since,
    )


def show_approval(shown: ApprovalShown) -> dict[str, Any]:
    """Convert a question about a held call, with its answer."""
    row, asked, given = shown.row, shown.asked.event, None if shown.given is None else shown.given.event
    assert isinstance(asked, ApprovalAsked)
    assert given is None or isinstance(given, ApprovalGiven)
    changed = given is not None and given.edited and given.arguments != asked.arguments
    return show(
        responses.ApprovalRecord,
        row,
        tool=asked.tool,
        arguments=asked.arguments,
        rule=asked.rule,
        rule_sha=asked.rule_sha,
        binding=asked.binding,
        asked_at=shown.asked.recorded_at,
        decision=None if given is None else given.decision,
        answered_at=None if shown.given is None else shown.given.recorded_at,
        reason=None if given is None else given.reason,
        changed_to=given.arguments if given is not None and changed else None,
        allowed=None if given is None else given.binding,
    )


def show_answered(row: InteractionRow, losses: Sequence[Loss]) -> dict[str, Any]:
    """Convert an answered interaction with the losses of its answer."""
    told = [loss.model_dump() for loss in losses]
    return show(responses.AnsweredInteraction, row, sequence=row.request_sequence, losses=told)


def show_activity(status: ActivityStatus) -> dict[str, Any]:
    """Convert the activity of this instance."""
    minutes = [show(responses.Minute, minute) for minute in status.minutes]
    executors = [show(responses.Executor, executor) for executor in status.executors]
    conditions = [show(responses.Condition, condition) for condition in status.conditions]
    return show(responses.Activity, status, minutes=minutes, executors=executors, conditions=conditions)


def show_runtime(status: RuntimeStatus, lacking: Mapping[SessionId, str]) -> dict[str, Any]:
    """Convert a runtime and its links; `lacking` has the reasons of links without tools."""
    links = [
        show(
            responses.Link,
            link,
            lacks_tools=None if link.is_unstarted else link.session_id in lacking,
            lacks_tools_reason=lacking.get(link.session_id),
        )
        for link in status.links
    ]
    failing = None if status.autostart is None else show(responses.FailingAutostart, status.autostart)
    return show(responses.Runtime, status, links=links, reason=None, autostart=failing)


def show_unconnected(status: UnconnectedRuntime) -> dict[str, Any]:
    """Convert a runtime that is not connected."""
    return show(responses.Runtime, status, links=[], autostart=None)


def show_capabilities(status: RuntimeStatus) -> dict[str, Any]:
    """Convert the capabilities of a runtime's protocol."""
    able = status.capabilities
    return show(
        responses.RuntimeCapabilities,
        status,
        runtime=status.name,
        capabilities={name: getattr(able, name) for name in type(able).__annotations__},
        takes={kind: equivalent_kind(kind, able.accepts) for kind in sorted(CLIENT_KINDS)},
    )


def _outcome(history: CallHistory) -> dict[str, Any] | None:
    for envelope in reversed(history.envelopes):
        if envelope.sequence == history.row.outcome_sequence and isinstance(envelope.event, ToolFinished):
            return envelope.event.as_outcome().model_dump()
    return None


def _show_parts(history: CallHistory) -> dict[str, Any]:
    return {
        "outcome": _outcome(history),
        "events": [to_json(envelope) for envelope in history.envelopes],
        "attempts": [show(responses.Attempt, attempt) for attempt in attempts_of(history.row)],
        "deliveries": [show(responses.Delivery, send) for send in history.sends],
    }

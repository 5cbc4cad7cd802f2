"""How rows of the store look as JSON. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from gateway.adapter.port import Capabilities
from gateway.core.adapt import said_as
from gateway.events import CLIENT_KINDS, Envelope, dump_event, to_json
from gateway.runtime.app import CallHistory, LinkStatus, RuntimeStatus
from gateway.runtime.calls.dead_letters import advise, id_of
from gateway.store.call import Call
from gateway.store.rows import Instance, InteractionRow, Send, SessionRow


def session_view(row: SessionRow) -> dict[str, Any]:
    """Show a session, without what is the gateway's own (fence, cursor, snapshot)."""
    return {
        "session_id": row.session_id,
        "runtime": row.runtime,
        "protocol": row.protocol,
        "native_id": row.native_id,
        "state": row.state,
        "labels": dict(row.labels),
        "first_sequence": row.first_sequence,
        "last_sequence": row.last_sequence,
        "opened_at": row.opened_at.isoformat(),
        "updated_at": row.updated_at.isoformat(),
        "owner": row.owner,
    }


def instance_view(one: Instance) -> dict[str, Any]:
    """Show a process on the store."""
    return {"instance_id": one.instance_id, "url": one.url, "alive": one.alive, "sessions": one.sessions}


def call_view(row: Call) -> dict[str, Any]:
    """Show a call; what was asked and answered is in its events."""
    return {
        "call_id": row.call_id,
        "native_call_id": row.native_call_id,
        "session_id": row.session_id,
        "runtime": row.runtime,
        "tool": row.tool,
        "state": row.state,
        "executor": row.executor,
        "attempt": row.attempt,
        "idempotency_key": row.key or row.call_id,
        "unknown": row.unknown,
        "error": row.error,
        "created_at": row.created_at.isoformat(),
        "deadline_at": row.deadline_at.isoformat(),
        "due_at": _time(row.due_at),
        "canceling_until": _time(row.canceling_until),
        "finished_at": _time(row.finished_at),
        "request_sequence": row.request_sequence,
        "outcome_sequence": row.outcome_sequence,
        "redrive_of": row.redrive_of,
        "deliver": row.deliver,
        "dead": row.dead,
    }


def story_view(story: CallHistory) -> dict[str, Any]:
    """Show a call with all that happened to it."""
    return {
        **call_view(story.row),
        "events": [to_json(envelope) for envelope in story.envelopes],
        "deliveries": [delivery_view(send) for send in story.sends],
    }


def delivery_view(row: Send) -> dict[str, Any]:
    """Show how one event fared on the way to one target."""
    return {
        "session_id": row.session_id,
        "sequence": row.sequence,
        "target": row.target,
        "lane": row.lane,
        "state": row.state,
        "attempt": row.attempt,
        "due_at": _time(row.due_at),
        "reason": row.reason,
    }


def dead_letter_view(row: Call | Send) -> dict[str, Any]:
    """Show one dead letter; `type` says whether it is a call or a delivery."""
    known = {"id": id_of(row), "advice": advise(row)}
    match row:
        case Call():
            return {"type": "call", **known, **call_view(row)}
        case Send():
            return {"type": "delivery", **known, **delivery_view(row), "envelope": to_json(row.envelope)}


def dead_letter_story_view(found: CallHistory | Send) -> dict[str, Any]:
    """Show one dead letter, a call with all that happened to it."""
    if isinstance(found, Send):
        return dead_letter_view(found)
    return {**dead_letter_view(found.row), **story_view(found)}


def interaction_view(row: InteractionRow, asked: Envelope | None = None) -> dict[str, Any]:
    """Show a question to a person, with the event that asked where it is at hand."""
    view: dict[str, Any] = {
        "interaction_id": row.interaction_id,
        "kind": row.kind,
        "state": row.state,
        "session_id": row.session_id,
        "sequence": row.request_sequence,
        "expires_at": _time(row.expires_at),
        "answered_by": row.answered_by,
    }
    if asked is not None:
        view["event"] = dump_event(asked.event)
    return view


def runtime_view(status: RuntimeStatus) -> dict[str, Any]:
    """Show a runtime and its links."""
    return {
        "name": status.name,
        "adapter": status.adapter,
        "protocol": status.protocol,
        "links": [_link_view(link) for link in status.links],
    }


def capabilities_view(status: RuntimeStatus) -> dict[str, Any]:
    """Show what a runtime's protocol can do."""
    return {
        "runtime": status.name,
        "adapter": status.adapter,
        "protocol": status.protocol,
        "capabilities": _capabilities(status.capabilities),
        "takes": {kind: said_as(kind, status.capabilities.accepts) for kind in sorted(CLIENT_KINDS)},
    }


def _link_view(link: LinkStatus) -> dict[str, Any]:
    return {
        "session_id": link.session_id,
        "native_id": link.native_id,
        "state": link.state,
        "since": link.since.isoformat(),
        "reason": link.reason,
    }


def _capabilities(what: Capabilities) -> dict[str, Any]:
    return {name: _plain(getattr(what, name)) for name in Capabilities.__annotations__}


def _plain(value: Any) -> Any:
    match value:
        case frozenset():
            return sorted(cast(frozenset[str], value))
        case timedelta():
            return f"{value.total_seconds():g}s"
        case Mapping():
            return dict(cast(Mapping[str, int], value))
        case _:
            return value


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()

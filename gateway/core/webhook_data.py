"""The `data` members of what executors are sent (gateway/executors/README.md#the-request). Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gateway.core.state import SessionView
from gateway.events import Event, dump_event
from gateway.store.call import Call


def call_data(
    view: SessionView, call: Call, *, protocol: str, callback: str | None, progress: str | None
) -> dict[str, Any]:
    """Shape the request for one attempt of a call."""
    return {
        "call_id": call.call_id,
        "native_call_id": call.native_call_id,
        "session_id": view.session_id,
        "native_session_id": view.native_id,
        "labels": dict(view.memory.labels),
        "runtime": view.runtime,
        "protocol": protocol,
        "tool": call.tool,
        "arguments": call.arguments,
        "attempt": call.attempt,
        "deadline": call.deadline_at.isoformat(),
        "callback_url": callback,
        "progress_url": progress,
    }


def canceled_data(view: SessionView, call: Call, *, reason: str) -> dict[str, Any]:
    """Shape the word to an executor that a call is no longer wanted."""
    return {
        "call_id": call.call_id,
        "native_call_id": call.native_call_id,
        "session_id": view.session_id,
        "tool": call.tool,
        "reason": reason,
    }


def ask_data(
    view: SessionView, event: Event, *, protocol: str, labels: Mapping[str, str], deadline_at: datetime
) -> dict[str, Any]:
    """Shape a routed message, approval or question."""
    return {
        "session_id": view.session_id,
        "native_session_id": view.native_id,
        "labels": dict(labels),
        "runtime": view.runtime,
        "protocol": protocol,
        "deadline": deadline_at.isoformat(),
        "event": dump_event(event),
    }

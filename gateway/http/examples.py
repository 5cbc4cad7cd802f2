"""The examples of the documentation: one small story, told consistently. Pure."""

from typing import Any

from fastapi.openapi.models import Example

from gateway.http.answers import ProblemPage
from gateway.http.errors import PROBLEMS
from gateway.http.views import show

SESSION_ID = "7a0b4c6e-58a5-5b8e-8a43-1d0e5b1f9c11"
CALL_ID = "0f8fad5b-d9cb-569f-a165-70867728950e"

SESSION: dict[str, Any] = {
    "session_id": SESSION_ID,
    "runtime": "finn",
    "protocol": "huma/0.2.0",
    "native_id": "agent-7",
    "state": "idle",
    "labels": {"table": "12"},
    "first_sequence": 1,
    "last_sequence": 4,
    "opened_at": "2026-11-20T12:00:00+00:00",
    "updated_at": "2026-11-20T12:00:07+00:00",
    "owner": "7b0c6e1e-8f0f-4b1c-9a55-0d6f2f6f2d55",
}

INSTANCE: dict[str, Any] = {
    "instance_id": "7b0c6e1e-8f0f-4b1c-9a55-0d6f2f6f2d55",
    "url": "http://10.0.0.7:8080",
    "alive": True,
    "sessions": 12,
}

POSTED: dict[str, Any] = {
    "event_id": "01JD4QWXK2M3N4P5Q6R7S8T9V0",
    "session_id": SESSION_ID,
    "sequence": 4,
    "recorded_at": "2026-11-20T12:00:07+00:00",
    "direction": "to_runtime",
    "origin": None,
    "caused_by": None,
    "linked_to": None,
    "synthetic": False,
    "losses": [],
    "event": {
        "kind": "message.posted",
        "author": {"role": "user"},
        "content": [{"type": "text", "text": "Do you have any sevens?"}],
        "wakes_agent": True,
        "complete": True,
    },
}

REQUESTED: dict[str, Any] = {
    "event_id": "01JD4QX1A2B3C4D5E6F7G8H9J0",
    "session_id": SESSION_ID,
    "sequence": 5,
    "recorded_at": "2026-11-20T12:00:09+00:00",
    "direction": "from_runtime",
    "origin": {
        "adapter": "huma-0.2",
        "protocol": "huma/0.2.0",
        "native_id": "550e8400-e29b-41d4-a716-446655440000",
        "native_sequence": None,
        "native_time": None,
    },
    "caused_by": None,
    "linked_to": None,
    "synthetic": False,
    "losses": [],
    "event": {
        "kind": "tool.requested",
        "native_call_id": "550e8400-e29b-41d4-a716-446655440000",
        "tool": "ask_for_cards",
        "arguments": {"targetPlayer": "Victoria", "rank": "7"},
        "runs_in": "host",
        "needs_approval": False,
        "call_id": CALL_ID,
    },
}

CALL: dict[str, Any] = {
    "call_id": CALL_ID,
    "native_call_id": "550e8400-e29b-41d4-a716-446655440000",
    "session_id": SESSION_ID,
    "runtime": "finn",
    "tool": "ask_for_cards",
    "state": "succeeded",
    "executor": "cards",
    "attempt": 1,
    "idempotency_key": CALL_ID,
    "unknown": False,
    "error": None,
    "created_at": "2026-11-20T12:00:09+00:00",
    "deadline_at": "2026-11-20T12:02:09+00:00",
    "due_at": None,
    "canceling_until": None,
    "finished_at": "2026-11-20T12:00:10+00:00",
    "request_sequence": 5,
    "outcome_sequence": 6,
    "redrive_of": None,
    "deliver": True,
    "answer_to": "runtime",
    "dead": False,
}

DELIVERY: dict[str, Any] = {
    "session_id": SESSION_ID,
    "sequence": 6,
    "target": "runtime",
    "lane": "turn",
    "state": "delivered",
    "attempt": 1,
    "due_at": None,
    "reason": None,
}

OUTCOME: dict[str, Any] = {"outcome": "success", "result": {"cards": ["7H"]}, "error": None, "unknown": False}
CALLED: dict[str, Any] = {
    **CALL,
    "native_call_id": "caller:worker:order-4711",
    "deliver": False,
    "answer_to": "caller",
    "outcome": OUTCOME,
}

HISTORY: dict[str, Any] = {**CALL, "outcome": OUTCOME, "events": [REQUESTED], "deliveries": [DELIVERY]}

DEAD_CALL: dict[str, Any] = {
    "type": "call",
    "id": CALL_ID,
    "advice": f"Nobody knows whether executor 'cards' has done this. Look there for the webhook-id {CALL_ID}: if it "
    "was not done, or if a repeat does no harm, redrive it; else dismiss it.",
    **CALL,
    "state": "failed",
    "unknown": True,
    "error": "outcome unknown: no answer within 20 s; the tool may have run and was not tried again",
    "dead": True,
}

DEAD_DELIVERY: dict[str, Any] = {
    "type": "delivery",
    "id": f"{SESSION_ID}:4:destination:chat-log",
    "advice": "It was given up after all attempts. Redrive it once the receiver takes events again.",
    **DELIVERY,
    "sequence": 4,
    "target": "destination:chat-log",
    "lane": "new_work",
    "state": "dead",
    "attempt": 10,
    "reason": "answered 500",
    "envelope": POSTED,
}

INTERACTION_ANSWERED: dict[str, Any] = {
    "interaction_id": "b1d5781e-1b2c-5d3e-9f4a-5b6c7d8e9f00",
    "kind": "approval.asked",
    "state": "answered",
    "session_id": SESSION_ID,
    "sequence": 12,
    "expires_at": "2026-11-20T12:05:00+00:00",
    "answered_by": "api",
}

INTERACTION: dict[str, Any] = {
    **INTERACTION_ANSWERED,
    "state": "waiting",
    "answered_by": None,
    "event": {
        "kind": "approval.asked",
        "id": "call-3",
        "tool": "delete_table",
        "arguments": {"table": "12"},
        "scopes": ["once"],
    },
}

RUNTIME: dict[str, Any] = {
    "name": "finn",
    "adapter": "huma-0.2",
    "protocol": "huma/0.2.0",
    "links": [
        {
            "session_id": SESSION_ID,
            "native_id": "agent-7",
            "state": "up",
            "since": "2026-11-20T12:00:00+00:00",
            "reason": None,
            "lacks_tools": False,
            "lacks_tools_reason": None,
        }
    ],
    "reason": None,
    "autostart": None,
}

CAPABILITIES: dict[str, Any] = {
    "runtime": "finn",
    "adapter": "huma-0.2",
    "protocol": "huma/0.2.0",
    "capabilities": {
        "accepts": ["addon.answered", "context.updated", "message.confirmed", "opaque", "tool.finished"],
        "emits": ["message.posted", "session.moved", "tool.canceled", "tool.requested", "typing.changed"],
        "turns": "inferred",
        "delivery": "silence",
        "rejects_with": ["INVALID_EVENT"],
        "replaces_context": True,
        "hydrates": True,
        "confirms_messages": "30s",
        "answers_cancel": True,
        "one_message_per_turn": False,
        "resumes": False,
        "echoes": False,
        "names_awaited": False,
        "delegates": False,
        "approvals": "none",
        "silent_gates": [],
        "mcp_action": None,
        "starts_deaf": False,
        "creates_sessions": True,
        "takes_tools": "create",
        "mcp_hold": None,
        "mcp_session_header": None,
        "linked": True,
        "limits": {"name": 128, "result_utf16": 65536, "arguments_depth": 64, "image_bytes": 4194304},
    },
    "takes": {
        "action.ordered": None,
        "addon.answered": "addon.answered",
        "approval.given": None,
        "context.updated": "context.updated",
        "message.confirmed": "message.confirmed",
        "message.posted": "context.updated",
        "opaque": "opaque",
        "question.answered": None,
        "secret.supplied": None,
        "turn.interrupted": "context.updated",
        "turn.steered": "context.updated",
    },
}

STREAM = (
    ": heartbeat\n"
    "retry: 1000\n"
    "id: 5\nevent: tool.requested\n"
    f'data: {{"event_id":"01JD4QX1A2B3C4D5E6F7G8H9J0","session_id":"{SESSION_ID}","sequence":5,"…":"…"}}\n\n'
    "event: typing.changed\n"
    'data: {"live":true,"after_sequence":5,"event":{"kind":"typing.changed","typing":true}}\n\n'
    ": heartbeat\n"
)

INTERACTION_STREAM = (
    ": heartbeat\n"
    "retry: 1000\n"
    "event: interaction\n"
    'data: {"interaction_id":"b1d5781e-1b2c-5d3e-9f4a-5b6c7d8e9f00","kind":"approval.asked","state":"waiting",'
    f'"session_id":"{SESSION_ID}","sequence":12,"…":"…"}}\n\n'
    ": heartbeat\n"
)

METRICS = (
    "# TYPE dragoman_calls_total counter\n"
    'dragoman_calls_total{runtime="finn",tool="ask_for_cards",outcome="success"} 1.0\n'
)

PROBLEM_PAGE: dict[str, Any] = show(ProblemPage, PROBLEMS["not-found"])

TOOL_ACCESS: dict[str, Any] = {
    "url": f"http://127.0.0.1:8080/mcp/{SESSION_ID}",
    "token": "dtt_dGhpcyBpcyBub3QgYSB0b2tlbiBvZiBhbnlib2R5LCBzbw",
}

_CARRIED: dict[str, Any] = {"instance_id": INSTANCE["instance_id"], "sessions": 12, "failing": []}
_DEAD_IDS = [CALL_ID, f"{SESSION_ID}:4:destination:chat-log"]

_OPEN: dict[str, Any] = {"state": "dispatched", "finished_at": None, "outcome_sequence": None}


def _page(*rows: dict[str, Any], after: int | None = None) -> dict[str, Any]:
    return {"data": list(rows), "next": after}


ANSWERS: dict[str, dict[int, Any]] = {
    "openSession": {201: {**SESSION, "told": []}, 200: {**SESSION, "told": []}},
    "listSessions": {200: _page(SESSION)},
    "getSession": {200: SESSION},
    "postEvents": {202: {"data": [POSTED]}},
    "getToolAccess": {200: TOOL_ACCESS},
    "rotateToolAccess": {200: TOOL_ACCESS},
    "callTool": {200: CALLED, 202: {**CALLED, **_OPEN, "outcome": None}},
    "listEvents": {200: _page(POSTED, after=4)},
    "streamEvents": {200: STREAM},
    "redeliverEvent": {202: {"session_id": SESSION_ID, "sequence": 4, "target": "destination:chat-log"}},
    "listCalls": {200: _page(CALL)},
    "getCall": {200: HISTORY},
    "settleCall": {200: CALL},
    "progressCall": {202: {"call_id": CALL_ID}},
    "cancelCall": {202: CALL},
    "redriveCall": {202: CALL},
    "listDeadLetters": {200: _page(DEAD_CALL, DEAD_DELIVERY)},
    "getDeadLetter": {200: DEAD_DELIVERY},
    "redriveDeadLetter": {202: {"type": "call", **CALL}},
    "redriveDeadLetters": {
        200: {
            "found": 2,
            "redriven": 1,
            "failed": [{"id": CALL_ID, "reason": "the session is closed"}],
            "more": False,
            "dry_run": False,
            "ids": _DEAD_IDS,
        }
    },
    "dismissDeadLetter": {200: {"type": "call", **CALL}},
    "dismissDeadLetters": {
        200: {"found": 1, "dismissed": 1, "failed": [], "more": False, "dry_run": False, "ids": _DEAD_IDS[1:]}
    },
    "listInteractions": {200: _page(INTERACTION)},
    "streamInteractions": {200: INTERACTION_STREAM},
    "answerInteraction": {200: {**INTERACTION_ANSWERED, "losses": []}},
    "enableDestination": {200: {"name": "chat-log", "enabled": True}},
    "reloadConfiguration": {200: {"changed": ["routes", "runtimes.finn"], "restarted": ["finn"]}},
    "listInstances": {200: _page(INSTANCE)},
    "listRuntimes": {200: _page(RUNTIME)},
    "listCapabilities": {200: _page(CAPABILITIES)},
    "getHealth": {200: {"status": "ok"}},
    "getReadiness": {
        200: {"ready": True, "checks": {"engine": "ok"}, **_CARRIED},
        503: {"ready": False, "checks": {"engine": "disk full"}, **_CARRIED},
    },
    "getMetrics": {200: METRICS},
    "getVersion": {200: {"name": "dragoman", "version": "0.2.0"}},
    "getOpenapi": {200: {"openapi": "3.1.0"}},
    "listProblems": {200: _page(PROBLEM_PAGE)},
    "getProblem": {200: PROBLEM_PAGE},
}
"""What each operation answers, by status."""


def _bodies(**values: dict[str, Any]) -> dict[str, Example]:
    return {name.replace("_", " "): Example(value=value) for name, value in values.items()}


OPEN_SESSION = _bodies(
    attach={"runtime": "finn", "native_id": "agent-7", "labels": {"table": "12"}}, create={"runtime": "finn"}
)
POST_EVENTS = _bodies(
    message={"kind": "message.posted", "content": "Do you have any sevens?"},
    several={
        "events": [
            {"kind": "context.updated", "name": "table", "context": {"turn": "Victoria"}},
            {"kind": "message.posted", "content": [{"type": "text", "text": "Your turn."}]},
        ]
    },
)
REDELIVER = _bodies(copy={"target": "destination:chat-log"}, runtime={"target": "runtime"})
SETTLE_CALL = _bodies(
    success={
        "outcome": "success",
        "result": {"cards": ["7H", "7S"]},
        "updates": [{"name": "table", "context": {"turn": "Victoria"}}],
    },
    failure={"outcome": "failure", "error": "It is not your turn."},
)
PROGRESS_CALL = _bodies(percent={"percent": 40, "note": "asking Victoria"})
CALL_TOOL = _bodies(
    with_a_key={"tool": "ask_for_cards", "arguments": {"from": "ada", "rank": "7"}, "key": "order-4711"}
)
CANCEL_CALL = _bodies(reason={"reason": "the game is over"})
REDRIVE = _bodies(again={"new_key": False, "deliver": False})
REDRIVE_MANY = _bodies(
    one_executor={"executor": "cards", "since": "2026-11-20T12:00:00Z", "limit": 100},
    look_first={"target": "destination:chat-log", "dry_run": True},
)
DISMISS_MANY = _bodies(
    one_destination={"target": "destination:chat-log", "limit": 100},
    look_first={"executor": "cards", "dry_run": True},
)
ANSWER_INTERACTION = _bodies(
    approval={"decision": "allow", "scope": "once"},
    question={"answer": "the blue one"},
    secret={"value": "correct horse battery staple"},
)

"""The rules of a Herm server for posted `user.*` events, checked strictly. Pure.

Source: the "Events Reference" of Herm; in open points the rules are those of a careful server.
"""

import math
from typing import Any, Final, cast

Frame = dict[str, Any]

EVENT_LIMIT = 100
"""The limit of events in one request; our choice, because the documents have none."""
BLOCK_LIMIT = 100
TEXT_LIMIT = 20_000
DEPTH_LIMIT = 64
PAGE_LIMIT = 100
DEFAULT_PAGE = 20

ANSWERS: Final = {
    "user.custom_tool_result": ("tool_use_id", "tool"),
    "user.tool_confirmation": ("tool_use_id", "approval"),
    "user.clarify_result": ("request_id", "clarify"),
    "user.sudo_result": ("request_id", "sudo"),
    "user.secret_result": ("request_id", "secret"),
}
"""The events that answer a request: the field with the request's id, and the kind of the request."""
SECRET_FIELDS: Final = {"user.sudo_result": "password", "user.secret_result": "value"}


class Objection(Exception):
    """A refused request, with the status, code and text of the response."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def _invalid(message: str) -> Objection:
    return Objection(400, "validation_error", message)


def read_events(body: object) -> list[Frame]:
    """Parse the body of a post: `{"events": […]}`, a bare array, or one event.

    Raises:
        Objection: 400, with the reason, if any event is invalid.
    """
    match body:
        case {"events": list()}:
            listed = cast("list[object]", cast("Frame", body)["events"])
        case list():
            listed = cast("list[object]", body)
        case {"type": str()}:
            listed = [body]
        case _:
            raise _invalid('the body must be {"events": […]}')
    if not 1 <= len(listed) <= EVENT_LIMIT:
        raise _invalid(f"a request has 1 to {EVENT_LIMIT} events")
    events = [_read_event(event) for event in listed]
    if sum(event["type"] == "user.message" for event in events) > 1:
        raise _invalid("a request has at most one user.message")
    return events


def _read_event(given: object) -> Frame:
    if not isinstance(given, dict):
        raise _invalid("an event must be an object")
    event = cast("Frame", given)
    _scan(event)
    kind = _text(event, "type", of="an event")
    match kind:
        case "user.message":
            _blocks(event, of=kind)
        case "user.steer":
            _text(event, "message", of=kind)
        case "user.interrupt":
            if event.get("message") is not None:
                _text(event, "message", of=kind)
        case "user.tool_confirmation":
            _text(event, "tool_use_id", of=kind, filled=True)
            if _text(event, "result", of=kind) not in {"allow", "deny"}:
                raise _invalid(f"{kind}.result must be allow or deny")
            if event.get("scope", "once") not in {"once", "session", "always"}:
                raise _invalid(f"{kind}.scope must be once, session or always")
        case "user.custom_tool_result":
            _text(event, "tool_use_id", of=kind, filled=True)
            _blocks(event, of=kind)
            if not isinstance(event.get("is_error", False), bool):
                raise _invalid(f"{kind}.is_error must be a boolean")
        case "user.clarify_result" | "user.sudo_result" | "user.secret_result":
            _text(event, "request_id", of=kind, filled=True)
            _text(event, SECRET_FIELDS.get(kind, "answer"), of=kind)
        case _:
            raise _invalid(f"unknown event type {kind[:64]!r}")
    return event


def _blocks(event: Frame, *, of: str) -> None:
    content: object = event.get("content")
    if not isinstance(content, list):
        raise _invalid(f"{of}.content must be an array of text blocks")
    blocks = cast("list[object]", content)
    if not 1 <= len(blocks) <= BLOCK_LIMIT:
        raise _invalid(f"{of}.content has 1 to {BLOCK_LIMIT} blocks")
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)} if len(text) <= TEXT_LIMIT:
                pass
            case {"type": "text", "text": str()}:
                raise _invalid(f"a text of {of} has at most {TEXT_LIMIT} characters")
            case _:
                raise _invalid(f'a block of {of} must be {{"type": "text", "text": "…"}}')


def read_creation(body: object) -> Frame:
    """Parse the body of `POST /v1/agents/{agentId}/sessions`.

    Raises:
        Objection: 400, with the reason.
    """
    if not isinstance(body, dict):
        raise _invalid("the body must be an object")
    creation = cast("Frame", body)
    _scan(creation)
    if unknown := sorted(creation.keys() - {"userId", "title", "metadata"}):
        raise _invalid(f"unknown field {unknown[0][:64]!r}")
    for key in ("userId", "title"):
        if creation.get(key) is not None:
            _text(creation, key, of="a session")
    if not isinstance(creation.get("metadata", {}), dict):
        raise _invalid("metadata must be an object")
    return creation


def same_answer(one: Frame, other: Frame) -> bool:
    """Return whether two answers are equal after defaults are filled in."""
    defaults = {"is_error": False, "scope": "once"}
    return {**defaults, **one} == {**defaults, **other}


def without_secrets(event: Frame) -> Frame:
    """Return an event with its secret replaced."""
    hidden = SECRET_FIELDS.get(event["type"])
    return event if hidden is None else {**event, hidden: "[not kept]"}


def texts_of(content: list[Frame]) -> str:
    """Join the texts of a content."""
    return "".join(block["text"] for block in content)


def _text(event: Frame, key: str, *, of: str, filled: bool = False) -> str:
    value = event.get(key)
    if not isinstance(value, str) or (filled and not value):
        raise _invalid(f"{of}.{key} must be a string")
    return value


def _scan(event: Frame) -> None:
    """Reject non-JSON values and excessive nesting, without recursion."""
    waiting: list[tuple[object, int]] = [(event, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > DEPTH_LIMIT:
            raise _invalid(f"nested deeper than {DEPTH_LIMIT}")
        if isinstance(value, dict):
            waiting.extend((member, depth + 1) for member in cast("Frame", value).values())
        elif isinstance(value, list):
            waiting.extend((item, depth + 1) for item in cast("list[object]", value))
        elif isinstance(value, float) and not math.isfinite(value):
            raise _invalid("NaN and Infinity are not JSON")

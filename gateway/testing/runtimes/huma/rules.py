"""The rules of a HUMA server for its clients, in both dialects, checked strictly. Pure.

Sources: HUMA 0.1 "State Changes & Events" and "Design Tools", HUMA "Event Protocol" 0.2.0.
"""

import json
import math
from dataclasses import dataclass
from typing import Any, Literal, cast

Dialect = Literal["0.1", "0.2"]
Frame = dict[str, Any]

NAME_LIMIT = 128
RESULT_LIMIT = 65_536
DEPTH_LIMIT = 128
FORBIDDEN_KEYS = frozenset({"__proto__", "constructor", "prototype"})
"""The keys that 0.2.0 forbids in the records `context` and `data` of a client's event."""
OUTCOMES = ("success", "failure", "canceled")
IMAGE_PREFIXES = tuple(f"data:image/{kind};base64," for kind in ("png", "jpeg", "webp", "gif"))
PARAMETER_TYPES = ("string", "number", "boolean", "object", "array")


class Violation(Exception):
    """A client has violated the protocol; the text is sent in the `error` event."""


@dataclass(frozen=True, slots=True)
class ContextFrame:
    """New state; `triggering` is None in 0.1, which has no such flag."""

    name: str
    context: Frame
    description: str
    triggering: bool | None


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """A `new-message` of 0.1: a chat message without state."""

    content: Frame


@dataclass(frozen=True, slots=True)
class ResultFrame:
    """The answer to a tool call; `tool` and `triggering` are None in 0.1."""

    call_id: str
    tool: str | None
    outcome: Literal["success", "failure", "canceled"]
    result: Any
    error: str | None
    triggering: bool | None
    context: Frame | None


@dataclass(frozen=True, slots=True)
class AddonFrame:
    """In-flight data for an addon, such as the confirmation of a delivered message."""

    call_id: str
    payload: Frame


ClientFrame = ContextFrame | ChatFrame | ResultFrame | AddonFrame


def read_frame(payload: object, dialect: Dialect) -> ClientFrame:
    """Parse a client's `message`.

    Raises:
        Violation: with the text for the client.
    """
    if not isinstance(payload, dict):
        raise Violation(f"an event must be a JSON object, not {type(payload).__name__}")
    frame = cast("Frame", payload)
    _scan(frame)
    return _read_flat(frame) if dialect == "0.2" else _read_wrapped(frame)


def _read_flat(frame: Frame) -> ClientFrame:
    kind = _text(frame, "type", of="an event")
    for record in ("context", "data"):
        _scan(frame.get(record), forbidden=FORBIDDEN_KEYS)
    match kind:
        case "context-update":
            name = _text(frame, "name", of=kind)
            if not 1 <= length_of(name) <= NAME_LIMIT:
                raise Violation(f'{kind} requires "name" of 1 to {NAME_LIMIT} characters')
            return ContextFrame(
                triggering=_claim(frame, "triggering", of=kind),
                name=name,
                context=_record(frame, "context", of=kind),
                description=_text(frame, "description", of=kind),
            )
        case "tool-result":
            outcome = _text(frame, "outcome", of=kind)
            if outcome not in OUTCOMES:
                raise Violation(f'{kind} requires "outcome" to be one of {", ".join(OUTCOMES)}')
            if "result" in frame and length_of_json(frame["result"]) > RESULT_LIMIT:
                raise Violation(f'{kind} "result" is longer than {RESULT_LIMIT} characters')
            return ResultFrame(
                triggering=_claim(frame, "triggering", of=kind),
                call_id=_text(frame, "toolCallId", of=kind, filled=True),
                tool=_text(frame, "toolName", of=kind, filled=True),
                outcome=outcome,
                result=frame.get("result"),
                error=_optional_text(frame, "error", of=kind),
                context=None,
            )
        case "addon-tool-event":
            call_id = _text(frame, "toolCallId", of=kind, filled=True)
            return AddonFrame(call_id=call_id, payload=_record(frame, "data", of=kind))
        case _:
            raise Violation(f"unknown event type {kind[:64]!r}; use context-update, tool-result or addon-tool-event")


def _read_wrapped(frame: Frame) -> ClientFrame:
    kind = _text(frame, "type", of="an event")
    if kind not in {"huma-0.1-event", "new-message"}:
        raise Violation(f"unknown event type {kind[:64]!r}; use huma-0.1-event or new-message")
    content = _record(frame, "content", of=kind)
    if kind == "new-message":
        return _read_chat(content)
    if content.get("type") == "tool-result":
        return _read_wrapped_result(content)
    if content.get("type") is not None:
        raise Violation(f'{kind} "content.type" may only be tool-result')
    name = _text(content, "name", of=kind, filled=True)
    if name == "tool-result":
        raise Violation('a tool result has "content.type": "tool-result", not a name')
    _optional_claim(content, "skipCancelPendingMessage", of=kind)
    return ContextFrame(
        name=name,
        context=_record(content, "context", of=kind),
        description=_text(content, "description", of=kind),
        triggering=None,
    )


def _read_chat(content: Frame) -> ChatFrame:
    kind = "new-message"
    _text(content, "id", of=kind, filled=True)
    _text(content, "content", of=kind)
    participant = _record(content, "participant", of=kind)
    _text(participant, "id", of=f"{kind} participant", filled=True)
    _text(participant, "nickname", of=f"{kind} participant")
    images: object = content.get("images", [])
    if not isinstance(images, list):
        raise Violation(f'{kind} "images" must be an array')
    for image in cast("list[object]", images):
        if not isinstance(image, dict):
            raise Violation(f"{kind} images must be objects")
        url = _text(cast("Frame", image), "url", of=f"{kind} image")
        if not url.startswith(IMAGE_PREFIXES):
            raise Violation(f"{kind} image url must be a base64 data URL of PNG, JPEG, WebP or GIF")
        _optional_text(cast("Frame", image), "alt", of=f"{kind} image")
    return ChatFrame(content)


def _read_wrapped_result(content: Frame) -> ResultFrame:
    kind = "tool-result"
    # Real clients omit `status` in completed results.
    status = content.get("status", "completed")
    if status not in {"completed", "canceled"}:
        raise Violation(f'{kind} "status" must be completed or canceled')
    success = _claim(content, "success", of=kind)
    if status == "canceled" and success:
        raise Violation(f"{kind} cannot be canceled and successful")
    skipped = _optional_claim(content, "skipImmediateProcessing", of=kind)
    return ResultFrame(
        call_id=_text(content, "toolCallId", of=kind, filled=True),
        tool=None,
        outcome="canceled" if status == "canceled" else "success" if success else "failure",
        result=content.get("result"),
        error=_optional_text(content, "error", of=kind),
        triggering=None if skipped is None else not skipped,
        context=_record(content, "context", of=kind) if "context" in content else None,
    )


def check_confirmation(payload: Frame) -> int:
    """Check the `data` of a message's confirmation; return the message's index."""
    kind = "addon-tool-event data"
    index = payload.get("messageIndex")
    if isinstance(index, bool) or not isinstance(index, int | float) or index < 0 or index != int(index):
        raise Violation(f'{kind} requires "messageIndex", a whole number from 0 on')
    _claim(payload, "success", of=kind)
    if "context" in payload:
        _record(payload, "context", of=kind)
    _optional_text(payload, "error", of=kind)
    return int(index)


def check_agent(body: object) -> Frame:
    """Check and return the body of `POST /api/agents`."""
    if not isinstance(body, dict):
        raise Violation("the body must be a JSON object")
    agent = cast("Frame", body)
    _scan(agent)
    _text(agent, "name", of="an agent", filled=True)
    if not _text(agent, "agentType", of="an agent").startswith("HUMA-"):
        raise Violation('an agent requires "agentType" such as HUMA-0.1')
    metadata = _record(agent, "metadata", of="an agent")
    for key in ("className", "personality", "instructions"):
        _text(metadata, key, of="metadata")
    tools: object = metadata.get("tools")
    if not isinstance(tools, list):
        raise Violation('metadata requires array "tools"')
    names = [_check_tool(tool) for tool in cast("list[object]", tools)]
    if len(set(names)) != len(names):
        raise Violation("tool names must be unique within the agent")
    return agent


def _check_tool(tool: object) -> str:
    if not isinstance(tool, dict):
        raise Violation("a tool must be an object")
    definition = cast("Frame", tool)
    name = _text(definition, "name", of="a tool", filled=True)
    _text(definition, "description", of=f"tool {name!r}")
    parameters: object = definition.get("parameters")
    if not isinstance(parameters, list):
        raise Violation(f'tool {name!r} requires array "parameters"')
    for parameter in cast("list[object]", parameters):
        if not isinstance(parameter, dict):
            raise Violation(f"a parameter of tool {name!r} must be an object")
        of = f"a parameter of tool {name!r}"
        _text(cast("Frame", parameter), "name", of=of, filled=True)
        _text(cast("Frame", parameter), "description", of=of)
        if _text(cast("Frame", parameter), "type", of=of) not in PARAMETER_TYPES:
            raise Violation(f'{of} requires "type" to be one of {", ".join(PARAMETER_TYPES)}')
        _optional_claim(cast("Frame", parameter), "required", of=of)
    return name


def length_of(text: str) -> int:
    """Return the length in UTF-16 units, as JavaScript counts."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def length_of_json(value: object) -> int:
    """Return the length of the output of `JSON.stringify`, in UTF-16 units."""
    return length_of(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _scan(frame: object, *, forbidden: frozenset[str] = frozenset()) -> None:
    """Reject non-JSON values, excessive nesting and forbidden keys, without recursion."""
    waiting: list[tuple[object, int]] = [(frame, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > DEPTH_LIMIT:
            raise Violation(f"nested deeper than {DEPTH_LIMIT}")
        if isinstance(value, dict):
            record = cast("Frame", value)
            if found := forbidden & record.keys():
                raise Violation(f"forbidden key {min(found)!r}")
            waiting.extend((member, depth + 1) for member in record.values())
        elif isinstance(value, list):
            waiting.extend((item, depth + 1) for item in cast("list[object]", value))
        elif isinstance(value, float) and not math.isfinite(value):
            raise Violation("NaN and Infinity are not JSON")
        elif isinstance(value, bytes):
            raise Violation("binary attachments are not part of the protocol")


def _text(frame: Frame, key: str, *, of: str, filled: bool = False) -> str:
    value = frame.get(key)
    if not isinstance(value, str) or (filled and not value):
        raise Violation(f'{of} requires string "{key}"')
    return value


def _optional_text(frame: Frame, key: str, *, of: str) -> str | None:
    return _text(frame, key, of=of) if key in frame else None


def _claim(frame: Frame, key: str, *, of: str) -> bool:
    value = frame.get(key)
    if not isinstance(value, bool):
        raise Violation(f'{of} requires boolean "{key}"')
    return value


def _optional_claim(frame: Frame, key: str, *, of: str) -> bool | None:
    return _claim(frame, key, of=of) if key in frame else None


def _record(frame: Frame, key: str, *, of: str) -> Frame:
    value = frame.get(key)
    if not isinstance(value, dict):
        raise Violation(f'{of} requires object "{key}"')
    return cast("Frame", value)

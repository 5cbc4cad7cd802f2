"""Encodes events as the POSTs of clients and as the server's events. Pure."""

from typing import Any

import orjson

from adapters.openhands.v1 import wire
from adapters.openhands.v1.acp import is_acp, write_acp_end, write_acp_request
from adapters.openhands.v1.calls import FAILED
from adapters.openhands.v1.content import write_blocks
from gateway.adapter.checks import check_json, dropped
from gateway.adapter.port import Frame
from gateway.errors import CannotExpress
from gateway.events import (
    ApprovalGiven,
    Content,
    Data,
    Draft,
    Envelope,
    Event,
    FaultReported,
    Image,
    Loss,
    MessagePosted,
    MessageStreamed,
    SessionMoved,
    Text,
    ThoughtShared,
    ToolFinished,
    ToolRequested,
    TurnInterrupted,
    TurnSteered,
)
from gateway.events.frozen import frozen

NO_EQUIVALENT = "OpenHands has no equivalent"
_NO_ID = "00000000-0000-0000-0000-000000000000"
_EPOCH = "1970-01-01T00:00:00.000000"
_SOURCES = {"agent": "agent", "user": "user", "system": "environment"}
_FROM_CLIENT = ("message.posted", "approval.given", "turn.steered", "turn.interrupted")


def speaks_as_client(item: Draft | Envelope) -> bool:
    """Whether an event is a client's, neither an echo nor an event of the server."""
    ours = item.native_id is None if isinstance(item, Draft) else item.direction == "to_runtime"
    event = item.event
    # Compares the kind: a failed isinstance check takes several times as long.
    if not ours or event.kind not in _FROM_CLIENT:
        return False
    return event.kind != "message.posted" or not _is_agents(event)


def _is_agents(event: MessagePosted) -> bool:
    return event.author.role == "agent"


def write_post(event: Event, *, steering_runs: bool) -> tuple[Frame, tuple[Loss, ...]]:
    """Encode a client's event as one POST.

    Raises:
        CannotExpress: the server would refuse it.
    """
    match event:
        case MessagePosted():
            blocks, losses = _client_blocks(event.content)
            body = wire.user_message(blocks, run=event.wakes_agent)
            frame, losses = Frame(wire.POST_MESSAGE, body), losses + _message_losses(event)
        case TurnSteered(text=text):
            # Without a run, the agent reads it in the running turn; an ACP agent would start anew (OV30, OV59).
            body = wire.user_message([wire.text_block(text)], run=steering_runs)
            frame, losses = Frame(wire.POST_MESSAGE, body), ()
        case ApprovalGiven():
            accept = event.decision == "allow"
            frame = Frame(wire.POST_CONFIRMATION, wire.confirmation(accept=accept, reason=event.reason))
            scope = None if event.scope == "once" else event.scope
            losses = dropped(("scope", scope), note=NO_EQUIVALENT)
        case TurnInterrupted():
            frame, losses = Frame(wire.POST_INTERRUPT, {}), dropped(("reason", event.reason), note=NO_EQUIVALENT)
        case _:
            raise CannotExpress(f"OpenHands has no equivalent of {event.kind}")
    return _checked(frame), losses


def _checked(frame: Frame) -> Frame:
    """Return the frame with its JSON; it has only texts and flags, of which a lone surrogate alone is no JSON."""
    try:
        written = orjson.dumps(frame.payload)
    except TypeError:
        check_json(frame.payload, "")
        raise
    if len(written) > wire.FRAME_BYTES:
        raise CannotExpress(f"OpenHands accepts {wire.FRAME_BYTES} bytes; this message has {len(written)}")
    return Frame(frame.channel, frame.payload, written=written)


def _client_blocks(content: tuple[Content, ...]) -> tuple[list[dict[str, Any]], tuple[Loss, ...]]:
    """Encode the content of a message; the echo must have the same text, so data is not sent as text (OV29)."""
    losses: tuple[Loss, ...] = ()
    blocks: list[dict[str, Any]] = []
    for place, block in enumerate(content):
        match block:
            case Text(text=text):
                blocks.append(wire.text_block(text))
            case Image(url=url, alt=alt):
                blocks.append(wire.image_block([url]))
                losses += dropped((f"content/{place}/alt", alt), note=NO_EQUIVALENT)
            case Data():
                losses += (Loss(how="dropped", path=f"/content/{place}", note=NO_EQUIVALENT),)
    if not blocks:
        raise CannotExpress("a message for OpenHands requires a text or an image", path="/content")
    return blocks, losses


def _message_losses(event: MessagePosted) -> tuple[Loss, ...]:
    losses = dropped(
        ("author/id", event.author.id),
        ("author/name", event.author.name),
        ("message_id", event.message_id),
        ("burst", event.burst),
        ("extra_args", event.extra_args),
        ("created_at", event.created_at),
        note=NO_EQUIVALENT,
    )
    if event.author.role != "user":
        losses += (Loss(how="narrowed", path="/author/role", note="sent as a user's message"),)
    if not event.complete:
        losses += (Loss(how="narrowed", path="/complete", note=NO_EQUIVALENT),)
    return losses


@frozen
class _Identity:
    native_id: str | None
    sequence: int | None
    time: str | None
    correlation: str | None
    live: bool

    @classmethod
    def of(cls, item: Draft | Envelope) -> "_Identity":
        if isinstance(item, Draft):
            return cls(item.native_id, item.native_sequence, item.native_time, item.correlation, item.live)
        origin = item.origin
        if origin is None:
            return cls(None, None, None, None, live=False)
        return cls(origin.native_id, origin.native_sequence, origin.native_time, origin.correlation, live=False)

    def stamp(self, kind: str, source: str, body: dict[str, Any], own: str | None = None) -> dict[str, Any]:
        identity = {"id": own or self.native_id or _NO_ID, "timestamp": self.time or _EPOCH, "source": source}
        return {**identity, **body, "kind": kind}

    def place(self, event: Any) -> Frame:
        """Return an event in the envelope of the session socket if its sequence is known, else bare."""
        if self.sequence is None or self.live:
            return Frame(wire.EVENTS, event)
        return Frame(wire.SESSION, {"type": wire.DURABLE, "seq": self.sequence, "event": event})


def place_opaque(item: Draft | Envelope, event: Any) -> Frame:
    """Return the frame of an event that is kept as it is."""
    return _Identity.of(item).place(event)


def write_server_frame(item: Draft | Envelope) -> Frame:
    """Encode an event of the server as a frame of a socket.

    Raises:
        CannotExpress: OpenHands has no equivalent.
    """
    identity, event = _Identity.of(item), item.event
    match event:
        case MessageStreamed(message_id=str(item_id)):
            return Frame(wire.SESSION, _delta(item_id, event.text))
        case MessageStreamed(text=text):
            return Frame(wire.EVENTS, identity.stamp(wire.STREAMING_DELTA, "agent", {"content": text}))
        case ThoughtShared(text=text) if identity.live:
            return Frame(wire.EVENTS, identity.stamp(wire.STREAMING_DELTA, "agent", {"reasoning_content": text}))
        case _:
            return identity.place(_event(identity, event))


def _delta(message_id: str, text: str) -> dict[str, Any]:
    item, separator, number = message_id.rpartition("#")
    again = bool(separator and item and number.isascii() and number.isdigit() and len(number) < 10 and int(number) > 1)
    return {
        "type": wire.DELTA,
        "item_id": item if again else message_id,
        "attempt": int(number) if again else 1,
        "order": 0,
        "kind": "text",
        "content": text,
    }


def _event(identity: _Identity, event: Event) -> dict[str, Any]:
    match event:
        case MessagePosted():
            message = {"role": "assistant" if _is_agents(event) else "user", "content": write_blocks(event.content)}
            body = {"llm_message": message, "sender": event.author.name}
            kept = {name: value for name, value in body.items() if value is not None}
            return identity.stamp(wire.MESSAGE, _SOURCES[event.author.role], kept)
        case ThoughtShared(text=text):
            return identity.stamp(wire.ACTION, "agent", _action(identity, "think", {"thought": text}))
        case ToolRequested() if is_acp(event.tool):
            return identity.stamp(wire.ACP_TOOL_CALL, "agent", write_acp_request(event))
        case ToolRequested():
            return _requested(identity, event)
        case ToolFinished(tool=str(tool)) if is_acp(tool):
            return identity.stamp(wire.ACP_TOOL_CALL, "agent", write_acp_end(event))
        case ToolFinished():
            return _finished(identity, event)
        case SessionMoved():
            return _moved(identity, event)
        case FaultReported(code=code, message=message) if identity.native_id is None:
            return identity.stamp(wire.SERVER_ERROR, "environment", {"code": code or "", "detail": message})
        case FaultReported(code=code, message=message):
            return identity.stamp(wire.CONVERSATION_ERROR, "environment", {"code": code or "", "detail": message})
        case _:
            raise CannotExpress(f"OpenHands has no equivalent of {event.kind}")


def _action(identity: _Identity, tool: str, arguments: dict[str, Any], call: str | None = None) -> dict[str, Any]:
    check_json(arguments, "/arguments")
    kind, correlation = wire.action_kind(tool), identity.correlation or call or _NO_ID
    inner = {"data": arguments} if kind == wire.MCP_ACTION else arguments
    return {
        "thought": [],
        "thinking_blocks": [],
        "action": {**inner, "kind": kind},
        "tool_name": tool,
        "tool_call_id": correlation,
        "tool_call": {
            "id": correlation,
            "name": tool,
            "arguments": orjson.dumps(arguments).decode(),
            "origin": "completion",
        },
        "security_risk": wire.UNKNOWN_RISK,
    }


def _requested(identity: _Identity, event: ToolRequested) -> dict[str, Any]:
    body = _action(identity, event.tool, event.arguments, event.native_call_id)
    if event.thought:
        body["thought"] = [wire.text_block(event.thought)]
    if event.preview:
        body["summary"] = event.preview
    return identity.stamp(wire.ACTION, "agent", body, event.native_call_id)


def _finished(identity: _Identity, event: ToolFinished) -> dict[str, Any]:
    tool, action = event.tool or "unknown", event.native_call_id
    correlation = identity.correlation or action or _NO_ID
    common: dict[str, Any] = {"tool_name": tool, "tool_call_id": correlation}
    match event.outcome:
        case "canceled":
            rejection = {**common, "action_id": action, "rejection_reason": event.error or ""}
            return identity.stamp(wire.REJECTION, "environment", {**rejection, "rejection_source": "user"})
        case "failure" | "expired" if not action:
            return identity.stamp(wire.AGENT_ERROR, "agent", {**common, "error": event.error or FAILED})
        case _:
            pass
    check_json(event.result, "/result")
    failed = event.outcome != "success"
    result: Any = event.result
    rest: dict[str, Any] = {**result} if isinstance(result, dict) else {}
    content: Any = rest.pop("content", None)
    if not isinstance(content, list):
        if failed:
            text = event.error or FAILED
        elif isinstance(content, str):
            text = content
        else:
            text = result if isinstance(result, str) else orjson.dumps(result).decode()
        content = [wire.text_block(text)]
    observation: dict[str, Any] = {
        **rest,
        "content": content,
        "is_error": failed,
        "kind": wire.observation_kind(tool),
    }
    body: dict[str, Any] = {**common, "observation": observation, "action_id": action, "extended_content": []}
    return identity.stamp(wire.OBSERVATION, "environment", body)


def _moved(identity: _Identity, event: SessionMoved) -> dict[str, Any]:
    word = event.native_state or ""
    if word in wire.PAUSE_REASONS and event.state == "paused" and not identity.live:
        return identity.stamp(word, "user", {})
    if not word or (wire.state_of(word) or "running") != event.state:
        word = wire.word_for(event.state)
    key: str = wire.FULL_STATE if identity.live else wire.EXECUTION_STATUS
    value: Any = {"execution_status": word} if identity.live else word
    return identity.stamp(wire.STATE_UPDATE, "environment", {"key": key, "value": value})
